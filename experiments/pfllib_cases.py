"""The methods that `pfllib_steps.py` runs beside PFLlib's code, and in which settings."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from pfllib import Chosen
from pfllib_alike import (
    EPOCHS,
    KD_RISE,
    PHP_MU,
    PHP_RISE,
    SERVER_BATCH,
    TAU,
    absent_as_they_are,
    customised_from_the_first,
    dispatched_in_order,
    distance_of_each,
    finer_weights,
    first_context,
    head_of_its_own,
    heads_as_received,
    inherited_models,
    local_steps,
    low_rank_updates,
    mean_of_models,
    means_in_order,
    models_of_those_that_came,
    own_classes_held,
    own_columns,
    own_counts,
    prototypes_of_trained,
    pull_of_the_head,
    pull_with_a_gradient,
    same_consensus,
    squared_distance,
    whole_batches,
    without_decay,
    without_gumbel,
)
from same_steps import N_EXAMPLES, N_HIDDEN

from fljax.types import State

N_CLIENTS = 4
ROUNDS, LR = 3, 0.1
UNEQUAL, BATCH = (8, 16, 24, 40), 8
UNEVEN = (9, 20, 30, 44)
"""Examples of which whole batches leave some over."""

HALVES = ((0, 1), (2, 3), (0, 2), (1, 3), (1, 2))
"""Who takes part in each round. Everybody is away for a round or two, and comes back."""


class Setting(NamedTuple):
    """Who takes part, and how much each client has."""

    clients: str = "all"  # or half
    sizes: str = "equal"  # or unequal, steps, dropped

    @property
    def n_rounds(self) -> int:
        """That are compared."""
        return len(HALVES) if self.clients == "half" else ROUNDS

    @property
    def joined(self) -> tuple[tuple[int, ...], ...]:
        """Who takes part in each round, and in the one that PFLlib makes after its last test."""
        everybody = (tuple(range(N_CLIENTS)),) * (ROUNDS + 1)
        return (*HALVES, HALVES[0]) if self.clients == "half" else everybody

    @property
    def examples(self) -> tuple[int, ...]:
        """Training examples of each client."""
        return {"equal": (N_EXAMPLES,) * N_CLIENTS, "dropped": UNEVEN}.get(self.sizes, UNEQUAL)

    @property
    def is_alike(self) -> bool:
        """Whether all training examples of a client are equal, so that it does not matter which are in a batch."""
        return self.sizes in ("steps", "dropped")

    @property
    def name(self) -> str:
        """What a line calls it."""
        parts = [f"{self.n_rounds} rounds"]
        if self.clients == "half":
            parts.append("half of the clients")
        if self.sizes != "equal":
            parts.append(SIZES[self.sizes])
        return ", ".join(parts)


SIZES = {"unequal": "unequal sizes", "steps": "unequal steps", "dropped": "last batch dropped"}
"""What a line calls the sizes of clients that are not equal."""

PLAIN = Setting()
SETTINGS = (
    PLAIN,
    *(Setting(who, sizes) for who in ("all", "half") for sizes in ("unequal", "steps")),
    Setting(sizes="dropped"),
)
"""Those that lines are kept of."""


class Case(NamedTuple):
    """A method there and here."""

    server: str  # PFLlib's class, in its file
    here: Chosen
    arguments: Mapping[str, Any] = {}  # of PFLlib's main.py
    is_parted: bool = False  # into a body and a head, as main.py does for this method
    halves: bool = False  # a batch is half of what a client has
    has_val: bool = False  # the last fifth of a client's training examples is its validation split here
    alike: bool = False  # all training examples of a client are one, so that halves of a batch are equal
    change: Callable[[Any, State], None] | None = None  # of PFLlib's server and clients, before the first round
    but: str = ""  # what that is, or what of ours is compared
    nth_test: int = 0  # of PFLlib's in a round: Ditto tests the server's model, then the clients' own
    tests_server: bool = False  # of ours, the server's model is tested, not the client's own
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext  # of both sides
    as_theirs: Callable[[np.ndarray], np.ndarray] = np.asarray  # our outputs in their unit
    n_draws: int = 1  # of PFLlib's server in a round, of which the last counts

    def batch(self, setting: Setting) -> int:
        """Examples of a batch, on both sides: all that the largest client has, or `BATCH`; halves leave none over."""
        takes_all = setting.sizes == "equal" or (setting.sizes == "unequal" and not self.halves)
        most = max(setting.examples) if takes_all else BATCH
        return most // 2 if self.halves else most


CASES: Mapping[str, Case] = {
    "Local": Case("serverlocal.Local", Chosen("standalone"), local_steps(), n_draws=2),
    "FedMTL": Case(
        "servermtl.FedMTL",
        Chosen("standalone"),
        local_steps(itk=4000),
        but="there the penalty on all models has no gradient: clients train alone",
    ),
    "FedAvg": Case("serveravg.FedAvg", Chosen("fedavg"), local_steps(), True),
    "FedProx": Case("serverprox.FedProx", Chosen("fedprox", numbers={"mu": 0.5}), local_steps(mu=0.5)),
    "SCAFFOLD": Case(
        "serverscaffold.SCAFFOLD", Chosen("scaffold", numbers={"step": 0.7}), local_steps(server_learning_rate=0.7)
    ),
    "MOON": Case(
        "servermoon.MOON", Chosen("moon", numbers={"mu": 2.0, "temperature": 0.5}), local_steps(mu=2.0, tau=0.5), True
    ),
    "FedDyn": Case(
        "serverdyn.FedDyn",
        Chosen("feddyn", numbers={"alpha": 0.5}),
        local_steps(alpha=0.5),
        change=squared_distance,
        but="its distance squared, as in the paper",
    ),
    "FedLC": Case(
        "serverlc.FedLC",
        Chosen("fedlc", numbers={"tau": TAU}),
        local_steps(tau=TAU),
        True,
        change=own_counts,
        but="margins of a client's own counts, as in the paper; those of all clients there",
    ),
    "FedNTD": Case(
        "serverntd.FedNTD",
        Chosen("fedntd", {"weighting": "uniform"}, {"beta": 0.7, "temperature": TAU}),
        local_steps(beta=0.7, tau=TAU),
    ),
    "Per-FedAvg": Case(
        "serverperavg.PerAvg",
        Chosen("perfedavg", numbers={"inner_lr": LR}, epochs=2),
        {"local_epochs": 1},
        halves=True,
        alike=True,
        but="one example a client, many times: both read a batch's two halves",
    ),
    "pFedMe": Case(
        "serverpFedMe.pFedMe",
        Chosen("pfedme", numbers={"lr": 0.02, "lam": 15.0, "personal_lr": 0.05}),
        local_steps(local_learning_rate=0.02, lamda=15.0, p_learning_rate=0.05, beta=1.0, K=5),
        change=without_decay,
        but="without the optimiser's 0.001 w; the server's model, which PFLlib's test reads of who has come",
        tests_server=True,
    ),
    "Ditto": Case(
        "serverditto.Ditto",
        Chosen("ditto", {"personal_epochs": 2}, {"lam": 0.5}),
        local_steps(mu=0.5, plocal_epochs=2),
        nth_test=1,
    ),
    "FedKD": Case(
        "serverkd.FedKD",
        Chosen(
            "fedkd",
            {"weighting": "uniform"},
            {"lr": 0.02, "mentee_lr": 0.01, "energy_start": 0.6, "energy_end": 0.9, "rise": KD_RISE, "max_norm": 10.0},
        ),
        # At 0.1 both losses nearly vanish, and what is divided by them makes 1e-7 in a first model 1e-2 in outputs.
        local_steps(local_learning_rate=0.02, mentee_learning_rate=0.01, T_start=0.6, T_end=0.9),
        True,
        change=low_rank_updates,
        but="updates by their largest singular values, there the mentees themselves; both begin with the identity "
        "between features",
    ),
    "FedAMP": Case(
        "serveramp.FedAMP",
        Chosen("fedamp", numbers={"lam": 0.5, "alpha": 1.0, "sigma": 5.0}),
        local_steps(lamda=0.5, alphaK=1.0, sigma=5.0),
        change=pull_with_a_gradient,
        but="the gradient of its pull, which is of `p.data` there",
    ),
    "FedFomo": Case(
        "serverfomo.FedFomo",
        Chosen("fedfomo", {"n_received": N_CLIENTS - 1}, {"explore": 0.0}),
        local_steps(M=N_CLIENTS),
        has_val=True,
        change=models_of_those_that_came,
        but="distances without 1e-5 added; sent models of those that take part, there of the absent too",
    ),
    "FedALA": Case(
        "serverala.FedALA",
        Chosen("fedala", numbers={"share": 1.0}),
        local_steps(eta=1.0, rand_percent=100, layer_idx=2),
        change=absent_as_they_are,
        but="fitted on all examples: which share of them is drawn; the absent keep what they had, there they fit on",
    ),
    "FedPHP": Case(
        "serverphp.FedPHP",
        Chosen("fedphp", {"transfer": "mmd_fixed"}, {"lam": 0.3, "mu": PHP_MU, "rise": PHP_RISE}),
        local_steps(lamda=0.3),
        True,
        change=inherited_models,
        but="the inherited models, which count a client's own rounds; there the trained ones are tested",
    ),
    "FedPer": Case("serverper.FedPer", Chosen("fedper"), local_steps(), True),
    "LG-FedAvg": Case("serverlg.LG_FedAvg", Chosen("lg_fedavg", {"weighting": "size"}), local_steps(), True),
    "FedRep": Case(
        "serverrep.FedRep",
        Chosen("fedrep", {"body_epochs": 2, "ft_epochs": 0}),
        {"local_epochs": 2, "plocal_epochs": 1},
        True,
    ),
    "FedRoD": Case("serverrod.FedROD", Chosen("fedrod"), local_steps(), True),
    "FedBABU": Case(
        "serverbabu.FedBABU", Chosen("fedbabu", {"ft_epochs": 0, "weighting": "size"}), local_steps(), True
    ),
    "FedCP": Case(
        "servercp.FedCP",
        Chosen("fedcp", numbers={"lam": 5.0}),
        local_steps(lamda=5.0),
        True,
        change=first_context,
        around=without_gumbel,
        but="gates without noise on both sides, the first context from the head; the absent get all parts",
    ),
    "GPFL": Case(
        "servergpfl.GPFL",
        Chosen("gpfl", {"condition": "trained"}, {"lam": 0.5, "mu": 0.1}),
        local_steps(lamda=0.5, mu=0.1),
        True,
        change=distance_of_each,
        but='`condition="trained"`, of the absent too; its distance to embeddings averaged over examples',
    ),
    "FedDBE": Case(
        "serverdbe.FedDBE",
        Chosen("feddbe", numbers={"kappa": 2.0, "rate": 0.5}),
        local_steps(kl_weight=2.0, momentum=0.5),
        True,
        change=same_consensus,
        but="our consensus",
    ),
    "FedProto": Case(
        "serverproto.FedProto",
        Chosen("fedproto", {"weighting": "uniform"}, {"lam": 2.0}),
        local_steps(lamda=2.0),
        True,
        change=prototypes_of_trained,
        but="prototypes by its `collect_protos`, all are kept",
        as_theirs=lambda less_squared: -less_squared / N_HIDDEN,  # theirs is the mean square
    ),
    "FedPAC": Case(
        "serverpac.FedPAC",
        Chosen("fedpac", {"weighting": "uniform"}, {"lam": 2.0}),
        local_steps(lamda=2.0),
        True,
        change=heads_as_received,
        around=finer_weights,
        but="weights to 1e-7 here and 1e-10 there, without those below 0.001; heads in order, as received; bodies "
        "count alike; all prototypes are kept",
    ),
    "FedCAC": Case(
        "servercac.FedCAC",
        Chosen("fedcac", numbers={"tau": 0.4, "beta": 5.0}),
        local_steps(tau=0.4, beta=5),
        change=customised_from_the_first,
        but="customised models from the first round on",
    ),
    "FedAS": Case(
        "serveras.FedAS",
        Chosen("fedas"),
        local_steps(),
        True,
        change=whole_batches,
        but="aligned in the clients' batches; those of 16 there; a last batch that is dropped counts in the trace",
    ),
    "FedCross": Case(
        "servercross.FedCross",
        Chosen("fedcross", {"n_models": N_CLIENTS}, {"alpha": 0.8}),
        local_steps(first_stage_bound=0, fedcross_alpha=0.8, collaberative_model_select_strategy=1),
        change=mean_of_models,
        around=dispatched_in_order,
        but="one cosine of whole models; a model for each client, in their order; the mean of all is tested",
    ),
    "FedGC": Case(
        "servergc.FedGC",
        Chosen("fedgc", numbers={"lam": 0.5}),
        local_steps(lamda=0.5),
        True,
        change=own_columns,
        around=own_classes_held,
        but="first heads as here; embeddings are not drawn to their own class, as there",
        as_theirs=np.negative,  # which are infinite for classes that a client lacks
    ),
    "FedGH": Case(
        "servergh.FedGH",
        Chosen("fedgh", {"server_batch": SERVER_BATCH}, {"server_lr": 0.5}),
        local_steps(server_learning_rate=0.5),
        True,
        change=head_of_its_own,
        around=means_in_order,
        but="a head of the server's own, mean features in order and in batches of 5",
    ),
    "PFL-DA": Case(
        "serverda.PFL_DA",
        Chosen("pflda", {"head_epochs": EPOCHS, "head_first": True}, {"lam": 0.5}),
        local_steps(lamda=0.5),
        True,
        change=pull_of_the_head,
        but="the squared distance, with a gradient",
    ),
}
