"""Oort against loops over dicts: what it remembers, what a client is worth, and who is sampled."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.rounds import oort
from fljax.rounds.clock import wait_for_all
from fljax.rounds.memory import Seen, memory_of, remembering, without_memory
from fljax.rounds.oort import FIRST_SHARE, STEP, WINDOW, explore, nothing_explored, utilities
from fljax.run.one_round import first_state, run_round
from tests.rounds.test_by_loss import losses_of_examples

N, PLACES = 24, 6
draw_of = partial(jax.jit, static_argnums=(0, 4))(
    lambda draw, key, round, size, n, last: draw(key, round, size, n, last)
)


@jax.jit
def explored_of(memory, round, ids, active, size, seconds, mean_square):
    return explore(memory, Seen(round, ids, active, size, seconds, None, lambda f: mean_square))


@partial(jax.jit, static_argnums=(3, 4))
def utilities_of(memory, explored, number, clip, penalty):
    return utilities(memory, explored, number, clip, penalty)


class Reference:
    """What the server knows of each client, by its number, and how it chooses from it."""

    def __init__(self, clip=0.95, penalty=2.0, cut_off=0.95, exploration=0.9, decay=0.98, least=0.2):
        self.clip, self.penalty, self.cut_off = clip, penalty, cut_off
        self.exploration, self.decay, self.least = exploration, decay, least
        self.utility, self.last, self.seconds, self.share, self.gains = {}, {}, {}, FIRST_SHARE, []

    def learns(self, number, ids, active, size, seconds, mean_square):
        gained = 0.0
        for i, came, n, t, square in zip(ids, active, size, seconds, mean_square, strict=True):
            self.last[i] = number
            self.utility.setdefault(i, 0.0)
            if came:
                self.utility[i], self.seconds[i] = n * math.sqrt(square), t
                gained += self.utility[i]
        self.gains.append(gained)
        before, now = sum(self.gains[-2 * WINDOW : -WINDOW]), sum(self.gains[-WINDOW:])
        if number % WINDOW == 0 and number >= 2 * WINDOW and now < before:
            self.share = min(1.0, self.share + STEP)

    def worth(self, number, there):
        known = [i for i in self.last if i in there]
        if not known:
            return {}
        ranked = sorted(self.utility[i] for i in known)
        limit = ranked[min(int(np.float32(len(known)) * np.float32(self.clip)), len(known) - 1)]
        limited = {i: min(self.utility[i], limit) for i in known}
        low, high = min(limited.values()), max(limited.values())
        times = sorted(self.seconds[i] for i in known if self.seconds.get(i, 0) > 0)
        place = int(np.float32(len(times)) * np.float32(self.share))
        preferred = times[min(place, len(times) - 1)] if times else math.inf
        worth = {}
        for i in known:
            worth[i] = (limited[i] - low) / max(high - low, 1e-4) + math.sqrt(0.1 * math.log(number) / self.last[i])
            if self.seconds.get(i, 0) > preferred:
                worth[i] *= (preferred / self.seconds[i]) ** self.penalty
        return worth

    def chooses(self, number, there, n, noise):
        worth = self.worth(number, there)
        unseen = [i for i in there if i not in worth]
        share = max(self.exploration * self.decay**number, self.least)
        n_exploited = min(n - (math.floor(n * share) if unseen else 0), len(worth))
        by_worth = sorted(worth, key=worth.get, reverse=True)
        admitted = [i for i in by_worth if n_exploited and worth[i] >= self.cut_off * worth[by_worth[n_exploited - 1]]]
        ticket = {i: noise[i] + (math.log(worth[i]) if worth[i] > 0 else -math.inf) for i in worth}
        exploited = sorted(admitted, key=ticket.get, reverse=True)[:n_exploited]
        explored = sorted(unseen, key=lambda i: noise[i], reverse=True)[: n - len(exploited)]
        others = sorted((i for i in worth if i not in exploited), key=ticket.get, reverse=True)
        return sorted([*exploited, *explored, *others][:n])


@pytest.mark.parametrize("choices", [{}, {"penalty": 0.5, "cut_off": 0.3, "clip": 0.6, "exploration": 0.4}])
def test_a_run_is_that_of_the_reference(choices):
    """Sixty rounds of clients of many speeds, some of which are absent or do not come; the pacer steps in them."""
    rng, sampling, reference = np.random.default_rng(1), oort(PLACES / N, **choices), Reference(**choices)
    memory, sizes = nothing_explored(N), rng.integers(5, 60, N).astype(np.int32)
    seconds = rng.lognormal(1.0, 0.7, N).astype(np.float32)
    n_steps = 0
    for r in range(60):
        key, there = jax.random.fold_in(jax.random.key(7), r), np.flatnonzero(rng.random(N) < 0.9).tolist()
        size = np.where(np.isin(np.arange(N), there), sizes, 0)
        ids, active = map(np.asarray, draw_of(sampling.draw, key, jnp.int32(r), size, PLACES, memory))
        noise = np.asarray(jax.random.gumbel(key, (N,), jnp.float32), np.float64)
        assert ids.tolist() == reference.chooses(r + 1, there, PLACES, noise)
        assert active.all()
        came, squares = rng.random(PLACES) < 0.8, (rng.gamma(2.0, size=PLACES) / (1 + 0.05 * r)).astype(np.float32)
        share = reference.share
        reference.learns(r + 1, ids.tolist(), came, sizes[ids].tolist(), seconds[ids].tolist(), squares.tolist())
        n_steps += reference.share > share
        memory = explored_of(memory, jnp.int32(r), ids, came, sizes[ids], seconds[ids], squares)
        for name in ("utility", "last", "seconds"):
            expected = [getattr(reference, name).get(i, 0) for i in range(N)]
            np.testing.assert_allclose(getattr(memory, name), expected, rtol=1e-6)
        np.testing.assert_allclose(memory.share, reference.share, rtol=1e-6)
        n_in_window = (r + 1) % WINDOW
        window, before = reference.gains[r + 1 - n_in_window :], reference.gains[: r + 1 - n_in_window][-WINDOW:]
        np.testing.assert_allclose(memory.gained, [sum(window), sum(before)], rtol=1e-5)
        worth = reference.worth(r + 2, range(N))
        found = utilities_of(memory, memory.last > 0, jnp.int32(r + 2), reference.clip, reference.penalty)
        np.testing.assert_allclose(found, [worth.get(i, 0) for i in range(N)], rtol=2e-5, atol=2e-6)
    assert n_steps >= 1
    assert len(reference.last) == N


def test_the_share_for_clients_never_seen_decays():
    """Of ten places 8, 8, 8, 8, 8, 7, ... and never less than 2, until everyone is known."""
    sampling, n, seen, n_new = oort(0.02), 500, set(), []
    memory, size, places = nothing_explored(n), jnp.full(n, 10, jnp.int32), jnp.full(10, 10, jnp.int32)
    for r in range(90):
        key = jax.random.fold_in(jax.random.key(0), r)
        ids, _ = map(np.asarray, draw_of(sampling.draw, key, jnp.int32(r), size, 10, memory))
        n_new.append(len(set(ids.tolist()) - seen))
        seen |= set(ids.tolist())
        nothing, squares = jnp.zeros(10, jnp.float32), jnp.linspace(0.1, 1.0, 10, dtype=jnp.float32)
        memory = explored_of(memory, jnp.int32(r), ids, jnp.ones(10, bool), places, nothing, squares)
    expected = [math.floor(10 * max(0.9 * 0.98**number, 0.2)) for number in range(2, 91)]
    assert n_new[0] == 10  # nobody is known
    assert n_new[1:] == expected
    assert n_new[-1] == 2
    assert len(seen) < n


def test_without_a_clock_nobody_is_slow_and_with_one_the_slow_are_worth_less():
    last, utility = jnp.full(10, 3, jnp.int32), jnp.arange(10.0, 20.0)
    memory = nothing_explored(10)._replace(last=last, utility=utility)
    plain = np.asarray(utilities_of(memory, last > 0, jnp.int32(4), 1.0, 2.0))
    bonus = math.sqrt(0.1 * math.log(4) / 3)
    np.testing.assert_allclose(plain, np.arange(10) / 9 + bonus, rtol=1e-6)
    closer = utilities_of(memory._replace(utility=utility / 1024), last > 0, jnp.int32(4), 1.0, 2.0)
    np.testing.assert_allclose(closer, plain, rtol=1e-6)  # only differences below 1e-4 are not scaled up
    timed = memory._replace(seconds=jnp.arange(1.0, 11.0))
    slowed = np.asarray(utilities_of(timed, last > 0, jnp.int32(4), 1.0, 2.0))
    preferred = 4.0  # of ten clients, three are faster
    np.testing.assert_allclose(slowed, plain * np.minimum(1, preferred / np.arange(1.0, 11.0)) ** 2, rtol=1e-6)
    unslowed = utilities_of(timed, last > 0, jnp.int32(4), 1.0, 0.0)
    np.testing.assert_allclose(unslowed, plain, rtol=1e-6)


def test_a_client_that_diverges_is_worth_nothing():
    ids, squares = jnp.arange(3), jnp.array([1.0, jnp.inf, jnp.nan])
    memory = explored_of(
        nothing_explored(3), jnp.int32(0), ids, jnp.ones(3, bool), jnp.full(3, 5), jnp.ones(3, jnp.float32), squares
    )
    np.testing.assert_array_equal(memory.utility, [5, 0, 0])
    assert memory.gained[0] == 5


def test_permuted_clients_are_worth_what_they_were():
    rng, order = np.random.default_rng(0), np.random.default_rng(1).permutation(N)
    last = rng.integers(0, 9, N).astype(np.int32)
    rows = [rng.gamma(2.0, size=N).astype(np.float32) * (last > 0) for _ in range(2)]
    memory = nothing_explored(N)._replace(utility=rows[0], last=last, seconds=rows[1])
    permuted = memory._replace(utility=rows[0][order], last=last[order], seconds=rows[1][order])
    worth = np.asarray(utilities_of(memory, last > 0, jnp.int32(9), 0.95, 2.0))
    np.testing.assert_array_equal(utilities_of(permuted, last[order] > 0, jnp.int32(9), 0.95, 2.0), worth[order])


def test_in_a_run_utilities_are_of_the_examples_losses(averaging, federation, key):
    """``|B| sqrt(mean of the squared losses)`` at the model that a participant receives, and its seconds."""
    hyper, seconds = fljax.fedavg.Hyper(lr=0.2), [float(i + 1) for i in range(9)]
    sampling, utility, last, times = wait_for_all(oort(1 / 3), seconds), np.zeros(9), np.zeros(9), np.zeros(9)
    algorithm = remembering(averaging, sampling.memory)
    one_round = jax.jit(partial(run_round, algorithm, sampling.of(9)))
    state = first_state(algorithm.init, key, hyper, federation.train)
    for r in range(5):
        examples = losses_of_examples(without_memory(state).server, federation.train)
        state, metrics = one_round(hyper, federation, key, None, state, jnp.int32(r))
        for i in np.asarray(metrics["ids"]):
            utility[i] = len(examples[i]) * math.sqrt(np.mean(examples[i] ** 2))
            last[i], times[i] = r + 1, seconds[i]
        memory = memory_of(state)
        np.testing.assert_allclose(memory.utility, utility, rtol=1e-5)
        np.testing.assert_array_equal(memory.last, last)
        np.testing.assert_array_equal(memory.seconds, times)
        np.testing.assert_array_equal(metrics["uplink"], 16 * 4 + 4 + 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"participation": 2.0}, "participation=2.0 is not a share"),
        ({"exploration": 1.5}, r"exploration=1.5 is out of its range; choose exploration in \[0, 1\]"),
        ({"cut_off": -0.1}, r"cut_off=-0.1 is out of its range; choose cut_off in \[0, 1\]"),
        ({"penalty": float("inf")}, "penalty=inf is out of its range; choose a finite number"),
        ({"clip": "most"}, "clip='most' is not a number"),
        ({"least_exploration": None}, "least_exploration=None is not a number"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        oort(**settings)


def test_equal_ones_are_the_same():
    assert oort(0.5) is oort(np.float32(0.5), penalty=2)
    assert dict(oort(0.5, clip=0.9).about)["clip"] == 0.9
