"""Imports run one way; the public names are found, documented and the only ones that `dir` lists.

::

    {sealed, shown, other_names} <- {ranges, choices, files}
    {ranges, choices, files} <- {static_values, argument_kinds, types, numbers, placement}
    {types, numbers, placement} <- {tree, keys}
    {tree <- matrices, keys, scores} <- {data, models, server}
    {data, models, server} <- client <- rounds <- {algorithms, checks, devices}
    {checks, devices} <- metrics <- {folder, report} <- run
    catalogue knows what can be named; jobs <- results <- cli are above all
"""

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

import fljax
from fljax.algorithms import ALGORITHMS
from fljax.rounds.bricks import BRICKS

ROOT = Path(fljax.__file__).parent
LAYER = {
    "ranges": 0,
    "choices": 0,
    "argument_kinds": 1,
    "files": 0,
    "sealed": -1,
    "shown": -1,
    "other_names": -1,
    "static_values": 1,
    "types": 1,
    "numbers": 1,
    "tree": 2,
    "matrices": 2.5,
    "placement": 1,
    "keys": 2,
    "data": 3,
    "models": 3,
    "scores": 2,
    "server": 3,
    "client": 4,
    "rounds": 5,
    "algorithms": 6,
    "checks": 5.1,
    "devices": 5.1,
    "metrics": 5.2,
    "folder": 5.3,
    "report": 5.3,
    "run": 6,
    "attacks": 6,
    "drift": 4,
    "catalogue": 7,
    "jobs": 8,
    "results": 9,
    "cli": 10,
}
BUILDS_ON = {
    "cgpfl": {"pfedme"},
    "fedavg_ft": {"fedavg"},
    "feddws": {"feddist"},
    "fedsr_ft": {"fedsr"},
    "fesem_ma": {"fesem"},
    "group_pfl_dynamic": {"group_pfl"},
    "cfl": {"layercfl"},
    "adacfl": {"layercfl"},
    "fedrc": {"fedem"},
}
"""Method -> the methods that it is built on by its paper."""
FORBIDDEN_NAMES = {"utils", "helpers", "base", "core", "common", "misc"}
FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem in LAYER)


def part_of(module: str) -> str:
    """``fljax.server.kmeans`` -> ``server``."""
    return module.split(".")[1]


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Imports and classes of a file, wherever in it."""
    return [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef)
    ]


def imported(path: Path) -> set[str]:
    """The parts of fljax that a file imports, wherever in the file."""
    parts = set()
    for node in nodes(path):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            module = node.module or ""
            names = [f"fljax.{name}" for name in names] if module == "fljax" else [module]
        parts |= {part_of(name) for name in names if name.startswith("fljax.")}
    return parts


def test_a_class_of_a_method_without_a_docstring_is_one_of_numbers():
    """`hyper` writes theirs; ruff does not look at classes there."""
    for path in sorted(ROOT.joinpath("algorithms").rglob("*.py")):
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and ast.get_docstring(node) is None:
                decorators = [decorator.id for decorator in node.decorator_list if isinstance(decorator, ast.Name)]
                assert "hyper" in decorators, f"{path.name}: {node.name}"


def test_imports_run_one_way():
    """In one test, as what is checked of each method and name: a test costs more than such a check."""
    wrong_parts = {}
    for path in FILES:
        own_part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if wrong := [part for part in imported(path) if part != own_part and LAYER[part] >= LAYER[own_part]]:
            wrong_parts[str(path.relative_to(ROOT))] = sorted(wrong)
    assert wrong_parts == {}


def test_the_rule_is_checked_on_every_part():
    assert {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES} == set(LAYER)


def test_no_file_is_named_for_nothing():
    assert not {path.stem.strip("_") for path in ROOT.rglob("*.py")} & FORBIDDEN_NAMES


def test_a_method_imports_another_only_where_its_paper_builds_on_it():
    for path in sorted(ROOT.glob("algorithms/**/*.py")):
        own_name = path.relative_to(ROOT / "algorithms").parts[0].removesuffix(".py")
        imported_methods = {
            module.split(".")[2]
            for node in nodes(path)
            if isinstance(node, ast.ImportFrom) and (module := node.module or "").startswith("fljax.algorithms.")
        }
        assert imported_methods - {own_name} <= BUILDS_ON.get(own_name, set()), path.name


def test_public_names_are_found_and_documented():
    values = {name: getattr(fljax, name) for name in dir(fljax)}
    assert [name for name, value in values.items() if not (isinstance(value, Mapping | str) or value.__doc__)] == []


def test_dir_lists_verbs_nouns_packages_and_methods_and_nothing_else():
    names = dir(fljax)
    assert {"simulate", "train", "sweep", "Federation", "server", "client", "ifca", "fedcps"} <= set(names)
    assert not [name for name in names if name.startswith("_")]
    assert {name for name in names if name in ALGORITHMS} == set(ALGORITHMS)


@pytest.mark.parametrize(
    "package",
    [
        "attacks",
        "client",
        "data.partition",
        "drift",
        "models",
        "rounds",
        "rounds.clock",
        "rounds.uplink",
        "scores",
        "server",
    ],
)
def test_dir_of_a_package_lists_its_public_names_and_no_module_that_they_come_from(package):
    module = importlib.import_module(f"fljax.{package}")
    assert dir(module) == sorted(module.__all__)
    modules = {name for name in dir(module) if inspect.ismodule(getattr(module, name))}
    assert modules == ({"clock", "uplink"} if package == "rounds" else set())


def test_importing_starts_nothing():
    code = "import sys, fljax; print([name for name in ('jax', 'numpy', 'optax', 'flax') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="fedarg"):
        fljax.fedarg  # noqa: B018


def test_a_name_that_is_not_there_is_told_the_nearest():
    with pytest.raises(AttributeError, match=r"^fljax has no attribute 'grid'; it is in fljax.run.sweep$"):
        fljax.grid  # noqa: B018
    with pytest.raises(AttributeError, match=r"^fljax has no attribute 'fedagv'; the nearest is 'fedavg'$"):
        fljax.fedagv  # noqa: B018
    for table, name in ((fljax.MODELS, "lenet"), (fljax.PARTITIONS, "iid"), (BRICKS, "krum")):
        with pytest.raises(KeyError, match=rf"no \w+ '{name}s'; the nearest is '{name}'"):
            table[f"{name}s"]
        assert f"{name}s" not in table
    with pytest.raises(KeyError, match=r"no algorithm 'fedagv'; the nearest is 'fedavg'"):
        ALGORITHMS["fedagv"]
    assert not hasattr(fljax, "fedagv")
    assert "fedagv" not in ALGORITHMS
