"""From command to first round: what a whole command costs, with nothing compiled before and with everything kept.

    python benchmarks/first_round.py [--only job commands methods program whole] [--repeats 3] [--check]

Processor seconds (user and system, of the process and its children) of whole commands, each with a cache of its own:
"cold" begins with an empty one, "warm" with what the cold one left. ``job`` is `fljax run` without arguments,
``commands`` what must answer at once, ``methods`` one method alone, by phase, ``program`` the compiler's
seconds for FedAvg and the five systems against a FedAvg written by hand in JAX, in one process, ``whole`` 50 rounds of
an MLP on Fashion-MNIST beside a PyTorch script that does the same (it makes the script's environment first); there
both find images that were decoded before, and "first" is cold with 70,000 PNGs to decode. Phases are wall seconds of
the thread that traces and compiles.
"""

import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from timing import machine, parser, python_path

SYSTEMS = ("fedavg", "fedtsdp", "layercfl", "dcpfl", "fedcps", "fesem")
COMMANDS = {  # -> whether it is refused
    ("list",): False,
    ("list", "fedcps"): False,
    ("run", "--help"): False,
    ("run", "--lr", "abc"): True,
}
REFUSED = 2  # the exit status of a command that is refused
JOB_BARS, COMMAND_BAR, METHOD_BAR = {"cold": 60.0, "warm": 15.0}, 1.0, 8.0
PROGRAM_BARS = {"fedavg": 1.2}  # of the hand-written one's seconds; the others' bar is 3
WHOLE_BARS = {"cold": 1.5, "warm": 0.7}  # of the PyTorch script's seconds
MARK = "PHASES "


def main() -> None:
    options = parser(__doc__, SECTIONS, repeats=3).parse_args()
    print(machine(), flush=True)
    missed = [word for name in options.only for word in SECTIONS[name](options.repeats)]
    print("\n".join(missed))
    if options.check and missed:
        sys.exit(1)


def job(repeats: int) -> list[str]:
    """`fljax run`: seven methods, 80 rounds."""
    seconds = cold_and_warm(["run"], repeats)
    for state, values in seconds.items():
        print(f"job {state}: {statistics.median(values):.1f} s (of {listed(values)})", flush=True)
    return [
        f"job {state}: {statistics.median(seconds[state]):.1f} s, bar {bar:g}"
        for state, bar in JOB_BARS.items()
        if statistics.median(seconds[state]) > bar
    ]


def commands(repeats: int) -> list[str]:
    """What must answer at once."""
    missed = []
    for command, refused in COMMANDS.items():
        with cache() as environment:
            processor(["list"], environment)  # after a change of the package the first one reads it anew
            seconds = statistics.median(processor([*command], environment, refused=refused)[0] for _ in range(repeats))
        print(f"fljax {' '.join(command)}: {seconds:.2f} s", flush=True)
        missed += [f"fljax {' '.join(command)}: {seconds:.2f} s, bar {COMMAND_BAR:g}"] if seconds > COMMAND_BAR else []
    return missed


def methods(repeats: int) -> list[str]:
    """One method alone, by phase."""
    names = ("import", "trace", "lower", "compile", "read", "rest", "all")
    print(f"{'method':<12}{'cache':<6}" + "".join(f"{name:>9}" for name in (*names, "programs")))
    missed = []
    for method in ("standalone", *SYSTEMS):
        for state, phases in phases_of(["run", "--algorithm", method], repeats).items():
            row = "".join(f"{phases[name]:>9.2f}" for name in names)
            print(f"{method:<12}{state:<6}{row}{phases['programs']:>9.0f}", flush=True)
            if state == "cold" and phases["all"] > METHOD_BAR:
                missed.append(f"{method} alone, cold: {phases['all']:.1f} s, bar {METHOD_BAR:g}")
    return missed


def program(repeats: int) -> list[str]:
    """Seconds of compiling a round: ours, as `fljax run` compiles it, against a FedAvg written by hand."""
    command = [sys.executable, __file__, "--compile-programs"]
    # A process a repeat: within one, the compiler's second answer to the same program is a copy of its first.
    outputs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(repeats)]
    repeats_seconds = [json.loads(marked(output)) for output in outputs]
    missed = []
    for name in SYSTEMS:
        bar = PROGRAM_BARS.get(name, 3.0)
        seconds = statistics.median(by_name[name] for by_name in repeats_seconds)
        ratio = statistics.median(by_name[name] / by_name["handwritten"] for by_name in repeats_seconds)
        print(f"program {name:<10}{seconds:7.2f} s, {ratio:.2f} of the hand-written one's", flush=True)
        missed += [f"program {name}: {ratio:.2f} of the hand-written one's, bar {bar:g}"] if ratio > bar else []
    return missed


def whole(repeats: int) -> list[str]:
    """`fljax run` of 50 rounds against the PyTorch script, from process start to end, wall seconds."""
    import numpy as np
    from peers import whole as of_peers
    from peers.environments import python_of

    from fljax.data.cache import folder
    from fljax.data.datasets import load

    python, (examples, _) = python_of("torch"), load("fashion_mnist")
    np.savez(of_peers.IMAGES, x=examples.x, y=examples.y)
    ratios: dict[str, list[float]] = {"first": [], "cold": [], "warm": []}
    for _ in range(repeats):
        with cache() as empty_cache, cache() as environment:
            # The script reads its images from a file of arrays: but for the first time ever, so does fljax.
            decoded = Path(environment["XDG_CACHE_HOME"], "fljax")
            decoded.mkdir()
            (decoded / "fashion_mnist").symlink_to(folder() / "fashion_mnist")
            script_seconds = of_peers.torch_script(python)[0]
            for state, state_ratios in ratios.items():
                began = time.perf_counter()
                processor(["run", *of_peers.SETTINGS.split()], empty_cache if state == "first" else environment)
                state_ratios.append((time.perf_counter() - began) / script_seconds)
    for state, values in ratios.items():
        print(f"whole {state}: {statistics.median(values):.2f} of the PyTorch script's wall time ({listed(values)})")
    return [
        f"whole {state}: {statistics.median(values):.2f} of the PyTorch script's, bar {WHOLE_BARS[state]:g}"
        for state, values in ratios.items()
        if statistics.median(values) > WHOLE_BARS.get(state, math.inf)
    ]


def cold_and_warm(command: list[str], repeats: int) -> dict[str, list[float]]:
    """Processor seconds of a command with an empty cache and with what it left, in turn."""
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(repeats):
        with cache() as environment:
            for state_seconds in seconds.values():
                state_seconds.append(processor(command, environment)[0])
    return seconds


def phases_of(command: list[str], repeats: int) -> dict[str, dict[str, float]]:
    """The same by phase: the repeat whose seconds in all are the median."""
    phases_of_state: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(repeats):
        with cache() as environment:
            for repeats_of_state in phases_of_state.values():
                total, text = processor(command, environment, [sys.executable, __file__, "--phases"])
                phases = json.loads(marked(text))
                named = sum(phases[name] for name in ("import", "trace", "lower", "compile", "read"))
                repeats_of_state.append(phases | {"all": total, "rest": total - named})
    middle = (repeats - 1) // 2
    return {
        state: sorted(repeats_of_state, key=lambda phases: phases["all"])[middle]
        for state, repeats_of_state in phases_of_state.items()
    }


def processor(
    command: list[str], environment: dict[str, str], start: list[str] | None = None, refused: bool = False
) -> tuple[float, str]:
    """(user and system seconds of a command, what it printed); ``refused``: it must end as a refused command does.

    Raises:
        subprocess.CalledProcessError: it ends otherwise; what crashes early would count as fast.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [*(start or [sys.executable, "-m", "fljax"]), *command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        text = process.stdout.read()  # pyrefly: ignore[missing-attribute]
        process.stdout.close()  # pyrefly: ignore[missing-attribute]
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != (REFUSED if refused else 0):
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return usage.ru_utime + usage.ru_stime, text


@contextmanager
def cache() -> Iterator[dict[str, str]]:
    """An environment with an empty cache, of JAX and of fljax."""
    with tempfile.TemporaryDirectory() as folder:
        paths = python_path(), os.environ.get("PYTHONPATH")
        left_out = ("FLJAX_CACHE", "PYTHONDONTWRITEBYTECODE")  # an installed package is compiled to bytecode once
        variables = {name: value for name, value in os.environ.items() if name not in left_out}
        yield variables | {
            "JAX_COMPILATION_CACHE_DIR": f"{folder}/compiled",
            "XDG_CACHE_HOME": folder,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }


def marked(text: str) -> str:
    """The line that a child process meant for its parent."""
    return next(line for line in text.splitlines() if line.startswith(MARK)).removeprefix(MARK)


def listed(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def show_phases(arguments: list[str]) -> None:
    """In a child: runs a command and prints its seconds by phase."""
    import jax

    seconds = dict.fromkeys(("trace", "lower", "compile", "read"), 0.0) | {"programs": 0}
    parts = {"jaxpr_trace": "trace", "jaxpr_to_mlir": "lower", "backend_compile": "compile", "retrieval": "read"}

    def heard(event: str, duration: float, **_: Any) -> None:
        for part, name in parts.items():
            seconds[name] += duration if part in event else 0
        seconds["programs"] += "backend_compile" in event

    jax.monitoring.register_event_duration_secs_listener(heard)
    from fljax import cli
    from fljax.cli import execute  # noqa: F401 - what a run imports

    usage = resource.getrusage(resource.RUSAGE_SELF)
    cli.main(arguments)
    seconds["compile"] -= seconds["read"]  # the time that the cache took counts as compilation there
    print(MARK + json.dumps(seconds | {"import": usage.ru_utime + usage.ru_stime}))


def compile_programs() -> None:
    """In a child: compiles the round of each system of the main job, and of a FedAvg written by hand."""
    from programs_by_hand import handwritten, of_the_main_job

    sides: dict[str, Callable[[], Any]] = {"handwritten": handwritten()} | of_the_main_job(SYSTEMS)
    seconds = {}
    for name, compile in sides.items():
        began = time.process_time()
        compile()
        seconds[name] = time.process_time() - began
    print(MARK + json.dumps(seconds))


SECTIONS: dict[str, Callable[[int], list[str]]] = {
    "job": job,
    "commands": commands,
    "methods": methods,
    "program": program,
    "whole": whole,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--phases"]:
        show_phases(sys.argv[2:])
    elif sys.argv[1:2] == ["--compile-programs"]:
        compile_programs()
    else:
        main()
