"""The loop that a researcher writes first in PyTorch: clients one after another, one model reused, channels_last."""

import os

import numpy as np
import torch
from noisy_images import Set
from peers.work import Job, Workload, data, each_round, finish, first_models, job, turns
from torch import nn
from torch_models import copy_parameters, images, network

Values = list[torch.Tensor]
"""The parameters of a model, in its order."""
THREADS = sorted({1, len(os.sched_getaffinity(0))})
LAMBDA = 1.0  # of Ditto


def torch_network(workload: Workload, first: list[dict[str, np.ndarray]]) -> nn.Module:
    """The network with the given first parameters."""
    model = network(workload.model, workload.shape[-1], workload.shape[0], workload.n_classes)
    copy_parameters(model, dict(enumerate(first)), range(len(first)))
    return model


def tensors(x: np.ndarray, y: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """A set as PyTorch has it."""
    return images(x), torch.from_numpy(y).long()


def accuracy_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Share of right answers, evaluation mode."""
    model.eval()
    with torch.no_grad():
        right = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return right


def turns_over_threads(job: Job):
    """`turns` at one thread and at all."""
    return turns(job, THREADS, torch.set_num_threads)


def rounds_over_threads(job: Job):
    """`each_round` at one thread and at all."""
    return each_round(job, THREADS, torch.set_num_threads)


class Loop:
    """FedAvg, Ditto or IFCA, as the workload says."""

    def __init__(self, workload: Workload, clients: list[Set], test: Set) -> None:
        torch.manual_seed(0)
        self.workload, self.test, self.rng = workload, test, np.random.default_rng(0)
        self.clients = [tensors(x, y) for x, y in clients]
        first = first_models(workload)
        self.model, self.loss_of = torch_network(workload, first[0]), nn.CrossEntropyLoss()
        self.parameters = list(self.model.parameters())
        self.shared = [copied(torch_network(workload, layers).parameters()) for layers in first]
        self.personal = {i: self.shared[0] for i in range(workload.n_clients)}

    def run(self, n_rounds: int) -> None:
        """So many rounds."""
        for _ in range(n_rounds):
            sums = [[torch.zeros_like(p) for p in self.parameters] for _ in self.shared]
            total = [0.0] * len(self.shared)
            for i in self.rng.choice(len(self.clients), self.workload.cohort, replace=False):
                x, y = self.clients[i]
                k = self.cluster_of(x, y)
                order = torch.randperm(len(y), device=y.device).split(self.workload.batch)
                self.train(self.shared[k], x, y, order)
                weight = float(len(y)) if self.workload.weighting == "size" else 1.0
                total[k] += weight
                for s, p in zip(sums[k], self.parameters, strict=True):
                    s.add_(p.detach(), alpha=weight)
                if self.workload.method == "ditto":
                    self.train(self.personal[i], x, y, order, self.shared[0])
                    self.personal[i] = copied(self.parameters)
            for k, weight in enumerate(total):
                self.shared[k] = [s / weight for s in sums[k]] if weight else self.shared[k]

    def train(self, start: Values, x: torch.Tensor, y: torch.Tensor, order, anchor: Values | None = None) -> None:
        """One epoch from ``start``; with an anchor, on the loss plus ``lambda/2 |w - anchor|^2``."""
        self.load(start)
        optimizer = torch.optim.SGD(self.parameters, lr=self.workload.lr)
        for rows in order:
            optimizer.zero_grad()
            self.loss_of(self.model(x[rows]), y[rows]).backward()
            if anchor is not None:
                for p, a in zip(self.parameters, anchor, strict=True):
                    p.grad.add_(p.detach() - a, alpha=LAMBDA)
            optimizer.step()

    def cluster_of(self, x: torch.Tensor, y: torch.Tensor) -> int:
        """The model of least loss on all of a client's examples."""
        if len(self.shared) == 1:
            return 0
        losses = []
        with torch.no_grad():
            for values in self.shared:
                self.load(values)
                losses.append(self.loss_of(self.model(x), y).item())
        return int(np.argmin(losses))

    def load(self, values: Values) -> None:
        """Puts values into the one model."""
        with torch.no_grad():
            for p, value in zip(self.parameters, values, strict=True):
                p.copy_(value)

    def accuracy(self) -> float:
        """On the test set: of the shared model; mean over the personal ones; mean over IFCA's groups, turned alike."""
        if self.workload.method == "ditto":
            return float(np.mean([self.accuracy_of(values, 0) for values in self.personal.values()]))
        chosen = [self.cluster_of(*self.clients[i]) for i in range(self.workload.n_models)]
        return float(np.mean([self.accuracy_of(self.shared[k], i) for i, k in enumerate(chosen)]))

    def accuracy_of(self, values: Values, n_turns: int) -> float:
        """With the test images turned by so many right angles."""
        self.load(values)
        return accuracy_of(self.model, *tensors(np.rot90(self.test[0], n_turns, (1, 2)), self.test[1]))


def copied(parameters) -> Values:
    """Values that training does not touch."""
    return [p.detach().clone() for p in parameters]


def main() -> None:
    task = job()
    loop = Loop(task.workload, *data(task.workload))
    for n_rounds in turns_over_threads(task):
        loop.run(n_rounds)
    finish(f"torch {torch.__version__}", loop.accuracy())


if __name__ == "__main__":
    main()
