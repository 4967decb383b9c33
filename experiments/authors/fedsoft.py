"""FedSoft by its authors' server and clients (Ruan, Joe-Wong, AAAI 2022)."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from same_steps import N_CLASSES, N_EXAMPLES, Outputs, clients, examples, load_network, torch_network, torch_outputs

import fljax
from authors.case import Case, modules_of
from fljax import tree
from fljax.types import Federation, State

ROUNDS, EPOCHS, LR, K = 4, 3, 0.1, 2
EVERY, LAMBDA, DRAWN = 2, 0.5, 2


def theirs(clone: Path, first_state: State, federation: Federation, drawn: int = 0) -> list[Outputs]:
    """Runs the rounds of `Server`; with ``drawn`` clients a cluster, else with all of them by their importances."""
    with modules_of(clone) as module:
        module("FLAG").device = "cpu"
        on_given_models, outputs = server_of(module("servers"), first_state, federation)
        module("servers").logger = mock.Mock()  # else writes files
        solver = module("solvers").ServerSolver(drawn > 0, EVERY, drawn)
        members = members_of(module, federation)
        on_given_models(torch_network(), members, K, validator=None, server_solver=solver).run(ROUNDS)
    return outputs


def server_of(servers: ModuleType, first_state: State, federation: Federation) -> tuple[Any, list[Outputs]]:
    """Their server on our first models, and where its clients' outputs are put after each round."""
    outputs: list[Outputs] = []

    class OnGivenModels(servers.Server):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            for s, cluster in enumerate(self.cluster_vec):
                load_network(cluster, tree.take(first_state.server, s))
            for i, client in enumerate(self.client_vec):
                load_network(client.model, tree.take(first_state.clients.model, i))

        def _aggregate_fedsoft(self, selection: Any) -> None:
            super()._aggregate_fedsoft(selection)
            outputs.append(torch_outputs([client.model for client in self.client_vec], federation))

    return OnGivenModels, outputs


def members_of(module: Callable[[str], ModuleType], federation: Federation) -> list[Any]:
    """Their clients on given examples, with importances that sum to 1, and plain steps on all examples."""
    import torch

    class SumsToOne(module("clients").Client):  # pyrefly: ignore[invalid-inheritance]
        def estimate_importance_weights(self, _: str) -> None:
            super().estimate_importance_weights()  # their server gives it a word, which it does not take
            self.importance_estimated = self.importance_estimated / np.sum(self.importance_estimated)

    def made(i: int) -> Any:
        x, y = (torch.tensor(part) for part in examples(federation, i, is_train=True))
        return SumsToOne(i, torch.utils.data.TensorDataset(x, y.long()), solver)

    solver = module("solvers").Cifar10CNNClientSolver()
    solver.batch_size, solver.optimizer_type, solver.lr = N_EXAMPLES, torch.optim.SGD, LR
    solver.local_epoch, solver.num_classes, solver.reg_weight = EPOCHS, N_CLASSES, LAMBDA
    return [made(i) for i in range(federation.train.n_clients)]


@contextlib.contextmanager
def likeliest() -> Iterator[None]:
    """Inside it both sides draw the clients of largest probability; of equal ones those of lowest id."""

    def largest(a: range, size: int, p: np.ndarray, replace: bool) -> np.ndarray:
        return np.argsort(-p, kind="stable")[:size]

    def nothing(key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return jnp.zeros(shape, dtype)

    with mock.patch.object(np.random, "choice", largest), mock.patch.object(jax.random, "gumbel", nothing):
        yield


ALL = Case(
    "ycruan/FedSoft@e71a4ab",
    "servers.py",
    lambda model: fljax.fedsoft(model, fljax.Work(EPOCHS, 1000), K, measure_every=EVERY),
    fljax.fedsoft.Hyper(lr=LR, lam=LAMBDA),
    theirs,
    lambda: clients(6, n_groups=2),
    ROUNDS,
    "importances sum to 1 there too; SGD, not Adam, whose moments live on from round to round there",
)

CASES = {
    "FedSoft": ALL,
    "FedSoft-drawn": ALL._replace(
        make=lambda model: fljax.fedsoft(model, fljax.Work(EPOCHS, 1000), K, measure_every=EVERY, n_selected=DRAWN),
        theirs=partial(theirs, drawn=DRAWN),
        around=likeliest,
        but=f"{ALL.but}; the likeliest clients instead of a draw",
    ),
}
