"""fljax: functional simulation of federated learning with massively vectorised clients.

The public names, found where they are defined when they are first used: importing fljax starts nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fljax.algorithms import ALGORITHMS as ALGORITHMS
    from fljax.client import client_loss as client_loss
    from fljax.client import cross_loss as cross_loss
    from fljax.client import proximal as proximal
    from fljax.client import train_clients as train_clients
    from fljax.client import training_loss as training_loss
    from fljax.data.datasets import load as load
    from fljax.data.federation import build as build
    from fljax.data.holdout import hold_out_clients as hold_out_clients
    from fljax.data.partition import PARTITIONS as PARTITIONS
    from fljax.models import MODELS as MODELS
    from fljax.run.evaluate import evaluate as evaluate
    from fljax.run.newcomers import evaluate_new_clients as evaluate_new_clients
    from fljax.run.pilot import choose_k as choose_k
    from fljax.run.simulate import simulate as simulate
    from fljax.run.sweep import sweep as sweep
    from fljax.run.train import train as train
    from fljax.server.aggregate import cluster_mean as cluster_mean
    from fljax.server.aggregate import mix as mix
    from fljax.server.aggregate import weighted_mean as weighted_mean
    from fljax.server.agreement import adjusted_rand as adjusted_rand
    from fljax.server.agreement import normalized_mutual_info as normalized_mutual_info
    from fljax.server.assign import lowest_loss as lowest_loss
    from fljax.server.assign import nearest_center as nearest_center
    from fljax.server.bipartition import bipartition as bipartition
    from fljax.server.dbscan import dbscan as dbscan
    from fljax.server.distance import js_divergence as js_divergence
    from fljax.server.distance import label_kld as label_kld
    from fljax.server.distance import model_discrepancy as model_discrepancy
    from fljax.server.distance import pairwise_cosine as pairwise_cosine
    from fljax.server.distance import pairwise_l2 as pairwise_l2
    from fljax.server.hopkins import hopkins as hopkins
    from fljax.server.kmeans import kmeans as kmeans
    from fljax.server.layers import select_layers as select_layers
    from fljax.server.linkage import cut as cut
    from fljax.server.linkage import cut_k as cut_k
    from fljax.server.linkage import linkage as linkage
    from fljax.server.separation import separation_gap as separation_gap
    from fljax.types import Algorithm as Algorithm
    from fljax.types import Batch as Batch
    from fljax.types import ClientData as ClientData
    from fljax.types import Cohort as Cohort
    from fljax.types import Examples as Examples
    from fljax.types import Federation as Federation
    from fljax.types import Model as Model
    from fljax.types import ModelTable as ModelTable
    from fljax.types import State as State
    from fljax.types import Trained as Trained
    from fljax.types import Work as Work

_HOME = {
    "algorithms": ("ALGORITHMS",),
    "client": ("client_loss", "training_loss", "cross_loss", "proximal", "train_clients"),
    "data.datasets": ("load",),
    "data.federation": ("build",),
    "data.holdout": ("hold_out_clients",),
    "data.partition": ("PARTITIONS",),
    "models": ("MODELS",),
    "run.evaluate": ("evaluate",),
    "run.pilot": ("choose_k",),
    "run.newcomers": ("evaluate_new_clients",),
    "run.simulate": ("simulate",),
    "run.sweep": ("sweep",),
    "run.train": ("train",),
    "server.aggregate": ("cluster_mean", "mix", "weighted_mean"),
    "server.agreement": ("adjusted_rand", "normalized_mutual_info"),
    "server.assign": ("lowest_loss", "nearest_center"),
    "server.bipartition": ("bipartition",),
    "server.dbscan": ("dbscan",),
    "server.distance": ("js_divergence", "label_kld", "model_discrepancy", "pairwise_cosine", "pairwise_l2"),
    "server.hopkins": ("hopkins",),
    "server.kmeans": ("kmeans",),
    "server.layers": ("select_layers",),
    "server.linkage": ("cut", "cut_k", "linkage"),
    "server.separation": ("separation_gap",),
    "types": (
        "Algorithm",
        "ModelTable",
        "Batch",
        "ClientData",
        "Cohort",
        "Examples",
        "Federation",
        "Model",
        "State",
        "Trained",
        "Work",
    ),
}
_MODULE_OF = {name: f"fljax.{module}" for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'fljax' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
