"""pfl-research: its simulated backend in one process; its sampler draws a cohort with replacement."""

import os
from importlib.metadata import version

os.environ.setdefault("PFL_PYTORCH_DEVICE", "cpu")

import numpy as np
import torch
from peers.torch_loop import accuracy_of, rounds_over_threads, tensors, torch_network
from peers.work import Workload, data, finish, first_models, job
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel


class Turns(TrainingProcessCallback):
    """Waits for the next turn after every round; stops after the last."""

    def __init__(self, rounds) -> None:
        self.rounds = rounds

    def on_train_begin(self, *, model):
        """Before the first round."""
        next(self.rounds)
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """After every round."""
        return next(self.rounds, "last") == "last", Metrics()


def federated(workload: Workload, clients: list) -> SimulatedBackend:
    """The clients."""
    sets = [Dataset(list(tensors(x, y)), user_id=str(i)) for i, (x, y) in enumerate(clients)]
    users = FederatedDataset(sets.__getitem__, user_sampler=lambda: np.random.randint(len(sets)))  # noqa: NPY002
    by_size = [WeightByDatapoints()] if workload.weighting == "size" else []
    return SimulatedBackend(training_data=users, val_data=users, postprocessors=by_size)


def main() -> None:
    task = job()
    workload = task.workload
    torch.manual_seed(0)
    clients, test = data(workload)
    network, loss_of = torch_network(workload, first_models(workload)[0]), torch.nn.CrossEntropyLoss()
    network.loss = lambda x, y, eval=False: loss_of(network(x), y)
    network.metrics = lambda x, y, eval=True: {}  # its own benchmarks measure loss and accuracy here: this is less work
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=task.n_rounds,
            evaluation_frequency=10**9,
            train_cohort_size=workload.cohort,
            val_cohort_size=0,
        ),
        backend=federated(workload, clients),
        model=PyTorchModel(
            model=network,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=workload.lr, local_num_epochs=1, local_batch_size=workload.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=10_000),
        callbacks=[Turns(rounds_over_threads(task))],
    )
    finish(f"pfl {version('pfl')}, torch {torch.__version__}", accuracy_of(network, *tensors(*test)))


if __name__ == "__main__":
    main()
