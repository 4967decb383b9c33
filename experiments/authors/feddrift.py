"""FedDrift by its authors' aggregator, trainer and clusters, in their copy of FedML (Jothimurugesan et al., 2023)."""

import os
import pickle
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from same_steps import Outputs, clients, examples, load_network, torch_network, torch_outputs

import fljax
from authors.case import Case, modules_of
from fljax import drift
from fljax.types import Federation, State

N_CLIENTS, K, EPOCHS, LR = 8, 12, 20, 0.2
EVERY, TIMES = 2, 4  # rounds from one choice of models to the next, and choices
RISE, MERGE = 0.5, 1.5  # two clients drift, whose models merge later, when a third has joined one of them
STUBS = ("wandb", "torchvision")


def changing() -> Federation:
    """From the second choice on two classes have changed places for every client that has them."""
    return drift.drifting(clients(N_CLIENTS), drift.swap_labels(start=EVERY, share=1.0))


def theirs(clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """Runs the rounds of each time step with their classes; a time step has the data of its own time alone."""
    models, outputs = [load_network(torch_network()(), first_state.server.kept.fresh) for _ in range(K)], []
    previous_folder = Path.cwd()
    with modules_of(clone, *STUBS) as module, tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where one time step leaves the clusters to the next
        try:
            soft = module("fedml_api.distributed.fedavg_ens.FedAvgEnsAggregatorSoftCluster")
            trainer = module("fedml_api.distributed.fedavg_ens.FedAvgEnsTrainerSoftCluster")
            keep(clusters_of(module)(N_CLIENTS, K, h_delta=RISE, h_deltap=MERGE, h_distance="A", h_cluster="C"))
            for time in range(TIMES):
                outputs += time_step(soft, trainer, models, time, federation)
        finally:
            os.chdir(previous_folder)
    return outputs


def time_step(soft: ModuleType, trainer: ModuleType, models: list[Any], time: int, federation: Federation) -> Any:
    """The outputs of all clients after each round of a time step."""
    data, nothing = [batches(federation, i, time) for i in range(N_CLIENTS)], (None,) * 6
    numbers = {"curr_train_iteration": time, "concept_drift_algo_arg": "H_A_C", "client_num_in_total": N_CLIENTS}
    args = Namespace(**numbers, concept_drift_algo="softcluster", client_optimizer="sgd", lr=LR, epochs=EPOCHS)
    args.is_mobile = 0
    server, outputs = with_losses(soft)(*nothing, data, N_CLIENTS, "cpu", models, None, args), []
    for number in range(EVERY):
        for i in range(N_CLIENTS):
            copies = [load_state(model) for model in models]
            client = trainer.FedAvgEnsTrainerSoftCluster(i, *nothing[:3], data[i], "cpu", copies, args)
            client.update_model([model.state_dict() for model in models], server.extra_info(number))
            server.add_local_trained_result(i, client.train())
        server.aggregate(number)
        held_models = [models[server.sc_state.get_test_model_idx(time, i)] for i in range(N_CLIENTS)]
        outputs.append(torch_outputs(held_models, federation))
    keep(server.sc_state)
    return outputs


def clusters_of(module: Callable[[str], ModuleType]) -> Any:
    """Their state of the clusters: it measures losses, new models are as they were at first, the past has no weight."""
    loader = module("fedml_api.distributed.fedavg_ens.FedAvgEnsDataLoader")
    nothing = Namespace(log=lambda *_: None, run=Namespace(summary={}))
    vars(loader).update(reinitialize=lambda model: None, wandb=nothing)
    state = loader.SoftClusterState
    unused, merge = state.find_unused_model_lru, state.merge

    def of_the_present(self: Any, time: int, *models: Any) -> None:
        self.set_weights_win1(time)
        merge(self, time, *models)

    state.find_unused_model_lru = lambda self, time, models, best: unused(self, time)
    state._infer = state._infer_subset = less_loss
    state.merge = of_the_present
    return state


def with_losses(soft: ModuleType) -> Any:
    """Their aggregator, which measures losses in place of accuracies."""
    soft.FedAvgEnsAggregatorSoftCluster._infer = less_loss
    return soft.FedAvgEnsAggregatorSoftCluster


def less_loss(self: Any, model: Any, data: list[Any], *_: Any) -> tuple[float, int, float]:
    """In the place of how many examples are right: less the sum of losses; and how many there are."""
    import torch

    with torch.no_grad():
        loss = sum(float(torch.nn.functional.cross_entropy(model(x), y, reduction="sum")) for x, y in data)
    return -loss, sum(len(y) for _, y in data), loss


def batches(federation: Federation, client: int, time: int) -> list[list[Any]]:
    """A client's batches of each time step so far: one of the present, none of the past."""
    import torch

    x, y = examples(drift.at(federation, time * EVERY), client, is_train=True)
    return [[] for _ in range(time)] + [[(torch.tensor(x), torch.tensor(y).long())]]


def load_state(model: Any) -> Any:
    """A copy of a network."""
    copy = torch_network()()
    copy.load_state_dict(model.state_dict())
    return copy


def keep(state: Any) -> None:
    """Where the next time step finds it."""
    with Path("sc_state.pkl").open("wb") as file:
        pickle.dump(state, file)


CASES = {
    "FedDrift": Case(
        "microsoft/FedDrift@e4ac32f",
        "fedml_api/distributed/fedavg_ens/FedAvgEnsAggregatorSoftCluster.py",
        lambda model: fljax.feddrift(model, fljax.Work(EPOCHS, 1000), n_models=K),
        fljax.feddrift.Hyper(lr=LR, rise=RISE, merge=MERGE, every=float(EVERY)),
        theirs,
        changing,
        EVERY * TIMES,
        "losses there too, in place of accuracies; the data of a time step alone, which merged models are weighted by; "
        "a new model begins where the first one did, there as a copy of the client's best",
    )
}
