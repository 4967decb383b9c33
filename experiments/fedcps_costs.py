"""FedCPS, Table 4: seconds and joules of a client's round, from what a few rounds of each method count.

    python experiments/fedcps_costs.py [--scale smoke|paper] [--rounds N]

The paper gives no model of its devices: link (alike in both directions) and processor are those for which FedAvg's
round costs what the paper states, so FedAvg's rows agree by construction, and those of the others differ by what they
send, receive and compute beside it. What a client sends and receives does not depend on how long it trains, so that the
counted rounds are of one epoch, and few: all but FedCPS send the same in every round. Its clients receive one model
instead of all once identities have been stable, which longer runs may be oftener than the rounds counted here. The
passes over the examples are those of FedCR's ten epochs.

CIFAR-10, 100 clients, the first setting of Table 3 (smoke: Fashion-MNIST, 20 clients and a small network). FLJAX_DATA
names the folder with both. The accuracies of Table 4 are those of ``fedcps.py table2_cifar10``.
"""

from typing import NamedTuple

import fedcps_methods as fedcps
import numpy as np
from outcomes import BY_CONSTRUCTION, Outcome, described, keep
from reporting import Methods, Result, Scale, compare, main
from tables import published, show, spread

from fljax.client.steps import whole_epochs
from fljax.metrics.cost import BYTES_PER_FLOAT, Link, Processor, joules, seconds, traffic_of_clients, working
from fljax.types import Federation

QUANTITIES = ("T_comp_s", "T_comm_s", "E_comp_J", "E_comm_J")
SETTING = "non-iid_1"
N_ROUNDS, OF_FEDCPS = 2, 24
"""Counted rounds at the paper's size: of the methods that send the same in every round, and of FedCPS."""


class Effort(NamedTuple):
    """What a participant does in a round, on average over a run."""

    uplink: float  # floats
    downlink: float
    passes: float  # examples forward and backward; forward alone is a third


def counted(result: Result, federation: Federation, epochs: int) -> Effort:
    """Traffic and participants as the run counted them, and the passes that each method makes over their examples."""
    ids, active = np.asarray(result.metrics["ids"]), np.asarray(result.metrics["active"])
    sent = traffic_of_clients(result.metrics, federation.train.n_clients)
    uplink, downlink = (float(total.sum()) / BYTES_PER_FLOAT / active.sum() for total in sent)
    size = np.asarray(federation.train.size)[ids][active].astype(float)
    passes = epochs * size
    if result.method == "Ditto":  # a global and a personal model
        passes = 2 * passes
    if result.method == "FedCPS":  # an epoch without the pull, the noise of the gradients, and the models compared
        received = np.asarray(result.metrics["downlink"])
        n_compared = np.where(received == received.max(), fedcps.K, 0)[active]
        passes = passes + 2 * size + n_compared * np.minimum(fedcps.COMPARED, size) / 3
    return Effort(uplink, downlink, float(passes.mean()))


class Devices(NamedTuple):
    """What a client computes and is connected with."""

    link: Link
    processor: Processor

    @classmethod
    def of(cls, unit: Effort, known_costs: dict[str, float]) -> "Devices":
        """The devices for which the effort ``unit`` costs ``known_costs``."""
        rate, watts = (
            32 * (unit.uplink + unit.downlink) / known_costs["T_comm_s"],
            known_costs["E_comm_J"] / known_costs["T_comm_s"],
        )
        processor = Processor(unit.passes / known_costs["T_comp_s"], known_costs["E_comp_J"] / known_costs["T_comp_s"])
        return cls(Link(rate, rate, watts, watts), processor)

    def costs(self, effort: Effort) -> dict[str, float]:
        """`QUANTITIES` -> seconds or joules."""
        (computing_seconds, computing_joules), traffic = (
            working(effort.passes, self.processor),
            (effort.uplink, effort.downlink, self.link),
        )
        return {
            "T_comp_s": float(computing_seconds),
            "T_comm_s": float(seconds(*traffic)),
            "E_comp_J": float(computing_joules),
            "E_comm_J": float(joules(*traffic)),
        }


def planned(scale: Scale, method: str) -> int:
    """Counted rounds."""
    return scale.pick(16, OF_FEDCPS if method == "FedCPS" else N_ROUNDS)


def contenders(scale: Scale) -> Methods:
    """The table's methods, of one epoch a round."""
    dataset = scale.pick("fashion_mnist", "cifar10")
    methods = fedcps.contenders(dataset, scale, last_round=False, epochs=1)
    return {name: method for name, method in methods.items() if name != fedcps.FINE_TUNED}


def runs(scale: Scale, federations: list[Federation]) -> list[Result]:
    """A few rounds of every method, without the last round, whose costs the table does not have."""
    methods = contenders(scale)
    chosen_methods = {name: methods[name] for name in methods if name == "FedAVG" or name in scale.chosen(methods)}
    folder = scale.pick(None, scale.folder / "runs")
    options = {"participation": scale.pick(0.5, 0.1), "folder": folder}
    return [
        result
        for name, method in chosen_methods.items()
        for result in compare({name: method}, {SETTING: federations}, scale.rounds or planned(scale, name), **options)
    ]


def table4(scale: Scale) -> None:
    """Table 4: costs."""
    dataset = scale.pick("fashion_mnist", "cifar10")
    federations = fedcps.federations(dataset, scale, "few_shot")
    epochs = whole_epochs(fedcps.effort(scale), "the cost of a round")
    results = runs(scale, federations)
    stated = {
        (quantity, name): published("FedCPS", "CIFAR10", SETTING, name, quantity)
        for quantity in QUANTITIES
        for name in {result.method for result in results}
    }
    efforts = {(r.method, r.seed): counted(r, federations[r.seed], epochs) for r in results}
    known_costs = {quantity: stated[quantity, "FedAVG"] for quantity in QUANTITIES}
    devices = Devices.of(efforts["FedAVG", 0], known_costs)
    lines = [
        Outcome(
            r.method,
            SETTING,
            r.seed,
            quantity,
            value,
            stated[quantity, r.method],
            len(r.metrics["ids"]),
            r.seconds,
            text,
        )
        for r in results
        for text in [settings_of_run(scale, r, epochs)]
        for quantity, value in devices.costs(efforts[r.method, r.seed]).items()
    ]
    keep(scale.results, "FedCPS", "T4", "CIFAR10", lines)
    rows = []
    for quantity, name in stated:
        ours = spread(line.value for line in lines if (line.metric, line.method) == (quantity, name))
        theirs = stated[quantity, name]
        row = {"quantity": quantity, "method": name, "ours": ours, "published": theirs}
        rows.append(row | {"ours / published": round(ours.mean / theirs, 3)})
    show(scale, "table4", f"{dataset}, non-iid_1: a round of one client", rows)


def settings_of_run(scale: Scale, result: Result, epochs: int) -> str:
    """The settings of a run, as they stand in its line of the results."""
    note = {"note": BY_CONSTRUCTION} if result.method == "FedAVG" else {}
    basis = {"counted": "traffic of rounds of one epoch", "passes": f"of {epochs} epochs"}
    n_rounds = len(result.metrics["ids"])
    return described(
        scale.paper, n_rounds, planned(scale, result.method), participation=scale.pick(0.5, 0.1), **basis, **note
    )


if __name__ == "__main__":
    main(__doc__ or "", {"table4": table4}, n_seeds=(1, 1), only=contenders)
