"""LayerCFL: heat maps of how alike ten clients in two groups are, by layer and measure.

python experiments/layercfl_heat.py [--scale smoke|paper]

Lines and figures are in results/layercfl/.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from layercfl_methods import KINDS, LETTERS, letters, network, numbers, place_of, rule_layers, settings, work
from lines import keep_numbers
from reporting import Scale, main
from table_figures import maps
from tables import Row, show

import fljax
from fljax import tree
from fljax.algorithms.layercfl.similarity import MEASURES, similarity
from fljax.client import local_optimizer, train_clients, training_loss
from fljax.rounds.cohort import sample_cohort
from fljax.server import separation_gap, weighted_mean
from fljax.types import Federation, Model, Params, Stacked, Work


def heat(scale: Scale) -> None:
    """How alike ten clients in two groups are after some rounds, by measure and for a convolution and a dense layer."""
    data, planned = letters(scale), scale.pick(10, 30)
    n_rounds = scale.rounds or planned
    model, by_kind = network(scale, data), settings(scale, data, scale.pick(300, 1000), 10, 2)
    for kind in scale.chosen(KINDS):
        federation = by_kind[kind][0]
        group, rows, panels, kept = np.asarray(federation.group), [], [], {}
        is_same_group, is_other_client = np.equal.outer(group, group), ~np.eye(len(group), dtype=bool)
        trained, updates = last_round(scale, model, federation, kind, n_rounds)
        for layer in dict.fromkeys(rule_layers(model, any_kind)[0] for any_kind in KINDS):
            for measure in MEASURES:
                alpha = np.asarray(similarity(measure, trained, updates, (layer,)))
                gap = float(separation_gap(jnp.asarray(alpha), jnp.asarray(group)))
                compared_layers = "all layers" if measure.endswith("full") else layer
                panels.append((f"{measure}\n{compared_layers}, gap {gap:.2f}", alpha))
                row: Row = {"setting": kind, "layer": layer, "measure": measure}
                row |= {"mean within": round(float(alpha[is_same_group & is_other_client].mean()), 4)}
                row |= {"mean across": round(float(alpha[~is_same_group].mean()), 4)}
                rows.append(row | {"gap": round(gap, 4)})
                cell = (f"{layer}, {measure}", kind, 0)
                kept |= {(*cell, name.replace(" ", "_")): row[name] for name in ("mean within", "mean across")}
                kept[*cell, "gap"] = gap
        name = f"heat-{kind.replace(' ', '-')}"
        keep_numbers(scale, place_of(name, data), kept, (n_rounds, planned), clients=len(group), groups=2)
        figure = maps(panels, ["similarity"] * len(panels), n_columns=len(MEASURES))
        title = f"LayerCFL: similarity of clients by layer and measure, {kind}"
        about = (
            f"{LETTERS[data]}, {len(group)} clients in 2 groups, round {n_rounds}, seed 0; each map has its own scale"
        )
        show(scale, name, title, rows, figure, place_of(name, data), about)


def last_round(scale: Scale, model: Model, federation: Federation, kind: str, n_rounds: int) -> tuple[Stacked, Stacked]:
    """The clients' models in the last of so many rounds of FedAvg, and what their training added."""
    key_init, key = jax.random.split(jax.random.key(0))
    hyper = fljax.layercfl.Hyper(**numbers(scale, kind))  # of which local training reads its own
    params, trained, updates = model.init(key_init), None, None
    for round in range(n_rounds):
        params, trained, updates = one_round(model, work(scale), hyper, federation, params, key, jnp.int32(round))
    return trained, updates


@partial(jax.jit, static_argnums=(0, 1))
def one_round(
    model: Model, local_work: Work, hyper: Any, federation: Federation, params: Params, key: Array, round: Array
) -> tuple[Params, Stacked, Stacked]:
    """FedAvg's: the mean model, the clients' models and their updates."""
    n_clients = federation.train.n_clients
    cohort = sample_cohort(key, round, federation, n_clients, None)
    start = tree.everyone(params, n_clients)
    optimizer = local_optimizer(hyper, local_work, round)
    trained = train_clients(cohort.key, start, cohort.data, training_loss(model), optimizer, local_work).params
    return weighted_mean(trained, cohort.data.size), trained, tree.subtract(trained, tree.broadcast(params, n_clients))


if __name__ == "__main__":
    main(__doc__ or "", {"heat": heat}, only=lambda _: KINDS)
