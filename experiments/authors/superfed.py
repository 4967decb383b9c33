"""SuPerFed by its authors' server and clients (Hahn, Jeong, Lee, KDD 2022)."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from same_steps import N_CLASSES, N_HIDDEN, N_INPUTS, Outputs, clients, examples, torch_outputs, uneven

import fljax
from authors.case import Case, altered, modules_of
from fljax import tree
from fljax.algorithms.superfed import SHARE
from fljax.rounds.averaging import shared_part
from fljax.rounds.cohort import sample_cohort
from fljax.run.one_round import split_key
from fljax.types import Federation, State

ROUNDS, WARMUP, EPOCHS, LR, LR_DECAY, MU, NU, LAM, N_CLIENTS = 4, 1, 3, 0.05, 0.9, 0.4, 0.7, 0.3, 4
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4  # of the authors' optimiser
MODES = {"model": "superfed-mm", "layers": "superfed-lm"}
STUBS = ("matplotlib", "matplotlib.pyplot", "torchvision", "tqdm", "src.dataset")
CHANGES = {
    r"prox \+= \(model\.(.+)\)\.norm\(2\)": r"prox += (model.\1).square().sum() / 2",
    r"\(param_g \* param_l\)\.add\(1e-6\)": "(param_g * param_l)",
}


def theirs(mixing: str, clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """Runs the rounds of `Server`; after one, clients with the server's model are tested."""
    outputs: list[Outputs] = []
    with (
        modules_of(clone, *STUBS) as module,
        mock.patch.object(np.random, "uniform", mock.Mock(side_effect=shares(mixing, federation))),
    ):
        exec(altered((clone / "src" / "algorithm.py").read_text(), CHANGES), vars(module("src.algorithm")))
        server = server_of(module, mixing, first_state, federation)
        set_lambda = module("src.utils").set_lambda
        for r in range(ROUNDS):
            server._round = r + 1
            server.train_federated_model()
            for i, client in enumerate(server.clients):
                server.transmit_model(i)
                client.model.apply(partial(set_lambda, lam=LAM if r >= WARMUP else 0.0))
            outputs.append(torch_outputs([client.model for client in server.clients], federation))
    return outputs


def server_of(module: Callable[[str], ModuleType], mixing: str, first_state: State, federation: Federation) -> Any:
    """Their server and its clients, with our first models."""
    import torch

    data = [[tensors(*examples(federation, i, is_train)) for is_train in (True, False)] for i in range(N_CLIENTS)]
    servers = module("src.server")
    servers.tqdm = lambda iterable, **_: iterable
    builder = module("src.models.builder").Builder
    server = servers.Server(options(mixing), None, network(), builder, None, None, data)
    server.setup()
    with torch.no_grad():
        for name, layer in shared_part(first_state.server).items():
            for model in (server.global_model, *(client.model for client in server.clients)):
                getattr(model, name).weight.copy_(weight_of(layer))
            for i, client in enumerate(server.clients):
                layer = tree.take(first_state.clients["own"], i)[name]
                getattr(client.model, name).weight_local.copy_(weight_of(layer))
    return server


def options(mixing: str) -> SimpleNamespace:
    """Options of their script, which it reads from its command line."""
    layers = {f"{kind}_type": f"Lines{name}" for kind, name in (("fc", "Linear"), ("conv", "Conv"), ("bn", "BN"))}
    layers |= {"embedding_type": "LinesEmbedding", "lstm_type": "LinesLSTM"}
    of_rounds = {"C": 1.0, "K": N_CLIENTS, "R": ROUNDS, "L": WARMUP / ROUNDS, "beta": 1, "eval_every": ROUNDS + 1}
    of_work = {"E": EPOCHS, "B": 1000, "lr": LR, "lr_decay": LR_DECAY, "optimizer": "SGD", "mu": MU, "nu": NU}
    of_machine = {"device": "cpu", "device_ids": [], "n_jobs": 1, "global_seed": [0], "criterion": "CrossEntropyLoss"}
    return SimpleNamespace(algorithm=MODES[mixing], **layers, **of_rounds, **of_work, **of_machine)


def network() -> type:
    """Two layers of theirs, which have no biases: these are weights of an input of 1."""
    import torch

    def and_one(x: Any) -> Any:
        return torch.cat([x, torch.ones(len(x), 1)], dim=1)

    class Network(torch.nn.Module):
        def __init__(self, builder: Any, args: Any, seed: list[int], block: Any = None) -> None:
            super().__init__()
            self.fc1 = builder.linear(N_INPUTS + 1, N_HIDDEN, seed=seed)
            self.fc2 = builder.linear(N_HIDDEN + 1, N_CLASSES, seed=seed)

        def forward(self, x: Any) -> Any:
            return self.fc2(and_one(torch.relu(self.fc1(and_one(x)))))

    return Network


def weight_of(layer: Any) -> Any:
    """(out, in + 1) our kernel and bias as a weight of `network`."""
    import torch

    return torch.tensor(np.concatenate([np.asarray(layer["kernel"]), np.asarray(layer["bias"])[None]]).T)


def tensors(x: np.ndarray, y: np.ndarray) -> Any:
    """A data set of PyTorch."""
    import torch

    return torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y).long())


def shares(mixing: str, federation: Federation) -> Iterator[float]:
    """Our random shares of local models, in the order in which their clients draw them."""
    for r in range(WARMUP, ROUNDS):
        cohort = sample_cohort(split_key(jax.random.key(1)).cohort, jnp.int32(r), federation, N_CLIENTS, None)
        for position in np.argsort(cohort.ids):
            for epoch in range(EPOCHS):
                key = cohort.key[position]
                for number in (epoch, 1, 0, SHARE):  # an epoch, its steps, the one that it has, and the draw in it
                    key = jax.random.fold_in(key, number)
                yield from np.asarray(jax.random.uniform(key, (2,)), np.float64)[: None if mixing == "layers" else 1]


ONE_SHARE = Case(
    "vaseline555/SuPerFed@55064b9",
    "src/algorithm.py",
    lambda model: fljax.superfed(model, fljax.Work(EPOCHS, 1000)),
    fljax.superfed.Hyper(
        lr=LR * LR_DECAY,
        lr_decay=LR_DECAY,
        momentum=MOMENTUM,
        weight_decay=WEIGHT_DECAY,
        warmup=WARMUP,
        mu=MU,
        nu=NU,
        lam=LAM,
    ),
    partial(theirs, "model"),
    lambda: uneven(clients(N_CLIENTS, n_groups=2)),
    ROUNDS,
    "half the squared distance, the sum of layers' distances there; nothing is added to products in the cosine, 1e-6 "
    f"to each there; tested with a share of {LAM} of the local model, and before mixtures with the server's alone; our "
    "random shares on both sides; biases are weights of an input of 1, for layers there have none",
)

CASES = {
    "SuPerFed": ONE_SHARE,
    "SuPerFed-layers": ONE_SHARE._replace(
        make=lambda model: fljax.superfed(model, fljax.Work(EPOCHS, 1000), mixing="layers"),
        theirs=partial(theirs, "layers"),
    ),
}
