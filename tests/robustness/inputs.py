"""Command lines and TOML files made at random from the schema itself: each from a generator of its own."""

import numpy as np
import tomli_w

from fljax.catalogue.entries import entry, names
from fljax.catalogue.job import RUN, SWEEP, WORK
from fljax.cli.compare import COMPARE
from tests.robustness.mutate import WAYS

HOSTILE = (
    *("", " ", "-", "--", "---", "--help=x", "=", "None", "nan", "inf", "-inf", "1e400", "-1", "0", "-0.0", "1e-320"),
    *("2147483647", "2147483648", "4294967296", "1" * 400, "9" * 5000, "0x10", "1_000", "٣", "1.5", "1e3", "true"),
    *("x" * 5000, "\0", "a\0b", "\n", "a\nb", "[/x]", "{0}", "%s", "é́", "\ud800", "../../x", "/dev/null", "/", "."),
    *(
        "--tyro-write-completion",
        "victim",
        "./mine.py:f",
        "missing.py:f",
        ":",
        ".py:",
        "fedavg+",
        "+",
        "fedavg+krum+krum",
        "fedavg+./mine.py:f",
        "fedavg+missing.py:f+krum",
        "+.py:",
    ),
    *("lin:0:1:3", "log:0:1:3", "log:1:2", "lin:::", "log:1:2:1000000000", "'", '"a', "64 32", "64 x"),
)
FIRST = (
    "--algorithm",
    "fedavg",
    "--rounds",
    "1",
    "--n-clients",
    "3",
    "--model",
    "logistic_regression",
    "--epochs",
    "1",
)


def valid(rng, kind):
    """Words of a type, of a size that a small machine trains."""
    name, *bounds = kind[rng.integers(len(kind))]
    if name == "int":
        return [str(int(rng.integers(max(bounds[0] or 0, 0), 4)))]
    if name == "float":
        return [str(rng.choice([0.0, 0.05, 0.1, 0.5, 0.9, 1.0, 3.0]))]
    if name in ("many", "row"):
        parts = [" ".join(valid(rng, part)) for part in (bounds if name == "row" else bounds * int(rng.integers(1, 3)))]
        return parts
    return {"bool": ["true"], "none": ["None"], "str": ["x"], "option": [str(bounds[0]) if bounds else ""]}[name]


def words(rng, parameter):
    """Words for a parameter: most are of its type."""
    chance = rng.random()
    if chance < 0.7:
        return valid(rng, parameter.kind)
    hostile_words = [str(word) for word in rng.choice(np.array(HOSTILE, object), size=rng.integers(0, 3))]
    return hostile_words if chance < 0.95 else hostile_words + valid(rng, parameter.kind)


def job(rng, root_parameters):
    """Section -> name -> words, of a random method, partition, model and sampling."""
    kinds = {kind: str(rng.choice(names(kind))) for kind in ("algorithm", "partition", "model", "sampling")}
    if rng.random() < 0.6:
        kinds = {"algorithm": "fedavg", "partition": "iid", "model": "logistic_regression", "sampling": "uniform"}
    sections = {"": root_parameters, kinds["algorithm"]: WORK | entry("algorithm", kinds["algorithm"]).section}
    sections |= {part: entry(part, kinds[part]).section for part in ("partition", "model", "sampling")}
    words_of = {part: {} for part in sections}
    for section, name in ((s, n) for s, parameters in sections.items() for n in parameters):
        if name not in ("data_folder", "config", "folder", "dataset", *kinds) and rng.random() < 0.12:
            words_of[section][name] = words(rng, sections[section][name])
    words_of[""] |= {kind: [word] for kind, word in kinds.items()}
    return words_of


def command_line(rng):
    """Arguments of a command."""
    command = str(rng.choice(["run"] * 8 + ["sweep"] * 4 + ["compare", "compare", "plan", "list", "data", "show"]))
    if command in ("list", "data", "show"):
        others = ("show", "list", "ifca", "--file", "x.png", "results", "--measure", "--html", "--out", "--baseline")
        return [command, *map(str, rng.choice(np.array([*HOSTILE, *others], object), size=rng.integers(1, 4)))]
    arguments = [command, *FIRST]
    for section, settings in job(rng, {"sweep": RUN | SWEEP, "compare": RUN | COMPARE}.get(command, RUN)).items():
        for name, values in settings.items():
            option = name if rng.random() < 0.3 or not section else f"{section}.{name}"
            arguments += [f"--{option.replace('_', '-')}", *values]
    if rng.random() < 0.1:
        arguments.insert(int(rng.integers(len(arguments))), str(rng.choice(np.array(HOSTILE, object))))
    return [*arguments, "--folder", "results"] if rng.random() < 0.95 else arguments


def toml(rng):
    """A TOML file of settings: of its types, of others, or damaged."""

    def as_value(values):
        value = values[0] if len(values) == 1 else values
        return (
            rng.choice(np.array([value, values, {"x": value}, 1, 0.5, True, [], {}, [[1]]], object))
            if rng.random() < 0.1
            else value
        )

    sections = job(rng, RUN)
    root = sections.pop("")
    document = {
        name: as_value(values) for name, values in root.items() if name in ("algorithm", "rounds", "seed", "dropout")
    }
    for part in ("partition", "model", "sampling"):
        sections[part]["name"] = root[part]
    document |= {
        section: {name: as_value(values) for name, values in settings.items()} for section, settings in sections.items()
    }
    text = tomli_w.dumps({"rounds": 1} | document).encode(errors="replace")
    return WAYS[rng.integers(len(WAYS))](rng, text) if rng.random() < 0.3 else text
