"""Numbers that texts quote are those of files: tables of `experiments/README.md`, decimals in docstrings of scripts."""

import ast
import csv
import re
from collections import defaultdict
from decimal import Decimal
from functools import cache
from statistics import fmean

import marked
import pytest
from claims import claim_results, counted
from outcomes import RESULTS, read
from reproduction import PUBLISHED, all_rows, commands, published_rows, summary

from .conftest import FOLDER

DECIMAL = re.compile(r"(?<![\w.])\d+\.\d{2,}(?![\w.]|e-)")


def test_readme_shows_what_the_scripts_write():
    assert marked.shown("experiments/reproduction.py") == summary(all_rows(), depth=1)
    assert marked.shown("experiments/claims.py") == counted(claim_results())


def test_the_files_of_the_state_are_those_of_the_results():
    assert (RESULTS / "reproduction.md").read_text() == summary(all_rows()) + "\n"
    assert (RESULTS / "commands.md").read_text() == commands(all_rows()) + "\n"
    with (RESULTS / "reproduction.csv").open(newline="") as file:
        assert [row["state"] for row in csv.DictReader(file)] == [row.state for row in all_rows()]


def test_lines_that_a_script_says_are_kept_are_kept():
    pairs = {
        (file.stem, folder)
        for file in FOLDER.glob("*.py")
        for folder in re.findall(
            r"(?:[Ll]ines(?: and\s+(?:the )?figures?)?\s+are|came out\s+is)\s+in\s+(results/[\w-]+)", file.read_text()
        )
    }
    assert {stem for stem, _ in pairs} >= {
        "comparison",
        "dcpfl",
        "fedcps_figures",
        "hidden_groups",
        "leaderboard",
        "tuning",
    }
    assert [pair for pair in pairs if not (FOLDER / pair[1]).is_dir()] == []
    parts = "tuning/grid-FMNIST", "tuning/optuna-FMNIST", "fedtsdp/sampling-digits", "fedtsdp/hopkins-digits"
    assert all(read(RESULTS / f"{part}-smoke.csv") for part in (*parts, "fedtsdp/groups-digits"))


def test_every_row_not_run_has_a_command_and_its_hours():
    lines = commands(all_rows()).splitlines()[2:]
    counts = sum(int(line.split("|")[2]) for line in lines)
    assert counts >= sum(row.state == "D" for row in all_rows()), "a row may need two commands, none has no command"


PAPERS = {"dcpfl": "DC-PFL", "fedcps": "FedCPS", "fedtsdp": "FedTSDP", "fesem": "FeSEM", "layercfl": "LayerCFL"}
"""What a script's name begins with -> the paper whose numbers it may quote."""
TESTED = {"pfllib": {"0.77", "0.81"}}
"""Numbers of scripts that another test computes: of `test_boards.py`."""


def published_by(script: str) -> list[Decimal]:
    """The published values of a script's paper, those in per cent as shares too."""
    paper = PAPERS.get(script.partition("_")[0])
    rows = [value for cell, value in published_rows() if cell[0] == paper]
    numbers = [Decimal(v) for value in rows for v in re.findall(r"\d+(?:\.\d+)?", value)]
    return numbers + [value / 100 for value in numbers]


@cache
def settings() -> set[float]:
    """The decimals in the experiments' code."""
    nodes = [node for file in FOLDER.glob("*.py") for node in ast.walk(ast.parse(file.read_text()))]
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, float)}


def quoted(text: str) -> list[str]:
    """Decimals of two digits or more behind the point in docstrings, but those that are settings in the code."""
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Module | ast.FunctionDef | ast.ClassDef)]
    numbers = [number for node in nodes for number in DECIMAL.findall(ast.get_docstring(node) or "")]
    return [number for number in numbers if float(number) not in settings()]


def is_known(number: str, published: list[Decimal]) -> bool:
    """Whether a published number, rounded as the text has it, is the one quoted."""
    step = Decimal(1).scaleb(-len(number.partition(".")[2]))
    return any(abs(value - Decimal(number)) <= step / 2 for value in published)


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_docstrings_quote_numbers_of_their_own_paper_only(file):
    published, other_numbers = published_by(file.stem), TESTED.get(file.stem, set())
    assert [
        number for number in quoted(file.read_text()) if number not in other_numbers and not is_known(number, published)
    ] == []


def test_the_page_on_own_data_quotes_the_measured_scales():
    accuracies = defaultdict(list)
    for name, file in (("Fashion-MNIST", "FMNIST"), ("digits", "digits")):
        for line in read(RESULTS / "normalisation" / f"scales-{file}-smoke.csv"):
            if line["metric"] == "accuracy_macro":
                accuracies[name, line["method"]].append(float(line["value"]))
    text = (FOLDER.parent / "docs" / "own_data.md").read_text()
    for name in ("Fashion-MNIST", "digits"):
        means = [fmean(accuracies[name, scale]) for scale in ("unit", "centred", "standardised")]
        assert f"| {name} | {' | '.join(f'{mean:.3f}' for mean in means)} |" in text


def test_the_page_on_attackers_quotes_its_table():
    with (RESULTS / "clients" / "hostile" / "table.csv").open() as file:
        rows = {(row["method"], row["defence"], row["attack"]): float(row["accuracy"]) for row in csv.DictReader(file)}
    text = " ".join((FOLDER.parent / "docs" / "attacks_and_privacy.md").read_text().split())
    assert f"FedAvg has accuracy {rows['fedavg', 'fools_gold', 'label_flip']:.3f} with it" in text


def test_a_number_from_nowhere_or_of_another_paper_is_found():
    text = '"""We reach 0.12345 and 12.89 %."""'
    assert quoted(text) == ["0.12345", "12.89"]
    assert is_known("12.89", published_by("layercfl_layers"))
    assert not is_known("12.89", published_by("fesem"))
    assert not is_known("12.89", published_by("drift"))
    assert not is_known("0.12345", [Decimal("0.1240"), Decimal("0.1230")])


def test_readme_s_table_is_replaced_between_its_marks_only(tmp_path):
    file = tmp_path / "README.md"
    file.write_text(f"before\n{marked.mark('x.py')}\nold\n{marked.END}\nafter\n")
    marked.show("x.py", "| new |", file)
    assert file.read_text() == f"before\n{marked.mark('x.py')}\n\n| new |\n\n{marked.END}\nafter\n"
    assert marked.shown("x.py", file) == "| new |"
    with pytest.raises(ValueError, match=r"has no <!-- from y\.py -->"):
        marked.shown("y.py", file)


def test_published_file_is_read_whole():
    with PUBLISHED.open() as file:
        assert len(file.readlines()) == len(published_rows()) + 1


def test_the_page_on_slow_clients_quotes_the_measured_stragglers():
    accuracies = defaultdict(list)
    for line in read(RESULTS / "slow_clients" / "stragglers-synthetic_1_1.csv"):
        if line["metric"] == "accuracy_micro":
            accuracies[line["setting"], line["method"]].append(float(line["value"]))
    text = (FOLDER.parent / "docs" / "participation.md").read_text()
    methods = list(dict.fromkeys(method for _, method in accuracies))
    assert len(methods) == 4
    for share in ("0", "0.5", "0.9"):
        means = [fmean(accuracies[f"{share} stragglers", method]) for method in methods]
        assert f"| {100 * float(share):g} % | {' | '.join(f'{mean:.3f}' for mean in means)} |" in text
