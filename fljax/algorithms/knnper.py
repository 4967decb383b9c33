"""kNN-Per: the model of FedAvg, combined with nearest neighbours among each client's own examples.

Marfoq, Neglia, Kameni, Vidal: Personalized Federated Learning through Local Memorization, ICML 2022,
https://arxiv.org/abs/2111.09360. Official code: https://github.com/omarfoq/knn-per.
In a test, a client mixes the model's prediction with the labels of its nearest training examples in feature space.

Differences from the paper: lambda is the same for all clients, not chosen by each client on validation data. The memory
is a client's whole training set. The code squares the distance and divides it by the number of features, and its script
mixes logits with the labels of the neighbours.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.choices import Positive
from fljax.client.features import client_features, see
from fljax.data.federation import present
from fljax.data.labels import check_classes
from fljax.models.calling import check_free
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, averaging, mean, method
from fljax.types import Algorithm, ClientData, Key, Model, ModelTable, Params, State, Work

MEMORY = "memory"
"""Name of a client's memory, beside the layers of a tested model."""


@hyper
class KNNPerHyper(LocalHyper):
    lam: Scalar = number(0.5, "lambda: weight of the neighbours' labels; 0 is FedAvg", least=0, most=1)
    scale: Scalar = number(1.0, "distance at which a neighbour's weight falls to 1/e", above=0)


@method(KNNPerHyper, "Marfoq et al., ICML 2022", "https://arxiv.org/abs/2111.09360", kind="personalised")
def knnper(
    model: Model, work: Work, *, n_neighbours: Positive = 10, weighting: Weighting = "size", combine: Combining = mean
) -> Algorithm:
    """kNN-Per: FedAvg; tests use ``lambda p_knn + (1 - lambda) softmax(w(x))``, ``p_knn ~ sum_k e^(-|h - h_k|/s) y_k``.

    Args:
        model: the network, whose last layer is dense.
        n_neighbours: k; a client with fewer examples uses all of them.
    """
    check_free(model, "knnper", MEMORY)
    rounds = averaging(model, work, weighting=weighting, combine=combine)

    def deploy(key: Key, hyper: KNNPerHyper, state: State, data: ClientData) -> ModelTable:
        check_classes(data.pool.y)
        held = rounds.deploy(key, hyper, state, data)
        each = lambda value: jnp.full(data.size.shape, value, jnp.float32)  # noqa: E731
        memory = {"h": client_features(model, held, data), "y": data.pool.y[data.index], "real": present(data)}
        entries = memory | {"lam": each(hyper.lam), "scale": each(hyper.scale)}
        return tree.own(held.params | {MEMORY: entries})

    def predict(params: Params, x: Array) -> Array:
        seen, memory = see(model, params, x, None), params[MEMORY]
        lengths = jnp.square(seen.features).sum(1)[:, None] + jnp.square(memory["h"]).sum(1)[None]
        squared = jnp.maximum(lengths - 2 * tree.product(seen.features, memory["h"].T), 0.0)
        score = jnp.where(memory["real"][None], -jnp.sqrt(squared) / memory["scale"], -jnp.inf)
        scores, rows = lax.top_k(score, min(n_neighbours, score.shape[1]))
        nearest = jnp.where(jnp.isfinite(scores), scores, 0.0)[:, :1]
        weight = jnp.where(jnp.isfinite(scores), jnp.exp(scores - nearest), 0.0)
        votes = (weight[..., None] * jax.nn.one_hot(memory["y"][rows], seen.logits.shape[1], dtype=jnp.float32)).sum(1)
        lam = memory["lam"] * memory["real"].any().astype(jnp.float32)
        mixed = lam * votes / jnp.maximum(weight.sum(1, keepdims=True), 1e-30) + (1 - lam) * jax.nn.softmax(seen.logits)
        return jnp.log(jnp.maximum(mixed, 1e-30))

    return rounds._replace(deploy=deploy, predict=predict)
