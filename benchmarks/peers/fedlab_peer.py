"""FedLab: its standalone pipeline, clients one after another."""
# ruff: noqa: E402

import logging
import random
import sys
from importlib.metadata import version
from unittest.mock import MagicMock

# Its ready-made data sets import torchvision, which is not installed (see `peers.environments`) and not used here.
sys.modules["torchvision"] = MagicMock()

import torch
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer
from fedlab.core.standalone import StandalonePipeline
from peers.torch_loop import accuracy_of, rounds_over_threads, tensors, torch_network
from peers.work import data, finish, first_models, job
from torch.utils.data import DataLoader, TensorDataset


class Clients:
    """What its trainer asks for data."""

    def __init__(self, clients: list) -> None:
        self.sets = [TensorDataset(*tensors(x, y)) for x, y in clients]

    def get_dataloader(self, id, batch_size=None, **settings):
        """Shuffled batches of one client."""
        return DataLoader(self.sets[id], batch_size=batch_size or len(self.sets[id]), shuffle=True)


class Pipeline(StandalonePipeline):
    """Waits for the next turn after every round."""

    def __init__(self, handler, trainer, rounds) -> None:
        super().__init__(handler, trainer)
        self.rounds = rounds

    def evaluate(self) -> None:
        """Called by the loop after every round."""
        next(self.rounds, None)


def main() -> None:
    task = job()
    workload = task.workload
    torch.manual_seed(0)
    random.seed(0)
    logging.disable(logging.INFO)
    clients, test = data(workload)
    # It flattens parameters with `view`, which channels_last does not allow.
    network = torch_network(workload, first_models(workload)[0])
    network.to(memory_format=torch.contiguous_format)
    handler = SyncServerHandler(network, task.n_rounds, workload.cohort / workload.n_clients)
    trainer = FedAvgSerialClientTrainer(network, workload.n_clients, cuda=False)
    trainer.setup_dataset(Clients(clients))
    trainer.setup_optim(1, workload.batch, workload.lr)
    handler.num_clients = workload.n_clients
    rounds = rounds_over_threads(task)
    next(rounds)
    Pipeline(handler, trainer, rounds).main()
    finish(f"fedlab {version('fedlab')}, torch {torch.__version__}", accuracy_of(handler.model, *tensors(*test)))


if __name__ == "__main__":
    main()
