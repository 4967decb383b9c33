"""PACFL by its authors' script (Vahidian et al., AAAI 2023)."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from same_steps import Outputs, clients, load_network, torch_network, torch_outputs, uneven

import fljax
from authors.case import Case, modules_of
from fljax import tree
from fljax.types import ClientData, Federation, State

ROUNDS, EPOCHS, LR = 4, 3, 0.1
N_BASIS, THRESHOLD = 2, 45.0
SCRIPT = "main_pacfl.py"
MODULES = ("src.clustering", "src.fedavg.fedavg", "src.client.client_cluster_fl")


def theirs(clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """Runs the part of the script from clients' directions to the last round."""
    import torch

    def after_a_round() -> None:
        """The script collects garbage then. Clients get their cluster's model when the next round begins."""
        for i, model in enumerate(models):  # pyrefly: ignore[not-iterable]
            model.load_state_dict(names["w_glob_per_cluster"][names["clients_clust_id"][i]])  # pyrefly: ignore[unsupported-operation]
        outputs.append(torch_outputs(models, federation))  # pyrefly: ignore[bad-argument-type]

    outputs: list[Outputs] = []
    names = {"np": np, "torch": torch, "copy": copy, "gc": SimpleNamespace(collect=after_a_round)}
    names |= script_names(first_state, federation)
    models = copy.deepcopy(names["users_model"])
    # the script's averages go to a GPU
    with modules_of(clone) as module, mock.patch.object(torch.Tensor, "cuda", lambda tensor: tensor):
        for name in MODULES:
            names |= {key: value for key, value in vars(module(name)).items() if not key.startswith("__")}
        module("src.clustering.hierarchical_clustering").np = with_principal_angles()
        exec(part_of_rounds(clone), names)
    return outputs


def script_names(first_state: State, federation: Federation) -> dict[str, Any]:
    """What the script has by then: its options, models and rows of the clients' examples."""
    users = range(federation.train.n_clients)
    network = load_network(torch_network()(), tree.take(first_state.server.centers, 0))
    train, test = ([rows(data, i) for i in users] for data in (federation.train, federation.test))
    return {
        "args": arguments(len(users)),
        "net_glob": copy.deepcopy(network),
        "users_model": [copy.deepcopy(network) for _ in users],
        "initial_state_dict": network.state_dict(),
        "net_dataidx_map": train,
        "net_dataidx_map_test": test,
        "traindata_cls_counts": [{0: len(of_client)} for of_client in train],
        "get_dataloader": loaders_of(federation),
        "test_dl_global": loader(federation.test, test[0]),
    }


def arguments(n_clients: int) -> SimpleNamespace:
    """Options of the script, which it reads from its command line."""
    of_data = {"dataset": "", "datadir": "", "partition": "", "noise": 0, "noise_type": "space", "local_bs": 1000}
    of_work = {"local_ep": EPOCHS, "lr": LR, "momentum": 0.0, "device": "cpu", "rounds": ROUNDS, "print_freq": 1}
    of_clusters = {"n_basis": N_BASIS, "cluster_alpha": THRESHOLD, "linkage": "average"}
    return SimpleNamespace(num_users=n_clients, frac=1.0, **of_data, **of_work, **of_clusters)


def rows(data: ClientData, client: int) -> np.ndarray:
    """The client's rows of the pool."""
    return np.asarray(data.index[client, : int(data.size[client])])


def loader(data: ClientData, indices: np.ndarray) -> Any:
    """One batch with these rows of the pool."""
    import torch

    x, y = torch.tensor(np.asarray(data.pool.x)[indices]), torch.tensor(np.asarray(data.pool.y)[indices]).long()
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=len(indices))


def loaders_of(federation: Federation) -> Callable[..., Any]:
    """In place of the script's function, which reads data sets: loaders of a client, and examples for its directions.

    There all examples have one label, so that the directions are those of all of them.
    """

    def get_dataloader(*given: Any, dataidxs_test: np.ndarray) -> tuple[Any, Any, Any, Any]:
        indices = given[4]
        examples = SimpleNamespace(
            data=np.asarray(federation.train.pool.x)[indices], target=np.zeros(len(indices), int)
        )
        return loader(federation.train, indices), loader(federation.test, dataidxs_test), examples, None

    return get_dataloader


def with_principal_angles() -> ModuleType:
    """NumPy for the script's angles: cosines are the singular values of ``U_i' U_j``, whose entries it takes.

    It clips only these. NumPy 2 has no NINF.
    """

    def clip(product: np.ndarray, a_min: float, a_max: float) -> np.ndarray:
        return np.clip(np.linalg.svd(product, compute_uv=False), a_min, a_max)

    stand_in = ModuleType("numpy")
    stand_in.__dict__.update(vars(np) | {"clip": clip, "NINF": -np.inf})
    return stand_in


def part_of_rounds(clone: Path) -> str:
    """The part of the script from the clients' directions to the last round."""
    code = (clone / SCRIPT).read_text()
    begin, end = code.index("clients = []\nU_clients = []"), code.index("#" * 31 + " Saving Training Results")
    return code[begin:end]


CASES = {
    "PACFL": Case(
        "MMorafah/PACFL@7ef000d",
        SCRIPT,
        lambda model: fljax.pacfl(model, fljax.Work(EPOCHS, 1000), n_basis=N_BASIS),
        fljax.pacfl.Hyper(lr=LR, threshold=THRESHOLD),
        theirs,
        lambda: uneven(clients(6, n_groups=2)),
        ROUNDS,
        "directions of all examples of a client, those of each label there; angles by the singular values of "
        "U_i' U_j, by its entries there; three clients a cluster, where both kinds of average linkage agree",
    )
}
