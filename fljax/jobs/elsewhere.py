"""For a setting that the job does not have: the methods, parts and bricks that have it, and how to choose one."""

from collections.abc import Iterator

from fljax.catalogue.entries import entry, is_of_fljax, names
from fljax.catalogue.job import PARTS
from fljax.catalogue.parameters import Schema

SHOWN = 5
"""Number of names that are listed of those that have a setting."""


def elsewhere(name: str, schema: Schema) -> str:
    """For a name that is no setting of the job, the end of the message: what has such a setting and how to choose it;
    "" if nothing has it."""
    section, _, field = name.rpartition(".")
    texts = [_part_with(kind, field) for kind in PARTS if kind in schema.get("", ()) and section in ("", kind)]
    methods = [method for method in schema if is_of_fljax(method)]
    if "algorithm" in schema.get("", ()):
        texts += [_method_with(field)] if not section else []
        texts += list(_brick_with(field, [method for method in methods if section in ("", method)]))
    texts = [text for text in texts if text]
    return f"; it is a setting of {', or of '.join(texts)}" if texts else ""


def _part_with(kind: str, field: str) -> str:
    """The partitions, models and so on that have a setting, and the argument that chooses the first."""
    owners = [name for name in names(kind) if field in entry(kind, name).section]
    if not owners:
        return ""
    return f"{_listed(kind, owners)}: add --{kind} {owners[0]}"


def _method_with(field: str) -> str:
    """The methods that have a setting."""
    owners = [name for name in names("algorithm") if field in entry("algorithm", name).section]
    return f"{_listed('method', owners)}: name {'it' if len(owners) == 1 else 'one'} in --algorithm" if owners else ""


def _brick_with(field: str, methods: list[str]) -> Iterator[str]:
    """The bricks that have a setting and fit into one of the job's ``methods``."""
    owners = [name for name in names("brick") if field in entry("brick", name).section]
    for method in methods:
        fitting = [name for name in owners if entry("brick", name).group in entry("algorithm", method).slots]
        if fitting:
            yield f"{_listed('brick', fitting)}: write --algorithm {method}+{fitting[0]}"
            return


def _listed(word: str, owners: list[str]) -> str:
    rest = f" and {len(owners) - SHOWN} more" if len(owners) > SHOWN else ""
    return f"the {word}{'s' * (len(owners) > 1)} {', '.join(owners[:SHOWN])}{rest}"
