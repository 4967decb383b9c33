"""Sweeps: a cell equals its single run, one compilation, one copy of the data, diverged points frozen."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.devices.memory import n_bytes
from fljax.devices.mesh import over_devices, replicated
from fljax.rounds.clock import wait_for_all
from fljax.rounds.named_samplings import uniform
from fljax.run.one_round import shapes_of_state
from fljax.run.simulate import simulate
from fljax.run.sweep import memory, needs, program
from fljax.run.sweep.cells import Setting, all_cells
from fljax.run.sweep.search import search
from fljax.run.sweep.whole import sweep
from tests.slow import slow

N_SEEDS, ROUNDS = 2, 3


@pytest.fixture(scope="session")
def hypers():
    """Three learning rates and one with which nobody's training stays finite."""
    return fljax.fedavg.Hyper(lr=jnp.asarray([0.01, 0.1, 1e38, 0.3]), momentum=0.5)


@pytest.fixture(scope="session")
def single_runs(averaging, federation, hypers):
    """[point][seed] metrics of `simulate`, on the host."""

    def run(lr, seed):
        key = jax.random.fold_in(jax.random.key(0), seed)
        hyper = fljax.fedavg.Hyper(lr=lr, momentum=0.5)
        return jax.device_get(simulate(averaging, hyper, federation, key, ROUNDS, participation=0.5)[1])

    return [[run(lr, seed) for seed in range(N_SEEDS)] for lr in np.asarray(hypers.lr)]


def equals_single_runs(metrics, single_runs):
    for point in (0, 1, 3):
        for seed in range(N_SEEDS):
            single = single_runs[point][seed]
            cell = {name: metrics[name][point, seed] for name in single}
            chex.assert_trees_all_close(cell, single, rtol=1e-5, atol=1e-5)
    assert metrics["diverged"][2].all()
    assert not metrics["diverged"][[0, 1, 3]].any()


@pytest.mark.parametrize("at_once", [4, *slow(1, 3)])
def test_a_cell_equals_its_single_run(key, averaging, federation, hypers, single_runs, at_once):
    metrics = jax.device_get(
        sweep(averaging, hypers, federation, key, N_SEEDS, ROUNDS, participation=0.5, at_once=at_once)
    )
    assert metrics["accuracy_macro"].shape == (4, N_SEEDS, ROUNDS)
    equals_single_runs(metrics, single_runs)
    np.testing.assert_array_equal(metrics["ids"][0], metrics["ids"][1])  # common random numbers
    assert not np.array_equal(metrics["ids"][0, 0], metrics["ids"][0, 1])


@pytest.mark.slow
def test_clips_noises_and_seeds_are_one_program(key, model, federation):
    method, program_names = fljax.compose("fedavg+clip_update+gaussian_noise"), []
    algorithm = method(model, fljax.Work(epochs=1, batch_size=8))

    def listener(event, seconds, fun_name="", **_):
        if "backend_compile" in event:
            program_names.append(fun_name)

    def losses_of(clips, noises):
        points = [(clip, noise) for clip in clips for noise in noises]
        clip, noise_std = (jnp.asarray(values) for values in zip(*points, strict=True))
        hypers = method.Hyper(lr=0.2, clip=clip, noise_std=noise_std)
        metrics = sweep(algorithm, hypers, federation, key, N_SEEDS, ROUNDS, at_once=1)
        assert metrics["accuracy_macro"].shape == (4, N_SEEDS, ROUNDS)
        return metrics["client_loss"]

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        first_losses = losses_of((0.01, 1.0), (0.0, 0.1))
        n_programs = len(program_names)
        other_losses = losses_of((0.1, 10.0), (0.05, 0.2))
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert len([name for name in program_names if name == "jit(_whole_runs)"]) == 1
    assert len(program_names) == n_programs  # other clips and noises are no other programs
    runs = np.concatenate([first_losses, other_losses]).reshape(8 * N_SEEDS, -1)
    assert len(np.unique(runs, axis=0)) == 8 * N_SEEDS  # and each is another run


@pytest.mark.slow
@pytest.mark.parametrize("as_sequence", [list, tuple])
def test_lists_are_vectors(key, averaging, federation, hypers, single_runs, as_sequence):
    hypers_of_lists = fljax.fedavg.Hyper(lr=as_sequence(np.asarray(hypers.lr).tolist()), momentum=0.5)
    metrics = sweep(averaging, hypers_of_lists, federation, key, N_SEEDS, ROUNDS, participation=0.5)
    equals_single_runs(jax.device_get(metrics), single_runs)


def test_over_devices_too(key, averaging, federation, hypers, single_runs):
    with over_devices(n_sweep=2) as mesh:
        five_points = hypers.replace(lr=jnp.append(hypers.lr, 0.2))
        metrics = sweep(averaging, five_points, replicated(federation, mesh), key, N_SEEDS, ROUNDS, participation=0.5)
    equals_single_runs(jax.device_get(metrics), single_runs)


@pytest.mark.slow
def test_a_diverged_run_is_frozen_where_it_stands(key, averaging, federation):
    setting, due = Setting(averaging, 9, 3, 1), jnp.ones(3, bool)
    cells = program.begin(setting, all_cells(fljax.fedavg.Hyper(lr=jnp.asarray([0.1, 1e38])), key, 1), federation)
    advance = lambda cells, first, count: program.advance(  # noqa: E731
        setting, cells, federation, None, due, jnp.int32(first), jnp.int32(count)
    )
    cells, _ = advance(cells, 0, 1)
    early = jax.tree.map(np.array, cells._replace(key=None))  # what is passed is donated
    late, metrics = jax.device_get(advance(cells, 1, 2))
    np.testing.assert_array_equal(early.diverged, [-1, 0])
    np.testing.assert_array_equal(late.diverged, [-1, 0])
    frozen = lambda cells: jax.tree.map(lambda leaf: leaf[1], cells.state)  # noqa: E731
    chex.assert_trees_all_equal(frozen(early), frozen(late))
    assert np.isnan(metrics["accuracy_macro"][:2, 1]).all()
    assert not metrics["ok"][:2, 1].any()
    assert metrics["ok"][:2, 0].all()


@pytest.mark.slow
def test_64_learning_rates_hold_the_data_once(key, averaging, federation):
    def compile_points(n_points):
        cells = all_cells(fljax.fedavg.Hyper(lr=jnp.linspace(0.01, 0.1, n_points)), key, 1)
        setting = Setting(averaging, 9, 2, n_points)
        return needs.compiled(setting, cells, federation, None)

    programs = {n: compile_points(n) for n in (2, 4, 64)}
    memory_of_two, memory_of_64 = programs[2].memory_analysis(), programs[64].memory_analysis()
    data = sum(leaf.nbytes for leaf in jax.tree.leaves(federation))
    state = shapes_of_state(averaging.init, key, fljax.fedavg.Hyper(), federation.train)
    bytes_per_cell = 4 + 8 + 4 + n_bytes(state)  # a learning rate, a key and where it diverged
    assert memory_of_64.argument_size_in_bytes - memory_of_two.argument_size_in_bytes == 62 * bytes_per_cell
    shared, per_run = memory.estimate(programs.__getitem__)
    assert shared >= data
    # What 64 runs at once need beside the data is 64 models and their metrics, not 64 copies of the pool.
    assert memory.peak(programs[64]) < shared + 1.2 * 64 * per_run
    assert 64 * per_run < memory.peak(programs[64]) + 0.2 * 64 * per_run


@pytest.mark.slow
def test_the_plan_says_how_many_fit(key, averaging, federation):
    hypers = fljax.fedavg.Hyper(lr=jnp.linspace(0.01, 0.1, 12))
    setting, cells = Setting(averaging, 9, 2, 1), all_cells(hypers, key, 1)
    plan = lambda memory, at_once=12: needs.plan(setting, cells, federation, None, at_once, memory)  # noqa: E731
    planned = plan(10**9)
    assert (planned.at_once, plan(10**9, None).at_once) == (12, 1)  # a CPU's best is one after another
    bytes_of_all = planned.shared + 12 * (planned.per_run + planned.result)
    assert plan(int(bytes_of_all / 0.9) + 1).at_once == 12
    with pytest.raises(ValueError, match=r"at_once=12: more points than fit.*choose at_once <= 11"):
        plan(int(bytes_of_all / 0.9) - planned.per_run // 2)
    with pytest.raises(ValueError, match="more points than fit: 12 runs need"):
        plan(planned.shared)


@pytest.mark.slow
def test_more_points_than_fit_are_refused(key, averaging, federation):
    with pytest.raises(ValueError, match="more points than fit: 2 runs need"):
        sweep(averaging, fljax.fedavg.Hyper(lr=jnp.asarray([0.1, 0.2])), federation, key, 1, 2, memory=1000)


@pytest.mark.parametrize(
    ("n_seeds", "at_once", "message"),
    [
        (0, None, "n_seeds=0 is not positive"),
        (1.5, None, r"n_seeds=1\.5 is not a whole number"),
        (1, 0, "at_once=0 is not positive"),
        (1, 1.5, r"at_once=1\.5 is not a whole number"),
    ],
)
def test_numbers_out_of_range_are_refused(key, averaging, federation, n_seeds, at_once, message):
    with pytest.raises(ValueError, match=message):
        sweep(averaging, fljax.fedavg.Hyper(), federation, key, n_seeds, 1, at_once=at_once)


@pytest.mark.parametrize("name", [*slow("ifca"), "fedavg+client_dp"])
def test_what_only_the_host_can_tell_is_that_of_single_runs(key, federation, name):
    """Churn of the clusters, epsilon, simulated seconds: in a sweep and a search as in a single run.

    Four points on one device are what a search runs at once: the sweep's program.
    """
    model = fljax.MODELS["logistic_regression"]((4, 4, 1), 4)
    method, choices = fljax.compose(name), {"n_clusters": 2} if name == "ifca" else {}
    algorithm = method(model, fljax.Work(epochs=1, batch_size=8), **choices)
    sampling = wait_for_all(uniform(0.5), range(1, 1 + len(federation.train.size)))
    hypers, options = method.Hyper(lr=[0.05, 0.3, 0.1, 0.2]), {"sampling": sampling}
    sweep_metrics = sweep(algorithm, hypers, federation, key, 1, ROUNDS, **options, compile="fast")
    one_device = {"compile": "fast", "devices": jax.devices()[:1]}
    search_metrics = search(algorithm, hypers, federation, key, 1, ROUNDS, **options, **one_device).metrics
    host_metrics = {"simulated_seconds", "churn" if name == "ifca" else "epsilon"}
    for i, lr in enumerate(hypers.lr):
        hyper = method.Hyper(lr=lr)
        _, single = simulate(algorithm, hyper, federation, jax.random.fold_in(key, 0), ROUNDS, **options)
        for metrics in (sweep_metrics, search_metrics):
            assert host_metrics <= metrics.keys() == single.keys() | {"diverged"}
            for metric in host_metrics:
                np.testing.assert_allclose(metrics[metric][i, 0], single[metric], rtol=1e-5)
    traced = jax.eval_shape(lambda key: sweep(algorithm, hypers, federation, key, 1, ROUNDS, **options), key)
    assert not host_metrics & traced.keys()
