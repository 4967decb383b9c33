"""CFL by the notebook of its authors (Sattler et al., TNNLS 2020)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from same_steps import Outputs, clients, examples, load_network, torch_network, torch_outputs

import fljax
from authors.case import Case, altered, modules_of
from fljax import tree
from fljax.types import Federation, State

ROUNDS, EPOCHS, LR = 5, 3, 0.1
NOTEBOOK = "clustered_federated_learning.ipynb"


def theirs(clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """Runs the notebook's cell of rounds; it splits whatever has more than two members from the second round on."""
    import torch
    from sklearn.cluster import AgglomerativeClustering

    def made(i: int) -> Any:
        x, y = (torch.tensor(part) for part in examples(federation, i, is_train=True))
        data = torch.utils.data.TensorDataset(x, y.long())
        network, optimizer = torch_network(), lambda parameters: torch.optim.SGD(parameters, lr=LR)
        return devices.Client(network, optimizer, data, idnum=i, batch_size=len(x), train_frac=1.0)

    def after_a_round(*_: Any) -> None:
        outputs.append(torch_outputs([client.model for client in members], federation))

    outputs: list[Outputs] = []
    with modules_of(clone) as module:
        devices = module("fl_devices")
        # scikit-learn renamed the argument
        devices.AgglomerativeClustering = lambda affinity, linkage: AgglomerativeClustering(
            metric=affinity, linkage=linkage
        )
        members = [made(i) for i in range(federation.train.n_clients)]
        server = devices.Server(torch_network(), [None])
        load_network(server.model, tree.take(first_state.server.centers, 0))
        for client in members:
            client.evaluate = lambda: 0.0
        names = {"clients": members, "server": server, "np": np, "display_train_stats": after_a_round}
        exec(cell_of_rounds(clone), names | {"ExperimentLogger": _Log})
    return outputs


class _Log:
    """The notebook's logger, which its pictures need."""

    def log(self, values: dict[str, Any]) -> None:
        """Keeps nothing."""


def cell_of_rounds(clone: Path) -> str:
    """The cell of the notebook that runs the rounds, with our numbers, and one mistake mended."""
    cells = json.loads((clone / NOTEBOOK).read_text())["cells"]
    (code,) = ("".join(cell["source"]) for cell in cells if "for c_round in" in "".join(cell["source"]))
    changes = {
        r"COMMUNICATION_ROUNDS = \d+": f"COMMUNICATION_ROUNDS = {ROUNDS}",
        r"\(epochs=1\)": f"(epochs={EPOCHS})",
        r"EPS_1 = [\d.]+": "EPS_1 = float('inf')",
        r"EPS_2 = [\d.]+": "EPS_2 = 0.0",
        r"c_round>20": "c_round>1",
        r"\[c1, c2\]": "[idc[c1], idc[c2]]",  # places in the cluster, which the notebook takes for clients
    }
    return altered(code, changes)


CASES = {
    "CFL": Case(
        "felisat/clustered-federated-learning@23a1c38",
        NOTEBOOK,
        lambda model: fljax.cfl(model, fljax.Work(EPOCHS, 1000), linkage="complete", weighting="uniform"),
        fljax.cfl.Hyper(lr=0.99 * LR, lr_decay=0.99, eps_1=np.inf, eps_2=0.0, gamma_max=None, r_min=0),
        theirs,
        lambda: clients(8, n_groups=2, seed=1),  # whom single linkage would part otherwise
        ROUNDS,
        "no momentum, which lives on from round to round there; every cluster of three or more is split; where "
        "a half is split again, the notebook takes places in it for clients' numbers, which is mended",
    )
}
