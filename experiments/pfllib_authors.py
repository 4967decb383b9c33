"""FedDBE and GPFL by their authors' own code: the curves that the lines of `pfllib.py` are held against.

    git clone https://github.com/TsingZ0/DBE && git clone https://github.com/TsingZ0/GPFL
    nice -n 19 python experiments/pfllib_authors.py DBE --files fmnist-0.1 --rounds 200
    nice -n 19 python experiments/pfllib_authors.py GPFL --setting "2 labels" --rounds 40

Needs PyTorch. The code of the checkout trains, tests and averages; its loop stops after ``--rounds`` iterations. The
numbers are those of its system/run_me.sh: batches of 10, one local epoch, learning rate 0.005, FedDBE with kappa 50 and
mu 1, GPFL with lambda 0.01 and mu 0.1, all 20 clients. ``--files`` names a folder of its dataset/, else clients are
`pfllib.py`'s. What is not the authors': clients' examples are read once and stay in memory, and training losses are not
computed. Lines are in results/pfllib/authors-FMNIST.csv.
"""

import argparse
import copy
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pfllib
from counts import count
from outcomes import RESULTS, Outcome, described, keep
from reporting import data_here

KAPPA, RATE, LAM, MU = 50.0, 1.0, 0.01, 0.1
AFTER = tuple(sorted({*pfllib.AFTER, *range(10, pfllib.ROUNDS, 10)}))


class Arguments(SimpleNamespace):
    """What main.py of a checkout hands on; what is not given is off, as there."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0


class EnoughError(Exception):
    """The last iteration has been tested."""


def feddbe(arguments: Arguments) -> Any:
    """The server of github.com/TsingZ0/DBE, at 193f435."""
    from flcore.servers.serverDBE import FedDBE  # pyrefly: ignore[missing-import]
    from flcore.trainmodel.models import BaseHeadSplit  # pyrefly: ignore[missing-import]

    arguments.kl_weight, arguments.momentum = KAPPA, RATE
    arguments.model = parted(arguments.model, BaseHeadSplit)
    return FedDBE(arguments, 0)


def gpfl(arguments: Arguments) -> Any:
    """The server of github.com/TsingZ0/GPFL."""
    from flcore.servers.servergp import GPFL  # pyrefly: ignore[missing-import]
    from flcore.trainmodel.models import LocalModel  # pyrefly: ignore[missing-import]

    arguments.lamda, arguments.mu = LAM, MU
    arguments.model = parted(arguments.model, LocalModel)
    return GPFL(arguments, 0)


def parted(network: Any, join: Callable[[Any, Any], Any]) -> Any:
    """A network as its body and its head, as main.py parts it."""
    import torch

    head = copy.deepcopy(network.fc)
    network.fc = torch.nn.Identity()
    return join(network, head)


def examples_of(checkout: Path, files: str | None, setting: str) -> Callable[..., list[Any]]:
    """The checkout's ``read_client_data(dataset, client, is_train)``, from its files or from `pfllib.federation`."""
    import torch

    clients = None if files else pfllib.federation(setting)

    @cache
    def read(dataset: str, client: int, is_train: bool = True) -> list[Any]:
        part = "train" if is_train else "test"
        if clients is None:
            file = checkout / "dataset" / str(files) / part / f"{part}{client}_.npz"
            saved = np.load(file, allow_pickle=True)["data"].tolist()
            x, y = saved["x"], saved["y"]
        else:
            data = getattr(clients, part)
            rows = np.asarray(data.index[client, : int(data.size[client])])
            x = np.asarray(data.pool.x)[rows].transpose(0, 3, 1, 2) / np.float32(127.5) - 1
            y = np.asarray(data.pool.y)[rows]
        return list(zip(torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.int64), strict=True))

    return read


METHODS: dict[str, tuple[str, Callable[[Arguments], Any]]] = {
    "serverDBE": ("FedDBE", feddbe),
    "servergp": ("GPFL", gpfl),
}
"""Which file of flcore/servers a checkout has: the method, and what makes its server."""


def main() -> None:
    """Runs a checkout's code and keeps the accuracies of every tenth iteration, and of the last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a clone of the authors' repository")
    parser.add_argument("--files", help="a folder of the checkout's dataset/, with Dirichlet shares of 0.1")
    parser.add_argument("--setting", choices=pfllib.SETTINGS, default=pfllib.SETTINGS[1])
    parser.add_argument("--rounds", type=count, default=40)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    methods_found = [METHODS[file.stem] for file in checkout.glob("system/flcore/servers/*.py") if file.stem in METHODS]
    if not methods_found:
        parser.error(f"{options.checkout} has none of {', '.join(METHODS)} in system/flcore/servers")
    (method, make), read = methods_found[0], examples_of(checkout, options.files, options.setting)
    sys.path.insert(0, str(checkout / "system"))
    sys.modules.setdefault("h5py", ModuleType("h5py"))  # the server would save results with it
    import torch
    from flcore.trainmodel.models import FedAvgCNN  # pyrefly: ignore[missing-import]
    from utils import data_utils  # pyrefly: ignore[missing-import]

    data_utils.read_client_data = read
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - the code's generator
    arguments = Arguments(
        model=FedAvgCNN(in_features=1, num_classes=pfllib.N_CLASSES, dim=1024),
        dataset="fmnist",
        device="cpu",
        num_classes=pfllib.N_CLASSES,
        num_clients=pfllib.N_CLIENTS,
        join_ratio=1.0,
        global_rounds=options.rounds,
        batch_size=pfllib.BATCH_SIZE,
        local_learning_rate=pfllib.LR,
        learning_rate_decay_gamma=1.0,
        local_epochs=1,
        local_steps=1,
        eval_gap=1,
        time_threthold=float("inf"),
    )
    began, accuracy = time.perf_counter(), []
    server = make(arguments)

    def evaluate(*_: Any) -> None:
        correct, count = np.sum([client.test_metrics()[:2] for client in server.clients], axis=0)
        accuracy.append(100 * correct / count)
        n_done, seconds = len(accuracy) - 1, time.perf_counter() - began
        print(f"{method} after {n_done}: {accuracy[-1]:.2f}, {seconds:.0f} s", flush=True)
        settings = described(
            True, n_done, pfllib.ROUNDS, lr=pfllib.LR, data=options.files or "pfllib.py", torch=torch.__version__
        )
        metrics = {f"accuracy after {n_done}": accuracy[-1]} if n_done in AFTER else {}
        if n_done == options.rounds:
            best = max(accuracy)
            metrics |= {"last accuracy": accuracy[-1], "best accuracy": best, "best round": accuracy.index(best)}
        lines = [
            Outcome(method, options.setting, 0, name, float(value), None, n_done, seconds, settings)
            for name, value in metrics.items()
        ]
        keep(options.results, "PFLlib", "authors", "FMNIST", lines)
        if n_done == options.rounds:
            raise EnoughError

    server.evaluate = evaluate
    try:
        server.train()
    except EnoughError:
        print(f"kept in {options.results / 'pfllib' / 'authors-FMNIST.csv'}")


if __name__ == "__main__":
    with data_here():
        main()
