"""Limits on single updates: clipping, random noise that each client adds, and sums that hide single updates."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fljax.numbers import Scalar, hyper, number
from fljax.rounds.uplink.chain import Memory, Transform
from fljax.rounds.uplink.message import Message, Trip, dense


@hyper
class ClipHyper:
    clip: Scalar = number(1.0, "largest Euclidean norm of an update; inf: not clipped", above=0, infinite=True)


def _clip(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    return memory, message._replace(values=clipped(message.values, hyper.clip))


clip_update = Transform(_clip, name="clip_update")
"""Updates are clipped to the norm ``clip``. The server can also do this itself: norm bounding, a defence."""


def clipped(values: Array, limit: Any) -> Array:
    """Rows ``(n, d)`` clipped to the norm ``limit``; shorter rows stay unchanged, bit for bit."""
    return _shortened(values, norms(values), limit)


def _shortened(values: Array, length: Array, limit: Any) -> Array:
    """Rows ``(n, d)`` of the ``length`` (n,), those that are longer than ``limit`` scaled to it."""
    is_longer = (length > limit)[:, None]
    return jnp.where(is_longer, values * (limit / jnp.where(is_longer, length[:, None], 1.0)), values)


@hyper
class ClipL1Hyper:
    l1_clip: Scalar = number(
        1.0, "largest sum of the absolute values of an update; inf: not clipped", above=0, infinite=True
    )


def _clip_l1(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    length = jnp.abs(message.values).sum(axis=1)
    return memory, message._replace(values=_shortened(message.values, length, hyper.l1_clip))


clip_l1 = Transform(_clip_l1, name="clip_l1")
"""Updates are clipped to the L1 norm ``l1_clip``, for `laplace_noise` of scale b directly after it.

What one client sends in a round is then ``2 l1_clip / b``-differentially private, whoever looks at it: that is the
largest L1 distance of two updates, divided by b. Epsilons of several rounds add up. It does not hold with a brick
between the two that may lengthen an update in this norm, as `rotate` does.
"""


def norms(values: Array) -> Array:
    """Euclidean length of each row."""
    return jnp.sqrt(jnp.square(values).sum(axis=1))


@hyper
class GaussianHyper:
    noise_std: Scalar = number(0.01, "standard deviation of the noise on every number of an update", least=0)


def _gaussian(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    return memory, _noisy(message, trip, jax.random.normal, hyper.noise_std)


_RETURNS = "the client's next update would remove the noise again; put it before error_feedback"
gaussian_noise = Transform(_gaussian, not_fed_back=_RETURNS, name="gaussian_noise")
"""Every client adds normal noise to its update."""


@hyper
class LaplaceHyper:
    noise_scale: Scalar = number(
        0.01, "scale of the noise on every number of an update: its mean absolute value", least=0
    )


def _laplace(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    return memory, _noisy(message, trip, jax.random.laplace, hyper.noise_scale)


laplace_noise = Transform(_laplace, not_fed_back=_RETURNS, name="laplace_noise")
"""Every client adds Laplace noise to its update."""


def _noisy(message: Message, trip: Trip, draw: Any, scale: Any) -> Message:
    d = message.values.shape[1]
    noise = jax.vmap(lambda key: draw(key, (d,)))(trip.key)
    values = message.values + scale * noise
    as_dense, fields = dense(message, values), {}
    for name in ("n_values", "n_places", "bits", "extra", "scales"):
        fields[name] = jnp.where(scale > 0, getattr(as_dense, name), getattr(message, name))
    return message._replace(values=values, **fields)


@hyper
class SecureSumHyper:
    fraction_bits: Scalar = number(16, "fractional bits of the fixed-point numbers that are summed", least=1, most=30)


def _secure_sum(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    n = message.values.shape[0]
    unit = jnp.exp2(-jnp.asarray(hyper.fraction_bits, jnp.float32))
    limit = 2.0**31 * unit / n  # so that the sum of n fits the ring of 2^32
    values = jnp.clip(jnp.round(message.values / unit) * unit, -limit, limit)
    return memory, dense(message, values)


secure_sum = Transform(_secure_sum, needs="sum", name="secure_sum", masks=True)
"""The server sees only sums of updates (Bonawitz et al., CCS 2017, https://eprint.iacr.org/2017/281).

Clients send integers of 32 bits, updates rounded to ``2^-fraction_bits``, with masks that cancel in the sum. Every
number is masked, so sparse updates save nothing. Numbers are clipped to the absolute value ``2^(31 - fraction_bits) /
n``, with n places in the cohort, so that a sum fits the ring if weights sum to 1. The keys and shares that clients
exchange for their masks are not counted in ``uplink``. Only `client_dp` and its other forms may come after it, as
clients do their clipping. Methods whose server needs single updates reject it.
"""
