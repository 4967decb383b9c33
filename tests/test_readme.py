"""The README's example runs, its table is the registry's, its commands are what they say."""

import doctest
import re
from pathlib import Path

from fljax.algorithms import ALGORITHMS
from fljax.cli.job import read_job
from fljax.cli.listing import readme_table
from fljax.data.datasets import NAMES

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
