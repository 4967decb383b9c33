"""FedMA: hidden units are matched across clients before they are averaged.

Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni: Federated Learning with Matched Averaging, ICLR 2020,
https://arxiv.org/abs/2002.06440. Official code: https://github.com/IBM/FedMA.
Clients train their own networks; the server permutes their hidden units into a common order, layer by layer, and
averages matched units.

Differences from the paper: the global network keeps the clients' widths, so units are matched one to one by the
Hungarian method on squared distances, whereas the paper's Bayesian nonparametric score may open new units (with a gamma
near 0 and a flat prior it opens none, and orders units by the same distances). As in the official code, one client
after another is matched to the mean of the others, in sweeps. All layers are matched at once unless ``retrain_epochs``
is given; in both cases each layer goes up and down once per round.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.choices import Natural, Positive
from fljax.client.objectives import training_loss
from fljax.data.federation import class_histogram
from fljax.numbers import LocalHyper
from fljax.rounds import Combining, Weighting, averaging, check_not_private, mean, method, train
from fljax.rounds.averaging import server_state, shared_and_memory, shared_part
from fljax.rounds.cohort import keys_for
from fljax.rounds.sharing import replace_layers
from fljax.rounds.wrapping import halves_of, with_halves
from fljax.server.aggregate import weighted_mean
from fljax.server.matching import matched_members
from fljax.types import (
    Algorithm,
    Cohort,
    Key,
    Metrics,
    Model,
    ModelTable,
    Params,
    Stacked,
    State,
    Trained,
    Upload,
    Work,
)

OWN_START = 0x0123
"""Folded into a client's key for its initial network in the first round."""

RETRAIN = 0x3A70
"""Folded into a client's key, with the layer's index, for the batches after a layer has been matched."""


@method(LocalHyper, "Wang et al., ICLR 2020", "https://arxiv.org/abs/2002.06440")
def fedma(
    model: Model,
    work: Work,
    *,
    start: Literal["own", "common"] = "own",
    retrain_epochs: Natural = 0,
    output: Literal["classes", "clients"] = "classes",
    n_sweeps: Positive = 3,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """FedMA: ``w_i = LocalTrain(theta)``; layer by layer ``theta_l <- mean_i P_il w_il P_i(l-1)^T``, P_i by matching.

    Args:
        model: a chain of dense and convolutional layers, see `fljax.server.matching`.
        start: in the first round clients train networks from their "own" random initialisation, as in the paper, or
            from the server's "common" one, which leaves almost nothing to match.
        retrain_epochs: as in the paper, after each matched layer, clients replace the layer by the mean, freeze it, and
            train the layers above for this many epochs; 0: all layers are matched at once.
        output: weights of the last layer's mean. "classes": the column of a class is weighted by the clients' examples
            of the class, as in the paper (if no participant has any, as with "clients"); "clients": as other layers.
        n_sweeps: sweeps over the clients in which units are matched.
        combine: how the server combines the matched models; their last layers only if ``output="clients"``.

    Raises:
        ValueError: the model is not a chain of layers.
    """
    if retrain_epochs:
        check_not_private(work, "with retrain_epochs clients train after each layer, and epsilon counts one training")
    if output == "classes":
        check_not_private(work, "with output='classes' the last layer is weighted by label counts, which get no noise")
    loss = training_loss(model)

    def local(hyper: LocalHyper, theta: ModelTable, cohort: Cohort) -> Trained:
        initial = theta
        if start == "own":
            networks = jax.vmap(lambda key: model.init(jax.random.fold_in(key, OWN_START)))
            initial = lax.cond(cohort.round == 0, lambda: networks(cohort.key), lambda: tree.stacked(theta))
        return train(hyper, initial, cohort, loss, work)

    def matched(trained: Trained, weight: Array, theta: Params, cohort: Cohort) -> Trained:
        """The models ``P_il w_il P_i(l-1)^T``, whose units have the same order in all of them."""
        # The order is that of the client with the lowest id, whatever its position in the cohort.
        by_id = jnp.argsort(cohort.ids)
        models, weight = tree.take((trained.params, weight), by_id)
        label, empty = jnp.zeros(cohort.ids.shape, jnp.int32), tree.broadcast(theta, 1)
        models = matched_members(models, weight, label, empty, model.layers, n_sweeps)
        return trained._replace(params=tree.take(models, jnp.argsort(by_id)))

    def retrained(
        hyper: LocalHyper, trained: Trained, weight: Array, n_done: int, theta: Params, cohort: Cohort
    ) -> Trained:
        """Each client takes over the mean of the last matched layer, freezes the layers up to it, trains the others."""
        layer, frozen = model.layers[n_done - 1], model.layers[:n_done]
        mean_model = weighted_mean(trained.params, weight, empty=theta)
        models = replace_layers(trained.params, (layer,), tree.broadcast(mean_model, cohort.n_clients))
        phase = work.for_epochs(retrain_epochs)
        new = train(hyper, models, cohort._replace(key=keys_for(cohort, RETRAIN + n_done)), loss, phase, frozen=frozen)
        return Trained(new.params, trained.loss, trained.ok & new.ok)

    def outputs_by_class(models: Stacked, weight: Array, theta: Params, cohort: Cohort) -> Params:
        """The last layer; the column of a class is the mean weighted by the clients' examples of the class."""
        head = model.layers[-1]
        n_classes = theta[head]["kernel"].shape[-1]
        share = class_histogram(cohort.data, n_classes) * (weight > 0)[:, None].astype(jnp.int32)
        return {head: class_mean(models[head], share.astype(jnp.float32), empty=theta[head])}

    rounds = averaging(model, local, combine=combine, weighting=weighting)
    halves = halves_of(rounds)

    def receive(key: Key, hyper: LocalHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        theta, weight, local_result = shared_part(state.server), upload.weight, upload.rest
        trained = matched(local_result._replace(params=upload.params), weight, theta, cohort)
        for n_done in range(1, len(model.layers)) if retrain_epochs else ():
            trained = retrained(hyper, trained, weight, n_done, theta, cohort)
            weight = jnp.where(trained.ok, weight, 0)
            trained = matched(trained, weight, theta, cohort)
        matched_upload = Upload(upload.start, trained.params, weight, trained._replace(params=local_result.params))
        new_state, metrics = halves.receive(key, hyper, state, cohort, matched_upload)
        if output == "classes":
            theta, memory = shared_and_memory(new_state.server)
            theta |= outputs_by_class(trained.params, weight, theta, cohort)
            new_state = new_state._replace(server=server_state(theta, memory))
        return new_state, metrics

    rounds = with_halves(rounds, receive=receive, sees="each", starts_anywhere=False)
    return rounds._replace(exchange=None) if retrain_epochs else rounds  # clients send layer after layer


def class_mean(layer: Stacked, share: Array, empty: Params) -> Params:
    """The mean of an output layer, where the column of class c is weighted by ``share[:, c]``.

    Args:
        layer: leaves (clients, ..., classes).
        share: (clients, classes) >= 0; rows of zeros have no effect.
        empty: one layer, used for classes without any share.
    """
    return jax.vmap(weighted_mean, in_axes=(-1, 1, -1), out_axes=-1)(layer, share, empty)
