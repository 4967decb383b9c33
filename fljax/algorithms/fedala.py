"""FedALA: each client learns, weight by weight, how much of the received model it takes into its own.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI
2023, https://arxiv.org/abs/2212.01197. Official code: https://github.com/TsingZ0/FedALA.
A client starts local training from the received lower layers and, in the upper layers, from a mixture of its own and
the received weights, fitted to its data.

Differences from the paper: none known. In PFLlib and the official code, absent clients also hold and fit the mixture of
every round. As in the official code, the first fit of the mixture runs until its loss settles, later ones for one epoch
per round; here the first fit has at most ``max_epochs``. A client is tested with the mixture that it would start from.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.choices import Positive
from fljax.client.finetune import client_keys
from fljax.client.map import map_clients
from fljax.client.minibatches import batch_rows, n_batches, shuffled
from fljax.client.objectives import training_loss
from fljax.data.federation import minibatch
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import GLOBAL_AND_OWN, Combining, Weighting, averaging, last_layers, mean, method, train
from fljax.rounds.uplink.private import check_not_private
from fljax.types import Algorithm, ClientData, Cohort, Examples, Key, Model, ModelTable, Params, State, Trained, Work

WINDOW = 10
"""Epochs whose losses must agree before the first fit of the mixture ends."""


@hyper
class FedALAHyper(LocalHyper):
    eta: Scalar = number(1.0, "learning rate of the mixture's weights; 0 is FedAvg", least=0)
    share: Scalar = number(0.8, "share of a client's examples used to fit the mixture", above=0, most=1)
    spread: Scalar = number(
        0.1, "the first fit ends when the last 10 epochs' losses have a standard deviation below this", least=0
    )


@method(FedALAHyper, "Zhang et al., AAAI 2023", "https://arxiv.org/abs/2212.01197", kind="personalised")
def fedala(
    model: Model,
    work: Work,
    *,
    n_mixed: Positive = 1,
    max_epochs: Positive = 100,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """FedALA: ``start_i = w_i + (theta - w_i) * W_i``; ``W_i <- clip(W_i - eta g_i(start_i) * (theta - w_i), 0, 1)``.

    That is in the last ``n_mixed`` layers; the others start from theta. Then ``w_i = LocalTrain(start_i)`` is averaged.

    Args:
        n_mixed: number of last layers that are mixed.
        max_epochs: most epochs of the first fit.
    """
    check_not_private(work, "clients of FedALA fit their initial models to their examples, without noise")
    layers = last_layers(model, n_mixed, "n_mixed")
    fit = partial(mixture_fit, model, work, max_epochs)

    def begin(key: Key) -> dict[str, Any]:
        # A client keeps its trained upper layers, the mixture weights, and whether they were ever fitted.
        theta = model.init(key)
        upper = tree.select(theta, layers)
        own = {"upper": upper, "mix": jax.tree.map(jnp.ones_like, upper), "fitted": jnp.bool_(False)}
        return {"global": theta, "own": own}

    def local(hyper: FedALAHyper, start: ModelTable, cohort: Cohort) -> Trained:
        initial, mix, fitted = fit(hyper, cohort.key, start, cohort.data)
        trained = train(hyper, initial, cohort, training_loss(model), work)
        own = {"upper": tree.select(trained.params, layers), "mix": mix, "fitted": fitted}
        own = tree.where(trained.ok, own, start.params["own"])  # a diverged client keeps its old values
        return trained._replace(params={"global": trained.params, "own": own})

    rounds = averaging(model, local, sharing=GLOBAL_AND_OWN, combine=combine, weighting=weighting, begin=begin)

    def deploy(key: Key, hyper: FedALAHyper, state: State, data: ClientData) -> ModelTable:
        held = rounds.deploy(key, hyper, state, data)
        return tree.own(fit(hyper, client_keys(key, data), held, data)[0])

    return rounds._replace(deploy=deploy)


def mixture_fit(
    model: Model, work: Work, max_epochs: int, hyper: FedALAHyper, key: Array, held: ModelTable, data: ClientData
) -> tuple[Params, Params, Array]:
    """Each client's initial model, its weights W_i, and whether they were ever fitted.

    ``key`` and ``held`` have one row per client.
    """
    loss = training_loss(model)

    def one(pool: Examples, index: Array, size: Array, key: Key, held: Params) -> tuple[Params, Params, Array]:
        theta, (upper, is_first) = held["global"], (held["own"]["upper"], ~held["own"]["fitted"])
        difference = tree.subtract(tree.select(theta, tuple(upper)), upper)
        is_different, n_epochs = (tree.squared_norm(difference) > 0) & (size > 0), jnp.where(is_first, max_epochs, 1)
        n_fitted = jnp.maximum((hyper.share * size.astype(jnp.float32)).astype(jnp.int32), jnp.minimum(size, 1))
        order, count = shuffled(key, index, size), n_batches(n_fitted, work.batch_size)

        def mixed(mix: Params) -> Params:
            return theta | jax.tree.map(lambda w, d, m: w + d * m, upper, difference, mix)

        def step(n_done: Array, i: Array, carry: tuple[Params, Array]) -> tuple[Params, Array]:
            batch = minibatch(pool, *batch_rows(order, n_fitted, i, work.batch_size))
            key_step = jax.random.fold_in(key, n_done * count + i)
            value, gradient = jax.value_and_grad(lambda mix: loss(mixed(mix), batch, key_step)[0])(carry[0])
            mix = jax.tree.map(lambda m, g: jnp.clip(m - hyper.eta * g, 0, 1), carry[0], gradient)
            return tree.as_before(mix, carry[0]), value.astype(jnp.float32)

        def epoch(carry: tuple[Params, Array, Array]) -> tuple[Params, Array, Array]:
            mix, losses, n_done = carry
            mix, loss = lax.fori_loop(0, count, partial(step, n_done), (mix, losses[0]))
            return mix, jnp.roll(losses, 1).at[0].set(loss), n_done + 1

        def goes_on(carry: tuple[Params, Array, Array]) -> Array:
            _, losses, n_done = carry
            is_settled = (n_done > WINDOW) & (losses.std() < hyper.spread)
            return is_different & (n_done < n_epochs) & ~is_settled

        carry = (held["own"]["mix"], jnp.zeros(WINDOW, jnp.float32), jnp.int32(0))
        mix = lax.while_loop(goes_on, epoch, carry)[0]
        mix = tree.where(tree.is_finite(mix), mix, held["own"]["mix"])
        return mixed(mix), mix, ~is_first | is_different

    return map_clients(one, data, key, held, at_once=work.at_once)
