"""Descriptions of arguments that several methods share; a method's file describes only its own."""

import inspect
import re
from collections.abc import Callable
from typing import Any

USUAL = {
    "model": "the network.",
    "work": "local work in a round.",
    "weighting": '"size": weights are numbers of training examples, omega_i = n_i; "uniform": all omega_i = 1.',
    "n_clusters": "K, the number of clusters.",
    "linkage": "how clusters are compared.",
    "graph": '"complete", "ring", "torus", "regular" (random) or "pairs" (random).',
    "degree": 'number of neighbours of each client in the graph "regular".',
    "graph_seed": "seed of the random graphs.",
    "time_varying": "whether clients change places in the graph in every round.",
    "contacts": "number of its neighbours that each participant draws in a round, to exchange models with; None: all.",
    "combine": "how the server combines the received models; with clusters, those of each cluster.",
}


def documented(factory: Callable[..., Any]) -> str:
    """A method's docstring, completed by `USUAL` for arguments that it does not describe, in the signature's order."""
    text, *sections = re.split(r"\n\n(?=(?:Args|Returns|Raises):\n)", inspect.cleandoc(factory.__doc__ or ""))
    args_section = sections.pop(0) if sections and sections[0].startswith("Args:") else ""
    descriptions = USUAL | dict(re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", args_section, re.MULTILINE))
    names = [name for name in inspect.signature(factory).parameters if name in descriptions]
    arguments = ["\n".join(["Args:", *(f"    {name}: {descriptions[name]}" for name in names)])] if names else []
    return "\n\n".join([text or factory.__name__, *arguments, *sections])
