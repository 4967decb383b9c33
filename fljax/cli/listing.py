"""`fljax list`: the methods with their numbers, the data sets, the partitions and the models."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fljax.algorithms import ALGORITHMS, Method, method_named
from fljax.cli.job import WORK, algorithm_section, is_method, model_section, nearest_method, partition_section
from fljax.cli.parameters import REQUIRED, Section, kind_name
from fljax.cli.settings import nearest
from fljax.data.datasets import available
from fljax.data.partition import PARTITIONS
from fljax.models import MODELS

USAGE = """usage: fljax list [KIND | NAME]

Everything that fljax run can be told to use. KIND is algorithms, datasets, partitions or models; a NAME of one of them
shows what can be set in it. --markdown prints the methods as a Markdown table.
"""


def main(arguments: Sequence[str]) -> None:
    """Lists everything, one kind, or the parameters of one thing.

    Raises:
        ValueError: there is no such kind or name.
    """
    console = Console()
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return
    if "--markdown" in arguments:
        print(readme_table(ALGORITHMS))
        return
    kinds = {"algorithms": algorithms, "datasets": datasets, "partitions": partitions, "models": models}
    for name in arguments or kinds:
        if name in kinds:
            console.print(kinds[name](), highlight=False)
            console.print()
        else:
            known = [*kinds, *ALGORITHMS, *PARTITIONS, *MODELS]
            show_one(nearest_method(name) if "+" in name else nearest(name, known, "kind or name"), console)


def algorithms() -> Table:
    """Each method with its paper, static choices and numbers."""
    table = _table("algorithms")
    for name, method in ALGORITHMS.items():
        section = {field: value for field, value in algorithm_section(name).items() if field not in WORK}
        table.add_row(name, f"{method.summary} [dim]({method.paper})[/]\n[dim]{defaults(section)}[/]")
    return table


def datasets() -> Table:
    """Each data set, where it is or how to get it."""
    table = _table("datasets")
    for name, where in available():
        table.add_row(name, f"[dim]{where}[/]" if where.startswith("not found") else where)
    return table


def partitions() -> Table:
    """A line for every partition, and a line with its parameters."""
    return _functions("partitions", PARTITIONS, partition_section)


def models() -> Table:
    """A line for every network, and a line with its parameters."""
    return _functions("models", MODELS, model_section)


def show_one(name: str, console: Console) -> None:
    """What can be set in one method, partition or model, and what it means."""
    if is_method(name):
        method, prefix, section = method_named(name), name, algorithm_section(name)
        console.print(f"[bold]{method.title}[/]: {method.summary}. {method.paper} {method.link}", highlight=False)
    elif name in PARTITIONS:
        prefix, section = "partition", partition_section(name)
        console.print(f"[bold]{name}[/]: {_first_line(PARTITIONS[name])}", highlight=False)
    else:
        prefix, section = "model", model_section(name)
        console.print(f"[bold]{name}[/]: {_first_line(MODELS[name])}", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("setting", "type", "default", "meaning"):
        table.add_column(title)
    for field, parameter in section.items():
        flag = f"--{prefix}.{field}".replace("_", "-")
        table.add_row(flag, kind_name(parameter.kind), _default(parameter.default), parameter.help)
    console.print(table, highlight=False)


def defaults(section: Section) -> str:
    """``n_clients  beta=0.5``: a parameter without a default is its name alone."""
    texts = {name: _default(parameter.default) for name, parameter in section.items()}
    return "  ".join(name if section[name].default is REQUIRED else f"{name}={text}" for name, text in texts.items())


def _functions(title: str, functions: dict[str, Callable[..., Any]], section: Callable[[str], Section]) -> Table:
    table = _table(title)
    for name, function in functions.items():
        table.add_row(name, f"{_first_line(function)}\n[dim]{defaults(section(name))}[/]".rstrip())
    return table


def _table(title: str) -> Table:
    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
    table.add_column(title, style="bold", no_wrap=True, min_width=21)
    table.add_column("")
    return table


def _first_line(function: Callable[..., Any]) -> str:
    return escape((function.__doc__ or "").strip().partition("\n")[0].replace("`", ""))


def _default(value: Any) -> str:
    return "required" if value is REQUIRED else " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def readme_table(methods: Mapping[str, Method]) -> str:
    """The methods as the README's Markdown table."""
    lines = ["| `--algorithm` | method | paper |", "| --- | --- | --- |"]
    for name, method in methods.items():
        paper = f"[{method.paper}]({method.link})" if method.link else method.paper
        lines.append(f"| `{name}` | {method.title}: {method.summary} | {paper} |")
    return "\n".join(lines)
