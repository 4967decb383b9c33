"""Every algorithm once, with the smallest settings that exercise it; a new method is tested by adding a line."""

from collections.abc import Callable
from typing import NamedTuple

from fljax.algorithms.fedavg import FedAvgHyper, fedavg
from fljax.algorithms.fedprox import FedProxHyper, fedprox
from fljax.algorithms.fedsgd import FedSGDHyper, fedsgd
from fljax.algorithms.fesem import FeSEMHyper, fesem
from fljax.algorithms.ifca import IFCAHyper, ifca
from fljax.algorithms.standalone import StandaloneHyper, standalone
from fljax.types import Algorithm, Model, Work


class Case(NamedTuple):
    """How to make an algorithm, its numbers, and what it says that a round sends (in models of P parameters)."""

    make: Callable[[Model, Work], Algorithm]
    hyper: NamedTuple
    uplink: Callable[[int], float]
    downlink: Callable[[int], float]


def one_epoch(work: Work) -> Work:
    return work._replace(epochs=1)


CASES = {
    "fedavg": Case(fedavg, FedAvgHyper(0.1), lambda p: p, lambda p: p),
    "fedavg-uniform": Case(
        lambda m, w: fedavg(m, w, weighting="uniform"), FedAvgHyper(0.1, 0.9, 0.5), *[lambda p: p] * 2
    ),
    "fedprox": Case(fedprox, FedProxHyper(0.1, 0.5), lambda p: p, lambda p: p),
    "fedsgd": Case(lambda m, w: fedsgd(m, one_epoch(w)), FedSGDHyper(0.1), lambda p: p, lambda p: p),
    "standalone": Case(standalone, StandaloneHyper(0.1), lambda p: 0, lambda p: 0),
    "ifca": Case(lambda m, w: ifca(m, w, 3), IFCAHyper(0.1), lambda p: p + 1, lambda p: 3 * p),
    "ifca-gradient": Case(
        lambda m, w: ifca(m, one_epoch(w), 2, averaging="gradient"), IFCAHyper(0.1), lambda p: p + 1, lambda p: 2 * p
    ),
    "fesem": Case(lambda m, w: fesem(m, w, 3), FeSEMHyper(0.1), lambda p: p, lambda p: p),
    "fesem-kernel": Case(
        lambda m, w: fesem(m, w, 3, cluster_on="last_kernel", pull="plain", empty="reseed"),
        FeSEMHyper(0.1, momentum=0.5),
        lambda p: p,
        lambda p: p,
    ),
}
