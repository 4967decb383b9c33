"""Counts that must not drift unseen: programs that a run compiles, and how long each method's round is."""

import time

import jax
import jax.numpy as jnp
import pytest

import fljax
from fljax.catalogue.job import RUN
from fljax.data.synthetic import linear_groups
from fljax.devices import programs
from fljax.devices.mesh import over_devices
from fljax.devices.program_cost import cost_of
from fljax.jobs.assemble import make_algorithm
from fljax.jobs.job import read_job
from fljax.jobs.parts import make_model, make_parts
from fljax.run.chunk import MOST_ROUNDS, on_devices, run_chunk
from fljax.run.one_round import run_round, split_key
from fljax.run.train import train

MOST_EQUATIONS = {
    "standalone": 830,
    "fedavg": 880,
    "fedtsdp": 2340,
    "layercfl": 2090,
    "dcpfl": 2910,
    "fedcps": 2200,
    "fesem": 1350,
}
"""Of a chunk of rounds; the compiler's time grows with them. A method that needs more says so here."""
MORE_BEFORE = 1.015 if jax.__version_info__ < (0, 10, 2) else 1.0
"""JAX 0.10.0 makes up to 1.5 % more of the same round."""


@pytest.fixture(scope="module")
def main_job():
    """`fljax run` without arguments: the job, its federation and its network."""
    job = read_job([], RUN)
    federation, _ = make_parts(job)
    return job, federation, make_model(job, federation)


@pytest.mark.parametrize("name", MOST_EQUATIONS)
def test_a_round_is_no_longer_than_it_was(name, main_job):
    job, federation, model = main_job
    algorithm, hyper, _ = make_algorithm(name, job, model, len(federation.train.size))
    arguments = on_devices(None, hyper, federation, jax.random.key(0), None, 1, 3)
    hyper, federation, key = arguments[:3]
    state = jax.eval_shape(algorithm.init, split_key(key).init, hyper, federation.train)
    n_clients = federation.train.n_clients
    traced = run_chunk.trace(algorithm, n_clients, MOST_ROUNDS, *arguments, state, jnp.int32(0), jnp.int32(0))
    equations = cost_of(traced.jaxpr, 1.0).equations
    assert 0.8 * MOST_EQUATIONS[name] < equations <= MORE_BEFORE * MOST_EQUATIONS[name]


@pytest.fixture(scope="module")
def compiled():
    """The seconds of each compilation during a run of five chunks, of those among them that are of its programs with
    the time when they were done, the run, and when it was done."""
    model, federation = fljax.MODELS["logistic_regression"]((4, 4, 1), 4), linear_groups(9, 3, examples=30, ragged=0.5)
    averaging, hyper, key = fljax.fedavg(model, fljax.Work(1, 6)), fljax.fedavg.Hyper(lr=0.1), jax.random.key(0)
    compile_seconds, program_times, compiled_program = [], [], programs._compiled

    def hear(event, seconds, fun_name="", **_):
        if "backend_compile" in event:
            compile_seconds.append(seconds)

    def timed(*arguments):
        start = time.perf_counter()
        program = compiled_program(*arguments)
        program_times.append((time.perf_counter() - start, time.perf_counter()))
        return program

    short_run = train(averaging, hyper, federation, key, 1, compile="full")  # what is no program of the run is compiled
    assert short_run.metrics["loss"].shape[0] == 1
    programs.options_of("fast")  # asks the compiler
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "_compiled", timed)
        jax.monitoring.register_event_duration_secs_listener(hear)
        try:
            run = train(averaging, hyper, federation, key, 5, compile="fast", seconds_per_chunk=1e-9)
        finally:
            jax.monitoring.unregister_event_duration_listener(hear)
    return compile_seconds, program_times, run, time.perf_counter()


def test_a_run_compiles_two_programs_and_no_third(compiled):
    """Its beginning and its chunk of rounds, whatever the chunks' lengths; on two devices as on one."""
    assert len(compiled[0]) == 2


def test_seconds_of_a_run_are_those_after_its_last_program_was_compiled(compiled):
    _, program_times, run, end = compiled
    assert len(program_times) == 2
    assert run.compile_seconds >= sum(seconds for seconds, _ in program_times)
    assert 0 < run.seconds < end - program_times[-1][1]


@pytest.mark.parametrize("n_devices", [1, 2])
def test_a_round_is_traced_once_for_its_shapes_and_for_the_loop(federation, model, monkeypatch, n_devices):
    traced, algorithm = [], fljax.fedavg(model, fljax.Work(1, 7 + n_devices))  # which no test has traced before

    def counted(*arguments):
        traced.append(arguments)
        return run_round(*arguments)

    for module in ("chunk", "sweep.program"):
        monkeypatch.setattr(f"fljax.run.{module}.run_round", counted)
    with over_devices(jax.devices()[:n_devices]) as mesh:
        arguments = on_devices(mesh, fljax.fedavg.Hyper(lr=0.1), federation, jax.random.key(0), None, 1, 3)
        state = jax.eval_shape(algorithm.init, jax.random.key(0), arguments[0], federation.train)
        run_chunk.eval_shape(algorithm, 9, 4, *arguments, state, jnp.int32(0), jnp.int32(0))
        assert len(traced) == 1
        hyper, key = fljax.fedavg.Hyper(lr=jnp.ones(2)), jax.random.key(0)
        jax.eval_shape(lambda hyper: fljax.sweep(algorithm, hyper, federation, key, 1, 2), hyper)
        assert len(traced) == 1 + n_devices  # in a mesh a sweep's needs and its program have a trace each
