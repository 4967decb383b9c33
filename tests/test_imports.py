"""Imports run one way: {types, files} <- tree <- {data, models, server} <- client <- {algorithms, run} <- cli."""

import ast
from pathlib import Path

import pytest

import fljax

ROOT = Path(fljax.__file__).parent
LAYER = {
    "types": 0,
    "files": 0,
    "tree": 1,
    "data": 2,
    "models": 2,
    "server": 2,
    "client": 3,
    "algorithms": 4,
    "run": 4,
    "cli": 5,
}
FORBIDDEN_NAMES = {"utils", "helpers", "base", "core", "common", "misc"}
FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem in LAYER)


def part_of(module: str) -> str:
    """``fljax.server.kmeans`` -> ``server``."""
    return module.split(".")[1]


def imported(path: Path) -> set[str]:
    """The parts of fljax that a file imports, wherever in the file."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            module = node.module or ""
            names = [f"fljax.{name}" for name in names] if module == "fljax" else [module]
        parts |= {part_of(name) for name in names if name.startswith("fljax.")}
    return parts


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    above = {part for part in imported(path) if part != own and LAYER[part] >= LAYER[own]}
    assert not above, f"{own} imports {sorted(above)}"


def test_the_rule_is_checked_on_every_part():
    assert {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES} == set(LAYER)


def test_no_file_is_named_for_nothing():
    assert not {path.stem.strip("_") for path in ROOT.rglob("*.py")} & FORBIDDEN_NAMES


@pytest.mark.parametrize("name", fljax.__all__)
def test_public_names_are_found_and_documented(name):
    value = getattr(fljax, name)
    assert isinstance(value, dict) or value.__doc__


def test_names_for_type_checkers_are_the_public_ones():
    tree = ast.parse((ROOT / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    named = {f"{node.module}.{alias.name}" for node in block.body for alias in node.names}
    assert named == {f"{fljax._MODULE_OF[name]}.{name}" for name in fljax.__all__}


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'fedarg'"):
        fljax.fedarg  # noqa: B018
