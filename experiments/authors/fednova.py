"""FedNova by its authors' optimiser (Wang et al., NeurIPS 2020); its processes are threads here."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from same_steps import Outputs, clients, examples, load_network, torch_network, torch_outputs, uneven

import fljax
from authors.case import Case, modules_of
from fljax.rounds.averaging import shared_part
from fljax.types import Federation, State

ROUNDS, EPOCHS, BATCH, LR, MOMENTUM, N_CLIENTS = 3, 2, 6, 0.05, 0.9, 6


def theirs(clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """Every client in a thread of its own: steps of `FedNova`, then its `average`."""
    import torch

    data = [examples(federation, i, is_train=True) for i in range(N_CLIENTS)]
    n_examples, outputs, summed = sum(len(y) for _, y in data), [], Sum(N_CLIENTS)
    networks = [load_network(torch_network()(), shared_part(first_state.server)) for _ in data]

    def trained(i: int) -> None:
        for x, y in batches(*data[i]):
            loss = torch.nn.functional.cross_entropy(networks[i](x), y)
            optimizers[i].zero_grad()
            loss.backward()
            optimizers[i].step()
        summed.mine.number = i
        optimizers[i].average()

    with modules_of(clone) as module, mock.patch.object(torch.Tensor, "cuda", lambda tensor: tensor):
        nova = module("distoptim.FedNova")
        optimizers = [
            nova.FedNova(network.parameters(), len(y) / n_examples, gmf=0, lr=LR, momentum=MOMENTUM)
            for network, (_, y) in zip(networks, data, strict=True)
        ]
        with mock.patch.object(torch.distributed, "all_reduce", summed):
            for _ in range(ROUNDS):
                threads = [threading.Thread(target=trained, args=(i,)) for i in range(N_CLIENTS)]
                for step in (threading.Thread.start, threading.Thread.join):
                    for thread in threads:
                        step(thread)
                outputs.append(torch_outputs(networks, federation))
    return outputs


class Sum:
    """``all_reduce`` of threads, each with a number: every tensor becomes the sum of all, in the same order for all."""

    def __init__(self, n: int) -> None:
        self.given: dict[int, Any] = {}
        self.mine, self.everyone = threading.local(), threading.Barrier(n, timeout=60)

    def __call__(self, tensor: Any, op: Any = None) -> None:
        """Puts the sum into the tensor."""
        self.given[self.mine.number] = tensor.clone()
        self.everyone.wait()
        tensor.copy_(sum(self.given[i] for i in sorted(self.given)))
        self.everyone.wait()


def batches(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[Any, Any]]:
    """Of all epochs; a client with fewer examples takes fewer steps."""
    import torch

    for _ in range(EPOCHS):
        for i in range(0, len(y), BATCH):
            yield torch.tensor(x[i : i + BATCH]), torch.tensor(y[i : i + BATCH]).long()


CASES = {
    "FedNova": Case(
        "JYWa/FedNova@47b4e09",
        "distoptim/FedNova.py",
        lambda model: fljax.fednova(model, fljax.Work(EPOCHS, BATCH)),
        fljax.fednova.Hyper(lr=LR, momentum=MOMENTUM),
        theirs,
        lambda: uneven(clients(N_CLIENTS, alike=True)),
        ROUNDS,
        "one example a client, many times, and more in some than in others, so that steps differ and batches do not",
    )
}
