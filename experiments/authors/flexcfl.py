"""FlexCFL by the trainer of its authors (Duan et al., TPDS 2022), whose networks only have to look like Keras' own."""

import random
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from same_steps import N_CLASSES, Outputs, clients, examples, load_network, small_network, torch_network, torch_outputs
from sklearn.cluster import KMeans

import fljax
from authors.case import Case, modules_of
from fljax.types import Algorithm, Federation, Model, Params, State

N_CLIENTS, GROUPS, SHARE = 6, 2, 2
ROUNDS, EPOCHS, PRETRAINED, BATCH, LR, ETA_G = 3, 3, 50, 24, 0.1, 0.3


@cache
def first() -> Params:
    """What both sides train before the first round; our first state has groups already."""
    return small_network().init(jax.random.key(0))


def make(model: Model) -> Algorithm:
    """Ours."""
    theta = first()
    model = model._replace(init=lambda key: theta)
    return fljax.flexcfl(model, fljax.Work(EPOCHS, BATCH), GROUPS, pretrain_epochs=PRETRAINED, sample_factor=SHARE)


class KerasLike:
    """A network of PyTorch with the methods of a Keras model that the trainer calls."""

    layers = (SimpleNamespace(output_shape=(None, N_CLASSES)),)

    def __init__(self, *_: Any) -> None:
        self.network = load_network(torch_network()(), first())

    def get_weights(self) -> list[np.ndarray]:
        """Copies of the parameters."""
        return [parameter.detach().numpy().copy() for parameter in self.network.parameters()]

    def set_weights(self, weights: list[np.ndarray]) -> None:
        """Puts them in."""
        import torch

        with torch.no_grad():
            for parameter, weight in zip(self.network.parameters(), weights, strict=True):
                parameter.copy_(torch.tensor(weight))

    def train_on_batch(self, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        """A step of SGD; nobody reads loss and accuracy."""
        import torch

        loss = torch.nn.functional.cross_entropy(self.network(torch.tensor(x)), torch.tensor(y).long())
        gradients = torch.autograd.grad(loss, list(self.network.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(self.network.parameters(), gradients, strict=True):
                parameter -= LR * gradient
        return 0.0, 0.0

    def fit(self, x: np.ndarray, y: np.ndarray, batch_size: int, epochs: int, verbose: int) -> Any:
        """Steps on all examples."""
        for _ in range(epochs):
            self.train_on_batch(x, y)
        return SimpleNamespace(history={"accuracy": [0.0], "loss": [0.0]})

    def evaluate(self, x: np.ndarray, y: np.ndarray, verbose: int) -> tuple[float, float]:
        """Nobody reads it."""
        return 0.0, 0.0


def theirs(clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """Runs the rounds of `FedGroup` on given clients."""
    outputs: list[Outputs] = []
    with modules_of(clone, "tensorflow", "termcolor") as module, mock.patch.object(np, "float", float, create=True):
        trainer = module("flearn.trainer.fedgroup")
        given_clients(module("flearn.trainer.groupbase"), federation)
        trainer.KMeans = partial(KMeans, n_init=20)

        class Recording(trainer.FedGroup):
            def group_cold_start(self, **more: Any) -> None:
                super().group_cold_start(alpha=SHARE, **more)

            def schedule_clients_after_training(self, *_: Any) -> None:
                models = [KerasLike() for _ in self.clients]
                for model, client in zip(models, self.clients, strict=True):
                    model.set_weights(client.uplink[0].latest_params)
                outputs.append(torch_outputs([model.network for model in models], federation))

        config = module("utils.trainer_utils").TrainConfig("given", "given", "fedgroup")
        config.trainer_config |= {"num_group": GROUPS, "num_rounds": ROUNDS, "group_agg_lr": ETA_G, "dynamic": False}
        config.client_config |= {"local_epochs": EPOCHS, "batch_size": BATCH}
        with mock.patch.object(random, "sample", luckiest):
            Recording(config).train()
    return outputs


def given_clients(base: ModuleType, federation: Federation) -> None:
    """Has the trainer read the federation's examples, make `KerasLike` networks and write no file."""
    client_data = [
        {i: dict(zip("xy", examples(federation, i, is_train), strict=True)) for i in range(N_CLIENTS)}
        for is_train in (True, False)
    ]
    base.read_federated_data = lambda dataset: (list(range(N_CLIENTS)), *client_data)
    base.ResultWriter = lambda config: SimpleNamespace(write_summary=lambda *_: None)
    base.importlib = SimpleNamespace(import_module=lambda name: SimpleNamespace(construct_model=KerasLike))


def luckiest(among: list[Any], k: int) -> list[Any]:
    """The clients that our draw has for those who form the groups, where not all do."""
    key = jax.random.split(jax.random.key(3), 4)[2]
    return [among[i] for i in np.argsort(np.asarray(jax.random.uniform(key, (len(among),), jnp.float32)))[:k]]


CASES = {
    "FlexCFL": Case(
        "morningD/FlexCFL@968b5fa",
        "flearn/trainer/fedgroup.py",
        make,
        fljax.flexcfl.Hyper(lr=LR, eta_g=ETA_G),
        theirs,
        lambda: clients(N_CLIENTS, n_groups=GROUPS),
        ROUNDS,
        "PyTorch's network in the place of Keras'; our draw of who forms the groups; the best of 20 k-means there too",
    )
}
