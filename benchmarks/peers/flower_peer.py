"""Flower's simulation: a Ray actor a core, each client a message to one."""

import os
import sys

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import flwr
import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peers import flower_client
from peers.torch_loop import accuracy_of, tensors, torch_network
from peers.work import data, each_round, finish, first_models, job


class Turns(FedAvg):
    """Waits for the next turn after every round."""

    def __init__(self, rounds, **settings) -> None:
        super().__init__(**settings)
        self.rounds = rounds

    def aggregate_train(self, server_round, replies):
        """The last thing that happens in a round."""
        mean = super().aggregate_train(server_round, replies)
        next(self.rounds, None)
        return mean


def main() -> None:
    task = job()
    workload, last_arrays = task.workload, {}
    os.environ[flower_client.WORKLOAD] = sys.argv[1]
    network, n_cores = torch_network(workload, first_models(workload)[0]), len(os.sched_getaffinity(0))
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        rounds, n_clients = each_round(task), workload.n_clients
        sizes = {"min_train_nodes": workload.cohort, "min_available_nodes": n_clients}
        strategy = Turns(rounds, fraction_train=workload.cohort / n_clients, fraction_evaluate=0.0, **sizes)
        next(rounds)
        first = ArrayRecord(network.state_dict())
        last_arrays.update(strategy.start(grid=grid, initial_arrays=first, num_rounds=task.n_rounds).arrays)

    run_simulation(
        server_app=server,
        client_app=flower_client.app,
        num_supernodes=workload.n_clients,
        backend_config={
            "init_args": {"num_cpus": n_cores, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    network.load_state_dict(ArrayRecord(last_arrays).to_torch_state_dict())
    accuracy = accuracy_of(network, *tensors(*data(workload)[1]))
    finish(f"flwr {flwr.__version__}, torch {torch.__version__}", accuracy)


if __name__ == "__main__":
    main()
