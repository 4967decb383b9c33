"""The methods: one file each, named as its paper names it; `ALGORITHMS` finds them by name."""

import inspect
import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, NamedTuple

from fljax.algorithms.adacfl import AdaCFLHyper, adacfl
from fljax.algorithms.cfl import CFLHyper, cfl
from fljax.algorithms.clusterfl import ClusterFLHyper, clusterfl
from fljax.algorithms.dcpfl import DCPFLHyper, dcpfl
from fljax.algorithms.ditto import DittoHyper, ditto
from fljax.algorithms.fedavg import FedAvgHyper, fedavg
from fljax.algorithms.fedavg_ft import FedAvgFTHyper, fedavg_ft
from fljax.algorithms.fedbabu import FedBABUHyper, fedbabu
from fljax.algorithms.fedbn import FedBNHyper, fedbn
from fljax.algorithms.fedcps import FedCPSHyper, fedcps
from fljax.algorithms.fedcr import FedCRHyper, fedcr
from fljax.algorithms.feddane import FedDANEHyper, feddane
from fljax.algorithms.feddist import FedDistHyper, feddist
from fljax.algorithms.feddws import FedDWSHyper, feddws
from fljax.algorithms.fedem import FedEMHyper, fedem
from fljax.algorithms.fedma import fedma
from fljax.algorithms.fedopt import FedOptHyper, fedopt, hyper_with, with_server_optimizer
from fljax.algorithms.fedper import FedPerHyper, fedper
from fljax.algorithms.fedprox import FedProxHyper, fedprox
from fljax.algorithms.fedrep import FedRepHyper, fedrep
from fljax.algorithms.fedsgd import FedSGDHyper, fedsgd
from fljax.algorithms.fedsoft import FedSoftHyper, fedsoft
from fljax.algorithms.fedsr import FedSRHyper, fedsr
from fljax.algorithms.fedsr_ft import FedSRFTHyper, fedsr_ft
from fljax.algorithms.fedtsdp import FedTSDPHyper, fedtsdp
from fljax.algorithms.fesem import FeSEMHyper, fesem
from fljax.algorithms.fesem_ma import fesem_ma
from fljax.algorithms.flc import FLCHyper, flc
from fljax.algorithms.group_pfl import GroupPFLHyper, group_pfl
from fljax.algorithms.group_pfl_dynamic import GroupPFLDynamicHyper, group_pfl_dynamic
from fljax.algorithms.hypcluster import HypClusterHyper, hypcluster
from fljax.algorithms.ifca import IFCAHyper, ifca
from fljax.algorithms.layercfl import LayerCFLHyper, layercfl
from fljax.algorithms.lg_fedavg import LGFedAvgHyper, lg_fedavg
from fljax.algorithms.perfedavg import PerFedAvgHyper, perfedavg
from fljax.algorithms.robust_cfl import RobustCFLHyper, robust_cfl
from fljax.algorithms.standalone import StandaloneHyper, standalone
from fljax.types import Algorithm, Model, Work


class Method(NamedTuple):
    """A method as a user chooses it."""

    factory: Callable[..., Algorithm]  # (model, work, **static choices)
    hyper: type[Any]  # the NamedTuple of its numbers
    paper: str  # authors, venue and year
    link: str = ""
    one_model: bool = (
        False  # the server keeps one model or a shared part of one, and can step towards the clients' mean
    )
    optimizer: str = ""  # of the server, see `method_named`

    @property
    def title(self) -> str:
        """The name that the paper gives it."""
        name = self._first_line().partition(":")[0]
        return f"{name} with the server's {self.optimizer}" if self.optimizer else name

    @property
    def summary(self) -> str:
        """The method in a few words, from the first line of its file."""
        return self._first_line().partition(": ")[2].rstrip(".")

    def _first_line(self) -> str:
        return (inspect.getdoc(sys.modules[self.factory.__module__]) or "").partition("\n")[0]


_FEDSR = "https://proceedings.neurips.cc/paper_files/paper/2022/hash/fd946a6c99541fddc3d64a3ea39a1bc2-Abstract-Conference.html"

ALGORITHMS: dict[str, Method] = {
    method.factory.__name__: method
    for method in (
        Method(standalone, StandaloneHyper, "baseline"),
        Method(fedavg, FedAvgHyper, "McMahan et al., AISTATS 2017", "https://arxiv.org/abs/1602.05629", one_model=True),
        Method(fedsgd, FedSGDHyper, "McMahan et al., AISTATS 2017", "https://arxiv.org/abs/1602.05629", one_model=True),
        Method(fedprox, FedProxHyper, "Li et al., MLSys 2020", "https://arxiv.org/abs/1812.06127", one_model=True),
        Method(fedopt, FedOptHyper, "Reddi et al., ICLR 2021", "https://arxiv.org/abs/2003.00295"),
        Method(feddist, FedDistHyper, "baseline of Long et al., World Wide Web Journal 2023", one_model=True),
        Method(feddws, FedDWSHyper, "baseline of Long et al., World Wide Web Journal 2023", one_model=True),
        Method(feddane, FedDANEHyper, "Li et al., Asilomar 2019", "https://arxiv.org/abs/2001.01920", one_model=True),
        Method(fedma, FedAvgHyper, "Wang et al., ICLR 2020", "https://arxiv.org/abs/2002.06440"),
        Method(fedavg_ft, FedAvgFTHyper, "baseline", one_model=True),
        Method(
            perfedavg, PerFedAvgHyper, "Fallah et al., NeurIPS 2020", "https://arxiv.org/abs/2002.07948", one_model=True
        ),
        Method(ditto, DittoHyper, "Li et al., ICML 2021", "https://arxiv.org/abs/2012.04221", one_model=True),
        Method(fedper, FedPerHyper, "Arivazhagan et al., 2019", "https://arxiv.org/abs/1912.00818", one_model=True),
        Method(fedbn, FedBNHyper, "Li et al., ICLR 2021", "https://arxiv.org/abs/2102.07623", one_model=True),
        Method(lg_fedavg, LGFedAvgHyper, "Liang et al., 2020", "https://arxiv.org/abs/2001.01523", one_model=True),
        Method(fedrep, FedRepHyper, "Collins et al., ICML 2021", "https://arxiv.org/abs/2102.07078", one_model=True),
        Method(fedbabu, FedBABUHyper, "Oh et al., ICLR 2022", "https://arxiv.org/abs/2106.06042", one_model=True),
        Method(fedsr, FedSRHyper, "Nguyen et al., NeurIPS 2022", _FEDSR, one_model=True),
        Method(fedsr_ft, FedSRFTHyper, "Nguyen et al., NeurIPS 2022", _FEDSR, one_model=True),
        Method(fedcr, FedCRHyper, "Zhang et al., ICML 2023", "https://openreview.net/forum?id=YDC5jTS3LR"),
        Method(ifca, IFCAHyper, "Ghosh et al., NeurIPS 2020", "https://arxiv.org/abs/2006.04088"),
        Method(hypcluster, HypClusterHyper, "Mansour et al., 2020", "https://arxiv.org/abs/2002.10619"),
        Method(fedsoft, FedSoftHyper, "Ruan and Joe-Wong, AAAI 2022", "https://arxiv.org/abs/2112.06053"),
        Method(fedem, FedEMHyper, "Marfoq et al., NeurIPS 2021", "https://arxiv.org/abs/2108.10252"),
        Method(fesem, FeSEMHyper, "Long et al., World Wide Web Journal 2023", "https://arxiv.org/abs/2005.01026"),
        Method(fesem_ma, FeSEMHyper, "Long et al., World Wide Web Journal 2023", "https://arxiv.org/abs/2005.01026"),
        Method(robust_cfl, RobustCFLHyper, "Ghosh et al., 2019", "https://arxiv.org/abs/1906.06629"),
        Method(clusterfl, ClusterFLHyper, "Ouyang et al., MobiSys 2021", "https://doi.org/10.1145/3458864.3467681"),
        Method(group_pfl, GroupPFLHyper, "as compared in Liu et al."),
        Method(group_pfl_dynamic, GroupPFLDynamicHyper, "as compared in Liu et al."),
        Method(dcpfl, DCPFLHyper, "Liu et al."),
        Method(fedcps, FedCPSHyper, "Yang et al., Computers, Materials & Continua 2025"),
        Method(
            fedtsdp, FedTSDPHyper, "Zhu et al., Complex & Intelligent Systems 2024", "https://arxiv.org/abs/2308.15821"
        ),
        Method(
            layercfl, LayerCFLHyper, "Yuan et al., Cybersecurity 2023", "https://doi.org/10.1186/s42400-023-00172-x"
        ),
        Method(cfl, CFLHyper, "Sattler et al., IEEE TNNLS 2020", "https://arxiv.org/abs/1910.01991"),
        Method(adacfl, AdaCFLHyper, "as compared in Yuan et al., Cybersecurity 2023"),
        Method(flc, FLCHyper, "Kim et al., ICUFN 2021"),
    )
}
"""Name -> method: baselines first, then by kind."""


@cache
def method_named(name: str) -> Method:
    """The method of that name; "fedprox+adam" is FedProx whose server takes Adam's step towards the clients' mean.

    "+momentum", "+adam" and "+yogi" may follow the methods of `ALGORITHMS` that have ``one_model``.

    Raises:
        ValueError: there is no such method or optimiser, or the method's server does not keep one model.
    """
    base, plus, optimizer = name.partition("+")
    if base not in ALGORITHMS:
        raise ValueError(f"no algorithm {base!r}; choose one of {', '.join(ALGORITHMS)}")
    method = ALGORITHMS[base]
    if not plus:
        return method
    if optimizer not in ("momentum", "adam", "yogi"):
        raise ValueError(f"{name}: no server optimiser {optimizer!r}; choose momentum, adam or yogi")
    if not method.one_model:
        able = ", ".join(name for name, method in ALGORITHMS.items() if method.one_model)
        raise ValueError(f"{name}: {method.title} takes no server optimiser; those of {able} do")

    @wraps(method.factory)
    def factory(model: Model, work: Work, **static: Any) -> Algorithm:
        return with_server_optimizer(method.factory(model, work, **static), optimizer)

    return method._replace(factory=factory, hyper=hyper_with(method.hyper, optimizer), optimizer=optimizer)


__all__ = ["ALGORITHMS", "Method", "method_named", *ALGORITHMS]  # pyright: ignore[reportUnsupportedDunderAll]
