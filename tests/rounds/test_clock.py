"""A clock: seconds by hand, samplings that wait, the order of an asynchronous run, and FedBuff against NumPy."""

import gzip

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import tree
from fljax.attacks import attacked, label_flip
from fljax.models import mlp
from fljax.numbers import check_numbers, joined
from fljax.rounds import fixed, poisson, power_of_choice, table, uniform
from fljax.rounds.averaging import ReceivedModels
from fljax.rounds.clock import (
    BufferHyper,
    asynchronous,
    buffered,
    devices,
    devices_of_file,
    drawn_devices,
    over_selection,
    round_seconds,
    tiers,
    wait_for_all,
    with_asking,
    with_availability,
    with_deadline,
)
from fljax.rounds.clock.named import CLOCKS, ClockedRun
from fljax.rounds.timing import Timing
from fljax.rounds.uplink.chain import with_uplink
from fljax.rounds.uplink.compression import top_k
from fljax.run.clocked import check_alike, clocked
from fljax.types import State, Work
from tests.algorithms.round_by_round import jitted, simulate
from tests.rounds.drawn import draw_cohort
from tests.slow import slow


def test_a_round_is_download_steps_and_upload(federation):
    work, n = Work(epochs=2, batch_size=8), len(federation.train.size)
    seconds = devices(np.arange(1, n + 1), up=100.0, down=200.0).seconds(federation.train, work, 50, 10)
    expected = [
        2 * -(-int(size) // 8) / (i + 1) + 4 * 50 / 200 + 4 * 10 / 100 for i, size in enumerate(federation.train.size)
    ]
    np.testing.assert_allclose(seconds, expected)
    with pytest.raises(ValueError, match="2 devices for 9 clients"):
        devices(np.ones(2)).seconds(federation.train, work, 1)


def test_speeds_are_drawn_about_their_medians_or_read_and_none_is_zero(tmp_path):
    many_devices = drawn_devices(4000, speed=20.0, spread=0.5)
    assert abs(np.log(np.median(many_devices.speed) / 20)) < 0.05
    assert abs(np.std(np.log(many_devices.up)) - 0.5) < 0.03
    assert (
        np.abs(np.corrcoef(np.log([many_devices.speed, many_devices.up, many_devices.down])) - np.eye(3)).max() < 0.06
    )  # 4 / sqrt(4000)
    assert len(set(drawn_devices(5, spread=0.0).speed)) == 1
    path = tmp_path / "trace.csv"
    path.write_text("speed,up,down\n1,2,3\n4,5,6\n")
    assert devices_of_file(path).up == (2.0, 5.0)
    (tmp_path / "trace.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert devices_of_file(tmp_path / "trace.csv.gz") == devices_of_file(str(path))
    (tmp_path / "trace.csv.gz").write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match=r"trace\.csv\.gz: cannot be unpacked by gzip: Not a gzipped file"):
        devices_of_file(tmp_path / "trace.csv.gz")
    with pytest.raises(ValueError, match="path is of type int, not a path"):
        devices_of_file(1)
    path.write_text("speed,up\n1,2\n")
    with pytest.raises(ValueError, match="a number in each of the columns"):
        devices_of_file(path)
    with pytest.raises(ValueError, match="speed=0 of client 1 is not a speed"):
        devices(np.asarray([1.0, 0.0]))


SECONDS = (5.0, 1.0, 4.0, 2.0, 3.0, 9.0)


def participants(sampling, round=0, n_clients=6):
    size, n_places = jnp.ones(n_clients, jnp.int32), sampling.n_places(n_clients)
    ids, is_active = sampling.draw(jax.random.key(round), jnp.int32(round), size, n_places)
    is_active = is_active if sampling.cut is None else sampling.cut(ids, is_active)
    return np.asarray(ids)[np.asarray(is_active)]


def test_rounds_wait_until_a_deadline_or_for_the_first_few():
    np.testing.assert_array_equal(participants(with_deadline(uniform(), SECONDS, 3.0)), [1, 3, 4])
    np.testing.assert_array_equal(participants(over_selection(uniform(), SECONDS, 2)), [1, 3])
    metrics = {"ids": np.asarray([[0, 1], [2, 5]]), "active": np.asarray([[True, True], [True, False]])}
    np.testing.assert_array_equal(round_seconds(metrics, SECONDS), [5, 4])
    np.testing.assert_array_equal(round_seconds(metrics, SECONDS, deadline=6.0), [5, 6])
    with pytest.raises(ValueError, match=r"deadline=0\.5: the fastest client takes 1 seconds"):
        with_deadline(uniform(), SECONDS, 0.5)
    with pytest.raises(ValueError, match="count=0"):
        over_selection(uniform(), SECONDS, 0)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [poisson(0.4), *slow(table([[1], [0, 1, 2], [5]]))], ids=["poisson", "table"])
@pytest.mark.parametrize("dropout", [*slow(None), 0.3])
def test_a_round_waits_for_those_who_were_asked_alone(averaging, federation, key, sampling, dropout):
    """Empty places of a cohort, which nobody was asked to fill, keep nobody waiting."""
    seconds = tuple(float(i + 1) for i in range(9))
    metrics_without_deadline = simulate(averaging, fljax.fedavg.Hyper(lr=0.2), federation, key, 6, sampling=sampling)[1]
    sampling_with_deadline = with_deadline(sampling, seconds, 5.5)
    metrics = simulate(
        averaging, fljax.fedavg.Hyper(lr=0.2), federation, key, 6, sampling=sampling_with_deadline, dropout=dropout
    )[1]
    asked_clients, clients_in_time = (
        [
            set(np.asarray(ids[is_active]).tolist())
            for ids, is_active in zip(some_metrics["ids"], some_metrics["active"], strict=True)
        ]
        for some_metrics in (metrics_without_deadline, metrics)
    )
    n_missing = [
        len(asked_in_round - in_time_in_round)
        for asked_in_round, in_time_in_round in zip(asked_clients, clients_in_time, strict=True)
    ]
    np.testing.assert_array_equal(metrics["n_missing"], n_missing)
    assert "n_missing" not in metrics_without_deadline  # which nobody would read
    slowest = [max((seconds[i] for i in in_time_in_round), default=0) for in_time_in_round in clients_in_time]
    np.testing.assert_allclose(sampling_with_deadline.timing.of_rounds(0, metrics), np.where(n_missing, 5.5, slowest))
    assert dropout or 0 in n_missing
    assert any(n_missing)


def test_a_clock_of_other_clients_is_refused(averaging, federation, key):
    for sampling, name in (
        (wait_for_all(uniform(), SECONDS), "seconds"),
        (with_deadline(uniform(), SECONDS, 3.0), "seconds"),
        (over_selection(uniform(), SECONDS, 2), "seconds"),
        (tiers(SECONDS, 3, 2), "seconds"),
        (with_availability(uniform(), 6 * (0.5,)), "available"),
    ):
        with pytest.raises(ValueError, match=f"{name}: 6 numbers for 9 clients; give one per client"):
            fljax.simulate(averaging, fljax.fedavg.Hyper(), federation, key, 1, sampling=sampling)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wait_for_all(uniform(), "fast"), "seconds='fast': give a number for each client"),
        (lambda: wait_for_all(uniform(), 3.0), "give a number for each client"),
        (lambda: wait_for_all(uniform(), [1, None]), "give a number for each client"),
        (lambda: with_deadline(uniform(), [1.0, -2.0], 3), "seconds=-2 of client 1: choose finite seconds >= 0"),
        (lambda: with_deadline(uniform(), [1.0, np.inf], 3), "seconds=inf of client 1"),
        (lambda: with_deadline(uniform(), SECONDS, "soon"), "deadline='soon' is not a number"),
        (lambda: with_availability(uniform(), [0.5, "often"]), "available=.* give a number for each client"),
        (lambda: over_selection(uniform(), SECONDS, 1.5), r"count=1\.5 .*choose .*count"),
        (lambda: tiers(SECONDS, 0, 1), "n_tiers=0"),
        (lambda: asynchronous(SECONDS, concurrency=2, buffer=0, n_rounds=1), "buffer=0"),
        (lambda: asynchronous([], concurrency=2, buffer=1, n_rounds=1), "give a number for each client"),
        (lambda: devices(5), "speed=5: give a number for each client"),
        (lambda: devices([1, 2], up="a"), "up='a': give a number for all clients, or one for each of 2"),
        (lambda: devices([1, 2], down=[1, 2, 3]), r"down=\[1, 2, 3\]: give a number for all clients"),
        (lambda: drawn_devices(0), "n_clients=0"),
        (lambda: drawn_devices(3, spread=-1), "spread=-1 is out of its range"),
    ],
)
def test_seconds_and_counts_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_seconds_may_be_an_array_of_any_kind():
    float32_seconds = np.asarray(SECONDS, np.float32)
    of_lists = with_deadline(uniform(jnp.float32(1)), float32_seconds.tolist(), 3)
    assert with_deadline(uniform(), jnp.asarray(float32_seconds), jnp.float32(3)) is of_lists


def test_clients_answer_as_often_as_their_devices_say(tmp_path):
    chances = (1.0, 0.2, 0.7, 1.0, 0.5, 0.9)
    size = jnp.ones(6, jnp.int32)
    draw = jax.vmap(lambda key: with_availability(uniform(), chances).draw(key, jnp.int32(0), size, 6))
    ids, is_active = draw(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_array_equal(np.asarray(ids), np.broadcast_to(np.arange(6), (4000, 6)))
    np.testing.assert_allclose(is_active.mean(axis=0), chances, atol=0.03)
    # A client answers in a round or not, whoever is asked beside it; and not because it is asked.
    draw_two = jax.vmap(lambda key: with_availability(fixed((1, 4)), chances).draw(key, jnp.int32(0), size, 2)[1])
    np.testing.assert_array_equal(draw_two(jax.random.split(jax.random.key(0), 4000)), is_active[:, [1, 4]])
    half_of_clients = with_availability(uniform(0.5), (0.5,) * 6)
    draw_half = jax.vmap(lambda key: half_of_clients.draw(key, jnp.int32(0), jnp.ones(6, jnp.int32), 3)[1])
    np.testing.assert_allclose(draw_half(jax.random.split(jax.random.key(0), 4000)).mean(), 0.5, atol=0.03)
    assert drawn_devices(3, available=0.5).available == (0.5,) * 3
    path = tmp_path / "trace.csv"
    path.write_text("speed,up,down,available\n1,2,3,0.5\n4,5,6,1\n")
    assert devices_of_file(path).available == (0.5, 1.0)
    with pytest.raises(ValueError, match="available=0 of client 1 is not a probability"):
        devices(np.ones(2), available=np.asarray([1.0, 0.0]))
    with pytest.raises(ValueError, match="choose 0 < available <= 1"):
        with_availability(uniform(), (1.5,))


def test_tiers_take_clients_of_like_speed():
    drawn_tiers = {tuple(participants(tiers(SECONDS, 3, 2), r)) for r in range(30)}
    assert drawn_tiers == {(1, 3), (2, 4), (0, 5)}
    two_speeds = tiers(np.tile([1.0, 2.0], 20), 4, 10)  # of equal ones, those of lower ids are together
    assert tuple(participants(two_speeds, n_clients=40)) in {tuple(range(i, i + 20, 2)) for i in (0, 20, 1, 21)}
    with pytest.raises(ValueError, match="n_participants=3 of 6 clients in 3 tiers; choose 1 to 2"):
        tiers(SECONDS, 3, 3)


def test_the_order_in_which_clients_finish_is_that_of_their_seconds():
    schedule = asynchronous((1.0, 2.5, 10.0), concurrency=3, buffer=1, n_rounds=5)
    # Client 0 is done at 1, 2, 3, 4 and client 1 at 2.5, which has missed two versions by then.
    assert schedule.ids == ((0,), (0,), (1,), (0,), (0,))
    assert schedule.staleness == ((0,), (0,), (2,), (1,), (0,))
    assert schedule.ends == (1.0, 2.0, 2.5, 3.0, 4.0)
    assert schedule.oldest == 2
    with pytest.raises(ValueError, match="buffer=4: there are 3 clients"):
        asynchronous((1.0, 1.0, 1.0), concurrency=1, buffer=4, n_rounds=1)


def test_no_client_is_twice_in_a_buffer_and_as_many_train_as_may():
    seconds = np.random.default_rng(0).lognormal(size=20)
    schedule = asynchronous(seconds, concurrency=8, buffer=4, n_rounds=60, seed=1)
    assert all(len(set(row)) == 4 for row in schedule.ids)
    assert np.all(np.diff(schedule.ends) >= 0)
    assert 0.5 < np.mean(schedule.staleness) < 8
    equal_clients = asynchronous(np.ones(20), concurrency=4, buffer=4, n_rounds=6)
    assert not np.any(equal_clients.staleness)
    np.testing.assert_allclose(equal_clients.ends, np.arange(1, 7))


@pytest.mark.slow
def test_equal_speeds_and_a_buffer_of_all_that_train_are_the_synchronous_run(model, federation, key):
    """Bit for bit, as far as XLA sums in one order in both programs: of a network of one layer it does not."""
    schedule, averaging = asynchronous(np.ones(9), concurrency=4, buffer=4, n_rounds=3), fljax.fedavg(model, Work(1, 8))
    hyper = fljax.fedavg.Hyper(lr=0.2)
    synchronous_state, synchronous_metrics = simulate(
        averaging, hyper, federation, key, 3, sampling=table(schedule.ids)
    )
    state, buffered_metrics = simulate(
        buffered(averaging, schedule), hyper, federation, key, 3, sampling=schedule.sampling
    )
    chex.assert_trees_all_equal(synchronous_state.server, state.server.own)
    np.testing.assert_array_equal(synchronous_metrics["client_loss"], buffered_metrics["client_loss"])


def test_seconds_of_rounds_by_hand():
    ids, active = np.asarray([[0, 1, 2], [0, 1, 3]]), np.asarray([[True, True, False], [True, True, True]])
    metrics, seconds = {"ids": ids, "active": active}, (1.0, 2.0, 30.0, 4.0)
    for timing, expected in (
        (Timing(seconds), [2, 4]),
        (Timing(seconds, deadline=5.0), [5, 4]),  # somebody is missing in the first
        (Timing(seconds, deadline=5.0, count=2), [2, 4]),  # nobody who is needed
        (Timing(ends=(3.0, 4.0, 9.0)), [5, 3]),  # the third round, and the first again
    ):
        np.testing.assert_array_equal(timing.of_rounds(2, metrics), expected)
        # Three clients are asked, of whom one is absent, or one twice; the end of an asynchronous round is known.
        asked = metrics | {"candidates": np.asarray([[2, 0, -1], [3, 1, 1]])}
        until = timing._replace(asking=(10.0, 20.0, 40.0, 5.0)).of_rounds(2, asked)
        np.testing.assert_array_equal(until, np.add(expected, 0 if timing.ends else [40, 20]))
    for sampling in (
        over_selection(with_deadline(uniform(0.5), seconds, 5.0), seconds, 2),
        with_deadline(over_selection(uniform(0.5), seconds, 2), seconds, 5),
    ):
        assert sampling.timing == Timing(seconds, 5.0, 2)


def test_a_timing_of_other_clients_is_refused(averaging, federation, key):
    for timing, n in ((Timing((1.0, 2.0)), 2), (Timing(), 0)):
        with pytest.raises(ValueError, match=rf"the timing has {n} seconds of clients' rounds, but there are \d"):
            simulate(
                averaging, fljax.fedavg.Hyper(lr=0.1), federation, key, 1, sampling=uniform(0.5)._replace(timing=timing)
            )


@pytest.mark.slow
def test_a_clock_that_only_counts_changes_no_run_and_a_round_takes_as_long_as_its_slowest_client(
    averaging, federation, key
):
    clock, hyper = CLOCKS["wait"](up=1e3, spread=1.0), fljax.fedavg.Hyper(lr=0.2)
    algorithm, sampling = clocked(averaging, hyper, uniform(0.5), clock, federation, 3)
    assert algorithm is averaging
    _, metrics = simulate(averaging, hyper, federation, key, 3, participation=0.5)
    _, clocked_metrics = fljax.simulate(algorithm, hyper, federation, key, 3, sampling=sampling)
    np.testing.assert_array_equal(metrics["client_loss"], clocked_metrics["client_loss"])
    d = float(metrics["uplink"][0, 0])
    seconds = drawn_devices(9, up=1e3, spread=1.0).seconds(federation.train, Work(1, 8), d)
    np.testing.assert_allclose(clocked_metrics["simulated_seconds"], seconds[metrics["ids"]].max(axis=1), rtol=1e-6)


def test_a_clock_counts_what_is_sent_each_way_after_the_first_round(averaging, federation):
    def round_with_traffic(key, hyper, state, cohort):
        state, metrics = averaging.round(key, hyper, state, cohort)
        is_first = (cohort.round == 0).astype(jnp.float32)
        return state, metrics | {"uplink": 300 + 1e6 * is_first, "downlink": 20 + 1e6 * is_first}

    algorithm = averaging._replace(exchange=None, round=round_with_traffic)
    clock = CLOCKS["wait"](up=1e3, down=1e2, spread=1.0, device_seed=3)._replace(
        start=lambda inputs: (algorithm, inputs)
    )
    _, clock_inputs = clocked(algorithm, fljax.fedavg.Hyper(lr=0.2), uniform(), clock, federation, 5)
    slow_devices = drawn_devices(9, up=1e3, down=1e2, spread=1.0, seed=3)
    seconds = slow_devices.seconds(federation.train, Work(1, 8), 20, 300)
    np.testing.assert_allclose(clock_inputs.seconds, seconds, rtol=1e-6)
    np.testing.assert_array_equal(clock_inputs.steps, -(-np.asarray(federation.train.size) // 8))
    assert (clock_inputs.devices, clock_inputs.n_rounds, clock_inputs.seed) == (slow_devices, 5, 3)


def test_a_clock_counts_what_a_sampling_with_a_memory_is_sent(averaging, federation):
    clock = CLOCKS["wait"](up=1e3, spread=1.0)._replace(start=lambda inputs: (averaging, inputs))
    seconds = [
        clocked(averaging, fljax.fedavg.Hyper(lr=0.2), sampling, clock, federation, 5)[1].seconds
        for sampling in (uniform(0.5), power_of_choice(0.5, memory=True))
    ]
    devices = drawn_devices(9, up=1e3, spread=1.0)
    of_a_number = np.subtract(*(devices.seconds(federation.train, Work(1, 8), 0, n) for n in (1, 0)))
    assert (of_a_number > 0).all()
    np.testing.assert_allclose(np.subtract(*seconds[::-1]), of_a_number, rtol=1e-3)


def test_a_round_begins_when_all_that_are_asked_have_answered(averaging, federation):
    """A candidate downloads the model, passes four examples through it, and sends a number; none of it again after."""
    clock, hyper, sampling = CLOCKS["wait"](up=1e3, spread=1.0), fljax.fedavg.Hyper(lr=0.2), power_of_choice(1 / 3)
    asked, of_four = (
        clocked(averaging, hyper, s, clock, federation, 5)[1].timing
        for s in (sampling, power_of_choice(1 / 3, examples=4))
    )
    slow, size, n = drawn_devices(9, up=1e3, spread=1.0), np.asarray(federation.train.size), 16 * 4 + 4
    batches, speed, up, down = -(-size // 8), *(np.asarray(row) for row in slow[:3])
    np.testing.assert_allclose(asked.seconds, batches / speed + 4 * n / up)
    np.testing.assert_allclose(asked.asking, batches / 3 / speed + 4 * n / down + 4 / up)
    np.testing.assert_allclose(of_four.asking, np.minimum(4 / size, 1) * batches / 3 / speed + 4 * n / down + 4 / up)
    metrics = {"ids": [[0, 1]], "active": [[True, True]], "candidates": [[0, 1, 2]]}
    seconds = round_seconds(metrics, asked.seconds, asking=asked.asking)
    np.testing.assert_allclose(seconds, max(asked.asking[:3]) + max(asked.seconds[:2]))


@pytest.mark.parametrize(
    ("sampling", "lacking"),
    [(wait_for_all(uniform(), [1.0, 2.0]), "does not ask clients for losses"), (power_of_choice(), "has no clock")],
)
def test_only_a_clock_of_a_sampling_that_asks_counts_asking(sampling, lacking):
    with pytest.raises(ValueError, match=lacking):
        with_asking(sampling, [1.0, 2.0])
    with pytest.raises(ValueError, match="asking: 3 numbers for 2 clients"):
        with_asking(wait_for_all(power_of_choice(), [1.0, 2.0]), [1.0, 2.0, 3.0]).of(2)


def test_a_number_that_changes_what_is_sent_changes_the_times_of_a_sweep(averaging, federation):
    def by_rate(key, hyper, state, cohort):
        state, metrics = averaging.round(key, hyper, state, cohort)
        return state, metrics | {"uplink": 1000 * hyper.lr}

    arguments = averaging._replace(exchange=None, round=by_rate), uniform(), CLOCKS["wait"](), federation
    slow, fast = (fljax.fedavg.Hyper(lr=lr) for lr in (0.1, 0.2))
    with pytest.raises(ValueError, match=r"^--clock wait: lr changes how much .* one sweep for each value of lr$"):
        check_alike(arguments[0], {"momentum": (slow, slow), "lr": (slow, fast), "mu": (slow, fast)}, *arguments[1:])
    assert check_alike(arguments[0], {"lr": (slow, fast)}, uniform(), CLOCKS["none"](), federation) is None


def test_a_number_of_a_clock_is_none_only_where_that_says_something():
    assert CLOCKS["deadline"](limit=None) == CLOCKS["deadline"]()
    for name, number in (("fedbuff", "share"), ("wait", "speed")):
        with pytest.raises(ValueError, match=f"^{number}=None is not a number"):
            CLOCKS[name](**{number: None})


def test_arguments_of_a_clock_are_known_and_any_number_is_one():
    with pytest.raises(
        ValueError, match=r"^deadline has no 'buffer'; choose one of limit, in_time, late, devices, speed"
    ):
        CLOCKS["deadline"](buffer=2)
    assert CLOCKS["tiered"](n_tiers=np.array(3), speed=jnp.float32(5)) is CLOCKS["tiered"](n_tiers=3, speed=5.0)


@pytest.mark.parametrize("name", [name for name in CLOCKS if name != "none"])
def test_every_clock_has_a_sampling_with_seconds(averaging, federation, name):
    clock = CLOCKS[name]()
    assert clock == CLOCKS[name]()  # static: one program for equal clocks
    clocked_run = ClockedRun(averaging, uniform(0.34), drawn_devices(9), tuple(np.arange(1.0, 10.0)), (4,) * 9, 4, 0)
    algorithm, sampling = clock.start(clocked_run if name != "fedbuff" else clocked_run._replace(sampling=uniform(0.6)))
    assert sampling.timing is not None
    # Over-selection asks half as many more of the 3; a tier, a deadline and waiting ask those.
    assert sampling.n_places(9) == {"over_select": 4, "fedbuff": 5, "fedasync": 1}.get(name, 3)
    mixing = {"fedbuff": "updates", "fedasync": "models"}
    assert dict(algorithm.about.choices).get("mixing") == mixing.get(name)


def test_stale_updates_are_damped_and_added_to_the_present_model_as_numpy_does(averaging, federation, key):
    """Three shares and powers at once, swept in one program; those that are given to `buffered` are the same."""
    schedule = asynchronous(np.asarray([1.0, 1.7, 4.1] * 3), concurrency=6, buffer=2, n_rounds=6)
    assert schedule.oldest >= 2
    share, damping = np.float32([1.0, 0.8, 1.0]), np.float32([0.5, 2.0, 0.0])
    swept_algorithm, fixed_algorithm = (
        buffered(averaging, schedule, share=a, damping=b) for a, b in ((None, None), (0.8, 2.0))
    )
    Hyper, hyper = joined(fljax.fedavg.Hyper, BufferHyper), fljax.fedavg.Hyper(lr=0.2)
    hypers = Hyper(lr=np.full(3, 0.2, np.float32), share=share, damping=damping)
    check_numbers(hypers, stacked=True)  # they are in their ranges
    fixed_state = jax.device_get(jitted(fixed_algorithm.init)(key, hyper, federation.train))
    state = jax.tree.map(lambda leaf: np.stack([leaf] * 3), fixed_state)
    receive = jax.jit(jax.vmap(swept_algorithm.round, (None, 0, 0, None)))
    past_models = [[averaging.exchange.part(fixed_state.server.own)] for _ in range(3)]
    for r in range(6):
        cohort = draw_cohort(key, np.int32(r), federation, schedule.sampling.of(9), None)
        ids, staleness = np.asarray(schedule.ids[r]), np.asarray(schedule.staleness[r])
        size = np.asarray(federation.train.size)[ids].astype(np.float64)
        for i in range(3):
            stacked = jax.tree.map(
                lambda *leaves: np.float32(np.stack(leaves)), *(past_models[i][-1 - s] for s in staleness)
            )
            trained = jitted(averaging.exchange.send)(
                key, hyper, State(ReceivedModels(stacked), fixed_state.clients), cohort
            ).params
            weight = share[i] * size / size.sum() / (1 + staleness) ** damping[i].astype(np.float64)

            def step(leaf_of_model, trained_leaf, start_leaf, weight=weight):
                change = np.asarray(trained_leaf, np.float64) - np.asarray(start_leaf, np.float64)
                return leaf_of_model + np.tensordot(weight, change, axes=1)

            past_models[i].append(jax.tree.map(step, past_models[i][-1], trained, stacked))
        state, _ = receive(key, hypers, state, cohort)
        fixed_state, _ = jitted(fixed_algorithm.round)(key, hyper, fixed_state, cohort)
        models = jax.device_get(state.server.own)
        for i in range(3):
            expected, actual = (
                jax.tree.map(np.float32, past_models[i][-1]),
                jax.tree.map(lambda leaf, i=i: leaf[i], models),
            )
            chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-5)
    second_model = jax.tree.map(lambda leaf: leaf[1], models)
    chex.assert_trees_all_close(second_model, jax.device_get(fixed_state.server.own), rtol=1e-5, atol=1e-6)
    assert all((leaf[0] != leaf[1]).any() and (leaf[1] != leaf[2]).any() for leaf in jax.tree.leaves(models))
    choices = dict(buffered(averaging, schedule).about.choices)
    assert (choices["share"], choices["damping"]) == (1.0, 0.5)  # FedBuff's


@pytest.mark.slow
@pytest.mark.parametrize("attack", [*slow(None), label_flip(ids=(8,), start=2)], ids=["nobody", "later"])
def test_what_is_done_to_an_update_on_its_way_is_done_before_it_is_discounted(federation, model, key, attack):
    schedule = asynchronous([1.0] * 8 + [4.5], concurrency=9, buffer=1, n_rounds=12)
    method, clip = fljax.compose("fedavg+clip_update"), 0.05
    algorithm, hyper = method(model, Work(1, 8)), method.Hyper(lr=0.3, clip=clip)
    if attack is not None:
        algorithm, federation, _ = attacked(algorithm, federation, attack)
    algorithm = buffered(algorithm, schedule, damping=2.0)
    assert dict(algorithm.about.choices)["damping"] == 2.0
    state, lengths = jitted(algorithm.init)(key, hyper, federation.train), []
    for r in range(12):
        old_model = algorithm.exchange.part(state.server)
        cohort = draw_cohort(key, np.int32(r), federation, schedule.sampling.of(9), None)
        state, _ = jitted(algorithm.round)(key, hyper, state, cohort)
        step = jax.tree.map(jnp.subtract, algorithm.exchange.part(state.server), old_model)
        lengths.append(float(jnp.sqrt(tree.squared_norm(step))))
    assert schedule.oldest >= 2
    staleness = np.asarray(schedule.staleness)[:, 0]
    np.testing.assert_allclose(
        lengths, clip / (1.0 + staleness) ** 2, rtol=1e-3
    )  # every update is longer than the clip


def test_dittos_clients_start_from_their_own_versions_and_are_drawn_to_them(federation, model, key):
    """Each of three clients with three versions in one round trains as if all had its version."""
    algorithm, hyper = fljax.ditto(model, Work(1, 8)), fljax.ditto.Hyper(lr=0.2, lam=1.0)
    state = jax.device_get(jitted(algorithm.init)(key, hyper, federation.train))
    cohort = draw_cohort(key, np.int32(0), federation, table(((1, 4, 7),)).of(9), None)
    rows = jax.tree.map(lambda leaf: leaf[np.asarray(cohort.ids)], state.clients)
    shared = algorithm.exchange.part(state.server)
    versions = jax.tree.map(lambda leaf: np.stack([leaf, leaf + np.float32(0.1), leaf - np.float32(0.2)]), shared)

    def send(versions):
        return jax.device_get(
            jitted(algorithm.exchange.send)(key, hyper, State(ReceivedModels(versions), rows), cohort)
        )

    upload = send(versions)
    for row in range(3):
        upload_of_one_version = send(jax.tree.map(lambda leaf, i=row: np.stack([leaf[i]] * 3), versions))
        for actual, expected in (
            (upload.params, upload_of_one_version.params),
            (upload.rest[0], upload_of_one_version.rest[0]),
        ):
            chex.assert_trees_all_close(
                *(jax.tree.map(lambda x, i=row: x[i], t) for t in (actual, expected)), atol=1e-6
            )


def test_methods_of_more_than_one_model_are_refused(federation, model):
    schedule = asynchronous(np.ones(9), concurrency=2, buffer=2, n_rounds=2)
    with pytest.raises(ValueError, match="cannot start from a past model"):
        buffered(fljax.ifca(model, Work(1, 8), 2), schedule)
    with pytest.raises(ValueError, match=r"damping=-1\.0: choose"):
        buffered(fljax.fedavg(model, Work(1, 8)), schedule, damping=-1.0)


@pytest.mark.slow
def test_numbers_that_are_put_in_by_hand_can_be_run_and_swept(model, averaging, federation, key):
    schedule = asynchronous(np.asarray([1.0, 1.7, 4.1] * 3), concurrency=6, buffer=2, n_rounds=3)
    buffered_algorithm, Hyper = (
        buffered(averaging, schedule, share=None, damping=None),
        joined(fljax.fedavg.Hyper, BufferHyper),
    )
    arguments = (federation, key, 3)
    fixed_state, fixed_metrics = simulate(
        buffered(averaging, schedule, share=0.8, damping=2.0),
        fljax.fedavg.Hyper(),
        *arguments,
        sampling=schedule.sampling,
    )
    state, _ = simulate(buffered_algorithm, Hyper(share=0.8, damping=2.0), *arguments, sampling=schedule.sampling)
    chex.assert_trees_all_close(state.server.own, fixed_state.server.own, rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError, match="has 'share', which fedavg does not read"):
        fljax.simulate(buffered(averaging, schedule), Hyper(), *arguments, sampling=schedule.sampling)
    trimmed_algorithm = fljax.fedavg(model, Work(1, 8), combine=fljax.rounds.trimmed_mean)
    simulate(trimmed_algorithm, fljax.compose("fedavg+trimmed_mean").Hyper(trim=0.2), *arguments)
    top_k_algorithm = with_uplink(averaging, top_k)
    _, metrics = simulate(top_k_algorithm, fljax.compose("fedavg+top_k").Hyper(top_share=0.5), *arguments)
    assert float(metrics["uplink"].max()) < float(fixed_metrics["uplink"].max())


def test_clients_that_are_absent_or_drop_out_never_finish_and_the_next_one_counts(federation, key):
    """The first three of those who are there, by hand; simulated seconds follow."""
    seconds = np.arange(1.0, 10.0)
    draw = over_selection(uniform(), seconds, 3).of(9)
    is_there = jnp.asarray([True, False, False, True, True, False, True, True, True])
    cohort = draw_cohort(key, np.int32(0), federation._replace(there=is_there), draw, None)
    np.testing.assert_array_equal(np.asarray(cohort.ids)[np.asarray(cohort.active)], [0, 3, 4])
    counts = []
    for r in range(40):
        cohort = draw_cohort(key, np.int32(r), federation, draw, 0.5)
        whole_cohort = draw_cohort(key, np.int32(r), federation, uniform().of(9), 0.5)
        remaining = np.asarray(whole_cohort.ids)[np.asarray(whole_cohort.active)]
        np.testing.assert_array_equal(np.asarray(cohort.ids)[np.asarray(cohort.active)], np.sort(remaining)[:3])
        counts.append(len(remaining))
    assert min(counts) < 3 < max(counts)
    np.testing.assert_allclose(cohort.expected, 3)


@pytest.mark.slow
def test_each_participant_says_what_it_sends_itself(federation, key, averaging):
    method = fljax.compose("fedavg+random_k")
    _, metrics = fljax.simulate(
        method(mlp((4, 4, 1), (6,), 4), Work(1, 8)), method.Hyper(random_share=0.1), federation, key, 2
    )
    assert metrics["uplink"].shape == (2, 9)
    assert (metrics["uplink"].std(axis=1) > 0).all()


@pytest.mark.parametrize("name", ["over_select", "tiered", "fedbuff", "fedasync"])
def test_a_sampling_of_ones_own_beside_a_clock_that_draws_is_refused(averaging, name):
    own_sampling = uniform(0.34)._replace(about=())
    clocked_run = ClockedRun(averaging, own_sampling, drawn_devices(9), tuple(np.arange(1.0, 10.0)), (4,) * 9, 4, 0)
    with pytest.raises(ValueError, match="draws the participants itself, and a sampling of your own does too; choose"):
        CLOCKS[name]().start(clocked_run)
