"""What makes PFLlib's code and fljax alike where their files say that they differ, method by method.

A change is of PFLlib's server and clients before the first round, or, as a context, of both sides while they run.
"""

import contextlib
import copy
import importlib
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial, partialmethod
from types import ModuleType
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from same_steps import load, load_dense

from fljax.rounds.averaging import shared_part
from fljax.types import State

EPOCHS, TAU, SERVER_BATCH = 3, 2.0, 5
PHP_MU, PHP_RISE, KD_RISE = 0.8, 4.0, 4.0


class Tests(list[Any]):
    """A client's test examples."""


def in_order(data: Any, batch_size: int, drop_last: bool = False, *, may_drop: bool = False, **_: Any) -> Any:
    """PyTorch's loader without its shuffling, which hides whose an output is; a test is one batch.

    Unless it ``may_drop`` the last batch, as PFLlib wants it to, it keeps all.
    """
    from torch.utils.data import DataLoader

    return DataLoader(data, len(data) if isinstance(data, Tests) else batch_size, drop_last=may_drop and drop_last)


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
    """FedLC's margins are of all clients' counts together, and of examples in whole batches."""
    import torch
    from flcore.clients import clientbase  # pyrefly: ignore[missing-import]

    for client in server.clients:
        labels = torch.stack([y for _, y in clientbase.read_client_data(client.dataset, client.id, is_train=True)])
        counts = torch.bincount(labels, minlength=client.num_classes)
        client.calibration = TAU * counts.clamp(min=1) ** -0.25


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
        conditions_before = [(client, {name: getattr(client, name) for name in names}) for client in absent(server)]
        send()
        for client, conditions in conditions_before:
            vars(client).update(conditions)

    server.global_GCE = global_gce


@contextlib.contextmanager
def without_gumbel() -> Iterator[None]:
    """Inside it neither side's gates draw noise."""
    import torch

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
    0.001 are left out, as there. There, OSQP goes on to 1e-10: at its own tolerance of 1e-5 it stops after a number of
    steps that depends on the clock, and the outputs of two runs are up to 7e-5 apart."""
    module = importlib.import_module("fljax.algorithms.fedpac")
    weights = partial(module.simplex_weights, tolerance=1e-7)

    def found(*arguments: jax.Array) -> jax.Array:
        alpha = weights(*arguments)
        return jnp.where(alpha > 1e-3, alpha, 0)

    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(module, "simplex_weights", found))
        if importlib.util.find_spec("cvxpy"):  # without it only ours runs
            problem = importlib.import_module("cvxpy").Problem
            solve = partialmethod(problem.solve, solver="OSQP", eps_abs=1e-10, eps_rel=1e-10, max_iter=1_000_000)
            patches.enter_context(mock.patch.object(problem, "solve", solve))
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
    send, evaluate, saved = server.send_models, server.evaluate, []

    def send_models() -> None:
        saved[:] = [
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
        for client, model, client.ALA.weights, client.ALA.start_phase in saved:
            client.model.load_state_dict(model)

    server.send_models, server.evaluate = send_models, evaluate_and_go_back


def models_of_those_that_came(server: Any, state: State) -> None:
    """FedFomo's clients are sent models of the absent too; 1e-5 is added to its distances; and it has a loader of its
    own."""
    from flcore.clients import clientbase, clientfomo  # pyrefly: ignore[missing-import]

    clientfomo.DataLoader = clientbase.DataLoader
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


def inherited_models(server: Any, state: State) -> None:
    """FedPHP's running mean counts rounds, also those that a client misses; and its test, in the middle of a round, is
    of the trained models."""
    send, evaluate = server.send_models, server.evaluate
    server.evaluate = lambda: None

    def exchange_models() -> None:
        for client in server.clients:
            client.model, client.model_p = client.model_p, client.model

    def send_models(round: int) -> None:
        exchange_models()
        evaluate()
        exchange_models()
        send(round)
        for client in server.selected_clients:
            client.round = client.participations
            client.participations += 1

    server.send_models = send_models
    for client in server.clients:
        client.participations, client.mu = 0, PHP_MU / PHP_RISE


def low_rank_updates(server: Any, state: State) -> None:
    """FedKD's clients send their mentees by the largest singular values, and the server the mean of these, not of their
    updates; its matrix between features starts at random; and its share of the energy rises over all rounds."""
    import torch

    server.T_end = server.T_start + (server.T_end - server.T_start) * server.global_rounds / KD_RISE
    for client in server.clients:
        load(client.W_h, weight=np.eye(client.feature_dim))
        mentee = list(client.global_model.parameters())
        received = [w.data.clone() for w in mentee]

        def decomposition(
            mentee: Any = mentee, received: Any = received, decompose: Callable[[], None] = client.decomposition
        ) -> None:
            with torch.no_grad():
                for w, before in zip(mentee, received, strict=True):
                    w -= before
            decompose()

        def set_parameters(
            update: Any,
            energy: float,
            mentee: Any = mentee,
            received: Any = received,
            put: Callable[[Any, float], None] = client.set_parameters,
        ) -> None:
            put(update, energy)
            if update:
                received[:] = [before + w.data for w, before in zip(mentee, received, strict=True)]
                for w, new in zip(mentee, received, strict=True):
                    w.data = new.clone()

        client.decomposition, client.set_parameters = decomposition, set_parameters


def remember_prototypes(server: Any) -> None:
    """PFLlib forgets the prototype of a class that nobody shows in a round."""
    last_prototypes, send = {}, server.send_protos

    def send_protos() -> None:
        last_prototypes.update(server.global_protos)
        server.global_protos.update(last_prototypes)
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
    import torch

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
    """FedAS aligns in batches of 16; its trace leaves out a last batch that training does; and it ends by measuring
    something that PFLlib lacks."""
    server.avg_generalization_metrics = lambda: None
    for client in server.clients:

        def train(is_selected: bool, client: Any = client, train: Callable[[bool], None] = client.train) -> None:
            client.n_loaded = 0
            train(is_selected)

        def load(
            batch_size: int | None = None, client: Any = client, load: Callable[[], Any] = client.load_train_data
        ) -> Any:
            client.n_loaded = getattr(client, "n_loaded", 0) + (batch_size is None)
            is_for_trace = batch_size is None and client.n_loaded == 2  # the first is for training
            return in_order(load().dataset, client.batch_size) if is_for_trace else load()

        client.train, client.load_train_data = train, load


def mean_of_models(server: Any, state: State) -> None:
    """FedCross's similarity is a sum of cosines over growing parts of the models; its clients are tested with what they
    trained last; it has as many models as a round has participants; and the number of its last participant stands for
    the round's."""
    import torch

    server.w_locals_num = len(server.clients)
    server.w_locals = [copy.deepcopy(server.global_model) for _ in server.clients]

    def calculate_similarity() -> tuple[Any, float]:
        vectors = torch.stack([torch.cat([p.data.view(-1) for p in w.parameters()]) for w in server.w_locals])
        unit = vectors / vectors.norm(dim=1, keepdim=True)
        return (unit @ unit.T).fill_diagonal_(0).tolist(), 0.0

    def evaluate(evaluate: Callable[[], None] = server.evaluate) -> None:
        mean = server.aggregate_parameters_cross(server.w_locals, [1.0] * len(server.w_locals))
        for client in server.clients:
            client.set_parameters(mean)
        evaluate()

    rounds, aggregate = itertools.count(), server.cross_aggregation
    server.cross_aggregation = lambda _, similarity: aggregate(next(rounds), similarity)
    server.calculate_similarity, server.evaluate = calculate_similarity, evaluate


@contextlib.contextmanager
def dispatched_in_order() -> Iterator[None]:
    """Inside it FedCross's first participant trains the first model, and so on."""
    module = importlib.import_module("fljax.algorithms.fedcross")
    with mock.patch.object(module, "dispatched", lambda cohort, n: jnp.arange(len(cohort.ids), dtype=jnp.int32) % n):
        yield


def own_columns(server: Any, state: State) -> None:
    """FedGC's heads start from PyTorch's draws, here from the columns of ours; and its tests have no outputs for the
    classes that a client lacks, which here come last."""
    import torch

    kernels = np.asarray(state.server["heads"]["fc2"]["kernel"])
    for client, head_of_server in zip(server.clients, server.client_heads, strict=True):
        for head in (client.model.head, head_of_server):
            load(head, weight=kernels[client.id][:, client.classes_index.numpy()].T)

        def test_metrics(client: Any = client) -> tuple[int, int, float]:
            with torch.no_grad():
                own = client.model(torch.stack([x for x, _ in client.load_test_data().dataset]))
            outputs = torch.full((len(own), server.num_classes), float("inf"))
            outputs[:, client.classes_index] = -own
            torch.argmin(outputs, dim=1)
            return 0, 1, 0.0

        client.test_metrics = test_metrics


@contextlib.contextmanager
def own_classes_held() -> Iterator[None]:
    """Inside it FedGC's correction does not draw embeddings to their own class, whose product is that of its mean."""
    module = importlib.import_module("fljax.algorithms.fedgc")
    squares = lambda heads, e: jnp.broadcast_to(jnp.square(e).sum(0), heads[:, 0].shape)  # noqa: E731
    with mock.patch.object(module, "own_products", squares):
        yield


def head_of_its_own(server: Any, state: State) -> None:
    """FedGH's server trains the first client's head, which that client trains too; and its batches are shuffled."""
    import torch
    from flcore.servers import servergh  # pyrefly: ignore[missing-import]

    servergh.DataLoader = in_order
    server.batch_size, server.head = SERVER_BATCH, copy.deepcopy(server.head)
    server.opt_h = torch.optim.SGD(server.head.parameters(), lr=server.server_learning_rate)
    for client in server.clients:

        def collect(client: Any = client, collect: Callable[[], None] = client.collect_protos) -> None:
            collect()
            client.protos = dict(sorted(client.protos.items()))

        client.collect_protos = collect


@contextlib.contextmanager
def means_in_order() -> Iterator[None]:
    """Inside it FedGH's server takes the mean features client by client, and class by class."""
    module = importlib.import_module("fljax.algorithms.fedgh")
    with mock.patch.object(module, "uniforms", lambda keys, n: jnp.zeros((len(keys), n), jnp.float32)):
        yield


def pull_of_the_head(server: Any, state: State) -> None:
    """PFL-DA's penalty is of `p.data`, and a distance, not its square."""
    for client in server.clients:

        def step(client: Any = client, step: Callable[[], None] = client.optimizer.step) -> None:
            for own, shared in zip(client.model.head.parameters(), client.global_head.parameters(), strict=True):
                if own.grad is not None:  # while the own head is trained
                    own.grad += client.lamda * (own.data - shared.data)
            step()

        client.optimizer.step = step


def patched(module: str, **functions: Any) -> None:
    """Puts functions in the place of PyTorch's in one module of PFLlib."""
    stand_in = ModuleType("torch")
    stand_in.__dict__.update(sys.modules["torch"].__dict__ | functions)
    sys.modules[module].torch = stand_in  # pyrefly: ignore[missing-attribute]
