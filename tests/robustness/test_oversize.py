"""Requests for more memory than there is, to whole commands under a limit of 5 GB: one line, soon, and no files."""

import os
import subprocess
import sys

import pytest

from tests.robustness.tally import Tally

pytestmark = pytest.mark.slow
GB, SECONDS = 10**9, 10
REQUESTS = (
    "run --algorithm fedavg --hidden 2000000000",
    "run --algorithm fedavg --hidden 2000000",
    "run --algorithm fedavg --batch-size 2000000000",
    "run --algorithm fedavg --rounds 2000000000",
    "run --algorithm fedavg ditto --hidden 2000000",
    "sweep --algorithm fedavg --hidden 2000000000 --lr 0.1 0.2",
    "sweep --algorithm fedavg --hidden 2000000 --lr 0.1 0.2",
    "sweep --algorithm fedavg --lr 0.1 0.2 --seeds 400000 --rounds 10000",
    "plan --algorithm fedavg --hidden 2000000000",
)


COMMAND = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, ({5 * GB}, {5 * GB}))
from fljax.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("arguments", REQUESTS)
def test_oversize_requests_are_refused_at_once(tmp_path, capsys, arguments):
    tally = Tally(f"5 GB: {arguments}")
    folder_words = ["--folder", "x"] if not arguments.startswith("plan") else []
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "JAX_PLATFORMS": "cpu"}
    before = os.times()
    command = [sys.executable, "-c", COMMAND, *arguments.split(), *folder_words]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system

    def raise_message():
        assert process.returncode == 2, process.stderr[-2000:]
        assert seconds < SECONDS, f"{seconds:.1f} s of processor time"
        assert " free" in process.stderr
        raise ValueError(process.stderr.removesuffix("\n"))

    tally.attempt(arguments, raise_message, lambda result: False, "GB")
    with capsys.disabled():
        print(f"\n{seconds:.1f} s of processor time: {process.stderr.strip()}")
    assert not (tmp_path / "x").exists()
    tally.close(capsys)
