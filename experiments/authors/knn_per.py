"""kNN-Per by its authors' simulator (Marfoq et al., ICML 2022)."""

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from same_steps import N_CLASSES, N_HIDDEN, Outputs, clients, examples, load_network, torch_network, uneven

import fljax
from authors.case import Case, modules_of
from authors.fedem import LOG, Whole, no_metric
from fljax.rounds.averaging import shared_part
from fljax.types import Federation, State

ROUNDS, EPOCHS, LR, LAM, SCALE, NEIGHBOURS = 4, 3, 0.5, 0.6, 0.1, 5


def theirs(clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """Runs FedAvg by `CentralizedAggregator`, and after a round `KNNPerClient`s of its model."""
    import torch

    def learner() -> Any:
        network = load_network(with_features()(), shared_part(first_state.server))
        loss, optimizer = torch.nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(network.parameters(), lr=LR)
        return learners.Learner(network, loss, no_metric, "cpu", optimizer, model_name="mobilenet")

    def trains(train: Whole, test: Whole) -> Any:
        return client.Client(learner(), train, train, test, LOG, local_steps=EPOCHS)

    def remembers(train: Whole, test: Whole) -> Any:
        rule = {"k": NEIGHBOURS, "capacity": -1, "strategy": "random", "rng": None, "interpolate_logits": False}
        size = {"features_dimension": N_HIDDEN, "num_classes": N_CLASSES}
        return client.KNNPerClient(run.global_learner, train, None, test, LOG, None, **rule, **size)

    with modules_of(clone, "faiss") as module:
        module("faiss").IndexFlatL2 = Nearest
        learners, client, aggregator = module("learners.learner"), module("client"), module("aggregator")
        client_data = [
            [Whole(*examples(federation, i, is_train)) for is_train in (True, False)]
            for i in range(federation.train.n_clients)
        ]
        members, outputs = [trains(*data) for data in client_data], []
        run = aggregator.CentralizedAggregator(members, learner(), 1, LOG, LOG, seed=0)
        for _ in range(ROUNDS):
            run.mix()
            outputs.append(np.stack([mixed(remembers(*data)) for data in client_data]))
    return outputs


def with_features() -> Any:
    """The class of networks whose features are found where the authors' code looks for those of MobileNet."""
    import torch

    class Network(torch_network()):
        def __init__(self) -> None:
            super().__init__()
            self.features = torch.nn.Sequential(self.fc1, torch.nn.ReLU())

        def forward(self, x: Any) -> Any:
            return self.fc(self.features(x))

    return Network


class Nearest:
    """faiss's exact index, with distances that are not squared."""

    def __init__(self, dimension: int) -> None:
        self.held = np.zeros((0, dimension), np.float32)

    def add(self, vectors: np.ndarray) -> None:
        """Remembers them."""
        self.held = np.concatenate([self.held, vectors])

    def search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(vectors, k) distances to the nearest of what is remembered, and their places."""
        distance = np.linalg.norm(vectors[:, None] - self.held[None], axis=-1)
        place = np.argsort(distance, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(distance, place, axis=1), place


def mixed(member: Any) -> np.ndarray:
    """Logarithm of what the client's own test takes the largest of."""
    scores: list[np.ndarray] = []
    member.compute_features_and_model_outputs()
    member.build_datastore()
    member.gather_knn_outputs(scale=SCALE)
    with mock.patch.object(np, "argmax", lambda outputs, axis: scores.append(outputs) or outputs.argmax(axis)):
        member.evaluate(LAM)
    return np.log(scores[0])


CASES = {
    "kNN-Per": Case(
        "omarfoq/knn-per@ee17520",
        "client.py",
        lambda model: fljax.knnper(model, fljax.Work(EPOCHS, 1000), n_neighbours=NEIGHBOURS),
        fljax.knnper.Hyper(lr=LR, lam=LAM, scale=SCALE * N_HIDDEN),
        theirs,
        lambda: uneven(clients(6, n_groups=2)),
        ROUNDS,
        "no weight decay, which the authors' SGD has; distances not squared, as there, and scale times the number of "
        "features; a stand-in for faiss; probabilities are mixed, as in the paper: the script mixes logits, by an "
        "argument whose default is a text that counts as true",
    )
}
