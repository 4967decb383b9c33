"""Mime: clients step by an optimiser whose moments stay as the server's, and which see the global gradient.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh: Breaking the Centralized Barrier for Cross-Device Federated
Learning, NeurIPS 2021, https://arxiv.org/abs/2008.03606 (Mime: Mimicking Centralized Stochastic Algorithms). Code:
https://github.com/google/fedjax.
The optimiser is that of the clients' work: SGD with ``momentum``, Adam, or any other. Its moments s are the server's,
are sent to the participants, do not change while these train, and then are updated by the mean c of their full
gradients at the server's model. In Mime a client's step also replaces its batch's gradient at the server's model by c;
MimeLite (``variant="lite"``) does not, and without momentum it is FedAvg.

Differences from the paper: the optimisers are optax's, so that ``m <- g + beta m``; by the paper's
``m <- (1 - beta) g + beta m`` steps are ``1 - beta`` times as long. As in the code, c is of the round's own
participants, which costs one more communication, and means are weighted by size.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fljax import tree
from fljax.client.gradient import client_gradients
from fljax.client.objectives import Loss, check_result, predictor, training_loss
from fljax.client.optimizer import local_optimizer
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, check_not_private, client_weight, interpolated, mean, method, train
from fljax.rounds.accounting import reported
from fljax.rounds.averaging import held_by_all
from fljax.rounds.combine import as_combine
from fljax.server.aggregate import weighted_mean
from fljax.types import Algorithm, Batch, ClientData, Cohort, Key, Metrics, Model, Params, State, Work


@hyper
class MimeHyper(LocalHyper):
    step: Scalar = number(1.0, "share of the way that the server moves to the clients' mean; 1: the mean", above=0)


class Mimed(NamedTuple):
    """What the server keeps."""

    shared: Params  # theta
    moments: Any  # s, the state of the optimiser
    memory: Any  # state of `combine`


# Clients also send their gradients, which uplink bricks would not change.
@method(MimeHyper, "Karimireddy et al., NeurIPS 2021", "https://arxiv.org/abs/2008.03606", sends=False)
def mime(
    model: Model,
    work: Work,
    *,
    variant: Literal["mime", "lite"] = "mime",
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """Mime: ``w_i <- w_i - eta U(g_i(w_i) - g_i(theta) + c, s)``, from theta; then ``s <- V(c, s)``.

    ``g_i`` is the gradient on a batch, ``c = mean grad F_i(theta)``, and the optimiser with moments s makes the step U
    and the moments V. The server moves by ``step`` towards the mean of the w_i. The reported loss of "mime" includes
    ``<c - g_i(theta), w>``.

    Args:
        variant: "mime": as above; "lite": MimeLite, whose clients step by ``U(g_i(w_i), s)``.
        weighting: of the mean of the w_i and of c: "size" (omega_i = n_i) or "uniform".
    """
    check_not_private(work, "clients of Mime also send their whole gradients, without noise")
    combining, loss = as_combine(interpolated(combine)), training_loss(model)

    def init(key: Key, hyper: MimeHyper, data: ClientData) -> State:
        theta = model.init(key)
        moments = local_optimizer(hyper, work, jnp.int32(0)).init(tree.trainable(theta))
        return State(Mimed(theta, moments, combining.init(hyper, theta)), ())

    def round(key: Key, hyper: MimeHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        theta, moments, memory = state.server
        start, optimizer = tree.everyone(theta, cohort.n_clients), local_optimizer(hyper, work, cohort.round)
        gradients = client_gradients(cohort.key, start, cohort.data, loss, work.batch_size)
        c = weighted_mean(gradients.params, client_weight(weighting, cohort, gradients.ok))
        plain = hyper.replace(momentum=None, weight_decay=None)
        fixed = work._replace(optimizer=fixed_at(optimizer, moments))
        if variant == "lite":
            trained = train(plain, start, cohort, loss, fixed)
        else:
            trained = train(plain, start, cohort, centred(loss), fixed, start, tree.everyone(c, cohort.n_clients))
        weight = client_weight(weighting, cohort, trained.ok & gradients.ok)
        shared, memory = combining.apply(hyper, memory, theta, trained.params, weight)
        with jax.numpy_dtype_promotion("standard"):  # optax raises float betas to an int count
            updated = tree.as_before(optimizer.update(c, moments, tree.trainable(theta))[1], moments)
        moments = tree.where((weight > 0).any(), updated, moments)  # a round of nobody has no gradient
        n, n_moments = tree.size(theta), _n_floats(moments)
        received = n + n_moments + (n if variant == "mime" else 0)
        metrics = reported(trained._replace(ok=trained.ok & gradients.ok), 2 * n, received)
        return State(Mimed(shared, moments, memory), ()), metrics

    return Algorithm(init, round, held_by_all, predictor(model), loss=model.loss)


def fixed_at(optimizer: optax.GradientTransformation, moments: Any) -> Any:
    """A `Work.optimizer` whose steps are those of ``optimizer`` with the same ``moments`` before each."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return optimizer.update(updates, moments, params)[0], state

    return lambda lr: optax.GradientTransformation(lambda params: (), update)


def centred(loss: Loss) -> Loss:
    """``loss(w) + <c - g(theta), w>``, with g(theta) the gradient of ``loss`` on the same batch at theta.

    The client's own rows are theta and c.
    """

    def with_shift(params: Params, batch: Batch, key: Key, theta: Params, c: Params, *own: Any) -> tuple[Any, Params]:
        value, updated = check_result(loss(params, batch, key, *own))
        trainable, statistics = tree.split_statistics(theta)

        def at_start(trainable: Params) -> Any:
            return loss(tree.join_statistics(trainable, statistics), batch, key, *own)[0]

        shift = tree.subtract(c, jax.grad(at_start)(trainable))
        return value + tree.dot(shift, params), updated

    return with_shift


def _n_floats(moments: Any) -> int:
    """The number of floats in an optimiser's state, without its counts of steps."""
    return sum(leaf.size for leaf in jax.tree.leaves(moments) if jnp.issubdtype(leaf.dtype, jnp.floating))
