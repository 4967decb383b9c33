"""HeteroFL's parts of a network and their mean by its authors' code (Diao et al., ICLR 2021)."""

import sys
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
from same_steps import (
    N_CLASSES,
    N_HIDDEN,
    N_INPUTS,
    Outputs,
    clients,
    examples,
    load_network,
    torch_network,
    torch_outputs,
    uneven,
)

import fljax
from authors.case import Case, modules_of
from fljax.rounds.averaging import shared_part
from fljax.types import Federation, State

ROUNDS, EPOCHS, LR, N_CLIENTS, RATES, MAX_NORM = 3, 2, 0.5, 6, (1.0, 0.5, 0.25), 1.0


def theirs(clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """`Federation.distribute`, the steps of `train_classifier_fed.Local`, `Federation.combine`."""
    data = [examples(federation, i, is_train=True) for i in range(N_CLIENTS)]
    global_model, outputs = load_network(torch_network()(), shared_part(first_state.server)), []
    rates = [RATES[i % len(RATES)] for i in range(N_CLIENTS)]
    config: Any = ModuleType("config")  # theirs reads a file
    config.cfg = {"model_name": "conv", "model_split_mode": "fix", "global_model_rate": 1.0}
    with modules_of(clone / "src") as module, mock.patch.dict(sys.modules, {"config": config}):
        scaler, classes = module("modules").Scaler, [np.unique(y).tolist() for _, y in data]
        server = module("fed").Federation(OrderedDict(global_model.state_dict()), rates, classes)
        for _ in range(ROUNDS):
            sent, parts = server.distribute(list(range(N_CLIENTS)))
            trained = [step(*arguments, scaler) for arguments in zip(sent, rates, classes, data, strict=True)]
            server.combine(trained, parts, list(range(N_CLIENTS)))
            global_model.load_state_dict(server.global_parameters)
            outputs.append(torch_outputs([global_model] * N_CLIENTS, federation))
    return outputs


def step(part: Any, rate: float, classes: list[int], data: tuple[np.ndarray, np.ndarray], scaler: Any) -> Any:
    """A client's epochs, each one step on all its examples: scaler, masked logits and clipped gradients."""
    import torch

    width = int(np.ceil(rate * N_HIDDEN))
    first, last = torch.nn.Linear(N_INPUTS, width), torch.nn.Linear(width, N_CLASSES)
    network = torch.nn.Sequential(OrderedDict(fc1=first, scaler=scaler(rate), relu=torch.nn.ReLU(), fc=last))
    network.load_state_dict(part)
    optimizer, (x, y) = torch.optim.SGD(network.parameters(), LR), map(torch.tensor, data)
    absent = torch.ones(N_CLASSES, dtype=torch.bool)
    absent[classes] = False
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        logits = network(x).masked_fill(absent, 0)
        torch.nn.functional.cross_entropy(logits, y.long()).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), MAX_NORM)
        optimizer.step()
    return network.state_dict()


ours = fljax.compose("heterofl+clip_gradient")
CASES = {
    "HeteroFL": Case(
        "dem123456789/HeteroFL-Computation-and-Communication-Efficient-Federated-Learning-for-Heterogeneous-Clients@ea528c3",
        "src/fed.py",
        lambda model: ours(model, fljax.Work(EPOCHS, None), rates=RATES, masked_loss=True, weighting="uniform"),
        ours.Hyper(lr=LR, max_norm=MAX_NORM),
        theirs,
        lambda: uneven(clients(N_CLIENTS)),
        ROUNDS,
        "clients alike, their absent classes masked, gradients clipped to 1; a client's steps written out here",
    )
}
