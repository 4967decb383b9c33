"""FedDBE: each client keeps the mean of its features, and the shared body learns the rest.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan: Eliminating Domain Bias for Federated Learning in Representation Space,
NeurIPS 2023, https://arxiv.org/abs/2311.14975. Official code: https://github.com/TsingZ0/DBE.
Each client adds its own trainable vector to its features. A penalty holds the running mean of the features near a
consensus, which is computed once, before the first round.

Differences from the paper: for the consensus, every client trains for one round before the first; the consensus is the
mean of the trained models' features over all examples, not their running mean. It is counted neither as a
round nor as traffic. With kappa = 0, the default, only the clients' own vectors remain.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fljax import tree
from fljax.client.features import head_shape, see
from fljax.client.given_gradients import without_gradient
from fljax.client.measure import client_sums
from fljax.client.objectives import Loss, batch_mean
from fljax.client.parts import train_parts
from fljax.models.calling import check_free
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Sharing, Weighting, averaging, mean, method, not_independent, on_layers
from fljax.rounds.averaging import server_state, shared_and_memory
from fljax.rounds.local import train_beforehand
from fljax.types import Algorithm, Batch, ClientData, Cohort, Key, Model, ModelTable, Params, State, Trained, Work

BIAS = "own_mean"
"""Name of a client's own vector, beside the layers of a tested model."""


@hyper
class FedDBEHyper(LocalHyper):
    kappa: Scalar = number(
        0.0, "weight of the penalty to the consensus; PFLlib's default is 0, the paper's 1 to 50", least=0
    )
    rate: Scalar = number(0.1, "mu: weight of a batch in the running mean; the paper has 0.1 and 1", above=0, most=1)


SHARED_AND_OWN = Sharing(
    split=lambda held: (tree.without(held, BIAS), held[BIAS]), join=lambda shared, own: shared | {BIAS: own}
)
"""A client holds the server's model with the consensus beside its layers, and its own vector."""


@method(
    FedDBEHyper, "Zhang et al., NeurIPS 2023", "https://arxiv.org/abs/2311.14975", kind="personalised", trains=False
)
def feddbe(model: Model, work: Work, *, weighting: Weighting = "size", combine: Combining = mean) -> Algorithm:
    """FedDBE: ``(w_i, z_i) = argmin mean_x l(head(h(x) + z_i)) + kappa mean_d (r_i - z)^2 / 2``; ``w <- mean of w_i``.

    ``r_i <- (1 - mu) r_i + mu mean_batch h``, from 0 in each round; z, the consensus, is the mean of all clients'
    features.

    Args:
        model: the network, whose last layer is dense.
    """
    check_free(model, "feddbe", "consensus", BIAS)

    def begin(key: Key) -> dict[str, Any]:
        params = model.init(key)
        zeros = jnp.zeros(head_shape(model, params)[0], jnp.float32)
        return params | {"consensus": zeros, BIAS: zeros}

    def local(hyper: FedDBEHyper, start: ModelTable, cohort: Cohort) -> Trained:
        consensus = start.params["consensus"][0]
        zeros = jnp.zeros_like(start.params[BIAS])
        network = tree.without(start.params, "consensus", BIAS)
        parts = {"model": network, BIAS: start.params[BIAS], "running": zeros}
        loss = debiased(model, hyper, consensus)
        trained = train_parts(hyper, start._replace(params=parts), cohort, loss, work, "model", running=optax.sgd(1.0))
        held = trained.params["model"] | {BIAS: trained.params[BIAS]}
        return trained._replace(params=held | {"consensus": tree.broadcast(consensus, cohort.n_clients)})

    rounds = averaging(
        model,
        local,
        sharing=SHARED_AND_OWN,
        combine=on_layers(combine, model.layers),
        weighting=weighting,
        begin=begin,
        n_sent=lambda shared: tree.size(tree.without(shared, "consensus")),
        deployed=lambda held: tree.without(held, "consensus"),
    )

    def init(key: Key, hyper: FedDBEHyper, data: ClientData) -> State:
        server, own = rounds.init(key, hyper, data)
        shared, memory = shared_and_memory(server)
        network = tree.without(shared, "consensus")
        models = train_beforehand(jax.random.fold_in(key, 1), hyper, network, data, model, work).params
        sums = client_sums(lambda w, batch: see(model, w, batch.x, None).features, models, data)
        ok = jnp.isfinite(sums).all(1)
        size = jnp.where(ok, data.size, 0).astype(jnp.float32)
        consensus = jnp.where(ok[:, None], sums, 0.0).sum(0) / jnp.maximum(size.sum(), 1.0)
        return State(server_state(shared | {"consensus": consensus}, memory), own)

    def predict(params: Params, x: Array) -> Array:
        return see(model, params, x, None, lambda h: h + params[BIAS][None].astype(h.dtype)).logits

    # The consensus depends on all clients' features, so no update depends on a single client's data only.
    return not_independent(rounds._replace(init=init, predict=predict))


def debiased(model: Model, hyper: FedDBEHyper, consensus: Array) -> Loss:
    """The loss of a client's parts: the model, its own vector and the running mean of its features.

    Args:
        model: the network.
        hyper: kappa and the rate of the running mean.
        consensus: (features,) anchor of the penalty on the running mean.
    """

    def loss(held: Params, statistics: Params, batch: Batch, key: Key) -> tuple[Array, Params]:
        params = tree.join_statistics(held["model"], statistics)
        seen = see(model, params, batch.x, key, lambda h: h + held[BIAS][None].astype(h.dtype))
        current = jax.vmap(batch_mean, (1, None))(seen.features, batch.weight)
        previous = without_gradient(held["running"])
        running = (1 - hyper.rate) * previous + hyper.rate * current
        value = batch_mean(model.loss(seen.logits, batch.y), batch.weight)
        value = value + hyper.kappa * jnp.square(running - consensus).mean() / 2
        # A step of length 1 along this gradient sets the running mean to its present value.
        step_term = jnp.vdot(without_gradient(previous - running), held["running"] - previous)
        return value + step_term, seen.params

    return loss
