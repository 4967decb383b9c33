"""What a sampling remembers: seen as NumPy sees it, in every driver, resumed, and not in the way of those without."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.data.padding import same_shapes
from fljax.data.synthetic import linear_groups
from fljax.devices.hosts import at_home
from fljax.devices.mesh import over_devices
from fljax.folder.checkpoint import Checkpoint, pack, read, seal, stored
from fljax.folder.rounds import Written
from fljax.metrics.cost import traffic_of_clients
from fljax.rounds import Sampling, SamplingMemory, least_recent, oort, power_of_choice, uniform
from fljax.rounds.clock import wait_for_all, with_availability, with_deadline
from fljax.rounds.cohort import cohort_of
from fljax.rounds.memory import Seen, memory_of, remembering, updated, without_memory
from fljax.rounds.sampling import Draw
from fljax.run.identity import run_identity
from fljax.run.one_round import as_traced, first_state, round_keys, run_round
from fljax.run.privacy import mechanism
from fljax.run.together import Runs, train_together
from tests.algorithms.table import CASES
from tests.rounds.test_by_loss import losses_of_examples
from tests.slow import slow

HYPER = fljax.fedavg.Hyper(lr=0.2)
P = 16 * 4 + 4  # parameters of the plainest model
SECONDS = np.arange(1.0, 10.0)


def seen_by_a_sampling(memory, seen):
    """Keeps everything of the last time that each client came."""
    new = {
        "loss": seen.loss,
        "squares": seen.mean_of(jnp.square),
        "size": seen.size,
        "seconds": seen.seconds,
        "round": jnp.broadcast_to(seen.round, seen.ids.shape),
    }
    return {name: seen.put(memory[name], value) for name, value in new.items()}


def nothing_seen(n_clients):
    kinds = {"loss": float, "squares": float, "size": int, "seconds": float, "round": int}
    return {name: jnp.full(n_clients, -1, jnp.dtype(kind.__name__ + "32")) for name, kind in kinds.items()}


def longest_ago(key, round, size, n, memory):
    """The clients that came longest ago, and the second of them never counts."""
    return jnp.argsort(memory["round"], stable=True)[:n].astype(jnp.int32), jnp.arange(n) != 1


ABOUT = (("sampling", "longest_ago"),)
OWN = Sampling(
    longest_ago, lambda n_clients: 3, ABOUT, memory=SamplingMemory(nothing_seen, seen_by_a_sampling, sends=2)
)
ALL = (least_recent(1 / 3), power_of_choice(1 / 3, memory=True), oort(1 / 3))


@pytest.fixture(scope="module")
def run(averaging, federation):
    """A run of six rounds: the state before each of them and at last, and the metrics of each."""
    key, draw = jax.random.key(0), wait_for_all(OWN, SECONDS).of(9)
    algorithm = remembering(averaging, OWN.memory)
    one_round = jax.jit(partial(run_round, algorithm, draw))
    states, rounds = [first_state(algorithm.init, key, HYPER, federation.train)], []
    for r in range(6):
        state, metrics = one_round(HYPER, federation, key, None, states[-1], jnp.int32(r))
        states.append(state)
        rounds.append(jax.tree.map(np.asarray, metrics))
    return states, {name: np.stack([row[name] for row in rounds]) for name in rounds[0]}


def test_a_memory_is_what_the_server_has_seen(federation, run):
    states, metrics = run
    expected = {name: np.array(value) for name, value in nothing_seen(9).items()}
    for r in range(6):
        drawn = np.argsort(expected["round"], kind="stable")[:3]
        np.testing.assert_array_equal(metrics["ids"][r], np.sort(drawn))
        examples = losses_of_examples(without_memory(states[r]).server, federation.train)
        for i, active, loss in zip(metrics["ids"][r], metrics["active"][r], metrics["loss"][r], strict=True):
            assert active == (i != drawn[1])
            if active:
                squares = np.mean(examples[i] ** 2)
                new = {"loss": loss, "squares": squares, "size": len(examples[i]), "seconds": SECONDS[i], "round": r}
                for name, value in new.items():
                    expected[name][i] = value
        chex.assert_trees_all_close(memory_of(states[r + 1]), expected, rtol=1e-5)
    assert metrics["active"].sum() > (expected["round"] >= 0).sum()  # some came twice


def test_what_participants_send_for_it_is_counted(run):
    metrics = run[1]
    np.testing.assert_array_equal(metrics["uplink"], np.full((6, 3), P + 2.0))
    assert "candidates" not in metrics
    n_came = np.bincount(metrics["ids"][metrics["active"]], minlength=9)
    np.testing.assert_array_equal(traffic_of_clients(metrics, 9).uplink, 4 * (P + 2) * n_came)


COUNTING = SamplingMemory(lambda n_clients: jnp.int32(0), lambda n_rounds, seen: n_rounds + 1)


def test_a_method_has_room_for_a_memory_only_if_there_is_one(averaging):
    assert remembering(averaging, uniform(1 / 3).memory) is averaging
    counting = remembering(averaging, COUNTING)
    assert remembering(counting, COUNTING) is counting
    assert remembering(averaging, COUNTING) == counting  # so that nothing compiles twice
    assert counting.round is averaging.round


@pytest.mark.slow
def test_a_memory_that_is_not_used_changes_nothing(averaging, federation, key):
    def draw(key, round, size, n, memory):
        return uniform(1 / 3).draw(key, round, size, n)

    plain, idle = uniform(1 / 3), uniform(1 / 3)._replace(draw=draw, memory=COUNTING)
    both = remembering(averaging, COUNTING), averaging
    states = [first_state(algorithm.init, key, HYPER, federation.train) for algorithm in both]
    for r in range(2):
        results = [
            jax.jit(partial(run_round, algorithm, sampling.of(9)))(HYPER, federation, key, None, state, jnp.int32(r))
            for algorithm, sampling, state in zip(both, (idle, plain), states, strict=True)
        ]
        states = [state for state, _ in results]
        chex.assert_trees_all_equal(without_memory(states[0]), states[1])
        chex.assert_trees_all_equal(results[0][1], results[1][1])
        assert memory_of(states[0]) == r + 1
        assert memory_of(states[1]) is None


@pytest.mark.slow
def test_the_state_of_a_run_is_the_methods_own(averaging, federation, key, run):
    state, metrics = fljax.simulate(averaging, HYPER, federation, key, 6, sampling=wait_for_all(OWN, SECONDS))
    chex.assert_trees_all_close(state, without_memory(run[0][-1]), rtol=1e-6)
    np.testing.assert_array_equal(metrics["ids"], run[1]["ids"])
    assert fljax.deployed(averaging, HYPER, state, federation, key).row.shape == (9,)


def test_a_checkpoint_holds_the_memory(averaging, federation, key, run, tmp_path):
    """A run that is resumed after every round continues bit for bit."""
    states, metrics = run
    algorithm, draw = remembering(averaging, OWN.memory), wait_for_all(OWN, SECONDS).of(9)
    one_round, path = jax.jit(partial(run_round, algorithm, draw)), tmp_path / "last.msgpack"
    for r in range(6):
        path.write_bytes(seal(pack(Checkpoint(r, Written(), {}, [], states[r]))))
        resumed = jax.tree.map(jnp.asarray, read(path, states[0]).state)
        chex.assert_trees_all_equal(resumed, states[r])
        state, row = one_round(HYPER, federation, key, None, resumed, jnp.int32(r))
        chex.assert_trees_all_equal(state, states[r + 1])
        chex.assert_trees_all_equal(row, {name: value[r] for name, value in metrics.items()})


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [OWN, *ALL])
def test_a_run_resumed_after_every_round_is_the_run(averaging, federation, key, sampling, tmp_path):
    results, checkpoints = [], []
    for i, calls in enumerate(((4,), (1, 2, 3, 4))):
        folder = tmp_path / str(i)
        for n_rounds in calls:
            trained = fljax.train(averaging, HYPER, federation, key, n_rounds, sampling=sampling, folder=folder)
        begin = first_state(remembering(averaging, sampling.memory).init, key, HYPER, federation.train)
        results.append(trained)
        checkpoints.append(read(stored(folder)[0], begin))
    chex.assert_trees_all_equal(results[1].metrics, results[0].metrics)
    chex.assert_trees_all_equal(results[1].state, results[0].state)
    chex.assert_trees_all_equal(checkpoints[1].state, checkpoints[0].state)
    chex.assert_trees_all_equal(results[1].state, without_memory(checkpoints[1].state))
    assert checkpoints[1].identity == checkpoints[0].identity


def test_another_memory_is_another_run(averaging, federation, key):
    arguments = as_traced(HYPER), federation, key
    idle = uniform(1 / 3)._replace(draw=lambda *given: uniform(1 / 3).draw(*given[:4]), about=ABOUT)
    identities = []
    for init in (lambda n_clients: jnp.int32(0), lambda n_clients: jnp.zeros(n_clients)):
        for change in (1, 2):
            memory = SamplingMemory(init, lambda kept, seen, change=change: jax.tree.map(lambda x: x + change, kept))
            begin = remembering(averaging, memory).init
            state = jax.eval_shape(partial(first_state, begin), key, as_traced(HYPER), federation.train)
            draw = Draw(idle._replace(memory=memory), 3)
            identities.append(run_identity(averaging, state, *arguments, draw, 1, None))
    assert len({identity["program"] for identity in identities}) == 4
    assert "state.server.memory" in identities[0]


@pytest.mark.parametrize("sampling", ALL)
def test_who_is_absent_or_not_available_takes_no_place(federation, sampling):
    """As long as there are others. A client that never came would otherwise be the first in all rounds."""
    there = np.arange(9) % 2 == 0
    some_there = federation._replace(there=jnp.asarray(there))
    limited = with_deadline(with_availability(sampling, [1.0, 0.5, 0.5] * 3), [1] * 9, 1)

    @jax.jit
    def cohort(r, memory):
        drawn = cohort_of(round_keys(jax.random.key(0), r).cohort, r, some_there, limited.of(9), None, memory=memory)
        return drawn.ids, drawn.active, drawn.n_missing

    n_came, memory = [], sampling.memory.init(9)
    for r in range(20):
        ids, active, n_missing = map(np.asarray, cohort(jnp.int32(r), memory))
        assert there[ids[active]].all()
        assert n_missing == 0
        n_came.append(active.sum())
    assert set(n_came) == {2, 3}  # of five that are there, two are always available


@pytest.mark.parametrize("sampling", ALL)
def test_a_federation_of_clients_without_examples_takes_those_last(key, sampling):
    size = jnp.array([5, 0, 5, 0, 5, 0])
    ids, active = sampling.draw(key, jnp.int32(0), size, 4, sampling.memory.init(6))
    np.testing.assert_array_equal(np.asarray(ids)[np.asarray(active)], [0, 2, 4])
    assert len(set(ids.tolist())) == 4


@pytest.mark.parametrize("private", ["client_dp", "dp_sgd"])
@pytest.mark.parametrize("sampling", [OWN, *(one for one in ALL if one.memory.sends)])
def test_epsilon_does_not_hold_for_clients_that_are_chosen_by_what_they_tell(key, federation, model, private, sampling):
    method = fljax.compose(f"fedavg+{private}")
    with pytest.raises(ValueError, match=r"remembers what participants tell of their losses, which has no noise"):
        fljax.simulate(method(model, fljax.Work(1, 8)), method.Hyper(), federation, key, 1, sampling=sampling)


def test_epsilon_holds_if_it_remembers_nothing_of_their_data(federation):
    method = fljax.compose("fedavg+client_dp")
    assert mechanism(method.Hyper(), least_recent(0.5), fljax.Work(1, 8)).rate == 1


def own_with(**fields):
    return OWN._replace(memory=OWN.memory._replace(**fields))


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (
            own_with(update=lambda memory, seen: memory | {"more": seen.ids}),
            r"update returned a memory with \['more'\]",
        ),
        (
            own_with(update=lambda memory, seen: memory | {"size": seen.size}),
            r"\['size'\] has shape \(3,\); return \(9,",
        ),
        (own_with(sends=0, update=lambda memory, seen: memory | {"loss": seen.loss}), r"memory without \['loss'\]"),
        (OWN._replace(memory=None), r"cannot be called with \(key, round, size, n\)"),
        (uniform()._replace(draw=lambda key, round, size, n: 0, memory=OWN.memory), r"\(key, round, size, n, memory\)"),
        (
            OWN._replace(by_loss=True),
            r"cannot be called with \(key, round, size, n, loss, memory\); give it these arguments\s",
        ),
        (OWN._replace(memory=nothing_seen), "memory is .*, not a SamplingMemory; give fljax.rounds.SamplingMemory"),
        (own_with(update=None), "memory.update is None, not a function"),
    ],
)
def test_a_memory_that_cannot_be_is_refused(key, federation, averaging, sampling, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(
            lambda key: fljax.simulate(averaging, HYPER, federation, key, 1, sampling=sampling)[1]["ids"], key
        )


def test_a_draw_from_a_memory_needs_one(key, federation):
    with pytest.raises(ValueError, match="draws from its memory, but there is none; give that of a run's state"):
        cohort_of(round_keys(key, jnp.int32(0)).cohort, jnp.int32(0), federation, OWN.of(9), None)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [OWN, *ALL])
def test_a_sweep_over_seeds_is_the_single_runs(key, federation, averaging, sampling):
    swept = fljax.sweep(averaging, HYPER, federation, key, 3, 5, sampling=sampling, at_once=3)
    for seed in range(3):
        _, metrics = fljax.simulate(averaging, HYPER, federation, jax.random.fold_in(key, seed), 5, sampling=sampling)
        for name in ("ids", "active", "uplink"):
            np.testing.assert_array_equal(swept[name][0, seed], metrics[name])


@pytest.mark.slow
def test_a_search_in_a_folder_is_resumed_with_its_memories(key, federation, averaging, tmp_path):
    hypers, options = fljax.fedavg.Hyper(lr=[0.05, 0.5]), {"sampling": power_of_choice(1 / 3, memory=True)}
    search = partial(fljax.run.sweep.search, averaging, hypers, federation, key, 2, 5, at_once=2, **options)
    whole, halved = search(), search(halving=2, folder=tmp_path)
    kept = halved.rounds == 5
    assert kept.sum() == 1
    np.testing.assert_array_equal(halved.metrics["ids"][kept], whole.metrics["ids"][kept])
    assert (whole.metrics["ids"][kept] != whole.metrics["ids"][~kept]).any()


def test_over_devices_the_losses_are_seen():
    """They reach the memory as a function, which is no array that devices hold parts of."""
    ids, losses = jnp.arange(4, dtype=jnp.int32), jnp.arange(4.0)
    seen = Seen(jnp.int32(0), ids, ids < 3, ids, losses, losses, mean_of=lambda f: f(losses))
    with over_devices(jax.devices()[:2]):
        memory = jax.jit(lambda: updated(OWN.memory, nothing_seen(4), seen))()
    np.testing.assert_array_equal(memory["squares"], [0, 1, 4, -1])


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [OWN, *ALL])
def test_over_devices_the_same_clients_are_chosen(key, averaging, sampling):
    """Wherever the examples are."""
    federation = linear_groups(8, 4, examples=30, ragged=0.5)
    run = partial(fljax.simulate, averaging, HYPER, key=key, n_rounds=5, sampling=sampling)
    _, alone = run(federation)
    with over_devices(jax.devices()[:2]) as mesh:
        runs = [run(one)[1] for one in (federation, at_home(federation, mesh))]
    for metrics in runs:
        for name in ("ids", "active"):
            np.testing.assert_array_equal(metrics[name], alone[name])


@pytest.mark.slow
def test_several_runs_as_one_program_remember_each_for_itself(averaging, federation, tmp_path):
    other = federation._replace(train=federation.train._replace(size=federation.train.size[::-1]))
    federations, keys = same_shapes([federation, other]), [jax.random.key(0), jax.random.key(1)]
    folders, sampling = [tmp_path / "a", tmp_path / "b"], oort(1 / 3)
    runs = Runs(averaging, HYPER, federations, keys, 4, folders, sampling, compile="full")
    for trained, one, key in zip(train_together(runs), federations, keys, strict=True):
        alone = fljax.train(averaging, HYPER, one, key, 4, sampling=sampling, compile="full")
        np.testing.assert_array_equal(trained.metrics["ids"], alone.metrics["ids"])
        chex.assert_trees_all_close(trained.state, alone.state, rtol=1e-5)


@pytest.mark.slow
def test_coalitions_fill_their_cohorts_with_members(averaging, federation, key):
    members = np.arange(9)[None] % 2 == np.arange(2)[:, None]
    metrics = fljax.coalitions(averaging, HYPER, federation, members, key, 1, 5, sampling=least_recent(1 / 3))
    assert metrics["active"].all()
    for i, there in enumerate(members):
        without = federation._replace(there=jnp.asarray(there))
        seed = jax.random.fold_in(key, 0)
        _, alone = fljax.simulate(averaging, HYPER, without, seed, 5, sampling=least_recent(1 / 3))
        np.testing.assert_array_equal(metrics["ids"][i, 0], alone["ids"])
        assert there[alone["ids"]].all()


@pytest.mark.parametrize("name", ["ditto", *slow("ifca", "scaffold", "fedcps", "dcpfl")])
def test_the_memory_is_not_part_of_the_methods_state(key, federation, model, name):
    """Neither in its rounds nor at last; whatever the state is made of."""
    case = CASES[name]
    algorithm = case.make(model, fljax.Work(1, 8))
    state, metrics = jax.eval_shape(
        lambda key: fljax.simulate(algorithm, case.hyper, federation, key, 2, sampling=OWN), key
    )
    assert metrics["ids"].shape == (2, 3)
    expected = jax.eval_shape(algorithm.init, key, case.hyper, federation.train)
    assert jax.tree.structure(state) == jax.tree.structure(expected)
