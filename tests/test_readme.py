"""The README's examples run, its table is the registry's, its commands are what they say."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fljax.algorithms import ALGORITHMS
from fljax.cli.job import read_job
from fljax.cli.listing import readme_table
from fljax.data.datasets import NAMES
from tests.run.test_hosts import free_port

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text()


def example() -> str:
    (code,) = re.findall(r"```pycon\n(.*?)```", TEXT, re.DOTALL)
    return code


def test_example_runs():
    test = doctest.DocTestParser().get_doctest(example(), {}, "README", str(README), 0)
    assert len(test.examples) >= 5
    assert doctest.DocTestRunner().run(test).failed == 0


def test_example_has_at_most_15_lines():
    assert len(example().splitlines()) <= 15


def snippet(i: int, *smaller: tuple[str, str]) -> str:
    """A block of Python with tiny numbers, or others that only this machine has, in place of its own."""
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 2, "a new block of Python needs a test"
    code = blocks[i]
    for old, new in smaller:
        assert code.count(old) == 1
        code = code.replace(old, new)
    return code


def test_the_sweep_in_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(
        snippet(0, ("n_seeds=3", "n_seeds=1"), ("n_rounds=50", "n_rounds=2"), ("log_spaced(1e-3, 1, 4)", "(0, 1)")), {}
    )
    assert re.match(r"Spread\(point={'lr': .*, 'mu': .*}, mean=0\.\d+", capsys.readouterr().out)
    assert Path("results/x/parts/search.json").exists()


SETUP = """
from fljax import ALGORITHMS, MODELS, PARTITIONS, Work, load
federation = PARTITIONS["iid"](*load("digits"), n_clients=4)
algorithm = ALGORITHMS["fedavg"].factory(MODELS["mlp"]((8, 8, 1), (8,), 10), Work(1, 32))
hyper = ALGORITHMS["fedavg"].hyper()
"""


@pytest.mark.slow
def test_the_script_for_several_hosts_runs_on_two(tmp_path):
    code = snippet(
        1,
        ("10.0.0.1:12345", f"localhost:{free_port()}"),
        ("algorithm, hyper, federation = ...  # the same on every host\n", SETUP),
        ("100, folder", "2, folder"),
        ("a folder that all hosts see", str(tmp_path)),
    )
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
    pipe = subprocess.PIPE
    hosts = [
        subprocess.Popen([sys.executable, "-c", code, host], cwd=README.parent, env=environment, stderr=pipe, text=True)
        for host in ("0", "1")
    ]
    errors = [process.communicate()[1] for process in hosts]
    assert [process.returncode for process in hosts] == [0, 0], errors[0][-3000:]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_table_is_the_registrys():
    assert readme_table(ALGORITHMS) in TEXT, "put what `fljax list --markdown` prints into the README"


def test_two_commands_set_everything_up():
    commands = re.findall(r"^python3 -m venv .*", TEXT, re.MULTILINE)
    assert [command.rpartition("/")[2].split()[0] for command in commands] == ["fljax", "pytest"]


def test_commands_shown_can_be_read():
    commands = re.findall(r"^fljax run (?!--folder|--config)(.+)$", TEXT, re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        read_job(command.partition("#")[0].split())


def test_data_sets_are_named():
    assert {name for name in NAMES if f"`{name}`" not in TEXT} == set()
