"""Attacks on updates: what the attackers send instead of their trained updates.

They collude and know every honest update of the round, the strongest assumption of the papers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax.keys import uniforms
from fljax.rounds.check_like import check_like
from fljax.rounds.uplink.chain import Memory, Transform
from fljax.rounds.uplink.message import Message, Trip


class Seen(NamedTuple):
    """What attackers know about a round."""

    own: Array  # (cohort, d) each client's trained update
    honest: Array  # (cohort,) bool: active and honest
    attacks: Array  # (cohort,) bool: active and attacking
    key: Array  # (cohort,) keys

    @property
    def mean(self) -> Array:
        """Mean of the honest updates, (d,)."""
        return self.over_honest(self.own)

    @property
    def std(self) -> Array:
        """Standard deviation of the honest updates, (d,), with their number as divisor."""
        return jnp.sqrt(self.over_honest(jnp.square(self.own - self.mean[None, :])))

    def over_honest(self, values: Array) -> Array:
        """Mean over the honest clients of ``values`` (cohort, d)."""
        n_honest = jnp.maximum(self.honest.sum(), 1).astype(jnp.float32)
        return jnp.where(self.honest[:, None], values, 0.0).sum(axis=0) / n_honest


Craft = Callable[[Seen], Array]
"""``craft(seen) -> (cohort, d)``: what attackers send, in their rows; or (d,), if all send the same."""


def crafted(craft: Craft, ids: tuple[int, ...], start: int) -> Transform:
    """The transform in which the clients ``ids`` send the result of ``craft``, from round ``start`` on.

    In a round without honest participants, they send their trained updates.

    Raises:
        ValueError: when a round is traced: ``craft`` returns another shape.
    """

    def apply(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
        is_attacker = (trip.ids[:, None] == jnp.asarray(ids, jnp.int32)[None, :]).any(axis=1)
        is_present = message.weight > 0
        seen = Seen(message.values, is_present & ~is_attacker, is_present & is_attacker, trip.key)
        is_attacking = (is_attacker & (trip.round >= start) & seen.honest.any())[:, None]
        updates, trained = craft(seen), message.values
        check_like(
            "craft returned an array of updates", updates, trained[0] if getattr(updates, "ndim", 2) == 1 else trained
        )
        updates = updates if updates.ndim == 2 else jnp.broadcast_to(updates[None, :], message.values.shape)
        return memory, message._replace(values=jnp.where(is_attacking, updates, message.values))

    return Transform(apply, name="attack")


def sign_flip(scale: float) -> Craft:
    """``-scale Delta_i`` (Li et al., AAAI 2019)."""
    return lambda seen: -scale * seen.own


def scaled(scale: float) -> Craft:
    """``scale Delta_i``: model replacement (Bagdasaryan et al., AISTATS 2020) if scale is the cohort's size."""
    return lambda seen: scale * seen.own


def free_rider(noise: float) -> Craft:
    """Only noise, with the honest updates' mean norm times ``noise``; nothing is trained (Lin et al., 2019)."""

    def craft(seen: Seen) -> Array:
        d = seen.own.shape[1]
        length = jnp.sqrt(jnp.square(seen.own).sum(axis=1, keepdims=True))
        size = noise * seen.over_honest(length)[0] / jnp.sqrt(float(d))
        return size * jax.vmap(lambda key: jax.random.normal(key, (d,), jnp.float32))(seen.key)

    return craft


def alie(z: float | None) -> Craft:
    """``mu - z sigma`` of the honest updates, coordinate by coordinate (Baruch et al., NeurIPS 2019).

    None: the paper's z: with n participants, of which m attack, the normal quantile of ``(n - m - s) / (n - m)``, where
    ``s = floor(n / 2 + 1) - m`` is the number of honest supporters that the attack needs.
    """

    def craft(seen: Seen) -> Array:
        n_honest, m = (mask.sum().astype(jnp.float32) for mask in (seen.honest, seen.attacks))
        supporters = jnp.floor((n_honest + m) / 2 + 1) - m
        share = jnp.clip((n_honest - supporters) / jnp.maximum(n_honest, 1.0), 1e-3, 1 - 1e-3)
        n_deviations = jax.scipy.stats.norm.ppf(share) if z is None else z
        return seen.mean - n_deviations * seen.std

    return craft


def ipm(scale: float) -> Craft:
    """``-scale mu`` of the honest updates: inner product manipulation (Xie et al., UAI 2019)."""
    return lambda seen: -scale * seen.mean


def fang(b: float) -> Craft:
    """Beyond the honest extreme against the mean's sign (Fang et al., USENIX Security 2020, full knowledge).

    If the honest mean of a coordinate is above 0, it is drawn below the least honest value, otherwise above the
    largest, up to b times that value (or 1/b times, if that is farther beyond).
    """

    def craft(seen: Seen) -> Array:
        least = jnp.where(seen.honest[:, None], seen.own, jnp.inf).min(axis=0)
        most = jnp.where(seen.honest[:, None], seen.own, -jnp.inf).max(axis=0)
        low = jnp.where(least > 0, least / b, least * b)
        high = jnp.where(most > 0, most * b, most / b)
        uniform = uniforms(seen.key, *least.shape)
        below = low[None, :] + uniform * (least - low)[None, :]
        above = most[None, :] + uniform * (high - most)[None, :]
        return jnp.where(seen.mean[None, :] > 0, below, above)

    return craft


def min_max() -> Craft:
    """``mu - gamma sigma`` with the largest gamma within the largest honest distance (Shejwalkar, NDSS 2021)."""
    return _as_far_as(lambda square, honest: jnp.where(honest, square, 0.0).max())


def min_sum() -> Craft:
    """``mu - gamma sigma`` with the largest gamma within the largest honest sum of squared distances."""
    return _as_far_as(lambda square, honest: jnp.where(honest, square, 0.0).sum())


def _as_far_as(measure: Callable[[Array, Array], Array]) -> Craft:
    def craft(seen: Seen) -> Array:
        mean, std = seen.mean, seen.std

        def distances(point: Array) -> Array:
            return jnp.square(seen.own - point[None, :]).sum(axis=1)

        measures = lax.map(lambda own: measure(distances(own), seen.honest), seen.own)
        limit = jnp.where(seen.honest, measures, 0.0).max()

        def halve(i: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = (low + high) / 2
            is_within = measure(distances(mean - middle * std), seen.honest) <= limit
            return jnp.where(is_within, middle, low), jnp.where(is_within, high, middle)

        gamma = lax.fori_loop(0, 24, halve, (jnp.float32(0), jnp.float32(_MOST_GAMMA)))[0]
        return mean - gamma * std

    return craft


_MOST_GAMMA = 64.0
