"""Numbers of repeats, seeds and the like on the benchmarks' command lines."""

import re
import runpy
import sys

import pytest

from .conftest import FOLDER

SCRIPTS = sorted(
    file.name
    for file in FOLDER.glob("*.py")
    if re.search(r'parser\(__doc__|"--repeats"', file.read_text()) and file.name != "timing.py"  # which is imported
)
OTHERS = [
    ("compare_seeds.py", "--seeds"),
    ("held.py", "--networks"),
    ("lstm.py", "--clients"),
    ("peers/run.py", "--rounds"),
    ("peers/run.py", "--turns"),
    ("scaling.py", "--devices"),
    ("side_by_side.py", "--clients"),
    ("sweep.py", "--curve"),
    ("sweep.py", "--rounds"),
]


@pytest.mark.parametrize(("script", "option"), [*((script, "--repeats") for script in SCRIPTS), *OTHERS])
def test_numbers_below_one_end_a_benchmark_before_it_runs(script, option, monkeypatch, capsys):
    if "torch" in (FOLDER / script).read_text():
        pytest.importorskip("torch")
    for value in ("0", "-2"):
        monkeypatch.setattr(sys, "argv", [script, option, value])
        with pytest.raises(SystemExit) as error:
            runpy.run_path(str(FOLDER / script), run_name="__main__")
        assert error.value.code == 2
        assert f"{option}: {value}: give a whole number from 1 on" in capsys.readouterr().err.splitlines()[-1]
