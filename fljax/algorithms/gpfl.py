"""GPFL: features are modulated twice, by the embeddings of all classes and by the client's own mixture of them.

Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan: GPFL: Simultaneously Learning Global and Personalized Feature Information
for Personalized Federated Learning, ICCV 2023, https://arxiv.org/abs/2308.10279.
Official code: https://github.com/TsingZ0/GPFL.
Clients share the body, trainable embeddings of all classes, and a conditional affine valve. With the mean embedding as
condition, the valve computes global features, which are held near their class embeddings; with the client's own mixture
of embeddings, it computes personal features, on which the client's own head predicts.

Differences: the distance to an embedding is averaged over examples. The code takes the norm over a whole batch, which
is about sqrt(B) times stronger for a batch of B: the weight 0.01 of its command is about 0.03 here with batches of 10;
the command has mu = 0.1. With ``condition="trained"``, an absent client keeps the embeddings that it trained last; in
the code, those that it received last.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fljax import tree
from fljax.client.features import dense_and_norm, head_shape, linear, normalised, see
from fljax.client.objectives import Loss, batch_mean
from fljax.data.federation import class_histogram
from fljax.models.calling import check_free
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, all_but, averaging, check_not_private, mean, method, train
from fljax.types import Algorithm, Batch, ClientData, Cohort, Key, Model, ModelTable, Params, State, Trained, Work

Condition = Literal["received", "trained"]

EMBEDDING, VALVE, TRAINED, SHARE = "embedding", "valve", "trained", "share"
"""Names beside the layers: the class embeddings, the conditional valve, the embeddings that the client trained last (if
they are the condition) and, in a test, the client's share of each class."""


@hyper
class GPFLHyper(LocalHyper):
    lam: Scalar = number(1.0, "lambda: weight of the distance of global features to embeddings", least=0)
    mu: Scalar = number(0.0, "weight of the squared length of embeddings and valve; PFLlib's default is 0", least=0)


@method(GPFLHyper, "Zhang et al., ICCV 2023", "https://arxiv.org/abs/2308.10279", kind="personalised")
def gpfl(
    model: Model,
    work: Work,
    *,
    condition: Condition = "received",
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """GPFL: ``F_i = l(own_i(valve(h, p_i)), y) - log softmax(cos(valve(h, g), G))_y + lambda |valve(h, g) - G_y|``.

    ``g = mean_c G_c`` and ``p_i = sum_c (n_ic / n_i) G_c`` of the embeddings G; ``valve(h, c) = ReLU((gamma(c) + 1) h +
    beta(c))``. Body, valve and embeddings are averaged, heads stay with the clients.

    Args:
        model: the network, whose last layer is dense.
        condition: g and p_i are computed from the embeddings that the server sends ("received", the paper's), or from
            those that the client trained last, initially zeros ("trained", the authors' code).
    """
    check_not_private(work, "clients of GPFL mix embeddings by their label counts, which get no noise")
    source, own_names = (TRAINED, (TRAINED,)) if condition == "trained" else (EMBEDDING, ())
    check_free(model, "gpfl", EMBEDDING, VALVE, SHARE, *own_names)

    def begin(key: Key) -> Params:
        key_model, key_embedding, *keys = jax.random.split(key, 4)
        params = model.init(key_model)
        d, n_classes = head_shape(model, params)
        valve = {name: dense_and_norm(key, d, d) for name, key in zip(("gamma", "beta"), keys, strict=True)}
        embedding = {"rows": jax.random.normal(key_embedding, (n_classes, d), jnp.float32)}
        untrained = {name: jax.tree.map(jnp.zeros_like, embedding) for name in own_names}
        return params | {EMBEDDING: embedding, VALVE: valve} | untrained

    def local(hyper: GPFLHyper, start: ModelTable, cohort: Cohort) -> Trained:
        received, rows = (start.part(name).part("rows") for name in (EMBEDDING, source))
        share = shares(cohort.data, received.params.shape[1])
        trained = train(hyper, start, cohort, two_ways(model, hyper), work, received, rows, share, frozen=own_names)
        # The embeddings that the client trained last; a diverged client keeps its old ones.
        last = {name: tree.where(trained.ok, trained.params[EMBEDDING], start.params[name]) for name in own_names}
        return trained._replace(params=trained.params | last)

    stay = (model.layers[-1], *own_names)
    rounds = averaging(model, local, sharing=all_but(stay), combine=combine, weighting=weighting, begin=begin)

    def deploy(key: Key, hyper: GPFLHyper, state: State, data: ClientData) -> ModelTable:
        held = rounds.deploy(key, hyper, state, data)
        share = shares(data, held.params[EMBEDDING]["rows"].shape[1])
        return held._replace(params=held.params | {SHARE: share})

    def predict(params: Params, x: Array) -> Array:
        own_mixture = params[SHARE] @ params[source]["rows"]
        return see(model, params, x, None, lambda h: through_valve(params[VALVE], h, own_mixture)).logits

    return rounds._replace(deploy=deploy, predict=predict)


def two_ways(model: Model, hyper: GPFLHyper) -> Loss:
    """GPFL's loss; a client's own rows are the received embeddings (classes, d), the embeddings for the conditions
    (classes, d), and its share of each class."""

    def loss(params: Params, batch: Batch, key: Key, received: Array, G: Array, share: Array) -> tuple[Array, Params]:
        seen = see(model, params, batch.x, key, lambda h: through_valve(params[VALVE], h, share @ G))
        common, rows = through_valve(params[VALVE], seen.features, G.mean(0)), params[EMBEDDING]["rows"]
        cosine = unit(common) @ unit(rows).T
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels(cosine, batch.y)
        distance = length(common - received[batch.y])[:, 0]
        value = batch_mean(model.loss(seen.logits, batch.y) + cross_entropy + hyper.lam * distance, batch.weight)
        extra = {name: params[name] for name in (EMBEDDING, VALVE)}
        return value + hyper.mu / 2 * tree.squared_norm(extra), seen.params

    return loss


def through_valve(valve: Params, h: Array, condition: Array) -> Array:
    """(batch, d) features after the valve, whose gamma and beta are computed from the condition (d,)."""
    gamma, beta = (
        normalised(part, jax.nn.relu(linear(part, condition[None])), axis=1) for part in (valve["gamma"], valve["beta"])
    )
    return jax.nn.relu((gamma + 1) * h.astype(jnp.float32) + beta)


def length(x: Array) -> Array:
    """(rows, 1) Euclidean lengths, differentiable at 0."""
    return jnp.sqrt(jnp.square(x).sum(1, keepdims=True) + 1e-12)


def unit(x: Array) -> Array:
    """Rows divided by their lengths."""
    return x / length(x)


def shares(data: ClientData, n_classes: int) -> Array:
    """(clients, classes) each class's share of a client's examples."""
    count = class_histogram(data, n_classes).astype(jnp.float32)
    return count / jnp.maximum(count.sum(1, keepdims=True), 1.0)
