"""FeSEM by its authors' trainer, server, k-means and optimiser (Long et al., WWW J. 2023), written for TensorFlow 1.

Their settings form clusters anew less often than there are rounds. Where clusters are formed anew the trainer stops,
for it asks for clients that it did not keep; here it keeps them. Its clients' loss has no distance to the center: the
proximal term is by the optimiser of their other trainer, `mlhead_trainer.py`, which is never told the center there.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np
from same_steps import N_CLASSES, N_HIDDEN, N_INPUTS, Outputs, clients, examples, torch_outputs, uneven

import fljax
from authors.case import Case, modules_of
from authors.tf1 import NEEDS, Arrays, arrays, loaded, tensorflow_1
from fljax import drift, tree
from fljax.types import Algorithm, Federation, Model, State

N_CLIENTS, K, ROUNDS, EPOCHS, LR, MU = 8, 2, 4, 20, 0.2, 0.1


def moving() -> Federation:
    """From the second round on three clients have exchanged their data, and join other clusters for it."""
    made = uneven(clients(N_CLIENTS, n_groups=2))._replace(group=jnp.arange(N_CLIENTS) % 2)
    return drift.drifting(made, drift.move(start=1, share=3 / N_CLIENTS))


def theirs(clone: Path, first_state: State, federation: Federation, mu: float) -> list[Outputs]:
    """Runs `Fedsem_Trainer` from our first models, under their optimiser of FedProx where mu is above 0."""
    outputs: list[Outputs] = []
    latest = {i: arrays(tree.take(first_state.server.kept.models, i)) for i in range(N_CLIENTS)}  # each client's model
    turn = order_of(first_state)
    uncounted = mock.Mock(return_value=Namespace(total_float_ops=0))  # TensorFlow prints a report of what it counts
    with (
        tensorflow_1() as tf,
        modules_of(clone / "models", "pandas") as module,
        mock.patch.object(tf.profiler, "profile", uncounted),
    ):
        code = module("fedsem")
        given_network(module, network_of(tf, module, mu))
        points_of = code.get_tensor_from_localmodels

        def noting(joined: Mapping[int, Arrays], *rest: Any) -> Any:
            latest.update(joined)
            return points_of(joined, *rest)

        class AveragedAfterMoves(code.Fedsem_Trainer):
            def model_config(self, *settings: Any) -> Any:
                self.clients, *rest = super().model_config(*settings)
                self.mlhead_cluster.selected_clients = sorted(self.clients, key=lambda client: turn.index(client.id))
                self.mlhead_cluster.get_init_point_data = self.own_kernels
                return self.clients, *rest

            def own_kernels(self) -> dict[int, np.ndarray]:
                return {client.id: latest[client.id][2].flatten() for client in self.mlhead_cluster.selected}

            def clustering_function(self, points: Any) -> Any:
                groups, held = super().clustering_function(points), {}
                for k, (_, members) in enumerate(groups):
                    server = code.Server(None)
                    server.updates = [(1, latest[client.id]) for client in members]
                    self.center_models[k] = server.update_model_nowmode()
                    held |= {client.id: loaded(self.center_models[k]) for client in members}
                for client in self.clients:
                    client.train_data = table_of(federation, client.id, len(outputs))
                outputs.append(torch_outputs([held[i] for i in range(N_CLIENTS)], federation))
                return groups

        code.get_tensor_from_localmodels = noting
        data = {i: table_of(federation, i, 0) for i in range(N_CLIENTS)}
        sizes = {"num-clusters": K, "num-rounds": ROUNDS + 1, "clients-per-round": -1, "batch-size": 1000}
        rest = {"eval-every": 1, "epochs": EPOCHS, "update-center-every": 1, "seed": 0, "lr": LR}
        AveragedAfterMoves(list(data), [], data, data).begins(sizes | rest, Namespace(dataset="given"))
    return outputs[1:]


def order_of(first_state: State) -> list[int]:
    """Clients, the nearest to each center first: from these models their k-means comes to our clusters."""
    models, centers = (
        np.asarray(holder["fc2"]["kernel"]) for holder in (first_state.server.kept.models, first_state.server.centers)
    )
    label, distance = first_state.server.label.tolist(), np.square(models[:, None] - centers).sum((2, 3)).min(1)
    nearest = np.argsort(distance).tolist()
    first = [next(i for i in nearest if label[i] == k) for k in range(K)]
    return [*first, *(i for i in nearest if i not in first)]


def table_of(federation: Federation, client: int, time: int) -> dict[str, np.ndarray]:
    """A client's examples in a round."""
    return dict(zip("xy", examples(drift.at(federation, time), client, is_train=True), strict=True))


def network_of(tf: Any, module: Callable[[str], ModuleType], mu: float) -> Any:
    """The class of `small_network` as a model of theirs."""

    def dense(x: Any, n_in: int, n_out: int, name: str) -> Any:
        with tf.variable_scope(name):
            return tf.nn.xw_plus_b(x, tf.get_variable("kernel", (n_in, n_out)), tf.get_variable("bias", (n_out,)))

    class Network(module("model").Model):  # pyrefly: ignore[invalid-inheritance]
        def __init__(self, seed: int, lr: float, n_classes: int) -> None:
            pulled = module("fedprox_optimizer").PerturbedGradientDescent(lr, mu) if mu else None
            super().__init__(seed, lr, pulled)

        def create_model(self) -> Any:
            x, y = tf.placeholder(tf.float32, (None, N_INPUTS)), tf.placeholder(tf.int64, (None,))
            logits = dense(tf.nn.relu(dense(x, N_INPUTS, N_HIDDEN, "fc1")), N_HIDDEN, N_CLASSES, "fc2")
            loss = tf.losses.sparse_softmax_cross_entropy(labels=y, logits=logits)
            return x, y, self.optimizer.minimize(loss), None, loss, None, None

        def train(self, *settings: Any) -> Any:
            if mu:
                self.optimizer.set_params(self.get_params(), self)
            return super().train(*settings)

        def test(self, data: Any) -> dict[str, float]:
            return {"accuracy": 0.0, "loss": 0.0}  # nobody reads them

        def process_x(self, raw_x_batch: np.ndarray) -> np.ndarray:
            return raw_x_batch

        def process_y(self, raw_y_batch: np.ndarray) -> np.ndarray:
            return raw_y_batch

    return Network


def given_network(module: Callable[[str], ModuleType], network: Any) -> None:
    """Has the trainer make it, and cluster clients by its last kernel."""
    vars(module("fedsem"))["importlib"] = Namespace(import_module=lambda name: Namespace(ClientModel=network))
    module("baseline_constants").MODEL_PARAMS["given.cnn"] = (LR, N_CLASSES)
    sizes = module("mh_constants")
    sizes.MODEL_PARAMS["given.cnn"], sizes.VARIABLE_PARAMS["given.cnn"] = (N_HIDDEN, N_CLASSES), "fc2/kernel"


def make(model: Model) -> Algorithm:
    """Ours."""
    return fljax.fesem(model, fljax.Work(EPOCHS, 1000), K, cluster_on="last_kernel", proximal_weight="uniform")


BUT = (
    "our clients' first models and clusters, there one model and random clusters; clusters are formed anew in every "
    "round, and centers are averaged by them: there by those before, so that who moves starts from others' mean"
)
CASES = {
    name: Case(
        "mingxuts/multi-center-fed-learning@e206681",
        "models/fedsem.py",
        make,
        fljax.fesem.Hyper(lr=LR, mu=mu),
        partial(theirs, mu=mu),
        moving,
        ROUNDS,
        BUT + more,
        needs=NEEDS,
    )
    for name, mu, more in (
        ("FeSEM", 0.0, ""),
        ("FeSEM-proximal", MU, "; the proximal term by the optimiser that they have for it, which is told the center"),
    )
}
