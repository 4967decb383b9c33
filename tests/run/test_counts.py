"""Counts that must not drift unseen: programs that a run compiles, and how long each method's round is."""

import time

import jax
import jax.numpy as jnp
import pytest

import fljax
from fljax.catalogue.job import RUN
from fljax.jobs.assemble import make_algorithm, make_model, make_parts
from fljax.jobs.job import read_job
from fljax.run import programs
from fljax.run.chunk import MOST_ROUNDS, on_devices, run_chunk
from fljax.run.program_cost import cost_of
from fljax.run.simulate import split_key
from fljax.run.train import train

MOST_EQUATIONS = {
    "standalone": 830,
    "fedavg": 890,
    "fedtsdp": 2650,
    "layercfl": 2260,
    "dcpfl": 3030,
    "fedcps": 2340,
    "fesem": 1460,
}
"""Of a chunk of rounds; the compiler's time grows with them. A method that needs more says so here."""


@pytest.fixture(scope="module")
def main_job():
    """`fljax run` without arguments: the job, its federation and its network."""
    job = read_job([], RUN)
    federation, _ = make_parts(job)
    return job, federation, make_model(job, federation)


@pytest.mark.parametrize("name", MOST_EQUATIONS)
def test_a_round_is_no_longer_than_it_was(name, main_job):
    job, federation, model = main_job
    algorithm, hyper, _ = make_algorithm(name, job, model)
    numbers = on_devices(None, hyper, federation, jax.random.key(0), None, 1, 3)
    hyper, federation, key = numbers[:3]
    state = jax.eval_shape(algorithm.init, split_key(key).init, hyper, federation.train)
    n_clients = federation.train.size.shape[0]
    traced = run_chunk.trace(algorithm, n_clients, MOST_ROUNDS, *numbers, state, jnp.int32(0), jnp.int32(0))
    equations = cost_of(traced.jaxpr, 1.0).equations
    assert 0.8 * MOST_EQUATIONS[name] < equations <= MOST_EQUATIONS[name]


def test_a_run_compiles_two_programs_and_no_third(model, federation):
    """Its beginning and its chunk of rounds, whatever the chunks' lengths; on two devices as on one."""
    compiled = []

    def heard(event, seconds, fun_name="", **_):
        if "backend_compile" in event:
            compiled.append(event)

    averaging, hyper, key = fljax.fedavg(model, fljax.Work(1, 6)), fljax.fedavg.Hyper(lr=0.1), jax.random.key(0)
    small = train(averaging, hyper, federation, key, 1, compile="full")  # what is no program of the run is compiled
    programs.options_of("fast")  # asks the compiler
    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        train(averaging, hyper, federation, key, 5, compile="fast", seconds_per_chunk=1e-9)
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)
    assert small.metrics["loss"].shape[0] == 1
    assert len(compiled) == 2


def test_seconds_of_a_run_are_those_after_its_last_program_was_compiled(model, federation, monkeypatch):
    compile_, spent = programs._compiled, []

    def timed(*arguments):
        began = time.perf_counter()
        made = compile_(*arguments)
        spent.append((time.perf_counter() - began, time.perf_counter()))
        return made

    monkeypatch.setattr(programs, "_compiled", timed)
    programs.forget()
    averaging, hyper = fljax.fedavg(model, fljax.Work(1, 6)), fljax.fedavg.Hyper(lr=0.1)
    done = train(averaging, hyper, federation, jax.random.key(0), 1, compile="fast")
    assert len(spent) == 2
    assert done.compile_seconds >= sum(seconds for seconds, _ in spent)
    assert 0 < done.seconds < time.perf_counter() - spent[-1][1]
