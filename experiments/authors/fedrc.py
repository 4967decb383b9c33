"""FedRC by its authors' script (Guo et al., ICML 2024)."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from same_steps import N_CLASSES, Outputs, clients, examples, load_network, torch_network, uneven

import fljax
from authors.case import Case, modules_of
from authors.fedem import LOG, Whole, no_metric, scored
from fljax import tree
from fljax.types import Federation, State

ROUNDS, EPOCHS, LR, K = 4, 3, 0.5, 3
# What their script imports for data, pictures and other methods. The last one is not in the repository.
STUBS = (
    *("torchvision", "torchvision.models", "torchvision.datasets", "torchvision.transforms"),
    *("torch.utils.tensorboard", "utils.decentralized", "learners.autoencoder"),
)


def theirs(clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """Runs `run_experiment` of the script on given clients, in a folder for the files that it writes."""
    import torch

    def ensemble(*_: Any, **__: Any) -> Any:
        networks = [load_network(torch_network()(), tree.take(first_state.server.learners, k)) for k in range(K)]
        loss = torch.nn.CrossEntropyLoss(reduction="none")
        learner_list = [
            script.Learner(network, loss, no_metric, "cpu", torch.optim.SGD(network.parameters(), lr=LR))
            for network in networks
        ]
        return script.LearnersEnsemble(learner_list, torch.ones(K) / K, "cpu")

    def made(i: int) -> Any:
        train, test = (Whole(*examples(federation, i, is_train)) for is_train in (True, False))
        settings = {"feature_types": [0] * len(train.dataset), "class_number": N_CLASSES}  # the first for its files
        return script.FedRC(ensemble(), train, train, test, LOG, EPOCHS, **settings)

    def after_a_round(*_: Any) -> None:
        outputs.append(np.stack([scored(member.learners_ensemble, member.test_iterator) for member in members]))

    outputs: list[Outputs] = []
    with modules_of(clone, *STUBS) as module, in_a_folder():
        script = module("run_experiment")
        members = [made(i) for i in range(federation.train.n_clients)]
        script.init_clients = lambda args_, root_path, logs_dir: members if root_path.endswith("train") else []
        script.get_learners_ensemble = ensemble
        script.SummaryWriter = lambda path: LOG
        script.tqdm = lambda total: SimpleNamespace(update=after_a_round)
        script.CLASS_NUMBER[script.LOADER_TYPE["synthetic"]] = N_CLASSES
        # It runs a round more than it is told to.
        script.args = script.parse_args(f"synthetic fedrc --n_rounds {ROUNDS - 1} --suffix x".split())
        script.args.n_gmm = None  # which it reads, and has no argument for
        script.run_experiment(script.args)
    return outputs


@contextlib.contextmanager
def in_a_folder() -> Iterator[None]:
    """Inside it the folder of work is one that is deleted afterwards."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("logs/synthetic").mkdir(parents=True)
        yield


CASES = {
    "FedRC": Case(
        "LINs-lab/FedRC@ce79229",
        "run_experiment.py",
        lambda model: fljax.fedrc(model, fljax.Work(EPOCHS, 1000), K),
        fljax.fedrc.Hyper(lr=LR),
        theirs,
        lambda: uneven(clients(6, n_groups=2)),
        ROUNDS,
        "no momentum and no weight decay, which the authors' SGD has",
    )
}
