"""Hyperparameters by round: in rounds, on the way up, under attack; and what a schedule must not do."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.attacks import attacked
from fljax.attacks.named import ATTACKS
from fljax.rounds import Brick
from fljax.run.one_round import split_key
from fljax.types import Work
from tests.algorithms.round_by_round import simulate, written_out
from tests.slow import slow_rows

WORK = Work(1, None)


def halved(hyper, round):
    return hyper.replace(lr=hyper.lr * 0.5 ** round.astype(jnp.float32))


HALVED = Brick("halved", "schedule", halved, "lr halves in each round")


@pytest.mark.parametrize("name", ["fedavg", *slow_rows(("ditto",), ("scaffold",), ("ifca",), ("fedproto",))])
def test_a_learning_rate_that_halves_is_its_decay(name, key, model, federation):
    """A sequence of lr by another way: powers of two, so that both are exact."""
    (name,) = name if isinstance(name, tuple) else (name,)
    method = fljax.compose(name, HALVED)
    state, _ = simulate(method(model, WORK), method.Hyper(lr=0.4), federation, key, 3)
    method = fljax.compose(name)
    expected, _ = simulate(method(model, WORK), method.Hyper(lr=0.4, lr_decay=0.5), federation, key, 3)
    chex.assert_trees_all_equal(state, expected)


def test_schedules_follow_one_another_and_one_that_changes_nothing_is_none(model, federation):
    doubled = Brick("doubled", "schedule", lambda hyper, round: hyper.replace(lr=2 * hyper.lr), "")
    at_once = Brick("both", "schedule", lambda hyper, round: hyper.replace(lr=2 * (hyper.lr * jnp.float32(round))), "")
    by_round = Brick("by_round", "schedule", lambda hyper, round: hyper.replace(lr=hyper.lr * jnp.float32(round)), "")
    hyper = fljax.fedavg.Hyper(lr=0.1)
    programs = [
        written_out(method(model, WORK), hyper, federation)
        for method in (
            fljax.fedavg,
            fljax.fedavg + Brick("same", "schedule", lambda hyper, round: hyper, ""),
            fljax.fedavg + by_round + doubled,
            fljax.fedavg + at_once,
        )
    ]
    assert programs[0] == programs[1] != programs[2] == programs[3]


def test_the_way_up_has_the_rounds_hyperparameters(key, model, federation):
    """Updates are clipped to 0.2, then to 0.1 and 0.05; one client, whose model is the server's."""
    size = np.asarray(federation.train.size)
    alone = jnp.asarray(np.where(np.arange(len(size)) == 0, size, 0))
    one = federation._replace(train=federation.train._replace(size=alone))
    shorter = Brick(
        "shorter",
        "schedule",
        lambda hyper, round: hyper.replace(clip=hyper.clip * 0.5 ** round.astype(jnp.float32)),
        "",
    )
    method = fljax.compose("fedavg+clip_update", shorter)
    hyper = method.Hyper(lr=5.0, clip=0.2)
    before = jax.jit(method(model, WORK).init)(split_key(key).init, hyper, one.train).server.own
    for n_rounds, clip in ((1, 0.2), (2, 0.1), (3, 0.05)):
        state, _ = simulate(method(model, WORK), hyper, one, key, n_rounds)
        moved = jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), state.server.own, before)
        np.testing.assert_allclose(
            np.sqrt(sum(np.square(leaf, dtype=np.float64).sum() for leaf in jax.tree.leaves(moved))), clip, rtol=1e-4
        )
        before = state.server.own


def test_attacks_and_bricks_fit_a_scheduled_method(key, model, federation):
    method = fljax.compose("fedavg+top_k+down_quantize+ema", HALVED)
    algorithm, data, _ = attacked(method(model, WORK), federation, ATTACKS["sign_flip"](share=0.2))
    _, metrics = jax.eval_shape(lambda key: fljax.simulate(algorithm, method.Hyper(lr=0.1), data, key, 2), key)
    assert metrics["client_accuracy"].shape == (2, 9)
    assert repr(algorithm).startswith("fedavg+top_k+down_quantize+ema+halved(")
    assert "attack='sign_flip'" in repr(algorithm)


@pytest.mark.parametrize(
    ("name", "schedule", "message"),
    [
        (
            "fedavg",
            lambda hyper, round: 3,
            r"^what the schedule mine returned is 3, not a LocalHyper; return hyper.repl",
        ),
        (
            "fedavg",
            lambda hyper, round: hyper.replace(momentum=0.9),
            r"^schedule mine: momentum=0.9 in place of None; None leaves a term out of all rounds, so give the run a",
        ),
        (
            "fedavg",
            lambda hyper, round: hyper.replace(lr=jnp.ones(3)),
            r"^schedule mine: lr has shape \(3,\); return one number, of shape \(\)",
        ),
        (
            "fedavg+client_dp",
            lambda hyper, round: hyper.replace(noise_multiplier=hyper.noise_multiplier / 2),
            r"^schedule mine: it changes noise_multiplier, but epsilon is computed for one value; leave it as it is",
        ),
        (
            "fedavg+banded_client_dp",
            lambda hyper, round: hyper.replace(bands=hyper.bands - 1),
            r"^schedule mine: it changes bands, but epsilon is computed for one value; leave it as it is",
        ),
        ("fedavg+dp_sgd", lambda hyper, round: hyper.replace(delta=hyper.delta), None),
        ("fedavg+client_dp", lambda hyper, round: hyper.replace(dp_clip=hyper.dp_clip / 2), None),  # noise follows it
    ],
)
def test_what_is_no_schedule_is_refused(name, schedule, message, key, model, federation):
    method = fljax.compose(name, Brick("mine", "schedule", schedule, ""))
    algorithm, hyper = method(model, WORK), jax.tree.map(jnp.float32, method.Hyper(lr=0.1))
    if message is None:
        written_out(algorithm, hyper, federation)
        return
    with pytest.raises(ValueError, match=message):
        written_out(algorithm, hyper, federation)


def test_a_brick_that_is_no_schedule_is_refused_at_once():
    with pytest.raises(
        ValueError, match=r"^mine: value is called with \(hyper, round\), but <lambda> takes \(hyper\)$"
    ):
        fljax.fedavg + Brick("mine", "schedule", lambda hyper: hyper, "")
    with pytest.raises(ValueError, match=r"^fedavg\+halved\+halved: halved is there already; leave one out"):
        fljax.fedavg + HALVED + HALVED


def test_a_brick_of_the_whole_algorithm_wraps_it(key, model, federation):
    """One that replaces the round comes around the links, one that keeps its halves between them and the method."""

    def counted(algorithm):
        def round(key, hyper, state, cohort):
            state, metrics = algorithm.round(key, hyper, state, cohort)
            return state, metrics | {"n_present": cohort.active.sum()}

        return algorithm._replace(round=round)

    method = fljax.compose("fedavg+top_k", Brick("counted", "algorithm", counted, "counts the participants"))
    _, metrics = simulate(method(model, WORK), method.Hyper(lr=0.1, top_share=0.5), federation, key, 1)
    assert metrics["n_present"] == len(federation.train.size)
    assert (metrics["uplink"] < metrics["downlink"]).all()  # top_k is inside
    exchange = fljax.compose("fedavg+ema+top_k")(model, WORK).round_exchange
    assert exchange is not None
    assert exchange.chain is not None  # so that an attack comes before top_k
    with pytest.raises(
        ValueError, match=r"^what the brick mine returned is None, not an Algorithm; return one, as alg"
    ):
        (fljax.fedavg + Brick("mine", "algorithm", lambda algorithm: None, ""))(model, WORK)
