"""StoCFL by its authors' server and trainer (Zeng et al., 2023); what they use of FedLab 1.2.1 is written here."""

import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import jax.numpy as jnp
from same_steps import Outputs, clients, examples, load_network, torch_network, torch_outputs

import fljax
from authors.case import Case, modules_of
from fljax import tree
from fljax.types import Algorithm, Cohort, Federation, Metrics, Model, State

EPOCHS, ANCHOR_EPOCHS, LR, TAU, LAMBDA = 3, 2, 0.1, 0.3, 0.5
PRESENT = ((0, 2, 3, 7), (1, 3, 4, 5), (0, 1, 4, 7), (4, 5, 6, 7), (0, 1, 3, 6), (2, 3, 6, 7))  # clients of each round
N_CLIENTS, ROUNDS = 8, len(PRESENT)
SERVER = "StoCFL-FCC+CFL"
FEDLAB = ("fedlab", "fedlab.core", "fedlab.core.client", "fedlab.core.client.serial_trainer", "fedlab.utils")
FEDLAB += ("fedlab.core.model_maintainer", "fedlab.utils.functional", "fedlab.utils.dataset")
FEDLAB += ("fedlab.utils.dataset.slicing",)
DATA = ("settings", "datasets", "leaf", "leaf.dataloader", "leaf.pickle_dataset", "torchvision", "tqdm")
STUBS = (*FEDLAB, *DATA, "torchvision.transforms", "cvxopt", "setuptools")


def theirs(clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """Runs the rounds of `StandaloneServer` with the clients of `PRESENT`."""
    with modules_of(clone, *STUBS) as module, tempfile.TemporaryDirectory() as folder:
        stand_in_for_fedlab(module)
        numbers = {"epochs": EPOCHS, "obep": ANCHOR_EPOCHS, "lr": LR, "mu": LAMBDA, "tau": TAU}
        sizes = {"n": N_CLIENTS, "com_round": ROUNDS, "num_per_round": len(PRESENT[0]), "k": 1, "train": 1}
        rest = {"dataset": "given", "batch_size": 0, "obbs": 0, "dir": folder, "exp_logger": mock.Mock()}
        args = Namespace(**numbers, **sizes, **rest)
        first = load_network(torch_network()(), tree.take(first_state.server.centers["theta"], 0))
        trainer = trainer_of(module("trainer"), federation)(torch_network()(), args)
        server, outputs = server_of(module(SERVER), federation)
        run = server(first, False, trainer, args)
        with mock.patch("random.sample", mock.Mock(side_effect=PRESENT)):
            run.main()
        run.noted()
    return outputs[1:]


def trainer_of(trainer: ModuleType, federation: Federation) -> Any:
    """Their trainer on given examples, whose clients all begin with the server's global model."""
    import torch

    trainer.tqdm = iter

    class EachFromTheServers(trainer.RotatedMNISTTrainer):
        def __init__(self, model: Any, args: Namespace) -> None:
            super().__init__(model, args)
            self.dataset = self

        def get_data_loader(self, client: int, batch_size: int, type: str = "train") -> Any:
            x, y = examples(federation, client, type == "train")
            return [(torch.tensor(x), torch.tensor(y).long())]

        def train(self, ids: list[int], cluster_models: list[Any], gmodel: Any) -> tuple[list[Any], list[Any]]:
            # theirs, given all of them, hands the global model from client to client
            results = [
                super(EachFromTheServers, self).train([i], [model], gmodel)
                for i, model in zip(ids, cluster_models, strict=True)
            ]
            return [near for (near,), _ in results], [common for _, (common,) in results]

    return EachFromTheServers


def server_of(code: ModuleType, federation: Federation) -> tuple[Any, list[Outputs]]:
    """Their server, and where its clients' outputs are put in each round before clusters are merged."""
    outputs: list[Outputs] = []

    class Noting(code.StandaloneServer):
        def inter_cluster_union(self, *moves: Any) -> None:
            self.noted()
            super().inter_cluster_union(*moves)

        def noted(self) -> None:
            networks = [torch_network()() for _ in self.find_client_cluster]
            for network, label in zip(networks, self.find_client_cluster, strict=True):
                Serialization.deserialize_model(network, self.cluster_parameters.get(label, self.gmodel))
            outputs.append(torch_outputs(networks, federation))

    return Noting, outputs


class Serialization:
    """FedLab's: a model as one vector of its parameters."""

    @staticmethod
    def serialize_model(model: Any) -> Any:
        """The vector, a copy."""
        import torch

        return torch.nn.utils.parameters_to_vector(model.parameters()).detach()

    @staticmethod
    def deserialize_model(model: Any, vector: Any) -> None:
        """Puts a copy of it into the model, which changes it in place."""
        import torch

        torch.nn.utils.vector_to_parameters(vector.clone(), model.parameters())


class Holder:
    """FedLab's base of a server and of a trainer."""

    def __init__(self, model: Any, *_: Any) -> None:
        self._model, self.cuda = model, False

    @property
    def model_parameters(self) -> Any:
        """All of its model's, in one vector."""
        return Serialization.serialize_model(self._model)


def stand_in_for_fedlab(module: Callable[[str], ModuleType]) -> None:
    """Puts into its empty modules what the server and the trainer use."""
    import torch

    def put(name: str, **parts: Any) -> None:
        vars(module(name)).update(parts)

    mean = Namespace(fedavg_aggregate=lambda models: torch.stack(models).mean(dim=0))
    put("fedlab.core.client.serial_trainer", SerialTrainer=type("SerialTrainer", (Holder,), {}))
    put("fedlab.core.model_maintainer", ModelMaintainer=Holder)
    put("fedlab.utils", SerializationTool=Serialization, Aggregators=mean, Logger=mock.Mock())
    put("fedlab.utils.functional", evaluate=lambda *_: (0.0, 0.0))


def with_the_present(algorithm: Algorithm) -> Algorithm:
    """The method in rounds of the clients of `PRESENT`."""
    table = jnp.array([[i in present for i in range(N_CLIENTS)] for present in PRESENT])

    def of_the_present(key: Any, hyper: Any, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        return algorithm.round(key, hyper, state, cohort._replace(active=table[cohort.round][cohort.ids]))

    return algorithm._replace(round=of_the_present)


def make(model: Model) -> Algorithm:
    """Ours."""
    return with_the_present(fljax.stocfl(model, fljax.Work(EPOCHS, 1000), anchor_epochs=ANCHOR_EPOCHS))


CASES = {
    "StoCFL": Case(
        "dunzeng/StoCFL@bd6d031",
        f"{SERVER}.py",
        make,
        fljax.stocfl.Hyper(lr=LR, tau=TAU, lam=LAMBDA),
        theirs,
        lambda: clients(N_CLIENTS, n_groups=2),
        ROUNDS,
        "everybody trains the server's global model; there each trains on from that of the client before it; given "
        "clients take part, so that no new client of lower id joins a trained one: there its model is lost",
    )
}
