"""PFLlib's own code and fljax from the same models on the same examples: how far apart their clients' outputs are.

    git clone https://github.com/TsingZ0/PFLlib
    python experiments/pfllib_steps.py PFLlib
    python experiments/pfllib_steps.py PFLlib --only GPFL FedCP
    python experiments/pfllib_steps.py PFLlib --clients half --sizes unequal

Needs PyTorch; the case FedPAC cvxpy too. Clients, network and steps: same_steps.py; three rounds of three steps. With
``--clients half`` two of the four clients take part in each of five rounds; with ``--sizes unequal`` clients have 8,
16, 24 and 40 examples, with ``--sizes steps`` as many, all of a client alike, in batches of 8. A line has the largest
difference, over clients, test examples and classes, between what the two take the largest of in a test
after a round. float32 rounds to about 1e-7 of the largest output. Where the two differ by what their files say, `CASES`
sets PFLlib's code to what is here, or ours to what is there, and says so; methods that differ in more (APFL, APPLE,
FedDistill) or draw what matters (FedGen) are not here. Lines are in results/pfllib/steps-synthetic.csv.
"""

import argparse
import contextlib
import copy
import importlib
import io
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import same_steps
from outcomes import RESULTS, described, keep
from pfllib import Chosen
from pfllib_authors import Arguments, parted
from same_steps import (
    N_CLASSES,
    N_EXAMPLES,
    N_HIDDEN,
    N_TESTS,
    Outputs,
    clients,
    deployed_outputs,
    examples,
    lines,
    load,
    load_dense,
    load_network,
    pytorch,
    small_network,
    tests,
    torch_network,
)

import fljax
from fljax.rounds.averaging import shared_part
from fljax.types import Algorithm, Federation, Model, State

N_CLIENTS = 4
ROUNDS, EPOCHS, LR, TAU = 3, 3, 0.1, 2.0
UNEQUAL, BATCH = (8, 16, 24, 40), 8
HALVES = ((0, 1), (2, 3), (0, 2), (1, 3), (1, 2))
"""Who takes part in each round. Everybody is away for a round or two, and comes back."""


class Setting(NamedTuple):
    """Who takes part, and how much each client has."""

    clients: str = "all"  # or half
    sizes: str = "equal"  # or unequal, steps

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
        return (N_EXAMPLES,) * N_CLIENTS if self.sizes == "equal" else UNEQUAL

    @property
    def name(self) -> str:
        """What a line calls it."""
        told = [f"{self.n_rounds} rounds"]
        if self.clients == "half":
            told.append("half of the clients")
        if self.sizes != "equal":
            told.append({"unequal": "unequal sizes", "steps": "unequal steps"}[self.sizes])
        return ", ".join(told)


PLAIN = Setting()
SETTINGS = (PLAIN, *(Setting(who, sizes) for who in ("all", "half") for sizes in ("unequal", "steps")))
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
        whole = setting.sizes == "equal" or (setting.sizes == "unequal" and not self.halves)
        most = max(setting.examples) if whole else BATCH
        return most // 2 if self.halves else most


def local_steps(**more: Any) -> dict[str, Any]:
    """PFLlib's arguments for `EPOCHS` epochs a round."""
    return {"local_epochs": EPOCHS} | more


def absent(server: Any) -> list[Any]:
    """The clients that are not of the round."""
    return [client for client in server.clients if client not in server.selected_clients]


def without_decay(server: Any, state: State) -> None:
    """pFedMe's optimiser adds 0.001 of the personal model to its gradient; and who has never come begins at, and is
    tested with, the first model."""
    for client in server.clients:
        client.personalized_params = list(client.model.parameters())
        for group in client.optimizer.param_groups:
            group["mu"] = 0.0


def squared_distance(server: Any, state: State) -> None:
    """FedDyn's local loss has the distance to the server's model itself."""
    patched("flcore.clients.clientdyn", norm=lambda difference, p: (difference * difference).sum())


def own_counts(server: Any, state: State) -> None:
    """FedLC's margins are of all clients' counts together."""
    for client in server.clients:
        client.calibration = TAU * client.sample_per_class.clamp(min=1) ** -0.25


def distance_of_each(server: Any, state: State) -> None:
    """GPFL's loss has the norm of a whole batch; who was absent conditions by what was received; and its shared parts
    start as ours."""
    patched("flcore.clients.clientgpfl", norm=lambda difference, p: difference.norm(dim=1).mean())
    theirs = shared_part(state.server)
    for client in server.clients:
        for embeddings in (client.GCE, client.GCE_frozen):
            load(embeddings.embedding, weight=theirs["embedding"]["rows"])
        for name, part in theirs["valve"].items():
            layers = getattr(client.CoV, f"Conditional_{name}")
            load_dense(layers[0], part)
    send = server.global_GCE

    def global_gce() -> None:
        names = "generic_conditional_input", "personalized_conditional_input"
        before = [(client, {name: getattr(client, name) for name in names}) for client in absent(server)]
        send()
        for client, conditions in before:
            vars(client).update(conditions)

    server.global_GCE = global_gce


@contextlib.contextmanager
def without_gumbel() -> Iterator[None]:
    """Inside it neither side's gates draw noise."""
    import torch  # pyright: ignore[reportMissingImports]

    def expectation(scores: Any, dim: int, tau: float, hard: bool) -> Any:
        return torch.softmax(scores / tau, dim)

    def nothing(key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return jnp.zeros(shape, dtype)

    with (
        mock.patch.object(torch.nn.functional, "gumbel_softmax", expectation),
        mock.patch.object(jax.random, "gumbel", nothing),
    ):
        yield


@contextlib.contextmanager
def finer_weights() -> Iterator[None]:
    """Inside it FedPAC's combinations of heads are found to 1e-7 of their values, not to 1e-5, and weights of less than
    0.001 are left out, as there."""
    module = importlib.import_module("fljax.algorithms.fedpac")
    weights = partial(module.simplex_weights, tolerance=1e-7)

    def found(*of: jax.Array) -> jax.Array:
        alpha = weights(*of)
        return jnp.where(alpha > 1e-3, alpha, 0)

    with mock.patch.object(module, "simplex_weights", found):
        yield


def first_context(server: Any, state: State) -> None:
    """FedCP's first context is random; the absent are sent bodies alone; and its policy starts as ours."""
    for client in server.clients:
        load_dense(client.model.gate.cs.fc[0], shared_part(state.server)["policy"])
        client.set_head_g(client.model.head_g)
    to_those_that_came = server.global_cs

    def global_cs() -> None:
        to_those_that_came()
        for client in absent(server):
            client.set_head_g(server.head)
            client.set_cs(server.cs)

    server.global_cs = global_cs


def absent_as_they_are(server: Any, state: State) -> None:
    """FedALA's absent clients fit, and keep, a mixture in every round, which they are then tested with."""
    send, evaluate, before = server.send_models, server.evaluate, []

    def send_models() -> None:
        before[:] = [
            (
                client,
                copy.deepcopy(client.model.state_dict()),
                copy.deepcopy(client.ALA.weights),
                client.ALA.start_phase,
            )
            for client in absent(server)
        ]
        send()

    def evaluate_and_go_back() -> None:
        evaluate()
        for client, model, client.ALA.weights, client.ALA.start_phase in before:
            client.model.load_state_dict(model)

    server.send_models, server.evaluate = send_models, evaluate_and_go_back


def models_of_those_that_came(server: Any, state: State) -> None:
    """FedFomo's clients are sent models of the absent too; 1e-5 is added to its distances; and its own loader drops the
    last batch."""
    from flcore.clients import clientfomo  # pyright: ignore[reportMissingImports]

    clientfomo.DataLoader = in_order
    patched("flcore.clients.clientfomo", norm=lambda difference: difference.norm().clamp(min=2e-5) - 1e-5)
    server.send_models = lambda: [
        client.receive_models(ids, [server.client_models[i] for i in ids])
        for ids in [[client.id for client in server.selected_clients] if server.uploaded_ids else []]
        for client in server.selected_clients
    ]


def pull_with_a_gradient(server: Any, state: State) -> None:
    """FedAMP's pull has no gradient; and its mixtures are of the models of the round before."""
    send = server.send_models

    def send_models() -> None:
        if server.uploaded_ids:
            server.uploaded_ids = [client.id for client in server.selected_clients]
            server.uploaded_models = [client.model for client in server.selected_clients]
        send()

    server.send_models = send_models
    for client in server.clients:

        def step(client: Any = client, step: Callable[[], None] = client.optimizer.step) -> None:
            for w, u in zip(client.model.parameters(), client.client_u.parameters(), strict=True):
                w.grad += client.lamda / client.alphaK * (w.data - u.data)
            step()

        client.optimizer.step = step


def remember_prototypes(server: Any) -> None:
    """PFLlib forgets the prototype of a class that nobody shows in a round."""
    known, send = {}, server.send_protos

    def send_protos() -> None:
        known.update(server.global_protos)
        server.global_protos.update(known)
        send()

    server.send_protos = send_protos


def prototypes_of_trained(server: Any, state: State) -> None:
    """FedProto's prototypes are added up while a client trains; its own function for those of the trained model."""
    remember_prototypes(server)
    for client in server.clients:

        def train(client: Any = client, train: Callable[[], None] = client.train) -> None:
            train()
            client.collect_protos()

        client.train = train


def same_consensus(server: Any, state: State) -> None:
    """FedDBE's consensus is of running means."""
    import torch  # pyright: ignore[reportMissingImports]

    for client in server.clients:
        client.global_mean = torch.tensor(np.array(shared_part(state.server)["consensus"]))


def heads_as_received(server: Any, state: State) -> None:
    """FedPAC's weights are in another order than its heads; it combines heads that it has combined before; and bodies
    count by size, where prototypes do not."""
    remember_prototypes(server)
    receive = server.receive_models

    def receive_models() -> None:
        receive()
        heads = dict(zip(server.uploaded_ids, copy.deepcopy(server.uploaded_heads), strict=True))
        server.uploaded_ids = sorted(heads)
        server.uploaded_weights = [1 / len(heads)] * len(heads)
        server.uploaded_heads = [heads[i] for i in server.uploaded_ids]

    server.receive_models = receive_models


def customised_from_the_first(server: Any, state: State) -> None:
    """FedCAC's customised models begin after the second round; the first's are the clients' first models."""
    send = server.send_models

    def send_models() -> None:
        if server.epoch == 0 and server.clients[0].critical_parameter is not None:
            server.get_customized_global_models()
        send()

    server.send_models = send_models


def whole_batches(server: Any, state: State) -> None:
    """FedAS aligns in batches of 16; and it ends by measuring something that PFLlib lacks."""
    server.avg_generalization_metrics = lambda: None
    for client in server.clients:

        def load(batch_size: int | None = None, load: Callable[[], Any] = client.load_train_data) -> Any:
            return load()

        client.load_train_data = load


CASES: Mapping[str, Case] = {
    "Local": Case("serverlocal.Local", Chosen("standalone"), local_steps(), n_draws=2),
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
        but="our weights to 1e-7, without those below 0.001; heads in order, as received; bodies count alike; all "
        "prototypes are kept",
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
        but="aligned in the clients' batches; those of 16 there",
    ),
}


def ours(case: Case, model: Model, federation: Federation, setting: Setting = PLAIN) -> tuple[State, list[Outputs]]:
    """The first state, and outputs after 0, 1, ... rounds."""
    method, epochs = getattr(fljax, case.here.name), case.here.epochs if case.here.epochs > 1 else EPOCHS
    federation = with_val(federation) if case.has_val else federation
    hyper = method.Hyper(**{"lr": LR, **case.here.numbers})
    algorithm = method(model, fljax.Work(epochs, case.batch(setting)), **case.here.choices)

    def of_server(algorithm: Algorithm, hyper: Any, state: State, federation: Federation) -> Outputs:
        theta = shared_part(state.server)
        return np.stack([model.apply(theta, jnp.asarray(x), None)[0] for x in tests(federation)])

    outputs = of_server if case.tests_server else deployed_outputs
    who = fljax.rounds.table(setting.joined[:-1])
    begun, _, found = same_steps.ours(algorithm, hyper, federation, setting.n_rounds, outputs, who)
    return begun, found


def with_val(federation: Federation) -> Federation:
    """The last fifth of each client's training examples is its validation split."""
    train = federation.train
    n_val = train.size // 5
    places = train.index.shape[1]
    last = jnp.minimum((train.size - n_val)[:, None] + jnp.arange(places)[None], places - 1)
    val = train._replace(index=jnp.take_along_axis(train.index, last, axis=1), size=n_val)
    return federation._replace(train=train._replace(size=train.size - n_val), val=val)


class Tests(list[Any]):
    """A client's test examples."""


def theirs(
    case: Case, begun: State, first: Mapping[str, Any], federation: Federation, setting: Setting = PLAIN
) -> list[Outputs]:
    """PFLlib's outputs after 0, 1, ... rounds: it tests at the beginning of each."""
    import torch  # pyright: ignore[reportMissingImports]
    from flcore.clients import clientbase  # pyright: ignore[reportMissingImports]

    def read(dataset: str, client: int, is_train: bool = True, few_shot: int = 0) -> list[Any]:
        x, y = examples(federation, client, is_train)
        return (list if is_train else Tests)(zip(torch.tensor(x), torch.tensor(y).long(), strict=True))

    file, name = case.server.split(".")
    module = importlib.import_module(f"flcore.servers.{file}")
    for loaded in list(sys.modules.values()):
        if loaded.__name__.startswith(("flcore", "utils")) and hasattr(loaded, "read_client_data"):
            loaded.read_client_data = read
    from flcore.trainmodel.models import BaseHeadSplit  # pyright: ignore[reportMissingImports]

    network = load_network(torch_network()(), first)
    standing = {
        "model": parted(network, BaseHeadSplit) if case.is_parted else network,
        "dataset": "synthetic",
        "device": "cpu",
        "num_classes": N_CLASSES,
        "num_clients": N_CLIENTS,
        "join_ratio": len(setting.joined[0]) / N_CLIENTS,
        "global_rounds": setting.n_rounds,
        "batch_size": case.batch(setting),
        "local_learning_rate": LR,
        "learning_rate_decay_gamma": 1.0,
        "eval_gap": 1,
        "time_threthold": float("inf"),
    }
    arguments = Arguments(**standing | dict(case.arguments))
    if case.is_parted:
        arguments.head = arguments.model.head
    found: list[list[np.ndarray]] = []

    def noted(of: Callable[..., Any], outputs: Any, *options: Any, **more: Any) -> Any:
        if found and len(outputs) == N_TESTS:  # no batch of training examples is as large
            found[-1].append(outputs.detach().numpy().copy())
        return of(outputs, *options, **more)

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(warnings.catch_warnings(action="ignore"))  # of PFLlib's calls
        for function in ("argmax", "argmin"):
            spy = partial(noted, getattr(torch, function))
            stack.enter_context(mock.patch.object(torch, function, spy))
        stack.enter_context(mock.patch.object(clientbase, "DataLoader", in_order))
        server = getattr(module, name)(arguments, 0)
        server.save_results = server.save_global_model = lambda: None
        if case.change:
            case.change(server, begun)
        joined = iter([row for row in setting.joined for _ in range(case.n_draws)])

        def begin_round() -> Any:
            found.append([])
            return [server.clients[i] for i in next(joined)]

        server.select_clients = begin_round
        server.train()
    begin = case.nth_test * N_CLIENTS
    return [np.stack(each[begin : begin + N_CLIENTS]) for each in found if each]


def last_as_infinite(here: Outputs, there: Outputs) -> Outputs:
    """Ours, infinite where theirs are and ours come after all others: classes without a prototype."""
    last = np.where(np.isposinf(there), -np.inf, here).max(-1, keepdims=True)
    return np.where(np.isposinf(there) & (here > last), np.inf, here)


def in_order(data: Any, batch_size: int, **_: Any) -> Any:
    """PyTorch's loader without its shuffling, which hides whose an output is; a test is one batch."""
    from torch.utils.data import DataLoader  # pyright: ignore[reportMissingImports]

    return DataLoader(data, len(data) if isinstance(data, Tests) else batch_size)


def patched(module: str, **functions: Any) -> None:
    """Puts functions in the place of PyTorch's in one module of PFLlib."""
    own = ModuleType("torch")
    own.__dict__.update(sys.modules["torch"].__dict__ | functions)
    sys.modules[module].torch = own  # pyright: ignore[reportAttributeAccessIssue]


def main() -> None:
    """Runs every case on both sides and keeps how far apart they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a clone of PFLlib")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="METHOD")
    parser.add_argument("--clients", choices=("all", "half"), default="all", help="who takes part in a round")
    parser.add_argument("--sizes", choices=("equal", "unequal", "steps"), default="equal", help="of the clients")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    setting = Setting(options.clients, options.sizes)
    system = options.checkout.resolve() / "system"
    if not (system / "flcore" / "servers" / "serverbase.py").exists():
        parser.error(f"{options.checkout} is no clone of PFLlib: it has no system/flcore/servers/serverbase.py")
    sys.path.insert(0, str(system))
    sys.modules.setdefault("h5py", ModuleType("h5py"))  # servers would save results with it
    torch = pytorch(parser)
    model = small_network()
    first = model.init(jax.random.key(0))
    model = model._replace(init=lambda key: first)
    for name in options.only:
        case, began = CASES[name], time.perf_counter()
        federation = clients(N_CLIENTS, alike=case.alike or setting.sizes == "steps", sizes=setting.examples)
        with case.around():
            begun, mine = ours(case, model, federation, setting)
            yours = theirs(case, begun, first, federation, setting)
        n_rounds = setting.n_rounds
        pairs = zip(mine[-n_rounds:], yours[-n_rounds:], strict=True)
        as_theirs = [last_as_infinite(case.as_theirs(here), there) for here, there in pairs]
        told = described(True, n_rounds, n_rounds, steps=EPOCHS, torch=torch.__version__, but=case.but or "nothing")
        found = lines(name, setting.name, as_theirs, yours, n_rounds, time.perf_counter() - began, told)
        keep(options.results, "PFLlib", "steps", "synthetic", found)
        print(f"{name:10} " + ", ".join(f"{line.metric} {line.value:.1e}" for line in found), flush=True)


if __name__ == "__main__":
    main()
