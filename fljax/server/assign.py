"""Assignment of clients to clusters: nearest center, lowest loss, and the soft memberships of FedSoft and FedEM."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from fljax import tree
from fljax.server.checks import check_axes, check_one, check_shape, check_vector, shape_of
from fljax.server.distance import cross_squared_l2
from fljax.types import AnyArray, Stacked


def nearest_center(stacked: Stacked, centers: Stacked) -> Array:
    """``argmin_k |x_i - c_k|_2``: the E step of k-means and FeSEM.

    Distances are computed from differences, so equal centers tie exactly and the lowest index wins. A center with NaN
    never wins against a finite one; a client with NaN gets label 0.

    Args:
        stacked: (points, d) array, or a pytree with leaves (clients, ...); running statistics are ignored.
        centers: the same, with clusters as the leading axis.

    Returns:
        (points,) int32.
    """
    return lowest_loss(cross_squared_l2(stacked, centers))


def lowest_loss(loss: AnyArray) -> Array:
    """``argmin_k loss[i, k]``: a client's choice of cluster in IFCA, HypCluster and FedCPS.

    Args:
        loss: (clients, clusters). NaN never wins: it counts as +inf. Ties, and rows without a finite loss, go to the
            lowest index.

    Returns:
        (clients,) int32.

    Raises:
        ValueError: ``loss`` is not an array.
    """
    shape_of("loss", loss)
    return jnp.argmin(jnp.where(jnp.isnan(loss), jnp.inf, loss), axis=-1).astype(jnp.int32)


def example_shares(loss: AnyArray, weight: AnyArray, floor: ArrayLike = 1e-4) -> Array:
    """FedSoft's importance ``u_is``: the share of client i's examples whose loss is lowest at center s.

    Ruan and Joe-Wong, "FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", AAAI 2022. A share of
    zero is raised to ``floor``, then the row is normalised to sum 1. Piecewise constant: the gradient is zero.

    Args:
        loss: (clients, examples, clusters).
        weight: (clients, examples): 0 for padding, whose losses have no effect.
        floor: importance of a cluster for which no example has its lowest loss, positive.

    Returns:
        (clients, clusters) float32; a client without examples gets equal shares.

    Raises:
        ValueError: shapes do not match.
    """
    check_shape("weight", weight, shape_of("loss", loss)[:-1], "a weight per example of loss")
    check_one(floor=floor)
    vote = jax.nn.one_hot(lowest_loss(loss), loss.shape[-1], dtype=bool)
    count = jnp.sum(jnp.where(vote, weight.astype(jnp.float32)[..., None], 0), axis=-2)
    total = count.sum(axis=-1, keepdims=True)
    share = jnp.where(count > 0, count / jnp.where(total > 0, total, 1), floor)
    return share / share.sum(axis=-1, keepdims=True)


def soft_weights(share: AnyArray, size: AnyArray) -> Array:
    """FedSoft's aggregation weights ``v_si = u_is n_i / sum_i u_is n_i``.

    Args:
        share: (clients, clusters) importances from `example_shares`.
        size: (clients,) example counts.

    Returns:
        (clusters, clients), each row sums to 1 (to 0 if no client has examples): a matrix for `mix`, and the
        probabilities with which cluster s samples clients.

    Raises:
        ValueError: ``share`` is not (clients, clusters), or lengths differ.
    """
    n, _ = check_axes("share", share, "clients", "clusters")
    check_vector("size", size, n, "share")
    share = tree.at_least_float32(jnp.asarray(share))
    n_examples = jnp.where(size > 0, size, 0).astype(share.dtype)
    mass = jnp.where(n_examples[None, :] > 0, share.T * n_examples[None, :], 0)
    total = mass.sum(axis=1, keepdims=True)
    return mass / jnp.where(total > 0, total, 1)


def responsibilities(loss: AnyArray, mixture: AnyArray) -> Array:
    """FedEM's E step: ``q_m(x)`` proportional to ``pi_m exp(-loss_m(x))``.

    Marfoq et al., "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021. Differentiable where
    ``mixture`` is positive. NaN losses count as +inf; an example without a finite loss keeps the mixture.

    Args:
        loss: (clients, examples, learners).
        mixture: (clients, learners), rows on the simplex; a learner of weight 0 gets responsibility 0.

    Returns:
        (clients, examples, learners), the last axis sums to 1.

    Raises:
        ValueError: shapes do not match.
    """
    shape = shape_of("loss", loss)
    check_shape("mixture", mixture, (*shape[:-2], shape[-1]), "a weight per client and learner of loss")
    prior = mixture[..., None, :]
    is_finite = jnp.isfinite(loss)
    log_prior = jnp.log(jnp.where(prior > 0, prior, 1))
    score = jnp.where(is_finite & (prior > 0), log_prior - jnp.where(is_finite, loss, 0), -jnp.inf)
    has_score = jnp.any(score > -jnp.inf, axis=-1, keepdims=True)
    return jnp.where(has_score, jax.nn.softmax(jnp.where(has_score, score, 0), axis=-1), prior)


def mixture_weights(responsibility: AnyArray, weight: AnyArray, empty: AnyArray) -> Array:
    """FedEM's M step: ``pi_im = mean_x q_m(x)`` over client i's examples.

    Args:
        responsibility: (clients, examples, learners).
        weight: (clients, examples): 0 for padding, whose responsibilities have no effect.
        empty: (clients, learners): result for a client without examples.

    Returns:
        (clients, learners), each row sums to 1.

    Raises:
        ValueError: shapes do not match.
    """
    shape = shape_of("responsibility", responsibility)
    check_shape("weight", weight, shape[:-1], "a weight per example of responsibility")
    check_shape("empty", empty, (*shape[:-2], shape[-1]), "an entry per client and learner of responsibility")
    responsibility = tree.at_least_float32(responsibility)
    example_weight = weight.astype(responsibility.dtype)[..., None]
    total = jnp.where(example_weight > 0, example_weight * responsibility, 0).sum(axis=-2)
    mass = example_weight.sum(axis=-2)
    return jnp.where(mass > 0, total / jnp.where(mass > 0, mass, 1), empty)
