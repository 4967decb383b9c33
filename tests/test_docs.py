"""The documentation: its blocks run, its links lead somewhere, no page is an orphan, its tables are the library's."""

import ast
import importlib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

import fljax
from fljax.catalogue.job import RUN
from fljax.cli.compare import OWN as COMPARE_OWN
from fljax.cli.plan import PLAN
from fljax.jobs.job import read_job
from fljax.jobs.sweep import read_sweep

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
TEXTS = {page.stem: page.read_text() for page in PAGES}
README = (ROOT / "README.md").read_text()
GENERATED = {
    *(f"generated/methods/{name}" for name in fljax.ALGORITHMS),
    "generated/reference/fljax",
    *(
        f"generated/reference/fljax.{name}"
        for name in (
            "rounds",
            "rounds.uplink",
            "server",
            "client",
            "tree",
            "types",
            "run",
            "metrics",
            "report",
            "folder",
            "devices",
            "scores",
        )
    ),
}
SKIP = "% skip: "


def blocks(text: str, kind: str) -> list[str]:
    """The fenced blocks of a page, without those that it says are skipped."""
    fenced = re.findall(rf"^(.*)\n```{kind}\n((?:.*\n)*?)```", text, re.MULTILINE)
    return [code for before, code in fenced if not before.startswith(SKIP)]


PYTHON = {name: code for name, text in TEXTS.items() if (code := "".join(blocks(text, "python")))}
COMPILES = re.compile(r"simulate\(|sweep\(|train\(|kmeans\(|coalitions\(")


@pytest.fixture
def module(monkeypatch):
    """A file of docs/, imported."""
    monkeypatch.syspath_prepend(str(DOCS))
    yield importlib.import_module
    for name in ("written", "costs", "pictures", "boards", "figure_tables", "page_tables"):
        sys.modules.pop(name, None)


def test_there_are_blocks_and_few_are_skipped():
    assert {"index", "tour", "write_your_own", "own_data", "sweeps", "primitives"} <= set(PYTHON)
    assert sum(len(re.findall(f"^{SKIP}", text, re.MULTILINE)) for text in TEXTS.values()) <= 2


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * bool(COMPILES.search(PYTHON[name]))) for name in PYTHON]
)
def test_the_blocks_of_a_page_run_one_after_another(name, tmp_path, monkeypatch):
    for other in re.findall(r"^import (optuna)$", PYTHON[name], re.MULTILINE):
        pytest.importorskip(other)  # of an extra
    monkeypatch.chdir(tmp_path)
    exec(compile(PYTHON[name], str(DOCS / f"{name}.md"), "exec"), {"__name__": "page"})


@pytest.mark.parametrize("name", PYTHON)
def test_what_blocks_import_and_name_is_there(name):
    """The cheap half of running them."""
    for node in ast.walk(ast.parse(PYTHON[name])):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                assert hasattr(importlib.import_module(node.module or ""), alias.name), f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fljax":
            assert hasattr(fljax, node.attr), f"fljax.{node.attr}"


def names_of_fljax() -> list[str]:
    """What blocks name, as ``fljax.rounds.clock``."""
    attributes = [
        node for code in PYTHON.values() for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Attribute)
    ]
    return sorted({name for attribute in attributes if re.fullmatch(r"fljax(\.\w+)+", name := ast.unparse(attribute))})


def test_commands_can_be_read():
    shell_blocks = [block for text in (*TEXTS.values(), README) for block in blocks(text, "sh")]
    lines = [line for block in shell_blocks for line in block.replace("\\\n", "").splitlines()]
    commands = [
        shlex.split(line, comments=True)[1:] for line in lines if re.match("fljax (run|plan|compare|sweep)", line)
    ]
    counts = Counter(name for name, *_ in commands)
    for name, *words in commands:
        if {"--data", "--config"} & set(words) or [word for word in words if word.startswith("results/")]:
            continue  # which would have to be there
        if name == "sweep":
            read_sweep(words)
        else:
            read_job(words, {"compare": COMPARE_OWN, "plan": RUN | PLAN}.get(name, RUN))
    assert counts["run"] >= 12
    assert min(counts[name] for name in ("plan", "compare", "sweep")) >= 1


def test_pfllibs_options_have_theirs_here(module):
    rows = re.findall(r"^\| `(-algo .*?)` \| `(.*?)` \|(.*)", TEXTS["coming_from"], re.MULTILINE)
    for _, words, _ in rows:
        read_job(shlex.split(words), RUN)
    compared = set(module("boards").pfllib_cases.CASES)
    assert {name for *_, remark in rows for name in re.findall(r"\*\*(.*?)\*\*", remark)} == compared
    methods, aliases = {options.split()[1] for options, *_ in rows}, {"Per-FedAvg": "PerAvg", "FedRoD": "FedROD"}
    assert methods == {aliases.get(name, name) for name in compared} | {"FedGen", "APFL", "APPLE", "FD", "FedBN", "FML"}


def test_methods_of_other_libraries_have_theirs_here_or_are_missing():
    text = TEXTS["coming_from"]
    options = set(re.findall(r"`(--algorithm [^`]*)`", text))
    for words in options:
        read_job(shlex.split(words), RUN)
    assert len(set(re.findall(r"^\| `method=(\w+)", text, re.MULTILINE))) >= 25
    paragraphs = re.findall(r"^Not available: ((?:.+\n)+)", text, re.MULTILINE)
    missing = {
        name for one in paragraphs for name in re.findall(r"[\w-]+", re.sub(r"\(.*?\)", "", one, flags=re.DOTALL))
    }
    assert {"FedPCL", "FedFed"} <= missing
    assert missing & {method.title.partition(":")[0] for method in fljax.ALGORITHMS.values()} == set()


def test_readme_counts_the_methods_that_end_as_other_code_does():
    tables = re.findall(r"page_tables.py, \w+_steps -->(.*?)<!-- end -->", TEXTS["leaderboards"], re.DOTALL)
    heads = {name for table in tables for name in re.findall(r"^\| ([\w-]+) \|", table, re.MULTILINE)}
    names = heads - {"method", "---"}
    titles = {method.title.partition(":")[0] for method in fljax.ALGORITHMS.values()} | {"Local"}
    # Other settings of theirs, a method of PFLlib whose clients train alone, and one that is a setting of FL+HC.
    settings = {"FedADMM-global", "FedCR-FT", "FedSoft-drawn", "FeSEM-proximal", "SuPerFed-layers"}
    assert names - titles == settings | {"FedMTL", "FLIS-HC"}
    assert re.findall(r"(\d+)\s+methods\s+reproduce", README) == [str(len(names & titles))]


def test_what_takes_the_place_of_other_systems_options_can_be_read():
    rows = re.findall(r"^\| [`\"\w].*? \| (.*) \|$", TEXTS["coming_from"], re.MULTILINE)
    options = [code for cell in rows for code in re.findall(r"`(--[^`]* [^`]*)`", cell) if "--algorithm" not in code]
    for code in options:
        read_job(["--partition", "dirichlet", *shlex.split(code)], RUN)
    composed = {name for cell in rows for name in re.findall(r"`(fedavg\+\w+)`", cell)}
    for name in composed:
        fljax.compose(name)
    assert len(options) >= 15
    assert len(composed) >= 10


def in_toctrees(text: str) -> list[str]:
    trees = re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL)
    return [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]


def test_no_page_is_an_orphan_and_none_is_missing():
    names = [name for text in TEXTS.values() for name in in_toctrees(text)]
    written_names = [name for name in names if not name.startswith("generated/")]
    assert sorted(written_names) == sorted(set(TEXTS) - {"index"})
    assert "generated/methods/*" in names
    assert {name for name in names if name.startswith("generated/reference/")} == {
        name for name in GENERATED if "/reference/" in name
    }


def test_what_can_be_called_in_fljax_has_a_place_in_the_reference(module):
    """Methods have pages of their own, what a server does has that of `fljax.server`."""
    other_pages = {*fljax.ALGORITHMS, *fljax.server.__all__}
    callables = {name for name in dir(fljax) if name not in other_pages and callable(getattr(fljax, name))}
    assert callables == set(module("written").REFERENCE["fljax"])


def slug(heading: str) -> str:
    """A heading as GitHub and MyST link to it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_links_lead_somewhere():
    for page, text in TEXTS.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            if target.startswith("http"):
                continue
            path, _, anchor = target.partition("#")
            exists = path.removesuffix(".md") in GENERATED or (DOCS / path).is_file()
            assert exists, f"{page}.md: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", TEXTS[path.removesuffix(".md")], re.MULTILINE)
                assert anchor in map(slug, headings), f"{page}.md: {target}"


def test_pages_have_the_tables_that_their_scripts_write(module):
    tables, marked = module("page_tables"), importlib.import_module("marked")
    assert {name for _, name in tables.TABLES} >= {"methods", "bricks", "choosing", "pfllib", "clustered"}
    for (page, name), write in tables.TABLES.items():
        shown = marked.shown(tables.origin(name), DOCS / f"{page}.md")
        assert shown == write().strip(), f"{page}.md, {name}: run `python docs/page_tables.py`"


def test_names_of_methods_lead_to_their_pages_on_the_site(module):
    linked = partial(re.sub, r"^(\| [^|`]*)`(\w+)`", module("written").link, flags=re.MULTILINE)
    assert linked("| IFCA `ifca` | `fedavg` |") == "| IFCA [`ifca`](generated/methods/ifca.md) | `fedavg` |"
    assert linked("| `krum` | a brick |") == "| `krum` | a brick |"


@pytest.mark.slow
def test_pictures_are_drawn(module, tmp_path):
    module("pictures").draw_all(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in (DOCS / "pictures").iterdir()}


def test_the_table_of_methods_has_all_of_them(module):
    written, costs = module("written"), json.loads((DOCS / "costs.json").read_text())
    table = written.choosing_table(module("costs").of_methods())
    assert {name for name in fljax.ALGORITHMS if f"`{name}`" not in table} == set()
    assert set(costs) == set(fljax.ALGORITHMS), "run `python docs/costs.py`, with the names of new methods"
    assert set(written.ALSO_TOLD) <= set(fljax.ALGORITHMS)


def test_a_number_of_clusters_that_may_be_left_out_is_called_optional(module):
    table = module("written").choosing_table({}).splitlines()
    column = {name: row.split(" | ")[5] for row in table for name in re.findall(r" `(\w+)` \|", row)[:1]}
    assert [column[name] for name in ("ifca", "fedem", "cfl", "fedavg")] == ["`n_clusters`", "`n_learners`", "no", ""]
    for name, count in (("flhc", "n_clusters"), ("pacfl", "n_clusters"), ("group_pfl", "n_groups")):
        assert column[name] == f"optional: `{count}`"


def test_leaderboards_say_what_is_run_and_what_is_not(module, tmp_path, monkeypatch):
    boards, lines = module("boards"), []
    outcomes = importlib.import_module("outcomes")
    for seed, accuracy in enumerate((80.0, 90.0)):
        settings = outcomes.described(True, 40, 40)
        lines.append(outcomes.Outcome("IFCA", "rotation", seed, "accuracy", accuracy, None, 40, 1.0, settings))
        for method, metric, value in (("FeSEM", "accuracy", 88.0), ("FeSEM", "ARI", 1.0), ("FLC", "ARI", 1.0 - seed)):
            lines.append(outcomes.Outcome(method, "rotation", seed, metric, value, None, 40, 1.0, settings))
    outcomes.keep(tmp_path, "leaderboard", "table", "MNIST", lines)
    settings = outcomes.described(True, 30, 2000)
    cells = {("FedPer", "2 labels"): 99.0, ("FedPer", "Dirichlet 0.1"): 97.0, ("FedRoD", "2 labels"): 99.5}
    pfllib_lines = [
        outcomes.Outcome(method, setting, 0, metric, accuracy, None, 30, 1.0, settings)
        for (method, setting), accuracy in (cells | {("FedDistill", "2 labels"): 90.0}).items()
        for metric in ("best accuracy", "last accuracy", "seconds per round")
    ]
    pfllib_lines += [
        outcomes.Outcome("FedPer", "2 labels", 0, f"accuracy after {n}", accuracy, None, 30, 1.0, settings)
        for n, accuracy in ((10, 98.0), (20, 98.5))
    ]
    small = outcomes.described(False, 40, 2000)
    pfllib_lines += [
        outcomes.Outcome("FedDBE", "2 labels, 1 in 16", 0, f"accuracy after {n}", accuracy, None, 40, 1.0, small)
        for n, accuracy in ((20, 60.0), (40, 90.0))
    ]
    outcomes.keep(tmp_path, "PFLlib", "table", "FMNIST", pfllib_lines)
    two_more = [
        outcomes.Outcome("FedAvg", "2 labels, one seed", 0, f"accuracy after {n}", accuracy, None, 40, 1.0, settings)
        for n, accuracy in ((20, 61.0), (40, 66.0))
    ]
    outcomes.keep(tmp_path, "PFLlib", "settings", "FMNIST", two_more)
    monkeypatch.setattr(outcomes, "versions", lambda: "jax 0.11.2, numpy 2.5.2, NVIDIA H200")
    outcomes.keep(tmp_path, "PFLlib", "table", "FMNIST", [line for line in pfllib_lines if line.method == "FedRoD"])
    clustered, pfllib = boards.clustered_page(tmp_path), boards.pfllib_page(tmp_path)
    assert "**3 of " in clustered
    assert "with every seed (ARI 1): FeSEM.\n" in clustered
    assert clustered.index("| FeSEM | 88.00") < clustered.index("| IFCA | 85.00")  # the most accurate first
    assert "| IFCA | 85.00 ± 63.53 | none |" in clustered  # Student's t of one degree: 12.706 * 7.071 / sqrt(2)
    assert "| FedGWC | not run |" in clustered
    assert "| FedPer | 99.47 | 99.00 | 99.00 | -0.47 | 30 of 2000 | 1 | 99.00 |" in pfllib
    assert "| FedRoD | 99.52 | 99.50 | 99.50 | -0.02 | 30 of 2000 | 1 |  |" in pfllib  # its seconds are not a CPU's
    assert "Of 1 methods that have run in both settings 1 stopped within 1.0 points" in pfllib
    assert "In 2 labels 2 of 3 do. First: FedRoD, FedPer, FedDistill here, GPFL, FedDBE, FedCP, FedALA," in pfllib
    assert pfllib.endswith("| FedDistill | 2 labels | -9.51 | not looked into |\n")
    assert "| FedAvg | 80.41 | not run |" in pfllib
    assert "| method | setting | after 10 | after 20 | after 40 |" in pfllib
    assert "| FedPer | 2 labels | 98.00 | 98.50 |  |" in pfllib
    assert "| FedDBE | 2 labels, 1 in 16 |  | 60.00 | 90.00 |" in pfllib
    assert "| FedAvg | 2 labels, one seed |  | 61.00 | 66.00 |" in pfllib
    assert all(f"| {method} |" in pfllib for method in ("FedGen", "GPFL", "FedProto"))
    assert boards.steps_page(tmp_path) == "not run\n"
    steps = {"difference after 1": 1.25e-7, "difference after 3": 3e-7, "largest output": 2.345}
    step_lines = [
        outcomes.Outcome("pFedMe", "3 rounds", 0, name, value, None, 3, 1.0, settings) for name, value in steps.items()
    ]
    outcomes.keep(tmp_path, "PFLlib", "steps", "synthetic", step_lines)
    (row,) = [line for line in boards.steps_page(tmp_path).splitlines() if line.startswith("| pFedMe")]
    assert row.startswith(f"| pFedMe | 3 | 1.2e-07 | 3.0e-07 | 2.3 |{' not run |' * 5} without")
    assert boards.authors_page(tmp_path) == "not run\n"
    outcomes.keep(tmp_path, "authors", "steps", "synthetic", [line._replace(method="IFCA") for line in step_lines])
    (row,) = [line for line in boards.authors_page(tmp_path).splitlines() if line.startswith("| IFCA")]
    assert "(https://github.com/jichan3751/ifca), mnist/train_cluster_mnist.py | 3 | 1.2e-07 | 3.0e-07 | 2.3 |" in row


@pytest.mark.parametrize("name", ["fedavg", "ifca", "dcpfl"])
def test_a_methods_page_says_what_its_file_says(name, module):
    page, method = module("written").method_page(name, None), fljax.ALGORITHMS[name]
    assert page.startswith(f"# {method.title}\n")
    assert method.link in page
    for choice in method.static:
        assert choice == "combine" or f"`{choice}`" in page
    assert "| `lr` |" in page


def test_a_docstring_becomes_markdown(module):
    as_markdown = module("written").as_markdown
    assert as_markdown("One::\n\n  a <- b\n\n  c\n\nTwo.") == "One:\n\n```text\n  a <- b\n\n  c\n```\n\nTwo."
    assert as_markdown("Ends::\n\n  a") == "Ends:\n\n```text\n  a\n```"
    assert as_markdown("No block::\nhere") == "No block::\nhere"


QUICK = ("fedper",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in fljax.ALGORITHMS]
)
def test_what_a_method_keeps_and_sends_is_as_the_file_says(name, module):
    costs = module("costs")
    measured = [value if value is None else float(f"{value:.3g}") for value in costs.cost(name)]
    assert measured == list(costs.of_methods()[name])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("sphinx_book_theme") is None, reason="needs the extra docs")
def test_the_site_is_built_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert process.returncode == 0, process.stderr[-3000:]
    assert (tmp_path / "generated" / "methods" / "ifca.html").is_file()
