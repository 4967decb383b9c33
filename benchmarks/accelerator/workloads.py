"""Rounds of the workloads: whole public benchmarks, and steady rates against the limits and a PyTorch loop."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import jax
import numpy as np
from accelerator.bench import REPEATS, Bench, dtype_of, precisely
from accelerator.table import Row, row
from jax.stages import Compiled
from needs import needs
from noisy_images import Set
from peers.fljax_peer import Rounds, federation_of
from peers.work import WORKLOADS, Workload, kernel_shapes
from timing import alternate, ratio, rounds_in, seconds_of

PUBLIC = ("pfl-cifar10", "flute-femnist")
GRAPHED = ("logreg-10", "mlp-10", "ragged-mlp", "cnn-10")
LOOPS = {  # XLA's default, and loops and conditionals
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE"
}
AUTOTUNED, LEVELS = "pfl-cifar10", (0, 4)  # XLA's levels: the last is its default
WHOLE_BAR, LOOP_BAR = 30.0, 10.0
MOST = 50  # rounds of a timed sample


def public(bench: Bench) -> Iterator[Row]:
    """Whole public benchmarks."""
    for name in PUBLIC:
        yield bench.line(f"{name}, whole", "s", partial(whole, bench, name), -WHOLE_BAR)


def whole(bench: Bench, name: str) -> Row:
    """All rounds of one."""
    bench.drawn(name)
    began = time.perf_counter()
    rounds = bench.rounds(name)
    tables = time.perf_counter() - began
    first = seconds_of(lambda: rounds.run(1))[0]
    rounds.run(bench.size.whole - 1)
    seconds, losses = time.perf_counter() - began, rounds.losses()
    note = f"{len(losses)} rounds; tables {tables:.1f} s, first round {first:.1f} s; "
    note += f"loss {losses[0]:.2f}, of the last ten rounds {losses[-10:].mean():.2f}"
    return row(f"{name}, whole", seconds, "s", note, -WHOLE_BAR)


def compilation(bench: Bench) -> Iterator[Row]:
    """Seconds to compile a round, by how much XLA tries out on the device, and what trying brings."""
    workload = bench.size.workloads[AUTOTUNED]
    smaller = workload._replace(cohort=workload.cohort - 1)  # a program that no other part has tried anything out for
    rounds, programs = Rounds(smaller, federation_of(smaller, bench.drawn(AUTOTUNED)[0])), []
    lowered = rounds.lowered()
    for level in LEVELS:
        seconds, program = seconds_of(partial(lowered.compile, {"xla_gpu_autotune_level": level}))
        programs.append(program)
        yield row(f"{AUTOTUNED}, compilation, autotuning level {level}", seconds, "s")
    value = slower(rounds, programs[0], programs[-1])
    yield row(f"{AUTOTUNED}, rounds, level {LEVELS[0]} / level {LEVELS[-1]}", value, "ratio")


def graphs(bench: Bench) -> Iterator[Row]:
    """Rounds whose loops the device runs, against rounds whose loops the host does."""

    def ready(name: str) -> tuple[Rounds, list[Compiled]]:
        with precisely("float32"):
            rounds = bench.rounds(name)
            lowered = rounds.lowered()
            return rounds, [lowered.compile(), lowered.compile(LOOPS)]

    def compared(what: str, prepared: tuple[Rounds, list[Compiled]] | str) -> Row | str:
        return prepared if isinstance(prepared, str) else row(what, slower(prepared[0], *prepared[1]), "ratio")

    for name in GRAPHED:
        bench.drawn(name)
    for name, prepared in zip(GRAPHED, bench.compile(partial(ready, name) for name in GRAPHED), strict=True):
        what = f"{name}, rounds, loops of the host / of the device"
        yield bench.line(what, "ratio", partial(compared, what, prepared))


def slower(rounds: Rounds, program: Compiled, other: Compiled) -> float:
    """A program's time over another's."""
    turns = {name: partial(rounds.run, MOST, compiled) for name, compiled in (("program", program), ("other", other))}
    alternate(turns, 1)
    seconds = alternate(turns, REPEATS)
    return ratio(seconds["program"], seconds["other"])


def workloads(precision: str, bench: Bench) -> Iterator[Row]:
    """Steady rounds of every workload; in float32 against PyTorch too."""

    def ready(name: str) -> Rounds:
        with precisely(precision):
            rounds = bench.rounds(name, None if precision == "float32" else dtype_of(precision))
            rounds.compile()
            return rounds

    names = sorted(bench.size.workloads, key=lambda name: loop_bar(name) is None)  # in case the time is short
    for name in names:
        bench.drawn(name)
    for name, rounds in zip(names, bench.compile(partial(ready, name) for name in names), strict=True):
        yield bench.line(f"{name}, {precision}", "rounds/s", partial(steady, bench, name, precision, rounds))
        if precision == "float32":
            job = partial(against_torch, bench, name, rounds)
            yield bench.line(f"{name}, PyTorch loop / fljax", "ratio", job, loop_bar(name))


def steady(bench: Bench, name: str, precision: str, rounds: Rounds | str) -> Row | str:
    """The rate, and the shares of the limits that it comes to; or why there are no rounds."""
    if isinstance(rounds, str):
        return rounds
    with precisely(precision):
        rounds.run(1)
        n = rounds_in(bench.size.seconds, rounds.run, MOST)
        seconds = np.array(alternate({"fljax": lambda: rounds.run(n)}, REPEATS)["fljax"])
    samples = rounds.sizes(REPEATS * n).reshape(REPEATS, -1)
    needed = np.array([needs(bench.size.workloads[name], sizes) for sizes in samples])
    flops, *n_bytes = np.median(needed / seconds[:, None], axis=0)
    return row(
        *(f"{name}, {precision}", n / float(np.median(seconds)), "rounds/s"),
        matrix_percent=100 * flops / bench.matrix_rate[precision],
        copy_percent=100 * sum(n_bytes) / bench.copy_rate,
    )


def loop_bar(name: str) -> float | None:
    """The least ratio to PyTorch, where there is one."""
    workload = WORKLOADS[name]
    is_cnn = any(len(kernel) == 4 for kernel in kernel_shapes(workload))
    return LOOP_BAR if is_cnn and 50 <= workload.cohort <= 100 else None


def against_torch(bench: Bench, name: str, rounds: Rounds | str) -> Row | str:
    """Our rounds in turn with a PyTorch loop's; or why there is nothing to compare."""
    if isinstance(rounds, str):
        return rounds
    loop = torch_loop(bench.size.workloads[name], *bench.drawn(name))
    if loop is None:
        return "no PyTorch that sees the device"
    loop(1)
    n_loop = rounds_in(bench.size.seconds, loop, MOST)
    with precisely("float32"):
        n = rounds_in(bench.size.seconds, rounds.run, MOST)
        seconds = alternate({"fljax": lambda: rounds.run(n), "torch": lambda: loop(n_loop)}, REPEATS)
    value = ratio(seconds["torch"], seconds["fljax"]) * n / n_loop
    note = f"{n_loop / median(seconds['torch']):.4g} rounds/s of PyTorch"
    return row(f"{name}, PyTorch loop / fljax", value, "ratio", note, loop_bar(name))


def torch_loop(workload: Workload, clients: list[Set], test: Set) -> Callable[[int], None] | None:
    """The same rounds as a PyTorch loop on the same device, in float32; None without a PyTorch that has it."""
    try:
        import torch
    except ImportError:
        return None
    device = "cpu" if jax.default_backend() == "cpu" else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        return None
    from peers.torch_loop import Loop

    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False  # on by default
    loop = Loop(workload, clients, test)
    loop.model.to(device)  # moves the parameters where they are, so the loop's list of them stays right
    loop.clients = [(x.to(device), y.to(device)) for x, y in loop.clients]
    loop.shared = [[value.to(device) for value in values] for values in loop.shared]
    loop.personal = dict.fromkeys(loop.personal, loop.shared[0])

    def run(n_rounds: int) -> None:
        loop.run(n_rounds)
        if device == "cuda":
            torch.cuda.synchronize()

    return run
