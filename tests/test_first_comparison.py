"""`docs/first_comparison.md`, followed to the letter: from `git clone` to a table of five methods over three seeds."""

import csv
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import fljax
from fljax.cli.compare import OWN
from fljax.jobs.job import read_job
from fljax.jobs.parts import make_model, make_parts

ROOT = Path(__file__).parents[1]
PAGE = ROOT.joinpath("docs", "first_comparison.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
METHODS = ("fedavg", "fedprox", "ditto", "fedper", "ifca")
MINUTES = 10


def test_the_table_is_made_and_the_comparison_can_be_read(tmp_path, monkeypatch):
    """The cheap half: the file that the page makes, and the job that its command names."""
    monkeypatch.chdir(tmp_path)
    (make,) = (block for block in BLOCKS if "load_breast_cancer" in block)
    exec(make[make.index("\n") + 1 : make.rindex("EOF")], {})
    with open("patients.csv") as file:
        assert len(list(csv.reader(file))) == 1 + 569
    compare, compare_more = (block for block in BLOCKS if block.startswith("fljax compare"))
    job = read_job(shlex.split(compare.replace("\\\n", ""))[2:], OWN)
    assert (tuple(job.methods), job.own["seeds"]) == (METHODS, 3)
    federation, _ = make_parts(job)
    assert federation.train.size.shape == (8,)
    assert dict(make_model(job, federation).about)["n_classes"] == 2
    assert compare_more.split()[2:4] == compare.split()[-2:]  # goes on in the same folder


@pytest.mark.slow
def test_the_page_does_what_it_says(tmp_path):
    """Every block as it stands, in one shell; `git clone` is told that the address is this repository."""
    start = time.monotonic()
    git = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{ROOT}.insteadOf", "GIT_TERMINAL_PROMPT": "0"}
    git["GIT_CONFIG_VALUE_0"] = "https://github.com/fljax/fljax"
    python = Path(sys.executable).resolve().parent  # the one that runs the tests, whatever is called python3 here
    paths = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": f"{python}:{os.environ['PATH']}"}
    left_out = ("PYTHONPATH", "XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in left_out} | git | paths
    script = "set -eu\n" + "".join(BLOCKS)
    process = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    assert time.monotonic() - start < 60 * MINUTES
    _check_results(tmp_path / "fljax" / "results" / "hospitals", process.stdout)


def _check_results(folder: Path, output: str) -> None:
    """The table that was printed, its p-values against SciPy's on the runs, and the files that the page names."""
    assert [line.split()[0] for line in output.splitlines() if " ± " in line and line.split()[0] in METHODS] == [
        *METHODS,
        *METHODS,
    ]
    with folder.joinpath("comparison.csv").open() as file:
        rows = {row["algorithm"]: row for row in csv.DictReader(file)}
    runs = [fljax.load_run(folder / f"seed_{seed}") for seed in range(4)]
    scores = {name: np.float64([run[name].metrics["accuracy_macro"][-1] for run in runs]) for name in METHODS}
    for name in METHODS:
        assert rows[name]["seeds"] == "4"
        assert float(rows[name]["mean"]) == pytest.approx(scores[name].mean(), rel=1e-6)
        if name != "fedavg" and np.ptp(scores[name] - scores["fedavg"]):
            expected = stats.ttest_rel(scores[name], scores["fedavg"]).pvalue
            assert float(rows[name]["p_value"]) == pytest.approx(expected, rel=1e-6)
    assert min(scores["fedavg"]) > 0.9
    for file in ("report.html", "comparison.md", "comparison.tex", "plots/learning_curves.pdf", "plots/clients.png"):
        assert folder.joinpath(file).stat().st_size > 500
