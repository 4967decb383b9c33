"""FedADMM: a dual variable per client, and a server that adds up the changes of the clients' augmented models.

Gong, Li, Freris: FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System Heterogeneity, ICDE
2022, https://arxiv.org/abs/2204.03529. Official code: https://github.com/YonghaiGong/FedADMM.
Client i minimises its augmented Lagrangian, in which ``y_i`` is the dual variable of ``w_i = theta``, and sends the
change of ``w_i + y_i / rho``, whose mean over all clients is theta. With everyone in each round and
``start="global"`` it is FedDyn, with ``y_i = -g_i`` and rho = alpha; with fewer, FedDyn averages the participants' new
models, FedADMM changes.

Differences from the paper: local problems are solved approximately, by ``work``; for clients that do less of it, see
`fljax.rounds.stragglers`. The official code starts clients at theta and takes theta for the last ``w_i``, so that it
sends ``2 (w_i' - theta)``; its step is 1, later 0.5. A client without examples changes nothing.
"""

from operator import itemgetter
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fljax import tree
from fljax.client.objectives import proximal, shifted, training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Sharing, Weighting, averaging, interpolated, mean, method, train
from fljax.rounds.accounting import total_weight
from fljax.rounds.wrapping import halves_of, with_halves
from fljax.types import (
    Algorithm,
    ClientData,
    Cohort,
    Key,
    Metrics,
    Model,
    ModelTable,
    State,
    Trained,
    Upload,
    Work,
)


@hyper
class FedADMMHyper(LocalHyper):
    rho: Scalar = number(0.01, "weight of the proximal term, and of the dual variables' steps", above=0)
    step: Scalar | None = number(
        None,
        "eta: factor of the participants' mean change; None: their share of all clients, the only one with which theta "
        "can be optimal, because it is then the mean of all w_i + y_i / rho",
        above=0,
    )


THETA_AND_DUAL = Sharing(
    split=lambda held: (held["theta"], {name: held[name] for name in ("w", "y", "share")}),
    join=lambda theta, own: {"theta": theta} | own,
)
"""A client receives theta, and keeps its last model w_i, its dual variable y_i and its share of all clients' weight."""


@method(FedADMMHyper, "Gong et al., ICDE 2022", "https://arxiv.org/abs/2204.03529")
def fedadmm(
    model: Model,
    work: Work,
    *,
    start: Literal["own", "global"] = "own",
    weighting: Weighting = "uniform",
    combine: Combining = mean,
) -> Algorithm:
    """FedADMM: ``w_i' = argmin F_i(w) + <y_i, w> + rho/2 |w - theta|^2``; ``y_i' = y_i + rho (w_i' - theta)``.

    ``theta <- theta + eta mean_i(w_i' + y_i' / rho - w_i - y_i / rho)``. The reported loss includes all terms.

    Args:
        start: where a client's training starts, at its last model w_i ("own") or at theta ("global").
        combine: how the server combines the ``theta + change_i``.
    """
    lagrangian = shifted(training_loss(model))

    def local(hyper: FedADMMHyper, held: ModelTable, cohort: Cohort) -> Trained:
        theta, w, y = (held.part(name) for name in ("theta", "w", "y"))
        first = w if start == "own" else theta
        trained = train(hyper, first, cohort, proximal(lagrangian, hyper.rho), work, theta, y)
        # The change of y_i / rho is w_i' - theta.
        sent = tree.map_trainable(
            lambda new, old, t: t + (new - old) + (new - t), trained.params, w.params, theta.params
        )
        new_y = jax.tree.map(
            lambda y, new, t: y + hyper.rho * (new - t),
            y.params,
            *map(tree.trainable, (trained.params, theta.params)),
        )
        before = held.params | {"theta": tree.stacked(theta)}
        after = before | {"theta": sent, "w": trained.params, "y": tree.as_before(new_y, y.params)}
        return trained._replace(params=tree.where(trained.ok & (cohort.data.size > 0), after, before))

    def begin(key: Key) -> dict[str, Any]:
        theta = model.init(key)
        zero = jax.tree.map(jnp.zeros_like, tree.trainable(theta))
        return {"theta": theta, "w": theta, "y": zero, "share": jnp.float32(0)}

    rounds = averaging(
        model,
        local,
        sharing=THETA_AND_DUAL,
        combine=interpolated(combine),
        weighting=weighting,
        begin=begin,
        deployed=itemgetter("theta"),
    )
    exchange = halves_of(rounds)

    def init(key: Key, hyper: FedADMMHyper, data: ClientData) -> State:
        server, own = rounds.init(key, hyper, data)
        weight = data.size.astype("float32") if weighting == "size" else jnp.ones(data.n_clients, jnp.float32)
        return State(server, own | {"share": weight / total_weight(weighting, data)})

    def receive(key: Key, hyper: FedADMMHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        share = jnp.where(upload.weight > 0, upload.rest.params["share"], 0.0).sum()
        hyper = hyper.replace(step=share) if hyper.step is None else hyper
        return exchange.receive(key, hyper, state, cohort, upload)

    return with_halves(rounds._replace(init=init), receive=receive)
