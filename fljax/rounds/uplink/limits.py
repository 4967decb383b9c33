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
    clip: Scalar = number(1.0, "longest update, Euclidean; inf: any", above=0, infinite=True)


def _clip(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    return memory, message._replace(values=clipped(message.values, hyper.clip))


clip_update = Transform(_clip, name="clip_update")
"""Longer updates are shortened to the length ``clip``. The server can do so itself: it is norm bounding, a defence."""


def clipped(values: Array, limit: Any) -> Array:
    """Rows ``(n, d)`` shortened to ``limit``; shorter ones stay as they are, bit for bit."""
    length = norms(values)[:, None]
    return jnp.where(length > limit, values * (limit / jnp.where(length > limit, length, 1.0)), values)


def norms(values: Array) -> Array:
    """Euclidean length of each row."""
    return jnp.sqrt(jnp.square(values).sum(axis=1))


@hyper
class GaussianHyper:
    noise_std: Scalar = number(0.01, "standard deviation of the noise on every number of an update", least=0)


def _gaussian(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    return memory, _noisy(message, trip, jax.random.normal, hyper.noise_std)


_RETURNS = "noise would be taken out again by the client's next update; put it before error_feedback"
gaussian_noise = Transform(_gaussian, not_fed_back=_RETURNS, name="gaussian_noise")
"""Every client adds normal noise to its update."""


@hyper
class LaplaceHyper:
    noise_scale: Scalar = number(0.01, "scale of the noise on every number of an update, its mean size", least=0)


def _laplace(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    return memory, _noisy(message, trip, jax.random.laplace, hyper.noise_scale)


laplace_noise = Transform(_laplace, not_fed_back=_RETURNS, name="laplace_noise")
"""Every client adds Laplace noise to its update."""


def _noisy(message: Message, trip: Trip, draw: Any, size: Any) -> Message:
    d = message.values.shape[1]
    noise = jax.vmap(lambda key: draw(key, (d,)))(trip.key)
    values = message.values + size * noise
    full, counted = dense(message, values), ("n_values", "n_places", "bits", "extra", "scales")
    sent = {name: jnp.where(size > 0, getattr(full, name), getattr(message, name)) for name in counted}
    return message._replace(values=values, **sent)


@hyper
class SecureSumHyper:
    fraction_bits: Scalar = number(16, "binary places of the whole numbers that are summed", least=1, most=30)


def _secure_sum(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    n = message.values.shape[0]
    unit = jnp.exp2(-jnp.asarray(hyper.fraction_bits, jnp.float32))
    most = 2.0**31 * unit / n  # so that the sum of n fits the ring of 2^32
    values = jnp.clip(jnp.round(message.values / unit) * unit, -most, most)
    return memory, dense(message, values)


secure_sum = Transform(_secure_sum, needs="sum", name="secure_sum", masks=True)
"""The server sees only sums of updates (Bonawitz et al., CCS 2017, https://eprint.iacr.org/2017/281).

Clients send whole numbers of 32 bits, updates rounded to ``2^-fraction_bits``, under masks that cancel in the sum;
every number is masked, so that nothing is saved by sending fewer. They are clipped to ``2^(31 - fraction_bits) / n`` in
size, n the cohort's places, so that a sum fits the ring where weights are shares of the whole. The keys and shares that
clients exchange for their masks are not counted in ``uplink``. After it may come `client_dp` and its adaptive kind
alone, whose clip is the client's own. Methods whose server looks at single updates refuse it.
"""
