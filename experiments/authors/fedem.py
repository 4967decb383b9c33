"""FedEM by its authors' simulator (Marfoq et al., NeurIPS 2021)."""

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from same_steps import Outputs, clients, examples, load_network, torch_network, uneven

import fljax
from authors.case import Case, modules_of
from fljax import tree
from fljax.rounds.averaging import shared_part
from fljax.types import Federation, State

ROUNDS, EPOCHS, LR, M = 4, 3, 0.5, 3


def theirs(clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """Runs `CentralizedAggregator` with `MixtureClient`s; outputs are what their tests score."""
    import torch

    def ensemble() -> Any:
        networks = [load_network(torch_network()(), tree.take(shared_part(first_state.server), m)) for m in range(M)]
        loss = torch.nn.CrossEntropyLoss(reduction="none")
        learner_list = [
            learner.Learner(network, loss, no_metric, "cpu", torch.optim.SGD(network.parameters(), lr=LR))
            for network in networks
        ]
        return learners.LearnersEnsemble(learner_list, torch.ones(M) / M)

    def made(i: int) -> Any:
        train, test = (Whole(*examples(federation, i, is_train)) for is_train in (True, False))
        return client.MixtureClient(ensemble(), train, train, test, LOG, local_steps=EPOCHS)

    with modules_of(clone) as module:
        learner, learners = module("learners.learner"), module("learners.learners_ensemble")
        client, aggregator = module("client"), module("aggregator")
        members, outputs = [made(i) for i in range(federation.train.n_clients)], []
        run = aggregator.CentralizedAggregator(members, ensemble(), ROUNDS + 1, LOG, LOG, seed=0)
        for _ in range(ROUNDS):
            run.mix()
            outputs.append(np.stack([scored(member.learners_ensemble, member.test_iterator) for member in members]))
    return outputs


class Whole:
    """A loader of one batch, which is all examples (x, y) with their places, of a data set with ``targets``."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        import torch

        self.dataset = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y).long(), torch.arange(len(y)))
        self.dataset.targets = y.tolist()

    def __iter__(self) -> Iterator[Any]:
        yield self.dataset[:]


def no_metric(outputs: Any, y: Any) -> Any:
    """Learners ask for a score of every batch, of which nothing is made here."""
    return outputs.new_zeros(())


def scored(ensemble: Any, tests: Any) -> np.ndarray:
    """Logarithm of what the ensemble's own test gives to its metric."""
    scores: list[Any] = []
    metric = ensemble.metric
    ensemble.metric = lambda outputs, y: scores.append(outputs) or no_metric(outputs, y)
    ensemble.evaluate_iterator(tests)
    ensemble.metric = metric
    return scores[0].log().numpy()


LOG = types.SimpleNamespace(add_scalar=lambda *_: None)
"""A writer of their logs, which keeps nothing."""

CASES = {
    "FedEM": Case(
        "omarfoq/FedEM@996fadd",
        "aggregator.py",
        lambda model: fljax.fedem(model, fljax.Work(EPOCHS, 1000), M),
        fljax.fedem.Hyper(lr=LR),
        theirs,
        lambda: uneven(clients(6, n_groups=2)),
        ROUNDS,
        "no momentum and no weight decay, which the authors' SGD has",
    )
}
