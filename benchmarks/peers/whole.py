"""A whole `fljax run` of 50 rounds, from the start of the process to its end, against a PyTorch script likewise.

Fashion-MNIST dealt to 500 clients, 96 images each to train on and 24 to test on; ten a round. Compiled programs are in
fljax's cache, from a run that is not timed. The script finds its images as one file of NumPy arrays.
"""

import csv
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from peers.environments import FOLDER, python_of
from peers.process import Failed
from peers.table import Row
from timing import python_path, ratio

ROUNDS, BAR, TOLERANCE = 50, 1.0, 0.04
IMAGES = FOLDER / "fashion_mnist.npz"
SETTINGS = (
    "--algorithm fedavg --dataset fashion_mnist --partition iid --partition.n-clients 500 --partition.public False "
    f"--participation 0.02 --rounds {ROUNDS} --evaluate-every {ROUNDS} --model mlp --model.hidden 200 "
    "--fedavg.epochs 1 --fedavg.batch-size 20 --fedavg.lr 0.05"
)
Side = Callable[[], tuple[float, float, float]]
"""() -> (seconds, peak bytes, accuracy)."""


def measure(n_turns: int) -> tuple[list[Row], list[str]]:
    """(a row for each of the two, the bars missed, of which one is that both can be run)."""
    from fljax.data.datasets import load

    try:
        python = python_of("torch")
        examples, _ = load("fashion_mnist")
    except (Failed, FileNotFoundError) as failure:
        return [], [f"whole: not measured: {failure}"]
    np.savez(IMAGES, x=examples.x, y=examples.y)
    sides: dict[str, Side] = {"fljax": fljax_run, "torch": lambda: torch_script(python)}
    runs = {name: [] for name in sides}
    fljax_run()
    for _ in range(n_turns):
        for name, run in sides.items():
            runs[name].append(run())
    seconds = {name: [run_seconds for run_seconds, _, _ in side_runs] for name, side_runs in runs.items()}
    rows = [row(name, runs[name], ratio(seconds[name], seconds["fljax"])) for name in sides]
    messages = [] if rows[1].ratio >= BAR else [f"whole: {rows[1].ratio:.2f} times torch, bar {BAR:g}"]
    if not abs(rows[0].accuracy - rows[1].accuracy) <= TOLERANCE:  # nor is a NaN alike
        messages.append(f"whole: accuracies differ by more than {TOLERANCE}")
    return rows, messages


def row(name: str, runs: list[tuple[float, float, float]], ratio_to_fljax: float) -> Row:
    """The medians of one side."""
    seconds, peak, accuracy = (median(column) for column in zip(*runs, strict=True))
    rate, nothing = ROUNDS / seconds, math.nan
    turns = f"{len(runs)} x {ROUNDS}"
    return Row("whole", name, rate, 10 * rate, nothing, nothing, peak / 2**20, accuracy, ratio_to_fljax, turns, "")


def fljax_run() -> tuple[float, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fljax", "run", *SETTINGS.split(), "--folder", f"{folder}/run"]
        seconds, peak = timed(command)
        with open(f"{folder}/run/summary.csv", newline="") as file:
            return seconds, peak, float(next(csv.DictReader(file))["accuracy_macro"])


def torch_script(python: str) -> tuple[float, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "accuracy"
        seconds, peak = timed([python, "-m", "peers.torch_script", str(IMAGES), str(ROUNDS), str(result)])
        return seconds, peak, float(result.read_text())


def timed(command: list[str]) -> tuple[float, float]:
    """(seconds from start to end of a process, its peak bytes)."""
    began = time.perf_counter()
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": python_path()}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return seconds, 1024 * usage.ru_maxrss
