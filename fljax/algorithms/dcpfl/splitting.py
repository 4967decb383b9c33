"""When and how DC-PFL's groups split: the dendrogram of the first rounds, the watched loss, the trials it starts."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.server.curvature import LossCurve, PeriodEnd, new_curve, observe, period_ended
from fljax.server.discrepancy import model_discrepancy
from fljax.server.hierarchy import cut_at, next_split
from fljax.server.linkage import linkage
from fljax.types import Cohort, Stacked


class Structure(NamedTuple):
    """The present groups, and the groups on trial."""

    label: Array  # (clients,) int32, canonical
    steps: Array  # () int32 number of steps by which the threshold has been lowered
    on_trial: Array  # () bool: the next round is a trial
    next_label: Array  # (clients,) int32 the groups on trial
    next_steps: Array  # () int32
    dendrogram: Array  # (clients - 1, 4)
    discrepancy: Array  # (clients, clients) summed over the first rounds
    n_met: Array  # (clients, clients) rounds in which both participated


class Watch(NamedTuple):
    """The loss since the structure last changed."""

    curve: LossCurve
    resting: Array  # () int32 rounds until the loss is watched again


def one_group(n_clients: int) -> Structure:
    """The initial structure: all clients in one group."""
    label, pairs = jnp.zeros(n_clients, jnp.int32), jnp.zeros((n_clients, n_clients), jnp.float32)
    tables = (jnp.zeros((n_clients - 1, 4), jnp.float32), pairs, pairs)
    return Structure(label, jnp.int32(0), jnp.bool_(False), label, jnp.int32(0), *tables)


def is_warmup(hyper: Any, round: Array) -> Array:
    """t < T_start."""
    return round.astype(jnp.float32) < hyper.warmup


def ends_warmup(hyper: Any, round: Array) -> Array:
    """t = T_start - 1."""
    return is_warmup(hyper, round) & ~is_warmup(hyper, round + 1)


def measure(hyper: Any, groups: Structure, uploaded: Stacked, weight: Array, cohort: Cohort) -> Structure:
    """Adds the uploaded models' discrepancies in the warm-up rounds; after the last one, builds the dendrogram."""

    def add(groups: Structure) -> Structure:
        counts, pair = weight > 0, jnp.ix_(cohort.ids, cohort.ids)
        both_participate = (counts[:, None] & counts[None, :]).astype(jnp.float32)
        total = groups.discrepancy.at[pair].add(model_discrepancy(uploaded, where=counts).astype(jnp.float32))
        return groups._replace(discrepancy=total, n_met=groups.n_met.at[pair].add(both_participate))

    def build(groups: Structure) -> Structure:
        return groups._replace(dendrogram=linkage(mean_discrepancy(groups), "average"))

    groups = lax.cond(is_warmup(hyper, cohort.round), add, lambda groups: groups, groups)
    return lax.cond(ends_warmup(hyper, cohort.round), build, lambda groups: groups, groups)


def mean_discrepancy(groups: Structure) -> Array:
    """``D_ij`` (clients, clients): mean over rounds in which both participated; other pairs get the mean of these."""
    is_known = (groups.n_met > 0) & ~jnp.eye(groups.n_met.shape[0], dtype=bool)
    mean = groups.discrepancy / jnp.maximum(groups.n_met, 1.0)
    typical = jnp.where(is_known, mean, 0.0).sum() / jnp.maximum(is_known.sum(), 1).astype(mean.dtype)
    return jnp.where(jnp.eye(mean.shape[0], dtype=bool), 0.0, jnp.where(is_known, mean, typical))


def decide(groups: Structure, adopted: Array) -> Structure:
    """After a trial: the groups on trial, if adopted. The next round is no trial unless `call_trial` starts one."""
    return groups._replace(
        label=jnp.where(adopted, groups.next_label, groups.label),
        steps=jnp.where(adopted, groups.next_steps, groups.steps),
        on_trial=jnp.bool_(False),
    )


def watch(hyper: Any, watched: Watch, loss: Array, was_trial: Array, adopted: Array, round: Array) -> Watch:
    """Appends the round's mean loss; starts a new curve after a trial, and appends nothing while resting from one.

    Radii of curvature count from the end of the warm-up on.
    """
    observed = observe(watched.curve, loss)
    observed = observed._replace(radii=jnp.where(is_warmup(hyper, round), 0.0, observed.radii))
    is_resting = (watched.resting > 0) | ~jnp.isfinite(loss)
    observed = tree.where(is_resting, watched.curve, observed)
    empty_curve = new_curve(watched.curve.losses.shape[0] - 2, watched.curve.radii.shape[0] - 2)
    curve = tree.where(was_trial, empty_curve, observed)
    pause = jnp.round(jnp.asarray(hyper.pause, jnp.float32)).astype(jnp.int32)
    rejected = was_trial & ~adopted
    return Watch(curve, jnp.where(rejected, pause, jnp.maximum(watched.resting - 1, 0)))


def call_trial(hyper: Any, groups: Structure, curve: LossCurve, rule: PeriodEnd, round: Array) -> Structure:
    """If the rapid-decrease period has ended, puts on trial the next lower threshold that changes the groups."""

    def split(groups: Structure) -> Structure:
        label, steps, differs = next_split(groups.dendrogram, groups.label, groups.steps, hyper.step)
        return groups._replace(on_trial=differs, next_label=label, next_steps=steps)

    return lax.cond(period_ended(curve, rule) & ~is_warmup(hyper, round), split, lambda groups: groups, groups)


def cut_once(hyper: Any, groups: Structure, round: Array) -> Structure:
    """At the end of the warm-up: the groups of the threshold ``hyper.fixed``, which then stay (NoDC)."""
    fixed = cut_at(groups.dendrogram, hyper.fixed)
    return groups._replace(label=jnp.where(ends_warmup(hyper, round), fixed, groups.label))
