"""What checksums, locks and the second checkpoint cost, against a plain write of the same state in the same run.

python -m benchmarks.checkpoints [MEGABYTES [CHECKOUT]]

CHECKOUT is a working tree of fljax from before checksums (64279a5): its own checkpoints are then written in turns with
today's. Without Orbax installed (pip install orbax-checkpoint) its lines are left out.
"""

import importlib.util
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import serialization

from fljax.devices.memory import host_memory
from fljax.files import checksums
from fljax.folder import checkpoint
from fljax.folder.rounds import Written, append_rows, read_rounds, read_whole
from fljax.folder.surroundings import surroundings
from fljax.folder.writer import only_writer

REPEATS = 25
ROUNDS, COHORT, CLIENTS = 1000, 20, 100
DECODED = {"mnist": (70_000, 784), "cifar10": (60_000, 3072)}


class Took(NamedTuple):
    """Median milliseconds of a call; on a busy machine those of the processor say more."""

    wall: float
    processor: float

    def __str__(self) -> str:
        return f"{self.wall:.2f} ms ({self.processor:.2f} ms of the processor)"


def milliseconds(*calls: Callable[[], object]) -> list[Took]:
    """What each call takes; they take turns, so that a busy machine is as busy for all."""
    samples = [[] for _ in calls]
    for _ in range(REPEATS):
        for call_samples, call in zip(samples, calls, strict=True):
            began = time.perf_counter(), time.process_time()
            call()
            call_samples.append((1e3 * (time.perf_counter() - began[0]), 1e3 * (time.process_time() - began[1])))
    return [Took(*map(statistics.median, zip(*call_samples, strict=True))) for call_samples in samples]


def plain(folder: Path, state: dict, identity: dict) -> None:
    """A checkpoint as it would be without any of it: written aside and renamed."""
    content = {"round": 1, "metrics_bytes": 0, "identity": str(identity), "state": serialization.to_state_dict(state)}
    aside = folder / "plain.part"
    with aside.open("wb") as file:
        file.write(serialization.msgpack_serialize(jax.device_get(content)))
        file.flush()
        os.fsync(file.fileno())
    aside.rename(folder / "plain.msgpack")


def of_size(megabytes: float) -> dict[str, jax.Array]:
    """A state of so many megabytes in four arrays."""
    leaf = np.random.default_rng(0).normal(size=int(megabytes * 1e6 / 16)).astype(np.float32)
    return {str(i): jax.numpy.asarray(leaf) for i in range(4)}


def of_orbax(folder: Path, megabytes: float) -> list[float]:
    """Milliseconds that a checkpoint by Orbax holds up a run, and until it is on the disk."""
    import orbax.checkpoint as ocp

    state, samples = of_size(megabytes), [[] for _ in range(2)]
    with ocp.StandardCheckpointer() as saver:
        for i in range(REPEATS):
            began = time.perf_counter()
            saver.save(folder.resolve() / f"orbax-{i}", state)
            samples[0].append(time.perf_counter() - began)
            saver.wait_until_finished()
            samples[1].append(time.perf_counter() - began)
            shutil.rmtree(folder / f"orbax-{i}")
    return [1e3 * statistics.median(column) for column in samples]


def of_checkpoint(folder: Path, megabytes: float) -> list[float]:
    """Milliseconds that a plain checkpoint and ours hold up a run, and until ours is on the disk with its names."""
    state = of_size(megabytes)
    folder.joinpath("rounds").mkdir(exist_ok=True)
    content = checkpoint.Checkpoint(1, Written(), {}, [{"round": 0, **surroundings(1)}], state)
    saver = checkpoint.Saver(folder)
    samples = [[] for _ in range(3)]
    for _ in range(REPEATS):
        began = time.perf_counter()
        plain(folder, state, {})
        samples[0].append(time.perf_counter() - began)
        began = time.perf_counter()
        saver.save(content)
        samples[1].append(time.perf_counter() - began)
        saver.settle()
        samples[2].append(time.perf_counter() - began)
    return [1e3 * statistics.median(column) for column in samples]


def metrics_of(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Metrics of ``n`` rounds."""
    metrics = {name: rng.random((n, COHORT), np.float32) for name in ("loss", "uplink", "downlink")}
    metrics |= {name: rng.random((n, CLIENTS), np.float32) for name in ("client_accuracy", "client_loss")}
    metrics |= {"ids": rng.integers(CLIENTS, size=(n, COHORT)), "active": np.ones((n, COHORT), bool)}
    return metrics | {"ok": np.ones((n, COHORT), bool), "accuracy_macro": rng.random(n, np.float32)}


def of_before(folder: Path, megabytes: float, checkout: Path) -> None:
    """Prints what a chunk's files and a checkpoint took in the old code of a checkout, and take now, in turns."""
    spec = importlib.util.spec_from_file_location("before", checkout / "fljax/run/checkpoint.py")  # its old place
    assert spec is not None
    assert spec.loader is not None
    old_code: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(old_code)
    state, metrics, saver = of_size(megabytes), metrics_of(10, np.random.default_rng(0)), checkpoint.Saver(folder)
    (old_folder := folder / "before").mkdir()
    folder.joinpath("rounds").mkdir(exist_ok=True)
    history = [{"round": 0, **surroundings(1)}]
    samples: dict[str, list[float]] = {name: [] for name in ("old", "now, held up", "now, on the disk")}
    for i in range(REPEATS):
        began = time.perf_counter()
        n_bytes = old_code.append_rows(old_folder, 10 * i, metrics)
        old_code.save(old_folder, old_code.Checkpoint(10 * i, n_bytes, {}, state))
        samples["old"].append(time.perf_counter() - began)
        began = time.perf_counter()
        written = append_rows(folder, 10 * i, metrics, Written())
        saver.save(checkpoint.Checkpoint(10 * i, written, {}, history, state))
        samples["now, held up"].append(time.perf_counter() - began)
        saver.settle()
        samples["now, on the disk"].append(time.perf_counter() - began)
    old_ms, *new_ms = (1e3 * statistics.median(ms) for ms in samples.values())
    names = list(samples)[1:]
    line = ", ".join(f"{name} {ms:.1f} ms, ratio {ms / old_ms:.2f}" for name, ms in zip(names, new_ms, strict=True))
    print(f"chunk and checkpoint of {megabytes:g} MB: old {old_ms:.1f} ms; {line}")


def of_start(folder: Path) -> None:
    """Prints what a resume's checks cost for a run of `ROUNDS` rounds in files of 50."""
    rng = np.random.default_rng(0)
    written, n = Written(), 50
    for first in range(0, ROUNDS, n):
        written = append_rows(folder, first, metrics_of(n, rng), written)

    def locked() -> None:
        with only_writer(folder):
            pass

    def unchecked() -> None:
        paths = sorted(folder.glob("rounds/*.npz"))
        for path in paths:
            with np.load(path) as arrays:
                _ = {name: arrays[name] for name in arrays.files}

    calls = (locked, lambda: surroundings(1), host_memory, lambda: read_whole(folder, ROUNDS, written), unchecked)
    lock_time, surroundings_time, memory_time, checked, unchecked_read = milliseconds(*calls)
    print(f"start: lock {lock_time}, versions and devices {surroundings_time}, memory that is free {memory_time}")
    checks = Took(checked.wall - unchecked_read.wall, checked.processor - unchecked_read.processor)
    print(f"start: {ROUNDS} rounds read and checked {checked}, only read {unchecked_read}: the checks {checks}")
    assert len(read_rounds(folder)["ids"]) == ROUNDS


def of_decoded(folder: Path) -> None:
    """Prints what comparing the checksums of decoded examples costs, for sets of the size of real ones."""
    for name, shape in DECODED.items():
        file = folder / f"{name}.npy"
        np.save(file, np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8))
        (took,) = milliseconds(lambda file=file: checksums(file))
        print(f"start: decoded {name}, {file.stat().st_size / 1e6:.0f} MB, checked in {took}")


def main(megabytes: float = 100.0, checkout: Path | None = None) -> None:
    """Prints everything."""
    orbax = importlib.util.find_spec("orbax") is not None
    with tempfile.TemporaryDirectory(prefix=".checkpoints-", dir=".") as place:  # .gitignore has it
        for size in (0.1, megabytes):
            (folder := Path(place) / f"{size}").mkdir()
            plain_ms, our_ms, disk_ms = of_checkpoint(folder, size)
            print(
                f"checkpoint of {size:g} MB: plain {plain_ms:.1f} ms, ours {our_ms:.1f} ms,"
                f" ratio {our_ms / plain_ms:.2f}"
            )
            print(f"  all of it, names included, is on the disk after {disk_ms:.1f} ms")
            if orbax:
                held_ms, disk_ms = of_orbax(folder, size)
                print(f"  Orbax: {held_ms:.1f} ms, on the disk after {disk_ms:.1f} ms")
            if checkout is not None:
                of_before(folder, size, checkout)
        (folder := Path(place) / "start").mkdir()
        of_start(folder)
        of_decoded(folder)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]), *map(Path, sys.argv[2:3]))
