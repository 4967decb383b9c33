"""FLIS by its authors' two scripts (Morafah, Vahidian, Wang, Lin, 2022)."""

import copy
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np
from same_steps import N_CLASSES, Outputs, clients, tests, torch_outputs, uneven

import fljax
from authors import pacfl
from authors.case import Case, altered, modules_of
from fljax.types import Examples, Federation, State

ROUNDS, EPOCHS, LR, N_CLIENTS = 4, 3, 0.1, 6
DC, HC = "main_FLIS_DC.py", "main_FLIS_HC.py"
SIMILARITY = {DC: 0.646, HC: 0.496}
"""Least share of predictions that are alike: overlapping clusters by the one, three that are apart by the other."""

MODULES = ("src.clustering.utils_clustering", "src.fedavg.fedavg", "src.client.client_FLIS")

AT_ONCE = {
    r"    m = max\(": "    held = [copy.deepcopy(client.get_state_dict()) for client in clients]\n    m = max(",
    r"clients\[jj\]\.get_state_dict\(\)": "held[jj]",
}
"""Means of what clients hold before a round, and not, one client after the other, of what those before it trained."""


def theirs(
    script: str, changes: Mapping[str, str], clone: Path, first_state: State, federation: Federation
) -> list[Outputs]:
    """Runs a script from its clients on, with a round more, in which clients begin with what the last one gave them."""
    import torch

    names = names_before(script, first_state, federation)
    first_models: list[Any] = []
    with (
        modules_of(clone, "src.data.data") as module,
        mock.patch.object(torch.Tensor, "cuda", lambda tensor: tensor),  # averages and similarities go to a GPU
        mock.patch.object(torch.cuda, "FloatTensor", torch.FloatTensor),
        mock.patch.object(np.random, "choice", lambda ids, size, replace: np.array(ids)),
    ):
        for name in MODULES:
            names |= {key: value for key, value in vars(module(name)).items() if not key.startswith("__")}

        class OfLeastTrainingLoss(names["Client_FLIS"]):  # pyrefly: ignore[invalid-inheritance, unknown-name]
            def eval_test(self) -> tuple[float, float]:
                loss, _ = self.eval_train()
                return loss, -loss

            def train(self, is_print: bool = False) -> float:
                first_models.append(copy.deepcopy(self.net))
                return super().train(is_print)

        names["Client_FLIS"] = OfLeastTrainingLoss
        exec(altered(part_of_rounds(clone / script), changes), names)
    by_round = [first_models[i : i + N_CLIENTS] for i in range(0, len(first_models), N_CLIENTS)]
    return [torch_outputs(models, federation) for models in by_round]


def names_before(script: str, first_state: State, federation: Federation) -> dict[str, Any]:
    """What a script has before its clients: as that of PACFL, options of its own and the server's examples."""
    import torch

    names = pacfl.script_names(first_state, federation)
    shared = np.concatenate(tests(federation))
    names |= {"np": np, "copy": copy, "gc": SimpleNamespace(collect=lambda: None)}
    names |= {"args": arguments(script, len(shared)), "server_state_dict": names["initial_state_dict"]}
    batches = torch.tensor(shared).split(len(shared) // N_CLASSES)
    names["shared_data_loader"] = [(x, torch.zeros(len(x), dtype=torch.long)) for x in batches]
    return names


def arguments(script: str, n_shared: int) -> SimpleNamespace:
    """Options of the scripts, which they read from their command lines."""
    of_data = {"dataset": "", "datadir": "", "noise": 0, "noise_type": "space", "local_bs": 1000}
    of_work = {"local_ep": EPOCHS, "lr": LR, "momentum": 0.0, "device": "cpu", "rounds": ROUNDS + 1, "print_freq": 100}
    of_clusters = {"cluster_alpha": SIMILARITY[script], "nclasses": N_CLASSES, "nsamples_shared": n_shared}
    return SimpleNamespace(num_users=N_CLIENTS, frac=1.0, **of_data, **of_work, **of_clusters)


def part_of_rounds(script: Path) -> str:
    """The part of a script from its clients to the last round."""
    code = script.read_text()
    begin, end = code.index("clients = []\n\nfor idx"), code.index("#" * 31 + " Saving Training Results")
    return code[begin:end]


def with_shared_examples() -> Federation:
    """Clients of two groups; the server has their test examples."""
    federation = uneven(clients(N_CLIENTS, n_groups=2))
    x = np.concatenate(tests(federation))
    return federation._replace(public=Examples(jnp.asarray(x), jnp.full(len(x), -1, jnp.int32)))


OVERLAPPING = Case(
    "MMorafah/FLIS@9730b38",
    DC,
    lambda model: fljax.flis(model, fljax.Work(EPOCHS, 1000)),
    fljax.flis.Hyper(lr=LR, threshold=SIMILARITY[DC]),
    partial(theirs, DC, {}),
    with_shared_examples,
    ROUNDS,
    "clients choose by loss on training examples, by accuracy on test examples there, and are tested with what they "
    "would choose next, with what they have trained there",
)

CASES = {
    "FLIS": OVERLAPPING,
    "FLIS-HC": OVERLAPPING._replace(
        file=HC,
        make=lambda model: fljax.flhc(model, fljax.Work(EPOCHS, 1000), distance="predictions"),
        hyper=fljax.flhc.Hyper(lr=LR, warmup=1, threshold=1 - SIMILARITY[HC]),
        theirs=partial(theirs, HC, AT_ONCE),
        but="three clusters that are apart, for there they can overlap; near from a similarity of 0.496 on, there of "
        "0.96, because the script replaces its option by 5; means of models as they were before the round, there also "
        "as members before the client have trained them in it; clients are tested with their means",
    ),
}
