"""FedTGP: the server trains a prototype of each class on the mean features of clients' classes, with a margin.

Zhang, Liu, Hua, Cao: FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for Data
and Model Heterogeneity in Federated Learning, AAAI 2024, https://arxiv.org/abs/2401.03230. Official code:
https://github.com/TsingZ0/FedTGP.
Clients are those of FedProto. The server does not average their mean features, which would bring the classes closer
together: each of them, with its class, is an example on which it trains a small network that makes the prototypes.

Differences from the paper: with ``margin="farthest"`` the margin is that of the paper's formula, the largest distance
of any two classes; the code takes the largest distance of a class to its nearest other class, ``margin="nearest"``.
As in the code, the server's loss is a mean over a batch, not a sum; the clients' penalty is FedProto's mean square; and
the margin is tau if fewer than two classes were sent. From the first round in which a client sends anything, all
classes have a prototype, also those that no client has sent, whose prototypes are pushed away from the means of the
others. Until then, clients predict with their last layer. The code's server has the clients' learning rate, and its
distances are roots of expanded squares, which rounding can make negative; here they are computed from differences.
The defaults are those of the authors' library HtFLlib. Their command for CIFAR-10 has lambda 10, with 512 features; the
pull on a feature is 2 lambda / d of its difference, so lambda must be smaller where there are fewer features.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from fljax import tree
from fljax.choices import Positive
from fljax.client.class_means import ClassSums
from fljax.client.features import dense, linear
from fljax.keys import uniforms
from fljax.models.calling import check_free
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import check_not_private, method
from fljax.rounds.cohort import keys_for
from fljax.rounds.prototypes import pass_over_means, with_prototypes
from fljax.server.distance import cross_squared_l2, pairwise_l2
from fljax.types import Algorithm, Cohort, Key, Model, Params, Work

Margin = Literal["farthest", "nearest"]
"""Which two classes' distance is the margin: the farthest two, or, of each class and its nearest, the farthest two."""

ORDER = 0x79
"""Folded into a client's key for the places of its mean features in the order of the server's steps."""


@hyper
class FedTGPHyper(LocalHyper):
    lam: Scalar = number(1.0, "lambda: weight of the mean square between features and prototypes", least=0)
    tau: Scalar = number(100.0, "tau: largest margin, a distance of features", least=0)
    server_lr: Scalar = number(
        0.01, "learning rate of the server's steps; 0 leaves the prototypes as they begin", least=0
    )


@method(
    FedTGPHyper, "Zhang et al., AAAI 2024", "https://arxiv.org/abs/2401.03230", kind="personalised", heterogeneous=True
)
def fedtgp(
    model: Model, work: Work, *, server_epochs: Positive = 100, server_batch: Positive = 10, margin: Margin = "farthest"
) -> Algorithm:
    """FedTGP: ``w_i = argmin F_i(w) + lambda mean_x |h(x) - P_{y(x)}|^2 / d``; the server's steps are along
    ``L = -log(exp(-|C_ic - P_c| - delta) / (exp(-|C_ic - P_c| - delta) + sum_{c' != c} exp(-|C_ic - P_c'|)))``.

    ``C_ic = mean_{x of class c} h_i(x)`` over client i's examples; h are the inputs of the last layer, of dimension d.
    ``P_c = G(e_c)``: e is a trained vector for each class, G a network with one hidden layer of d units and ReLU.
    ``delta = min(max_{c != c'} |Q_c - Q_c'|, tau)``, with ``Q_c`` the mean over the participants' ``C_ic``.
    Features follow the prototypes, and the margin follows the features: it grows from round to round, at most to tau.

    Args:
        model: the network, whose last layer is dense.
        server_epochs: the server's passes over the mean features of a round, in a new order each.
        server_batch: mean features of a step at the server; the code's are those of a client's batch.
        margin: which distance of classes delta is: of the "farthest" two (the formula above), or of the class whose
            "nearest" other class is farthest, ``max_c min_{c' != c} |Q_c - Q_c'|``.
    """
    check_free(model, "fedtgp", "prototypes")
    check_not_private(work, "clients of FedTGP send only means of their features, which get no noise")

    def first(key: Key, prototypes: Params) -> Params:
        return prototypes | {"generator": generator_of(jax.random.fold_in(key, 1), *prototypes["mean"].shape)}

    def renew(hyper: FedTGPHyper, server: Params, sums: ClassSums, cohort: Cohort, ok: Array) -> Params:
        is_sent = (sums.count > 0) & (cohort.active & ok)[:, None]
        delta = margin_of(sums.mean, is_sent, hyper.tau, margin)
        keys = keys_for(cohort, ORDER)

        def loss(generator: Params, features: Array, y: Array) -> Array:
            return contrastive_loss(generated(generator), features, y, delta)

        def epoch(i: Array, generator: Params) -> Params:
            place = uniforms(jax.vmap(lambda key: jax.random.fold_in(key, i))(keys), is_sent.shape[1])
            return pass_over_means(loss, hyper.server_lr, generator, sums.mean, is_sent, place, server_batch)

        generator = lax.fori_loop(0, server_epochs, epoch, server["generator"])
        known = jnp.maximum(server["known"], is_sent.any().astype(jnp.float32))
        return {"mean": generated(generator), "known": known, "generator": generator}

    return with_prototypes(model, work, renew, first)


def generator_of(key: Key, n_classes: int, d: int) -> Params:
    """The initial parameters of what makes the prototypes, as PyTorch's layers begin."""
    keys = jax.random.split(key, 3)
    embedding = jax.random.normal(keys[0], (n_classes, d), jnp.float32)
    return {"embedding": embedding, "hidden": dense(keys[1], d, d), "last": dense(keys[2], d, d)}


def generated(generator: Params) -> Array:
    """(classes, d) the prototypes."""
    return linear(generator["last"], jax.nn.relu(linear(generator["hidden"], generator["embedding"])))


def margin_of(means: Array, is_sent: Array, tau: Array | float, margin: Margin) -> Array:
    """() delta, of the mean features (clients, classes, d) of which ``is_sent`` (clients, classes)."""
    n_sent = is_sent.sum(0, dtype=jnp.float32)
    mean = jnp.where(is_sent[..., None], means, 0).sum(0) / jnp.maximum(n_sent, 1)[:, None]
    has = n_sent > 0
    is_pair = has[:, None] & has[None] & ~jnp.eye(has.shape[0], dtype=bool)
    distance = pairwise_l2(mean, has)
    if margin == "nearest":
        nearest = jnp.where(is_pair, distance, jnp.inf).min(1)
        largest = jnp.where(has, nearest, 0).max()
    else:
        largest = jnp.where(is_pair, distance, 0).max()
    return jnp.where(is_pair.any(), jnp.minimum(largest, tau), tau)


def contrastive_loss(prototypes: Array, features: Array, y: Array, delta: Array) -> Array:
    """(batch,) L of mean features (batch, d) of the classes y (batch,), with prototypes (classes, d)."""
    distance = tree.root(cross_squared_l2(features, prototypes))
    with_margin = distance + delta * jax.nn.one_hot(y, prototypes.shape[0], dtype=distance.dtype)
    return optax.softmax_cross_entropy_with_integer_labels(-with_margin, y)
