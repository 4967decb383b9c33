"""Every method once, with the smallest settings that exercise it, and variants of some.

A method that is not named here is tested with its defaults and lr 0.1; what a round sends is then not compared.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import fljax
from fljax.algorithms import ALGORITHMS
from fljax.models import heterogeneous, mlp, variational
from fljax.types import Algorithm, Model, Work
from tests.algorithms.normalised import batch_normalised

P, LAST = 130, 6 * 4 + 4
"""Parameters of the model in `tests/algorithms/conftest.py`, and of its last layer; its first has 102."""

PROBABILISTIC = variational((4, 4, 1), 4, latent=3, hidden=(6,), channels=())
"""For the methods that need a Gaussian representation: layers of 102, 42 and 16 parameters."""

DIFFERENT = heterogeneous((4, 4, 1), (mlp((4, 4, 1), (6,), 5), "logistic_regression"), n_features=5, n_classes=4)
"""For clients of two networks, of 137 and 85 parameters, and a common last layer of 24."""

NORMALISED = batch_normalised((4, 4, 1), 4, hidden=6)
"""For the method that keeps the normalisation: layers of 102, 12 and 28 parameters."""


class Case(NamedTuple):
    """How to make an algorithm, its numbers, and what it says that the first round sends each way."""

    name: str
    numbers: dict[str, Any] = {}  # noqa: RUF012
    choices: dict[str, Any] = {}  # noqa: RUF012
    up: float | None = None
    down: float | None = None
    model: Model | None = None  # None: the common one
    one_epoch: bool = False
    by_order: bool = False  # even in full batches a client's draws or the order of its examples matter

    def make(self, model: Model, work: Work) -> Algorithm:
        """The algorithm, on its own network where it needs one."""
        work = work._replace(epochs=1) if self.one_epoch else work
        return fljax.compose(self.name)(self.model or model, work, **self.choices)

    @property
    def hyper(self) -> Any:
        """The numbers."""
        return fljax.compose(self.name).Hyper(**{"lr": 0.1, **self.numbers})


def _case(name: str, up: float | None = None, down: float | None = None, **fields: Any) -> Case:
    return Case(name, up=up, down=up if down is None else down, **fields)


CASES = {
    "fedavg": _case("fedavg", P),
    "fedavg-uniform": _case("fedavg", P, numbers={"lr_decay": 0.9, "momentum": 0.5}, choices={"weighting": "uniform"}),
    "fedprox": _case("fedprox", P, numbers={"mu": 0.5}),
    "fedsgd": _case("fedsgd", P, one_epoch=True),
    "standalone": _case("standalone", 0),
    "centralized": _case("centralized", by_order=True),
    "ifca": _case("ifca", P + 1, 3 * P, choices={"n_clusters": 3}),
    "ifca-gradient": _case("ifca", P + 1, 2 * P, choices={"averaging": "gradient"}, one_epoch=True),
    "ifca-shared": _case("ifca", P + 1, 102 + 3 * LAST, choices={"n_clusters": 3, "n_shared": 1}),
    # The first round's uplink has the models of the initial training too.
    "fesem": _case("fesem", 2 * P, P, choices={"n_clusters": 3}),
    "fesem-kernel": _case(
        "fesem",
        2 * P,
        P,
        numbers={"momentum": 0.5},
        choices={"n_clusters": 3, "cluster_on": "last_kernel", "proximal_weight": "uniform", "empty": "reseed"},
    ),
    "dcpfl": _case("dcpfl", P + 1, P),
    "dcpfl-fixed": _case(
        "dcpfl",
        P + 1,
        P,
        numbers={"warmup": 1.0, "low": 1.0, "momentum": None},
        choices={"dynamic": False, "deployed": "group"},
    ),
    # One base layer and one of the cluster, or all of the cluster and the client.
    "fedcps": _case("fedcps", P + 2, 102 + 2 * (LAST + 1)),
    "fedcps-personal": _case(
        "fedcps",
        102 + 1,
        3 * 102,
        numbers={"strength": 0.3, "max_norm": 5.0},
        choices={"n_clusters": 3, "sharing": "personal_layers", "lambda_mode": "n_only", "deployed": "fresh"},
    ),
    "ditto": _case("ditto", P, numbers={"lam": 0.5}, choices={"personal_epochs": 1}),
    "fedper": _case("fedper", P - LAST),
    "fedper-all-personal": _case("fedper", 0, numbers={"lr_decay": 0.9, "momentum": 0.5}, choices={"n_personal": 2}),
    # Which examples fill up a short last batch, and so enter its moments, follows their order.
    "fedbn": _case("fedbn", 102 + 28, model=NORMALISED, by_order=True),
    "fedbn-statistics": _case("fedbn", 102 + 12 + 28, choices={"kept": "statistics"}, model=NORMALISED, by_order=True),
    "fedrep": _case("fedrep", P - LAST, choices={"ft_epochs": 1}),
    "lg_fedavg": _case("lg_fedavg", LAST),
    "lg_fedavg-different": _case("lg_fedavg", 24, model=DIFFERENT, by_order=True),
    "fedbabu": _case("fedbabu", P - LAST, choices={"ft_epochs": 1}),
    "fedavg_ft": _case("fedavg_ft", P, numbers={"ft_lr": 0.2}, choices={"ft_epochs": 1}),
    # What is drawn for an example follows its place.
    "ccvr": _case("ccvr", P, numbers={"ft_lr": 0.2}, choices={"n_virtual": 5, "ft_epochs": 2}, by_order=True),
    "perfedavg": _case("perfedavg", P, numbers={"inner_lr": 0.1}, by_order=True),
    "perfedavg-hessian": _case(
        "perfedavg",
        P,
        numbers={"inner_lr": 0.1, "momentum": 0.5},
        choices={"variant": "hessian_free", "adapt_steps": 2},
        by_order=True,
    ),
    # Embeddings are drawn by id.
    "pfedhn": _case("pfedhn", P, choices={"hidden_width": 5, "n_hidden": 1}, by_order=True),
    "pfedme": _case("pfedme", P, numbers={"step": 0.9}, choices={"personal_steps": 2}),
    "cgpfl": _case("cgpfl", 2 * P, P, numbers={"step": 0.9}, choices={"personal_steps": 2, "n_clusters": 2}),
    "fml": _case("fml", P, numbers={"alpha": 0.3, "beta": 0.6}),
    "fml-different": _case("fml", 137 + 24, model=DIFFERENT, by_order=True),
    "apple": _case("apple", P, 7 * P, numbers={"p_lr": 0.05}),
    "apfl": _case("apfl", P, numbers={"alpha_lr": 0.2}),
    # Local models begin with weights that are drawn by id.
    "superfed": _case("superfed", P, numbers={"warmup": 1.0, "mu": 0.3}, by_order=True),
    "superfed-layers": _case(
        "superfed", P, numbers={"warmup": 0.0, "lam": 0.7}, choices={"mixing": "layers"}, by_order=True
    ),
    "fedala": _case("fedala", P, choices={"max_epochs": 12}, by_order=True),
    "fedproto": _case("fedproto"),
    "fedproto-different": _case("fedproto", model=DIFFERENT, by_order=True),
    # What a client sends of prototypes follows its classes.
    "fedpac": _case("fedpac", numbers={"lam": 0.5}),
    "fedcac": _case("fedcac", P + P / 32, P, numbers={"beta": 4.0}),
    # Which model a client trains is drawn by its key.
    "fedcross": _case("fedcross", P, numbers={"alpha": 0.8}, choices={"n_models": 3}, by_order=True),
    "fedcross-in_order": _case("fedcross", P, choices={"n_models": 4, "collaborator": "in_order"}, by_order=True),
    # What a client sends follows its classes.
    "fedgc": _case("fedgc"),
    # Likewise; the order of the server's steps is drawn by its key.
    "fedgh": _case("fedgh", numbers={"server_lr": 0.3}, choices={"server_batch": 3}, by_order=True),
    "fedtgp": _case(
        "fedtgp", numbers={"server_lr": 0.3, "tau": 0.5}, choices={"server_epochs": 3, "server_batch": 5}, by_order=True
    ),
    "pflda": _case("pflda", LAST),
    "pflda-head_first": _case("pflda", LAST, choices={"head_epochs": 2, "head_first": True}),
    "fedas": _case("fedas", 102 + 1, 102, numbers={"align_lr": 0.1}),
    "fedntd": _case("fedntd", P, numbers={"temperature": 2.0}),
    # What is sent of a matrix follows the ranks of its updates.
    "fedkd": _case("fedkd", numbers={"energy_start": 0.6, "energy_end": 0.9, "rise": 3.0, "max_norm": 5.0}),
    "fedphp": _case("fedphp", P, numbers={"rise": 3.0}),
    "fedphp-kd": _case("fedphp", P, numbers={"rise": 3.0}, choices={"transfer": "kd"}),
    "feddistill": _case("feddistill"),
    "fedrod": _case("fedrod", P),
    # Cosines of features that are nearly 0 magnify rounding, the more the larger mu is.
    "moon": _case("moon", P, numbers={"mu": 0.2}),
    "feddbe": _case("feddbe", P, numbers={"kappa": 1.0}),
    "gpfl": _case("gpfl", P - LAST + 4 * 6 + 2 * (36 + 3 * 6), numbers={"mu": 0.1}),
    "gpfl-trained": _case("gpfl", P - LAST + 4 * 6 + 2 * (36 + 3 * 6), choices={"condition": "trained"}),
    "fedcp": _case("fedcp", P + 72 + 3 * 12, by_order=True),
    "knnper": _case("knnper", P, choices={"n_neighbours": 3}),
    "fedamp": _case("fedamp", P),
    "fedfomo": _case("fedfomo", P + 3, 2 * P, choices={"n_received": 2}, by_order=True),
    # A client's place in the graph follows its id.
    "dpsgd": _case("dpsgd", by_order=True),
    "dpsgd-beside": _case("dpsgd", choices={"graph": "pairs", "time_varying": True, "mixing": "beside"}, by_order=True),
    "dpsgd-contacts": _case("dpsgd", choices={"graph": "complete", "contacts": 1}, by_order=True),
    "dpsgd-replace": _case("dpsgd", choices={"contacts": 1, "mixing": "replace"}, by_order=True),
    "pgossip": _case("pgossip", choices={"graph": "regular", "degree": 4}, by_order=True),
    # The first round has the counts of the four classes, up a client's own, down everybody's.
    "fedgen": _case(
        "fedgen",
        P + 4,
        P + (3 + 4) * 5 + 2 * 5 + (5 + 1) * 6 + 4,
        choices={"noise_width": 3, "generator_width": 5, "server_steps": 3},
        by_order=True,
    ),
    "feddist": _case("feddist", P),
    "feddws": _case("feddws", P),
    "feddane": _case("feddane", 2 * P, numbers={"mu": 0.5}),
    "mime": _case("mime", 2 * P, 3 * P, numbers={"momentum": 0.5, "step": 0.9}),
    "mime-lite": _case("mime", 2 * P, P, choices={"variant": "lite"}),
    "scaffold": _case("scaffold", 2 * P, numbers={"step": 0.9}),
    "scaffold-gradient": _case(
        "scaffold", 2 * P, numbers={"momentum": 0.5}, choices={"control": "gradient", "weighting": "size"}
    ),
    "feddyn": _case("feddyn", P),
    "fedadmm": _case("fedadmm", P, numbers={"rho": 0.3}),
    "fedadmm-global": _case(
        "fedadmm",
        P,
        numbers={"rho": 0.3, "step": 0.75, "momentum": 0.5},
        choices={"start": "global", "weighting": "size"},
    ),
    "fedlc": _case("fedlc", P),
    "fedrs": _case("fedrs", P, numbers={"alpha": 0.3}),
    "fednova": _case("fednova", P),
    "heterofl": _case("heterofl", by_order=True),  # of the client's id; what it sends is in test_widths.py
    "heterofl-drawn": _case(
        "heterofl",
        choices={"assignment": "dynamic", "units": "rolling", "masked_loss": True, "rates": (1.0, 0.6)},
        by_order=True,
    ),
    "heterofl-own": _case("heterofl", choices={"deployed": "own", "scaler": False}, by_order=True),
    "afl": _case("afl", P + 1, P, numbers={"lambda_lr": 0.05}),
    "afl-domains": _case(
        "afl",
        P + 1,
        P,
        numbers={"lambda_lr": 0.05},
        choices={"ascent": "exponentiated", "domain": (0, 2, 0, 1, 1, 0, 2, 0), "weighting": "size"},
        by_order=True,  # a client's domain follows its id
    ),
    "qffl": _case("qffl", P + 1, P, numbers={"q": 2.0}),
    "fednova-momentum": _case("fednova", P, numbers={"momentum": 0.5}, choices={"weighting": "uniform"}),
    "fedopt-momentum": _case("fedopt", P, numbers={"server_lr": 0.5}, choices={"server_optimizer": "momentum"}),
    "fedopt-adam": _case("fedopt", P),
    "fedopt-yogi": _case("fedopt", P, choices={"server_optimizer": "yogi"}),
    "fedtsdp": _case(
        "fedtsdp",
        P,
        numbers={"threshold": -1.0, "eps_weights": 0.4, "psi": 0.9},
        choices={"public_batch": 8, "n_draws": 2},
    ),
    "fedtsdp-never": _case("fedtsdp", P, numbers={"threshold": 2.0}, choices={"public_batch": 8, "stages": "weights"}),
    "layercfl": _case(
        "layercfl", P, numbers={"eps_share": 1.1, "eps_ratio": 0.5, "r_min": 0}, choices={"layers": "label"}
    ),
    "cfl": _case("cfl", P, numbers={"eps_1": 1e3, "eps_2": 0.0, "gamma_max": None, "r_min": -1}),
    "adacfl": _case(
        "adacfl",
        P,
        numbers={"eps_share": 1.1, "eps_ratio": 0.5, "r_min": -1},
        choices={"linkage": "complete", "weighting": "uniform"},
    ),
    # A client's edge follows its id.
    "hierfavg": _case("hierfavg", P, numbers={"cloud_every": 2.0}, choices={"n_edges": 3}, by_order=True),
    "hierfavg-cloud": _case(
        "hierfavg",
        P,
        numbers={"cloud_every": 3.0, "momentum": 0.5},
        choices={"assignment": "random", "deployed": "cloud", "weighting": "uniform"},
        by_order=True,
    ),
    "hypcluster": _case("hypcluster", P + 1, 3 * P, choices={"n_clusters": 3}),
    "hypcluster-momentum": _case(
        "hypcluster", P + 1, 2 * P, numbers={"server_lr": 0.5}, choices={"server_optimizer": "momentum"}
    ),
    # The first round has a model that a client trains alone, and two losses; down, where it begins and two centers.
    "hypcluster-alone": _case(
        "hypcluster", 2 * P + 3, 6 * P, choices={"n_clusters": 3, "alone_epochs": 2}, by_order=True
    ),
    # The first round's uplink is a solution and a model.
    "robust_cfl": _case("robust_cfl", 2 * P, P, choices={"n_clusters": 3, "solve_epochs": 2, "n_init": 2}),
    "clusterfl": _case("clusterfl", P, numbers={"alpha": 0.2, "beta": 0.1, "every": 2.0}, choices={"n_clusters": 3}),
    # The first round's uplink has the counts of the four classes.
    "group_pfl": _case("group_pfl", P + 4, P, numbers={"gamma": 0.05}),
    "group_pfl_dynamic": _case("group_pfl_dynamic", P + 4, P, numbers={"one_group_rounds": 2.0}),
    "fedsoft": _case("fedsoft", P + 3, 3 * P, numbers={"lam": 0.5}, choices={"n_clusters": 3}),
    "fedem": _case("fedem", 3 * P),
    # 2 x 4 x 3 + 1: a Gaussian for each class, and a scale.
    "fedsr": _case("fedsr", 160 + 25, model=PROBABILISTIC, by_order=True),
    "fedsr_ft": _case("fedsr_ft", 160 + 25, choices={"ft_epochs": 1}, model=PROBABILISTIC, by_order=True),
    "fedcr": _case("fedcr", 144 + 24, choices={"n_draws": 2, "ft_epochs": 1}, model=PROBABILISTIC, by_order=True),
    "fedma": _case("fedma", P, by_order=True),
    "fedmd": _case("fedmd", 12 * 4, choices={"n_digested": 12}),
    "fedmd-different": _case("fedmd", 12 * 4, choices={"n_digested": 12}, model=DIFFERENT, by_order=True),
    "fedmd-probabilities": _case("fedmd", 12 * 4, choices={"n_digested": 12, "shared": "probabilities"}),
    "fedma-retrain": _case(
        "fedma",
        P,
        numbers={"momentum": 0.5},
        choices={"start": "common", "retrain_epochs": 1, "output": "clients", "weighting": "uniform"},
    ),
    "fesem_ma": _case("fesem_ma", 2 * P, P, choices={"n_clusters": 3, "empty": "reseed"}),
    "flhc": _case("flhc", P, numbers={"warmup": 2.0}),
    "flhc-distance": _case(
        "flhc", P, numbers={"warmup": 2.0}, choices={"distance": "l2", "linkage": "complete", "n_clusters": 2}
    ),
    "flhc-predictions": _case(
        "flhc", P, numbers={"warmup": 2.0, "threshold": 0.2}, choices={"distance": "predictions", "n_public": 12}
    ),
    # In the first round there is one model to choose.
    "flis": _case("flis", P, numbers={"threshold": 0.8}),
    # The first round's uplink has three directions of 16 features; the models of FlexCFL are sent twice in it.
    "pacfl": _case("pacfl", P + 48, P),
    "pacfl-sum": _case("pacfl", P + 48, P, choices={"angle": "sum", "n_clusters": 3}),
    "flexcfl": _case(
        "flexcfl",
        2 * P,
        numbers={"eta_g": 0.01},
        choices={"pretrain_epochs": 2, "sample_factor": 2},
        by_order=True,  # who forms the groups is drawn by id
    ),
    # The first round's uplink has the last layer of the model that a client has trained alone.
    "fedclust": _case("fedclust", P + LAST, P, numbers={"threshold": 0.3}, choices={"alone_epochs": 2}),
    "fedclust-count": _case("fedclust", 2 * P, P, choices={"n_compared": 2, "linkage": "complete", "n_clusters": 3}),
    "stocfl": _case("stocfl", 3 * P, 2 * P),
    "fedrc": _case("fedrc", 2 * P + 8, choices={"n_clusters": 2}),
    # Everything has settled at once: a cluster is parted in the second round.
    "fedgwc": _case("fedgwc", P + 4, P, numbers={"eps": 0.95}, choices={"n_losses": 4, "max_parts": 2}),
    # In the first round there is one model to choose.
    "feddrift": _case("feddrift", P + 1, P, numbers={"every": 2.0, "rise": 0.0}, choices={"n_models": 3}),
    "flc": _case("flc", P, numbers={"warmup": 2.0}),
    # Bricks, in methods of either skeleton and in one that is written out.
    "fedavg+krum": _case("fedavg+krum", P),
    "fedavg+median+adam": _case("fedavg+median+adam", P),
    "fedavg+exp": _case("fedavg+exp", P),
    "fedavg+mgda": _case("fedavg+mgda", P),
    "fedavg+sam": _case("fedavg+sam", P),
    "fedper+prox": _case("fedper+prox", P - LAST, numbers={"mu": 0.5}),
    "fedavg+crop+flip+cutout": _case(
        "fedavg+crop+flip+cutout", P, numbers={"crop_padding": 1, "cutout_size": 2}, by_order=True
    ),
    "ifca+trimmed_mean": _case("ifca+trimmed_mean", P + 1, 3 * P, choices={"n_clusters": 3}),
}
CASES |= {name: Case(name) for name in ALGORITHMS if name not in {case.name for case in CASES.values()}}

VARIANTS: Callable[[str], bool] = lambda name: "-" in name and CASES[name].name in CASES  # noqa: E731
"""Whether a case is another setting of a method that has one of its plain name."""
