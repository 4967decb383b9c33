"""Differential privacy: of clients, by noise on the sum of clipped updates; of examples, by noise on clipped gradients.

- clients: McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models, ICLR 2018,
  https://arxiv.org/abs/1710.06963 (DP-FedAvg with the fixed denominator)
- adaptive clipping: Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning with Adaptive Clipping,
  NeurIPS 2021, https://arxiv.org/abs/1905.03871
- examples: Abadi et al.: Deep Learning with Differential Privacy, CCS 2016, https://arxiv.org/abs/1607.00133

`fljax.run.privacy` computes epsilon.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.client.given_gradients import with_gradient
from fljax.client.objectives import Loss
from fljax.numbers import Scalar, hyper, number
from fljax.rounds.local import gradient_only
from fljax.rounds.uplink.chain import Memory, Transform
from fljax.rounds.uplink.limits import clipped, norms
from fljax.rounds.uplink.message import Message, Trip
from fljax.types import Batch, Key, Params, Work


@hyper
class PrivacyHyper:
    """The parameters of a guarantee of differential privacy."""

    delta: Scalar = number(1e-5, "delta of the guarantee; epsilon is reported for it", above=0, below=1)
    target_epsilon: Scalar | None = number(
        None, "epsilon after the last round, from which the noise is computed; None: the noise is given", above=0
    )


@hyper
class ClientDPHyper(PrivacyHyper):
    """Hyperparameters of DP-FedAvg."""

    noise_multiplier: Scalar = number(1.0, "standard deviation of the noise on the sum, divided by the clip", least=0)
    dp_clip: Scalar = number(
        1.0, "largest Euclidean norm of an update; inf without noise: not clipped", above=0, infinite=True
    )


@hyper
class AdaptiveClientDPHyper(PrivacyHyper):
    """Hyperparameters of DP-FedAvg with adaptive clipping; the paper's values are the defaults."""

    noise_multiplier: Scalar = number(
        1.0, "noise multiplier of updates and counts together, relative to the clip", least=0
    )
    first_clip: Scalar = number(0.1, "clip of the first round: largest Euclidean norm of an update", above=0)
    clip_quantile: Scalar = number(0.5, "target share of updates that are not clipped", above=0, below=1)
    clip_lr: Scalar = number(0.2, "learning rate of the logarithm of the clip", least=0)
    count_noise: Scalar = number(
        5.0,
        "standard deviation of the noise on the number of unclipped updates; more than half of noise_multiplier",
        above=0,
    )


@hyper
class DPSGDHyper(PrivacyHyper):
    """Hyperparameters of DP-SGD."""

    example_noise: Scalar = number(1.0, "standard deviation of a batch's noise, divided by example_clip", least=0)
    example_clip: Scalar = number(1.0, "largest Euclidean norm of one example's gradient", above=0, infinite=True)


def _client_dp(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    std = noise_std(known_noise(hyper, "noise_multiplier"), hyper.dp_clip)
    return memory, noisy_mean(message, trip, hyper.dp_clip, std * standard_normal(message, trip))


SECRET = "the next update would reveal the noise of differential privacy, which stays at the server; leave one out"
"""Why a client must not add to its next update what a private brick loses of one."""
client_dp = Transform(_client_dp, needs="mean", is_last=True, not_fed_back=SECRET, name="client_dp", follows_mask=True)
"""``theta <- theta + (sum_i clip(Delta_i) + N(0, (noise_multiplier dp_clip)^2)) / q n`` (DP-FedAvg).

Clients have equal weights, whatever their size; ``q n`` is the mean number of participants of a round, so that one
client more or less changes only the sum. A round without participants also releases noise.
"""


def _adaptive_client_dp(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    clip, total = memory.server, known_noise(hyper, "noise_multiplier")
    # z_Delta = (z^-2 - (2 sigma_b)^-2)^-1/2
    noise = total / jnp.sqrt(1 - jnp.square(total / (2 * hyper.count_noise)))
    released = noisy_mean(message, trip, clip, noise_std(noise, clip) * standard_normal(message, trip))
    # b_i - 1/2, otherwise one more client would change the count by 1, not by the 1/2 that z_Delta assumes.
    within = jnp.where(message.weight > 0, (norms(message.values) <= clip).astype(jnp.float32) - 0.5, 0.0).sum()
    count = within + hyper.count_noise * jax.random.normal(jax.random.fold_in(trip.server_key, 1), (), jnp.float32)
    # C <- C exp(-eta (b - gamma))
    clip = clip * jnp.exp(-hyper.clip_lr * (count / trip.expected + 0.5 - hyper.clip_quantile))
    return Memory(clip, memory.clients), released


adaptive_client_dp = Transform(
    _adaptive_client_dp,
    lambda hyper, n_clients, shapes: Memory(jnp.asarray(hyper.first_clip, jnp.float32)),
    needs="mean",
    is_last=True,
    not_fed_back=SECRET,
    name="adaptive_client_dp",
    follows_mask=True,
)
"""`client_dp` whose clip follows a quantile of the updates' norms, which is estimated with noise."""


def noisy_mean(message: Message, trip: Trip, clip: Any, noise: Array) -> Message:
    """Messages whose plain mean is the sum of clipped updates and ``noise`` (d,), over the expected participants."""
    n = message.values.shape[0]
    is_received = ((message.weight > 0) & jnp.isfinite(message.values).all(axis=1))[:, None]
    values = jnp.where(is_received, clipped(message.values, clip), 0.0)
    is_first = (jnp.arange(n) == 0)[:, None]
    values = (values + jnp.where(is_first, noise[None, :], 0.0)) * (n / trip.expected)
    return message._replace(values=values, weight=jnp.ones_like(message.weight))


def standard_normal(message: Message, trip: Trip) -> Array:
    """(d,) independent standard normal numbers of this round."""
    return jax.random.normal(trip.server_key, message.values.shape[1:], jnp.float32)


def noise_std(noise: Any, clip: Any) -> Array:
    """Standard deviation of the noise; 0 without noise, whatever the clip."""
    return jnp.where(noise > 0, noise * jnp.where(noise > 0, clip, 0.0), 0.0)


_MOST_LOSS = 1e30
"""Largest loss of an example, so that sums of losses stay finite in float32."""


@checked_kinds
def check_not_private(work: Work, why: str) -> None:
    """Raises ValueError if clients train on private gradients but also reveal something else about their examples."""
    if private_gradients in work.terms:
        raise ValueError(f"dp_sgd: {why}; leave it out")


@gradient_only("dp_sgd: the loss gets no noise")
def private_gradients(loss: Loss, hyper: Any) -> Loss:
    """The `Term` of DP-SGD: ``loss`` whose gradient is the clipped and noisy one of its batch.

    It is ``(sum_j clip(g_j) + N(0, (example_noise example_clip)^2)) / B``, where g_j is the gradient of the loss on
    example j of the batch only, and B the number of the batch's places, filled or not. Terms added after this one have
    plain gradients. A gradient that is not finite counts as 0, and a loss that is not finite is left out of the mean:
    otherwise a single example could make the training diverge and exclude the client from the round, without noise.

    Raises:
        ValueError: the network keeps running statistics, which would reveal information about the examples.
    """
    noise, clip = known_noise(hyper, "example_noise"), hyper.example_clip

    def private(params: Params, batch: Batch, key: Key, anchor: Params, *own: Any) -> tuple[Array, Params]:
        trainable, statistics = tree.split_statistics(params)
        if statistics:
            raise ValueError("dp_sgd: running statistics of a network are not private; use a network without them")
        key_loss, key_noise = jax.random.split(key)
        n = batch.y.shape[0]

        def flat(trainable: Params) -> Array:
            return tree.at_least_float32(tree.flatten(tree.broadcast(trainable, 1))[0])

        def as_params(vector: Array) -> Params:
            return jax.linear_transpose(flat, trainable)(vector)[0]

        def step(trainable: Params) -> tuple[Array, None, Params]:
            def of_one(x: Array, y: Array, key: Key) -> tuple[Array, Params]:
                def alone(trainable: Params) -> Array:
                    return loss(trainable, Batch(x[None], y[None], jnp.ones(1, jnp.float32)), key, *own)[0]

                return jax.value_and_grad(alone)(trainable)

            values, gradients = jax.vmap(of_one)(batch.x, batch.y, jax.random.split(key_loss, n))
            flat_gradients = tree.at_least_float32(tree.flatten(gradients))  # squares of float16 are 0 below 2^-12
            is_counted = (batch.weight > 0) & jnp.isfinite(flat_gradients).all(axis=1)
            flat_gradients = jnp.where(is_counted[:, None], clipped(flat_gradients, clip), 0.0)
            noise_vector = noise_std(noise, clip) * jax.random.normal(key_noise, flat_gradients.shape[1:], jnp.float32)
            gradient = (flat_gradients.sum(axis=0) + noise_vector) / n
            weight = jnp.where(jnp.abs(tree.at_least_float32(values)) < _MOST_LOSS, batch.weight, 0.0)
            value = jnp.vdot(jnp.where(weight > 0, values, 0.0), weight) / jnp.maximum(weight.sum(), 1e-12)
            return value, None, as_params(gradient)

        return with_gradient(step, trainable)[0], params

    return private


def known_noise(hyper: Any, name: str) -> Any:
    """The noise in the field ``name`` of the hyperparameters.

    Raises:
        ValueError: ``target_epsilon`` is set, and the noise has not been found yet.
    """
    if hyper.target_epsilon is not None:
        raise ValueError(
            f"target_epsilon={hyper.target_epsilon}: {name} depends on the rounds and the sampling; "
            "fljax.run.privacy.with_target computes it"
        )
    return getattr(hyper, name)
