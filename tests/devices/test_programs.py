"""Programs: what they cost, how they are compiled, and that what was kept is found and never mistaken."""

import os
import pickle
import subprocess
import sys
import zlib
from collections import OrderedDict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import fljax
from fljax.devices import programs, shelf
from fljax.devices.memory import Memory
from fljax.devices.program_cost import Cost, cost_of
from fljax.devices.programs import Compiler, compiler_for, level_for, seconds_of
from fljax.devices.shelf import Shelf, kept_here_alone, shelf_for
from fljax.run.train import train
from fljax.sealed import write_sealed


def jaxpr_of(function, *arguments):
    return jax.make_jaxpr(function)(*arguments)


def test_cost_counts_products_loops_and_branches():
    a, b = jnp.ones((3, 5)), jnp.ones((5, 7))
    assert cost_of(jaxpr_of(jnp.matmul, a, b), 1).flops == 2 * 3 * 5 * 7
    scan = jaxpr_of(lambda a: jax.lax.scan(lambda c, _: (c @ jnp.ones((5, 5)), None), a, None, length=4)[0], a)
    assert cost_of(scan, 1).flops == 4 * 2 * 3 * 5 * 5
    loop = jaxpr_of(lambda n, a: jax.lax.fori_loop(0, n, lambda _, c: c @ jnp.ones((5, 5)), a), jnp.int32(9), a)
    assert cost_of(loop, 6.0).flops == 6 * 2 * 3 * 5 * 5
    branches = jaxpr_of(lambda p, a: jax.lax.cond(p, lambda a: a @ a.T @ a, lambda a: a + 0.0, a), True, a)
    assert cost_of(branches, 1).flops == 2 * 3 * 5 * 3 + 2 * 3 * 3 * 5
    convolution = jaxpr_of(
        lambda x, w: jax.lax.conv(x, w, (1, 1), "SAME"), jnp.ones((2, 3, 8, 8)), jnp.ones((4, 3, 5, 5))
    )
    assert cost_of(convolution, 1).flops == 2 * (2 * 4 * 8 * 8) * 3 * 5 * 5


def test_a_longer_run_is_compiled_better():
    cost = Cost(equations=1000, executed=2e4, elements=5e6, flops=5e7)
    levels = [level_for(cost, n_rounds) for n_rounds in (1, 100, 100_000)]
    assert levels == ["fast", "medium", "full"]
    compile_seconds, run_seconds = zip(*(seconds_of(level, cost) for level in programs.LEVELS), strict=True)
    assert sorted(compile_seconds) == list(compile_seconds)
    assert sorted(run_seconds, reverse=True) == list(run_seconds)


def test_options_that_the_compiler_does_not_have_are_left_out(monkeypatch):
    options, known_options = (
        {"xla_nothing_at_all": 1, "xla_backend_optimization_level": 0},
        {"xla_backend_optimization_level": 0},
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        jax.jit(jnp.sin).lower(0.0).compile(compiler_options=options)
    monkeypatch.setitem(programs.OPTIONS, jax.default_backend(), {"fast": options, "medium": {}, "full": {}})
    assert (programs.options_of("fast"), programs.options_of("full")) == (known_options, {})


def test_auto_goes_on_as_the_run_began_and_unknown_levels_are_refused():
    assert compiler_for("auto", 10**9, lambda: pytest.fail("forecast"), None, "fast").level == "fast"
    assert compiler_for("medium", 1, lambda: pytest.fail("forecast"), None, "fast").level == "medium"
    with pytest.raises(ValueError, match="compile='best' is unknown; choose one of 'auto', 'fast', 'medium', 'full'"):
        compiler_for("best", 1, lambda: pytest.fail("forecast"), None)  # pyright: ignore[reportArgumentType]


@pytest.fixture(autouse=True)
def of_this_test(monkeypatch):
    """Tests of this file forget only their own programs: those of other files are needed again."""
    monkeypatch.setattr(programs, "_programs", OrderedDict())


@pytest.fixture
def cache_folder(tmp_path):
    """JAX's cache in a folder of its own, as the command line sets it."""
    old_folder = jax.config.jax_compilation_cache_dir
    for folder in (str(tmp_path), old_folder):
        programs.forget()
        jax.config.update("jax_compilation_cache_dir", folder)
        compilation_cache.reset_cache()  # JAX goes on with the folder that it used first
        if folder != old_folder:
            yield tmp_path


@pytest.fixture
def power():
    """Each test has its own: JAX holds what it has compiled of a function."""
    return jax.jit(lambda n, x: x**n, static_argnums=0)


def test_a_kept_program_is_found_without_a_trace(cache_folder, power):
    shelf = shelf_for("cubes", jnp.ones(3))
    compiled = Compiler("fast", shelf).program("power", power, (3,), jnp.ones(3))
    assert not compiled.was_kept
    programs.forget()

    def fail_if_traced(*arguments):
        pytest.fail("traced")

    loaded = Compiler("fast", shelf).program("power", jax.jit(fail_if_traced, static_argnums=0), (3,), jnp.ones(3))
    assert loaded.was_kept
    np.testing.assert_array_equal(loaded.call(jnp.arange(3.0)), np.arange(3.0) ** 3)


def test_shelves_of_other_texts_shapes_and_types_are_others(cache_folder):
    keys = {shelf_for(text, x).key for text in ("a", "b") for x in (jnp.ones(3), jnp.ones(4), jnp.ones(3, int))}
    assert len(keys) == 6


def test_without_a_cache_nothing_is_kept():
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        assert shelf_for("a", jnp.ones(3)) is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.parametrize("damage", [lambda text: text[:-1], lambda text: text[:50] + bytes([text[50] ^ 1]) + text[51:]])
def test_a_damaged_program_is_compiled_again(cache_folder, power, damage):
    shelf = shelf_for("damaged", jnp.ones(3))
    Compiler("fast", shelf).program("power", power, (2,), jnp.ones(3))
    programs.forget()
    (path,) = Path(cache_folder, "fljax").iterdir()
    path.write_bytes(damage(path.read_bytes()))
    program = Compiler("fast", shelf).program("power", power, (2,), jnp.ones(3))
    assert not program.was_kept
    assert program.call(jnp.full(3, 4.0))[0] == 16


def test_a_program_that_this_machine_rejects_is_a_warning(cache_folder):
    shelf = shelf_for("rejected", jnp.ones(3))
    shelf.folder.mkdir()
    write_sealed(
        shelf.folder / f"{shelf.key}-power-fast", zlib.compress(pickle.dumps(({0}, b"not a program", None, None)))
    )
    with pytest.warns(UserWarning, match="a kept program cannot be used here and is compiled again"):
        assert shelf.program("power-fast") is None


def test_jax_s_own_cache_is_as_before(cache_folder):
    name = "jax_persistent_cache_min_compile_time_secs"
    setting = getattr(jax.config, name)
    with kept_here_alone() as outer, kept_here_alone() as inner:
        assert getattr(jax.config, name) == float("inf")
        assert not outer()  # nothing has been compiled
        jax.jit(lambda x: jnp.sin(x) * 3)(jnp.ones(4))
        assert outer()
        assert inner()
    assert getattr(jax.config, name) == setting


def test_a_program_that_jax_holds_already_is_not_kept(cache_folder, power):
    # It may have come from JAX's cache, and cannot be told from one that did not.
    shelf = shelf_for("held", jnp.ones(3))
    lowered = power.trace(5, jnp.ones(3)).lower()
    lowered.compile(compiler_options=programs.options_of("fast"))
    program = Compiler("fast", shelf).program("power", power, (5,), jnp.ones(3))
    assert not program.was_kept
    assert program.call(jnp.full(3, 2.0))[0] == 32
    assert shelf.program("power-fast") is None


def test_a_program_is_kept_though_its_options_and_trace_are_in_jax_s_cache(cache_folder):
    name = "jax_persistent_cache_min_compile_time_secs"
    setting, hits = getattr(jax.config, name), []

    def listener(event, **_):
        hits.extend([event] if event.endswith("/cache_hits") else [])

    def new_power():
        """Each time another function, of which JAX holds nothing in memory yet: to let go of all that it holds, for
        this, takes as long as other tests have filled it."""
        small = jax.jit(lambda x: jnp.sin(x).sum())

        def power(x):
            with jax.ensure_compile_time_eval():
                exponent = small(jnp.arange(7.0))  # a small program that a trace runs
            return x**exponent

        return jax.jit(power)

    jax.config.update(name, 0.0)
    jax.monitoring.register_event_listener(listener)
    try:
        new_power().trace(jnp.ones(3))
        programs._accepted_options.cache_clear()
        programs.options_of("fast")
        programs._accepted_options.cache_clear()
        shelf = shelf_for("small ones", jnp.ones(3))
        Compiler("fast", shelf).program("power", new_power(), (), jnp.ones(3))
        assert len(hits) >= 2  # of the options and of the trace
        assert shelf.program("power-fast") is not None
    finally:
        jax.config.update(name, setting)
        jax.monitoring.unregister_event_listener(listener)


@pytest.fixture
def let_go(monkeypatch):
    """What is called to let JAX's programs go, and is not done: files that follow would compile theirs again."""
    calls = []
    monkeypatch.setattr(jax, "clear_caches", lambda: calls.append("clear_caches"))
    monkeypatch.setattr(programs.gc, "collect", lambda: calls.append("collect"))
    return calls


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux alone counts memory maps")
def test_programs_are_let_go_before_their_memory_maps_run_out(cache_folder, power, let_go, monkeypatch):
    def power_program():
        shelf = shelf_for("maps", jnp.ones(3))
        compiler = compiler_for("fast", 1, lambda: pytest.fail("no forecast is asked for"), shelf)
        return compiler.program("power", power, (2,), jnp.ones(3)).call

    first = power_program()
    for share, is_kept in ((1.0, True), (0.0, False)):
        monkeypatch.setattr(programs, "_SHARE_OF_MAPS", share)
        assert programs.maps_are_short() is not is_kept
        assert (power_program() is first) is is_kept
        assert let_go == ([] if is_kept else ["clear_caches", "collect"])


def test_programs_are_let_go_before_the_memory_runs_out_and_not_for_what_is_no_programs(power, let_go, monkeypatch):
    def power_program():
        compiler = compiler_for("fast", 1, lambda: pytest.fail("no forecast is asked for"), None)
        return compiler.program("power", power, (3,), jnp.ones(3)).call

    first, n_bytes = power_program(), [100.0]
    monkeypatch.setattr(programs, "_n_bytes_held", lambda: n_bytes[0])
    monkeypatch.setattr(programs, "_bytes_after_drop", [0])
    monkeypatch.setattr(programs, "host_memory", lambda: Memory(1000, 300))
    assert power_program() is first
    monkeypatch.setattr(programs, "host_memory", lambda: Memory(1000, 200))
    assert power_program() is first  # others have taken it
    n_bytes[0] = 200.0
    second = power_program()
    assert second is not first
    assert power_program() is second  # what stays is not theirs
    n_bytes[0] = 330.0
    assert power_program() is not second
    assert let_go == 2 * ["clear_caches", "collect"]


def test_a_run_with_kept_programs_is_the_same_run(cache_folder, federation):
    model = fljax.MODELS["logistic_regression"]((4, 4, 1), 4)
    algorithm, hyper = fljax.fedavg(model, fljax.Work(1, 7)), fljax.fedavg.Hyper(lr=0.1)
    key = jax.random.key(0)
    runs = []
    for _ in range(2):
        runs.append(train(algorithm, hyper, federation, key, 3, program="fedavg of the test", compile="fast"))
        programs.forget()
    for name, value in runs[0].metrics.items():
        np.testing.assert_array_equal(value, runs[1].metrics[name])
    names = sorted(path.name.partition("-")[2] for path in Path(cache_folder, "fljax").iterdir())
    assert names == ["chunk-fast", "init-fast"]


@pytest.mark.slow
def test_a_folder_remembers_its_level(tmp_path, averaging, federation):
    algorithm, hyper = averaging, fljax.fedavg.Hyper(lr=0.1)
    arguments = (algorithm, hyper, federation, jax.random.key(0))
    first = train(*arguments, 1, folder=tmp_path, compile="medium")
    assert train(*arguments, 2, folder=tmp_path).compiler.level == first.compiler.level == "medium"
    with pytest.raises(ValueError, match="made with compile 'medium' \\(now 'fast'\\)"):
        train(*arguments, 3, folder=tmp_path, compile="fast")
    assert train(*arguments, 3, folder=tmp_path, compile="fast", force_resume=True).compiler.level == "fast"


def test_a_file_that_another_process_removes_meanwhile_stops_no_other_from_being_kept(cache_folder):
    shelf = Shelf(Path(cache_folder, "fljax"), "key")
    shelf.folder.mkdir(parents=True, exist_ok=True)
    shelf.folder.joinpath("gone").symlink_to("nowhere")  # listed, and not there
    shelf.keep_numbers("a", [1.0])
    shelf.folder.joinpath("gone").unlink()
    assert shelf.numbers("a") == [1.0]


def test_a_small_shelf_lets_the_oldest_go(cache_folder, monkeypatch):
    monkeypatch.setattr("fljax.devices.shelf.MOST_BYTES", 100)
    shelf = Shelf(Path(cache_folder, "fljax"), "key")
    for name in ("a", "b", "c"):
        shelf.keep_numbers(name, [1.0] * 10)
    assert shelf.numbers("a") is None
    assert shelf.numbers("c") == [1.0] * 10


SCRIPT = """
import jax, fljax
from fljax.data.synthetic import linear_groups
from fljax.run.compile_ahead import compile_ahead
from fljax.run.train import train
from fljax.types import Work
import fljax.devices.programs as programs
asked, found = [], programs.Compiler.program
def program(self, name, *rest):
    made = found(self, name, *rest)
    asked.append((name, made.was_kept))
    return made
programs.Compiler.program = program
model = fljax.MODELS["mlp"](input_shape=(4, 4, 1), hidden=(8,), n_classes=4)
federation, hyper = linear_groups(9, 3, examples=30), fljax.fedavg.Hyper(lr=0.1)
run = fljax.fedavg(model, Work(1, 8)), hyper, federation, jax.random.key(0), 2
print(asked, train(*run, program="fedavg of a script", compile="fast").metrics["loss"].tolist())
"""


@pytest.mark.slow
def test_a_second_process_hits(tmp_path):
    """With the bits of the first."""
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.getcwd()}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    ]
    assert outputs[0].startswith("[('init', False), ('chunk', False)]")
    assert outputs[1] == outputs[0].replace("False", "True")


@pytest.mark.parametrize(("variable", "value"), [("FLJAX_CONV", "matrices"), ("FLJAX_WINOGRAD", "1")])
def test_what_is_kept_knows_how_convolutions_are_computed(monkeypatch, variable, value):
    before = shelf._surroundings()
    assert shelf._surroundings() == before
    monkeypatch.setenv(variable, value)
    assert shelf._surroundings() != before


EIGENVALUES = """
import sys
import jax, jax.numpy as jnp
from fljax.devices.shelf import shelf_for

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
x = jnp.asarray([[2.0, 1.0], [1.0, 2.0]])
shelf = shelf_for("eigenvalues", x)
program = kept = shelf.program("p")
if kept is None:
    program = jax.jit(jnp.linalg.eigvalsh).lower(x).compile()
    shelf.keep_program("p", program)
print(kept is not None, [round(float(value), 4) for value in program(x)])
"""


@pytest.mark.slow
def test_a_kept_program_calls_lapack_in_a_process_that_has_lowered_no_such_call(tmp_path):
    """Without the functions that JAX looks up on lowering it would end the process."""
    for is_kept in (False, True):
        process = subprocess.run([sys.executable, "-c", EIGENVALUES, tmp_path], capture_output=True, text=True)
        assert (process.returncode, process.stdout) == (0, f"{is_kept} [1.0, 3.0]\n"), process.stderr[-500:]
