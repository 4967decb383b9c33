"""FedADMM by its authors' script (Gong, Li, Freris, ICDE 2022)."""

import copy
import textwrap
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from same_steps import Outputs, clients, load_network, torch_network, torch_outputs, uneven

import fljax
from authors.case import Case, altered, modules_of
from fljax.rounds.averaging import shared_part
from fljax.types import Federation, State

ROUNDS, EPOCHS, LR, MOMENTUM, RHO, ETA = 4, 3, 0.1, 0.5, 0.3, 0.8
PRESENT = ((0, 2, 4), (1, 2, 3), (0, 4, 5), (2, 3, 5))
FOLDER = "FedADMM/src"

TO_THETA, REMEMBERED = r"self\.model\.load_state_dict\(theta\)", "model_prev = copy.deepcopy(self.model.state_dict())"
FROM_OWN = {rf"{TO_THETA}\n": "\n"}
FROM_THETA = {r"\n +model_prev = .*": "\n", TO_THETA: f"{REMEMBERED}; self.model.load_state_dict(theta)"}
"""Changes of `update_weights`, so that a client's change is from its own last model, whichever it starts at."""


def theirs(
    changes: Mapping[str, str], eta: float, clone: Path, first_state: State, federation: Federation
) -> list[Outputs]:
    """Runs the rounds of the script, which tests the server's model after each of them."""
    import torch

    outputs: list[Outputs] = []

    def test_inference(args: Any, model: Any, data: Any) -> tuple[float, float]:
        outputs.append(torch_outputs([model] * federation.train.n_clients, federation))
        return 0.0, 0.0

    network = load_network(torch_network()(), shared_part(first_state.server))
    update: dict[str, Any] = {}
    exec(altered((clone / FOLDER / "update.py").read_text(), changes), update)
    names = {"args": arguments(eta), "np": np, "copy": copy, "tqdm": iter, "test_inference": test_inference}
    names |= {"global_model": network, "theta": copy.deepcopy(network.state_dict()), "test_dataset": None}
    names |= {"train_loss": [], "test_acc": [], "test_loss": [], "print_every": ROUNDS + 1}
    with (
        modules_of(clone / FOLDER, "torchvision") as module,
        mock.patch.object(torch.Tensor, "cuda", lambda tensor: tensor),
        mock.patch.object(np.random, "choice", mock.Mock(side_effect=[np.array(row) for row in PRESENT])),
    ):
        names["average_weights"] = module("utils").average_weights
        names["local_model"] = members(update["LocalUpdate"], names["args"], network, federation)  # pyrefly: ignore[bad-argument-type]
        exec(part_of_rounds(clone), names)
    return outputs


def arguments(eta: float) -> SimpleNamespace:
    """Options of the script, which it reads from its command line."""
    of_work = {"local_ep": EPOCHS, "local_bs": 1000, "lr": LR, "momentum": MOMENTUM, "fixed": 1, "device": "cpu"}
    of_rounds = {"epochs": ROUNDS, "num_users": 6, "frac": 0.5, "eta": eta, "target_round": ROUNDS, "verbose": 0}
    return SimpleNamespace(rho=RHO, **of_work, **of_rounds)


def members(of_one: Any, args: SimpleNamespace, network: Any, federation: Federation) -> list[Any]:
    """Their clients on given examples."""
    data = federation.train
    examples = list(zip(np.asarray(data.pool.x), np.asarray(data.pool.y, np.int64), strict=True))
    rows = [data.index[i, : int(data.size[i])].tolist() for i in range(data.n_clients)]
    return [of_one(args=args, model=network, dataset=examples, idxs=idxs, logger=mock.Mock()) for idxs in rows]


def part_of_rounds(clone: Path) -> str:
    """The part of the script that runs the rounds."""
    code = (clone / FOLDER / "federated_main.py").read_text()
    begin, end = code.index("    for epoch in tqdm("), code.index("    print('\\n Total Run Time")
    return textwrap.dedent(code[begin:end])


OWN = Case(
    "YonghaiGong/FedADMM@1efef57",
    f"{FOLDER}/update.py",
    lambda model: fljax.fedadmm(model, fljax.Work(EPOCHS, 1000)),
    fljax.fedadmm.Hyper(lr=LR, momentum=MOMENTUM, rho=RHO),
    partial(theirs, FROM_OWN, 0.5),
    lambda: uneven(clients(6, n_groups=2)),
    ROUNDS,
    "half of the clients a round, given ones; they go on from their own last models, and send changes of these, of "
    "theta there; eta is 1/2",
    outputs={"sampling": fljax.rounds.table(PRESENT)},
)

CASES = {
    "FedADMM": OWN,
    "FedADMM-global": OWN._replace(
        make=lambda model: fljax.fedadmm(model, fljax.Work(EPOCHS, 1000), start="global"),
        hyper=fljax.fedadmm.Hyper(lr=LR, momentum=MOMENTUM, rho=RHO, step=ETA),
        theirs=partial(theirs, FROM_THETA, ETA),
        but="half of the clients a round, given ones; they send changes of their own last models, of theta there; "
        f"eta is {ETA}",
    ),
}
