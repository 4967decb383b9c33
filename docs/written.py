"""Pages that are written from the library: a page a method, tables of what can be named, the reference."""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import costs

import fljax
from fljax.catalogue import entries
from fljax.catalogue.parameters import Parameter
from fljax.rounds.method import KINDS

FLJAX = Path(fljax.__file__).parent
K_NAMES = ("n_clusters", "n_groups", "n_learners", "n_edges")
"""Static choices that say how many models the server has."""
ALSO_TOLD = {
    "ccvr": "for each class of a client, the mean and the covariance of its features, before a test",
    "centralized": "all examples of the participants",
    "fedas": "the sum of the squares of a participant's gradients",
    "fedcac": "which of a participant's parameters are critical",
    "fedcr": "for each class of a participant, a Gaussian of its representations",
    "feddbe": "the mean of all clients' features, once",
    "feddistill": "for each class of a participant, its mean outputs",
    "fedgc": "which classes a client has",
    "fedgen": "how many examples of each class a client has, once",
    "fedgh": "for each class of a participant, the mean of its features",
    "fedma": "how many examples of each class a participant has",
    "fedmd": "a participant's outputs for public examples, and no model",
    "fedpac": "how many examples of each class a participant has, and the means and spread of their features",
    "fedproto": "how many examples of each class a participant has, and the means of their features",
    "fedrc": "for each class, the share of a participant's examples that each cluster explains",
    "fedsoft": "how many of a participant's examples are nearest to each center",
    "fedtgp": "for each class of a participant, the mean of its features",
    "flis": "its own unlabelled examples (`Federation.public`)",
    "fedtsdp": "its own unlabelled examples (`Federation.public`)",
    "group_pfl": "how many examples of each class a client has, once",
    "group_pfl_dynamic": "how many examples of each class a client has, once",
    "pacfl": "the main directions of a client's examples, once",
}
"""What a server sees besides models, losses and cluster choices, for the methods whose server sees more."""


def write_all(folder: Path) -> None:
    """Writes every page made of the library into ``folder``, if it is not there as it should be."""
    pages = dict(_pages())
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in folder.rglob("*.md"):  # of names that are gone
        if str(path.relative_to(folder)) not in pages:
            path.unlink()


def _pages() -> Iterator[tuple[str, str]]:
    cost = costs.of_methods()
    for name in fljax.ALGORITHMS:
        yield f"methods/{name}.md", method_page(name, cost.get(name))
    for module, names in REFERENCE.items():
        yield f"reference/{module}.md", reference_page(module, names)


def method_page(name: str, cost: "costs.Cost | None") -> str:
    """The page of one method: what it is, what can be set in it, what it keeps and sends, and its file."""
    method, entry = fljax.ALGORITHMS[name], entries.entry("algorithm", name)
    choices = {one: given for one, given in entry.section.items() if given.number is None}
    numbers = {one: given for one, given in entry.section.items() if given.number is not None}
    paper = f"[{entry.paper}]({entry.link})" if entry.link else entry.paper
    bricks = [f"`{brick}`" for brick in entries.names("brick") if entries.entry("brick", brick).group in method.slots]
    parts = [
        f"# {entry.title}",
        f"{entry.summary[:1].upper()}{entry.summary[1:]}. Paper: {paper}. What clients get: {entry.group}.",
        f"```text\nfljax.{name}(model, work{''.join(f', {one}=...' for one in choices)})\n"
        f"fljax run --algorithm {name}\n```",
        cost.sentence() if cost else "",
        f"Bricks that it accepts: {', '.join(bricks)}." if bricks else "It accepts no bricks.",
        _settings("Static choices", "Arguments of the method. Another value is another program.", choices),
        _settings(f"Hyperparameters (`fljax.{name}.Hyper`)", "A new value does not recompile.", numbers),
        f"## Description\n\n{_docstring(method)}",
        f"## Source code\n\n:::{{literalinclude}} {_up(method)}\n:language: python\n:::",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _settings(title: str, words: str, section: dict[str, Parameter]) -> str:
    rows = [f"| `{name}` | `{_short(given.default)}` | {_cell(given.help)} |" for name, given in section.items()]
    return (
        "\n".join([f"## {title}", "", words, "", "| name | default | meaning |", "|---|---|---|", *rows])
        if rows
        else ""
    )


def _short(default: Any) -> str:
    return getattr(default, "__name__", str(default))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _file(method: Any) -> Path:
    return Path(sys.modules[method.factory.__module__].__file__ or "")


def _up(method: Any) -> str:
    """The method's file, as a page two folders below docs/ names it."""
    return f"../../../fljax/{_file(method).relative_to(FLJAX)}"


def _docstring(method: Any) -> str:
    """The docstring of the method's file without its first line, as Markdown."""
    text = inspect.getdoc(sys.modules[method.factory.__module__]) or ""
    return as_markdown(text.partition("\n")[2].strip() or text)


def as_markdown(text: str) -> str:
    """A docstring with literal blocks after ``::`` as Markdown with fences."""
    lines, out, inside = text.splitlines(), [], False
    for i, line in enumerate(lines):
        if inside and line.strip() and not line.startswith("  "):
            out, inside = [*_without_last_blanks(out), "```", ""], False
        if not inside and line.rstrip().endswith("::"):
            following = next((one for one in lines[i + 1 :] if one.strip()), "")
            if following.startswith("  "):
                out += [line.rstrip().removesuffix("::") + ("" if line.strip() == "::" else ":"), "", "```text"]
                inside = True
                continue
        if inside and not line.strip() and out[-1] == "```text":
            continue
        out.append(line)
    return "\n".join([*_without_last_blanks(out), "```"] if inside else out).strip()


def _without_last_blanks(lines: list[str]) -> list[str]:
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def choosing_table(cost: "dict[str, costs.Cost]") -> str:
    """Every method with what it keeps, sends and needs, by what it gives its clients."""
    lines = []
    for kind in KINDS:
        lines += [f"## {kind[:1].upper()}{kind[1:]}", "", *_HEAD]
        lines += [_row(name, cost.get(name)) for name in fljax.ALGORITHMS if fljax.ALGORITHMS[name].kind == kind]
        lines.append("")
    return "\n".join(lines)


_HEAD = (
    "| method | server keeps | a client keeps | a participant sends | receives | needs K | the server also sees |",
    "|---|--:|--:|--:|--:|---|---|",
)


def _row(name: str, cost: "costs.Cost | None") -> str:
    method = fljax.ALGORITHMS[name]
    count = next((one for one in K_NAMES if one in method.static), "")
    needs = f"`{count}`" if count else ("no" if method.kind == "clustered" else "")
    if count and method.static[count].default is None:
        needs = f"optional: {needs}"
    cells = cost.cells() if cost else ("?",) * 4
    return f"| {' | '.join([f'{method.title} `{name}`', *cells, needs, ALSO_TOLD.get(name, 'nothing')])} |"


def link(found: re.Match[str]) -> str:
    """The first cell of a row, with a link from a method's name to its page."""
    before, name = found.groups()
    return f"{before}[`{name}`](generated/methods/{name}.md)" if name in fljax.ALGORITHMS else found.group()


def table_of(kind: str) -> str:
    """All things of a kind with what can be set in them."""
    lines = ["| name | what it is | settings |", "|---|---|---|"]
    for name in entries.names(kind):
        entry = entries.entry(kind, name)
        settings = ", ".join(f"`{one}`" for one in entry.section)
        paper = f" ({entry.paper})" if entry.paper else ""
        lines.append(f"| `{name}` | {_cell(entry.summary)}{paper} | {settings} |")
    return "\n".join(lines) + "\n"


def _public(module: Any) -> list[str]:
    return [name for name in getattr(module, "__all__", []) if getattr(module, name, None) is not None]


_TOP = """
simulate train sweep coalitions evaluate evaluate_new_clients new_client_models choose_k load build hold_out_clients
with_common_test
federation_from_arrays federation_from_clients own_data read_own from_frame from_hugging_face Columns Words pack
same_shapes
from_linen from_nnx from_functions normalized regression multi_label scored validated only_trained lora
load_run load_comparison compare_runs load_sweep frame remake deployed client_model save_models export_models
predictions confusion_matrices reach after_changes profile hypergradient
compose averaging clustered
trained_on train_clients client_loss cross_loss training_loss batch_mean proximal hyper number method
Examples Batch ClientData Federation Model Work Trained Cohort State ModelTable Algorithm LocalHyper Clusters Rule
Combine Sharing
"""
_RUN = """
sweep.grid sweep.draw sweep.stack sweep.log_spaced sweep.spaced sweep.uniform sweep.log_uniform sweep.search
sweep.over_settings sweep.tidy sweep.best sweep.by_point train.Run pilot.ChoiceOfK progress.Progress
"""
_DEVICES = "mesh.over_devices mesh.device_mesh mesh.use_all_cores hosts.join_hosts hosts.at_home"
_METRICS = """
best_round.best_round churn.churn_of_rounds spread.worst spread.deviation spread.spread_over_clients cost.Link
cost.Processor cost.seconds cost.joules cost.working
"""
_REPORT = """
plots.learning_curves plots.over_clients plots.clusters_over_time plots.cluster_table plots.confusion plots.model_map
plots.save significance.compare_scores ranks.rank_methods contributions.shapley contributions.leave_one_out
contributions.every_coalition contributions.one_left_out contributions.random_orders contributions.coalitions_of
"""
_TREE = """
everyone own broadcast stack stacked n_rows row first take put where subtract flatten size dot squared_norm
all_finite is_finite trainable map_trainable split_statistics join_statistics map_layers select side_by_side apart
"""
_TOP_NAMES, _RUN_NAMES = _TOP.split(), _RUN.split()
REFERENCE = {
    "fljax": _TOP_NAMES,
    "fljax.rounds": [name for name in _public(fljax.rounds) if name not in _TOP_NAMES],
    "fljax.rounds.uplink": [name for name in _public(fljax.rounds.uplink) if name not in _public(fljax.rounds)],
    "fljax.server": _public(fljax.server),
    "fljax.client": [name for name in _public(fljax.client) if name not in _TOP_NAMES],
    "fljax.run": _RUN_NAMES,
    "fljax.metrics": _METRICS.split(),
    "fljax.report": _REPORT.split(),
    "fljax.folder": ["rounds.read_rounds"],
    "fljax.devices": _DEVICES.split(),
    "fljax.tree": _TREE.split(),
    "fljax.types": ["Exchange", "Upload"],
    "fljax.scores": [name for name in _public(fljax.scores) if name != "SCORES"],
}
"""Module -> the names that its page has."""
_WORDS = {
    "fljax": "The names that `dir(fljax)` lists, except methods and the functions of `fljax.server`.",
    "fljax.rounds": "The parts of methods. Names that are also in `fljax` are on its page.",
    "fljax.rounds.uplink": "Transforms of updates on their way to the server, for bricks of your own.",
    "fljax.server": "The server's primitives: pure functions of fixed shape over the client axis.",
    "fljax.client": "The client's primitives: local training, its objectives, and losses on the client's data.",
    "fljax.run": "Runs and sweeps. Names that are also in `fljax` are on its page.",
    "fljax.metrics": "Measures of finished rounds: the spread over clients, churn, the costs of the network.",
    "fljax.report": "Figures from arrays; statistics over seeds and data settings; what each client contributes.",
    "fljax.folder": "The files of a results folder.",
    "fljax.devices": "Devices and hosts.",
    "fljax.tree": "Maths on models as pytrees, also stacked along a leading axis of clients or clusters.",
    "fljax.types": "What a method that is written out needs besides the types in `fljax`.",
    "fljax.scores": "Metrics of each client besides the standard ones, by name: see `fljax.scored`.",
}


def reference_page(module: str, names: list[str]) -> str:
    """A page of the reference: every name with its docstring; of a NamedTuple its lines, which tell the shapes."""
    parts = [f"# {module}", _WORDS[module]]
    for name in names:
        thing = _found(module, name)
        if inspect.isclass(thing) and issubclass(thing, tuple):
            bases = [
                one for one in thing.__bases__ if one.__module__.startswith("fljax")
            ]  # `Examples` has its fields there
            source = "\n\n\n".join(inspect.getsource(one).rstrip() for one in (*bases, thing))
            parts += [f"## {name}", f"```python\n{source}\n```"]
        elif (
            callable(thing)
            and getattr(thing, "__doc__", None)
            and hasattr(thing, "__module__")
            and hasattr(thing, "__qualname__")
        ):
            kind = "autoclass" if inspect.isclass(thing) else "autofunction"
            parts += [f"## {name}", f"```{{eval-rst}}\n.. {kind}:: {thing.__module__}.{thing.__qualname__}\n```"]
    return "\n\n".join(parts) + "\n"


def _found(module: str, name: str) -> Any:
    from importlib import import_module

    path, _, last = f"{module}.{name}".rpartition(".")
    return getattr(import_module(path), last)
