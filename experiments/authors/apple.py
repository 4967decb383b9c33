"""APPLE by the code of its authors (Luo and Wu, IJCAI 2022)."""

from pathlib import Path
from types import SimpleNamespace
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
)

import fljax
from authors.case import Case, modules_of
from fljax import tree
from fljax.types import Federation, State

ROUNDS, EPOCHS, LR, P_LR, MU, FADES, N_CLIENTS = 3, 3, 0.3, 0.05, 0.4, 4, 4


def theirs(clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """Runs `train_one_round`, and gives every client the cores that the next round begins with."""
    import torch

    with modules_of(clone, "syft", "torchvision", "torchvision.datasets") as module:
        training, models = module("train_APPLE"), module("utils.models")
        core, client = networks(models)
        training.optim = SimpleNamespace(SGD=lambda groups, lr, momentum: torch.optim.SGD(groups, lr=lr))
        first_core = tree.take(first_state.server["core"], 0)
        cores = [load_network(core(), first_core) for _ in range(N_CLIENTS)]
        sizes = [len(examples(federation, i, is_train=True)[1]) for i in range(N_CLIENTS)]
        shares = module("utils.apple").init_pss(sizes)
        mixtures = [client(N_CLIENTS, 0, N_CLASSES, shares[i]) for i in range(N_CLIENTS)]
        loaders = [(None, [tuple(map(torch.tensor, examples(federation, i, is_train=True)))]) for i in range(N_CLIENTS)]
        arguments, outputs = SimpleNamespace(**ARGUMENTS), []
        with mock.patch.object(models, "Net", core):
            for r in range(ROUNDS):
                is_known = np.eye(N_CLIENTS) == 1
                round_arguments = (sizes, is_known, r, torch.nn.CrossEntropyLoss(), torch.device("cpu"), None, loaders)
                cores, shares, mixtures = training.train_one_round(arguments, cores, mixtures, shares, *round_arguments)
                for i, model in enumerate(mixtures):
                    training.prepare_client_model(arguments, shares, is_known, model, i, cores, None, r + 1)
                outputs.append(torch_outputs(mixtures, federation))
    return outputs


ARGUMENTS = {
    "limit_downloaded_models": N_CLIENTS,
    "lr_net": LR,
    "lr_coef": P_LR,
    "decay": 1.0,
    "num_local_epochs": EPOCHS,
    "log_step": 1000,
    "num_rounds": 2 * FADES,
    "reg_last_round_over_total_round": 0.5,
    "scheduler": "cosine",
    "mu": MU / 2,
}


def networks(models: Any) -> tuple[Any, Any]:
    """Classes of a core and of a client's mixture: theirs, with two dense layers in place of all theirs."""
    import torch

    class Core(torch_network()):
        def __init__(self, **_: Any) -> None:
            super().__init__()
            self.send = self.get = lambda *_: None

    class Mixture(models.ClientNet):
        def __init__(self, n_client: int, in_channels: int, num_classes: int, ps: list[float]) -> None:
            super().__init__(n_client, 1, num_classes, ps)
            dense = lambda *sizes: torch.nn.ModuleList([torch.nn.Linear(*sizes) for _ in range(n_client)])  # noqa: E731
            self.conv1s, self.conv2s = torch.nn.ModuleList(), torch.nn.ModuleList()
            del self._modules["fc2s"]
            self.fc1s, self.fcs = dense(N_INPUTS, N_HIDDEN), dense(N_HIDDEN, num_classes)

        @property
        def fc2s(self) -> Any:  # as the optimiser there calls the last layer
            return self.fcs

        def forward(self, x: Any) -> Any:
            return self.superBlock(torch.relu(self.superBlock(x, self.fc1s)), self.fcs)

    return Core, Mixture


CASES = {
    "APPLE": Case(
        "ljaiverson/pFL-APPLE@8078196",
        "train_APPLE.py",
        lambda model: fljax.apple(model, fljax.Work(EPOCHS, 1000)),
        fljax.apple.Hyper(lr=LR, p_lr=P_LR, mu=MU, decay_rounds=FADES),
        theirs,
        lambda: clients(N_CLIENTS),
        ROUNDS,
        "no momentum of 0.9; mu there is half of it; one first core for all; tested with the cores of the next round",
    )
}
