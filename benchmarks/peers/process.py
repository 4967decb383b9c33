"""A system as a process that waits for its turns."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from peers.work import MARK
from timing import python_path

BENCHMARKS = Path(__file__).parents[1]
PATIENCE = 400  # seconds for a start or a turn
SCRIPTS = {"torch": "torch_loop", "naive_vmap": "naive_vmap"}


class Failed(Exception):
    """A system could not be made, started or run; says why in one line."""


class System:
    """One system on one workload."""

    def __init__(self, name: str, python: str, arguments: list[str]) -> None:
        self.log = BENCHMARKS / "peers" / ".env" / f"{name}.log"
        self.log.parent.mkdir(exist_ok=True)
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [python, "-m", f"peers.{SCRIPTS.get(name, f'{name}_peer')}", *arguments],
            cwd=BENCHMARKS,
            env=os.environ | {"PYTHONPATH": python_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
            process_group=0,
        )
        self.memory_mb = 0.0
        try:
            self._answer()
        except Failed:
            self.end()
            raise
        self.start_s = time.perf_counter() - began

    def turn(self) -> float:
        """Seconds of the next turn."""
        try:
            print(file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise Failed(self._last_words()) from None
        seconds = self._answer()["seconds"]
        self.memory_mb = max(self.memory_mb, peak_memory(self.process.pid) / 2**20)
        return seconds

    def finished(self) -> dict[str, Any]:
        """What it says after its last turn: ``version`` and ``accuracy``."""
        return self._answer()

    def end(self) -> None:
        """Ends whatever of it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        alarm = threading.Timer(PATIENCE, self.process.kill)
        alarm.start()
        try:
            for line in self.process.stdout:
                if line.startswith(MARK):
                    return json.loads(line.removeprefix(MARK))
        finally:
            alarm.cancel()
        raise Failed(self._last_words())

    def _last_words(self) -> str:
        lines = self.log.read_text().strip().splitlines()
        return lines[-1] if lines else "it ended without a word"


def peak_memory(pid: int) -> int:
    """Bytes that a process and its descendants have had resident at most, each; 0 where the system does not say."""
    total = 0
    for process in [pid, *descendants(pid)]:
        try:
            status = Path(f"/proc/{process}/status").read_text()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return total


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and so on."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name_part, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        children.setdefault(int(rest.split()[1]), []).append(int(name_part.split()[0]))
    ids, todo = [], [pid]
    while todo:
        child_ids = children.get(todo.pop(), [])
        ids, todo = ids + child_ids, todo + child_ids
    return ids
