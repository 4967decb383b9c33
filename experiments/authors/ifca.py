"""IFCA by its authors' script for MNIST (Ghosh et al., NeurIPS 2020)."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from same_steps import Outputs, clients, examples, load_network, torch_network, torch_outputs

import fljax
from authors.case import Case, modules_of
from fljax import tree
from fljax.types import Federation, State

ROUNDS, STEPS, LR, K = 4, 3, 0.1, 2


def theirs(clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """Runs the rounds of `TrainMNISTCluster` on given clients."""
    import torch

    n_clients, outputs = federation.train.n_clients, []
    with (
        modules_of(clone / "mnist", "torchvision", "torchvision.datasets") as module,
        tempfile.TemporaryDirectory() as folder,
    ):

        class OnGivenClients(module("train_cluster_mnist").TrainMNISTCluster):  # pyrefly: ignore[invalid-inheritance]
            def setup_datasets(self) -> None:
                self.dataset = {part: {"cluster_assign": [0] * n_clients} for part in ("train", "test")}

            def setup_models(self) -> None:
                self.models = [
                    load_network(torch_network()(), tree.take(first_state.server.centers, k)) for k in range(K)
                ]
                self.criterion = torch.nn.CrossEntropyLoss()

            def load_data(self, m_i: int, train: bool = True) -> tuple[Any, Any]:
                x, y = examples(federation, m_i, train)
                return torch.tensor(x), torch.tensor(y).long()

            def print_epoch_stats(self, res: Mapping[str, Any]) -> None:
                if res["is_train"]:
                    outputs.append(torch_outputs([self.models[k] for k in res["cluster_assign"]], federation))

        config = {"m": n_clients, "m_test": n_clients, "p": K, "tau": STEPS, "lr": LR, "num_epochs": ROUNDS}
        run = OnGivenClients(config | {"project_dir": folder})
        run.setup()
        run.run()
    return outputs[1:]


CASES = {
    "IFCA": Case(
        "jichan3751/ifca@61e44b8",
        "mnist/train_cluster_mnist.py",
        lambda model: fljax.ifca(model, fljax.Work(STEPS, 1000), K),
        fljax.ifca.Hyper(lr=LR),
        theirs,
        lambda: clients(6, n_groups=2),
        ROUNDS,
        "tested with the model of least training loss; there with that of least loss on the test examples",
    )
}
