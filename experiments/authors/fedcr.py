"""FedCR by its authors' scripts (Zhang et al., ICML 2023), and other methods that they have.

The networks are theirs as well: dense ones of 784 inputs and ten classes.
"""

import contextlib
import copy
import itertools
import random
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from same_steps import Outputs, clients, examples, load_dense, torch_outputs, uneven

import fljax
from authors.case import Case, modules_of
from fljax import tree
from fljax.models import mlp, variational
from fljax.types import ClientData, Federation, Model, State

ROUNDS, EPOCHS, LAST_EPOCHS, LR, DECAY, LATENT, CLASSES = 3, 3, 4, 0.05, 0.9, 4, 10
DRAWS, BETA, BLEND, MAX_NORM = 3, 0.05, 0.7, 1.0
CMI, L2R, LAM = 0.05, 0.1, 0.5
INPUTS, WIDTH, N_CLIENTS = 28 * 28, 1024, 4
STUBS = ("matplotlib", "torchvision", "torchvision.models", "torchvision.transforms")


class Run(NamedTuple):
    """One of its scripts, and options of it."""

    script: str
    training: str  # the module of its clients and server
    network: Callable[[Callable[[str], ModuleType], Any], Any]  # (modules, options) -> their network
    options: Mapping[str, Any]
    changed: Callable[[type], type] = lambda client: client  # their client, where it is set to what is here
    held: Callable[[Any], Any] = lambda client: client.model
    outputs: Callable[[Any], Callable[[Any], Any]] = lambda model: model  # what a test reads of a model
    max_norm: float = float("inf")


def theirs(run: Run, clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """What the rounds leave: models of the server with the clients' own parts, as the next round begins."""
    return outcomes(run, clone, first_state, federation, ROUNDS)[:-1]


def theirs_at_last(run: Run, clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """As their clients are tested at the end: the script has one more round of all, where own layers are trained."""
    return [outcomes(run, clone, first_state, federation, n)[-1] for n in range(1, ROUNDS + 1)]


def outcomes(run: Run, clone: Path, first_state: State, federation: Federation, n_rounds: int) -> list[Outputs]:
    """After 1, 2 ... rounds and the last of all; runs the script from the choice of shared layers on."""
    with repository(clone) as module:
        args = options(module, n_rounds, run.options)
        training, outputs = module(f"models.{run.training}"), []
        training.max_norm = run.max_norm

        class Server(training.Server):
            def aggregate_weight_updates(self, clients: list[Any], iter: int, aggregation: str = "mean") -> None:
                super().aggregate_weight_updates(clients, iter, aggregation)
                participants = [copy.deepcopy(client) for client in sorted(clients, key=lambda client: client.id)]
                for client in participants if iter < n_rounds else ():
                    client.synchronize_with_server(self, names["w_glob_keys"])
                outputs.append(torch_outputs([run.outputs(run.held(client)) for client in participants], federation))

        network = run.network(module, args)
        for name, layer in first_model(first_state).items():
            load_dense(getattr(network, name), layer)
        names: dict[str, Any] = {"copy": copy, "itertools": itertools, "np": np, "random": random}
        names |= {"args": args, "data_obj": data_of(federation), "net_glob": network, "Model_CMI": type(network)}
        names |= {"Client": run.changed(training.Client), "Server": Server}
        names["get_logger"] = lambda path: SimpleNamespace(info=lambda line: None)
        exec(part_of_rounds(clone, run.script), names)
    return outputs


@contextlib.contextmanager
def repository(clone: Path) -> Iterator[Callable[[str], ModuleType]]:
    """Its modules, which clip gradients by the norm itself; Python's checks of certificates stay what they are."""
    from torch.nn import utils

    def clip(parameters: Iterable[Any], max_norm: float) -> None:
        # PyTorch adds up 1.9 million squares in float32, and 1e-6 to the norm
        parameters = list(parameters)
        norm = utils.get_total_norm([each.grad.double() for each in parameters if each.grad is not None])
        utils.clip_grads_with_norm_(parameters, max_norm, norm - 1e-6)

    name = "_create_default_https_context"
    with (
        modules_of(clone / "code_FedCR", *STUBS) as module,
        mock.patch.object(ssl, name, getattr(ssl, name)),
        mock.patch.object(utils, "clip_grad_norm_", clip),
    ):
        yield module


def part_of_rounds(clone: Path, script: str) -> str:
    """The part of a script from the choice of shared layers to its end."""
    code = (clone / "code_FedCR" / script).read_text()
    return "if True:\n" + code[code.index("    total_num_layers = ") :]


def options(module: Callable[[str], ModuleType], n_rounds: int, overrides: Mapping[str, Any]) -> Any:
    """The options of the command line, as their parser reads them."""
    defaults = {"dataset": "EMNIST", "epochs": n_rounds, "frac": 1.0, "local_ep": EPOCHS, "last_local_ep": LAST_EPOCHS}
    defaults |= {"local_bs": 1000, "lr": LR, "lr_decay": DECAY, "dimZ": LATENT, "num_users": N_CLIENTS}
    command_line = [f"--{name}={value}" for name, value in (defaults | dict(overrides)).items()]
    with mock.patch("sys.argv", ["main", *command_line]):
        args = module("utils.options").args_parser()
    args.device = "cpu"
    return args


def data_of(federation: Federation) -> SimpleNamespace:
    """The clients' examples, in the place of their data sets."""
    everyone = range(federation.train.n_clients)
    train, test = ([examples(federation, i, is_train) for i in everyone] for is_train in (True, False))
    data = SimpleNamespace(n_cls=CLASSES, dataset="EMNIST")
    data.clnt_x, data.clnt_y = zip(*train, strict=True)
    data.tst_x, data.tst_y = zip(*test, strict=True)
    return data


def first_model(first_state: State) -> dict[str, Any]:
    """All layers: the clients have some and the server the others, or one of them has all."""
    layers = {**tree.take(first_state.clients, 0), **getattr(first_state.server, "base", first_state.server)}
    return {name: layer for name, layer in layers.items() if name.startswith("fc")}


def wide_clients() -> Federation:
    """Clients of 24, 21 ... examples, whose features are repeated until there are as many as the networks take."""
    federation = clients(N_CLIENTS, n_groups=2)

    def wide(data: ClientData) -> ClientData:
        x = np.tile(np.asarray(data.pool.x), (1, INPUTS))[:, :INPUTS]
        return data._replace(pool=data.pool._replace(x=jnp.asarray(x)))

    return uneven(federation._replace(train=wide(federation.train), test=wide(federation.test)))


def dense() -> Model:
    """`their_dense` here."""
    return mlp((INPUTS,), (WIDTH, WIDTH), CLASSES, init="pytorch")


def gaussian() -> Model:
    """`their_gaussian` here."""
    return variational((INPUTS,), CLASSES, LATENT, (WIDTH, WIDTH), (), init="pytorch")


def their_dense(module: Callable[[str], ModuleType], args: Any) -> Any:
    """Their network."""
    return module("models.Nets").client_model("emnist_NN")


def their_gaussian(module: Callable[[str], ModuleType], args: Any, file: str, name: str) -> Any:
    """Their network with a Gaussian, which draws our noise; FedSR's has each example's length of z."""
    import torch

    networks, stand_in = module(f"models.{file}"), ModuleType("torch")
    stand_in.__dict__.update(vars(torch) | {"norm": lambda z: z.norm(dim=-1).sum(dim=-1).mean()})
    networks.torch = stand_in
    network = getattr(networks, name)
    network.gaussian_noise = lambda self, num_samples, K: torch.tensor(noise(num_samples[0], K))[:, None]
    return network(args, args.dimZ, args.alpha, args.dataset)


def of_mean(model: Any) -> Callable[[Any], Any]:
    """The logits of the Gaussian's mean."""
    return lambda x: model.fc4(model(x)[0][0])


def noise(n_draws: int, latent: int) -> np.ndarray:
    """What is drawn: the same for all examples, since their order in a batch is not the same on both sides."""
    return np.random.default_rng(1).normal(size=(n_draws, latent)).astype(np.float32)


@contextlib.contextmanager
def same_noise() -> Iterator[None]:
    """Inside it, we draw `noise`."""

    def drawn(key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        n_draws = shape[0] if len(shape) == 3 else 1  # (draws, examples, latent) or (examples, latent)
        return jnp.broadcast_to(noise(n_draws, shape[-1])[:, None], (n_draws, *shape[-2:])).reshape(shape)

    with mock.patch.object(jax.random, "normal", drawn):
        yield


def of_trained_body(client: Any) -> Any:
    """FedCR's client, whose class Gaussians are those of its body before the last epoch's steps.

    One more epoch with learning rate 0 has it gather those of the trained body.
    """

    class Client(client):
        def train_cnn(self, w_glob_keys: Any, server: Any, last: bool) -> float:
            loss = super().train_cnn(w_glob_keys, server, last)
            with mock.patch.dict(vars(self.args), {"lr": 0.0, "local_ep": 1, "last_local_ep": 1}):
                super().train_cnn(w_glob_keys, server, last)
            return loss

    return Client


def that_gets_the_model(client: Any) -> Any:
    """FedSR's client, which names the server's parameters its own, but goes on with its model: nothing is exchanged.

    Here it gets them as clients of other methods do. The last round's loss is the cross-entropy alone.
    """

    class Client(client):
        def synchronize_with_server(self, server: Any, w_glob_keys: Any) -> None:
            with mock.patch.dict(vars(self.args), {"method": "another"}):
                super().synchronize_with_server(server, list(self.W))

        def train_cnn(self, w_glob_keys: Any, server: Any, last: bool) -> float:
            with mock.patch.dict(vars(self.args), {"CMI": 0.0, "L2R": 0.0} if last else {}):
                return super().train_cnn(w_glob_keys, server, last)

    return Client


FEDCR = Run(
    "main_fed.py",
    "distributed_training_utils",
    partial(their_gaussian, file="Nets_VIB", name="client_model_VIB"),
    {"method": "FedCR", "beta": BETA, "beta2": BLEND, "num_avg_train": DRAWS},
    of_trained_body,
    outputs=of_mean,
    max_norm=MAX_NORM,
)
FEDSR = Run(
    "main_fedSR.py",
    "distributed_training_utilsSR",
    partial(their_gaussian, file="NetsSR", name="Model_CMI"),
    {"method": "fedSR", "CMI": CMI, "L2R": L2R, "num_avg_train": 1},
    that_gets_the_model,
    outputs=of_mean,
)
DITTO = Run(
    "main_fed_ditto.py",
    "distributed_training_utils_ditto",
    their_dense,
    {"method": "ditto", "mu": LAM},
    held=lambda client: client.model_local,
)


def at_last(run: Run) -> Run:
    """For `theirs_at_last`: our clients fine-tune with the first learning rate, and a draw a step."""
    return run._replace(options={**run.options, "lr_decay": 1.0, "num_avg_train": 1})


def shared(method: str) -> Run:
    """A method of the first script that shares some layers."""
    return Run("main_fed.py", "distributed_training_utils", their_dense, {"method": method})


WORK = fljax.Work(EPOCHS, 1000)
REPOSITORY, FOLDER, CLIPPED = "haozzh/FedCR@e5f0baa", "code_FedCR", "gradients are not clipped, at 10 there"
OF_TRAINED = "class Gaussians of the trained body, those before a step there; one noise for all examples on both sides"
SENT = "clients get the server's model, there they go on with their own; the length of each z, there a batch's norm"

CASES = {
    "FedCR": Case(
        REPOSITORY,
        f"{FOLDER}/main_fed.py",
        lambda _: fljax.fedcr(gaussian(), WORK, n_draws=DRAWS, ft_epochs=0),
        fljax.fedcr.Hyper(lr=LR, lr_decay=DECAY, beta=BETA, blend=BLEND, max_norm=MAX_NORM),
        partial(theirs, FEDCR),
        wide_clients,
        ROUNDS,
        OF_TRAINED,
        same_noise,
    ),
    "FedCR-FT": Case(
        REPOSITORY,
        f"{FOLDER}/main_fed.py",
        lambda _: fljax.fedcr(gaussian(), WORK, n_draws=1, ft_epochs=LAST_EPOCHS),
        fljax.fedcr.Hyper(lr=LR, beta=BETA, blend=BLEND, max_norm=MAX_NORM),
        partial(theirs_at_last, at_last(FEDCR)),
        wide_clients,
        ROUNDS,
        OF_TRAINED + "; one draw, as here before a test, as many as in the rounds there",
        same_noise,
    ),
    "FedSR": Case(
        REPOSITORY,
        f"{FOLDER}/main_fedSR.py",
        lambda _: fljax.fedsr(gaussian(), WORK, weighting="uniform"),
        fljax.fedsr.Hyper(lr=LR, lr_decay=DECAY, l2r=L2R, cmi=CMI),
        partial(theirs, FEDSR),
        wide_clients,
        ROUNDS,
        f"{SENT}; {CLIPPED}; one noise for all examples on both sides",
        same_noise,
    ),
    "FedSR-FT": Case(
        REPOSITORY,
        f"{FOLDER}/main_fedSR.py",
        lambda _: fljax.fedsr_ft(gaussian(), WORK, ft_epochs=LAST_EPOCHS, n_tuned=2, weighting="uniform"),
        fljax.fedsr_ft.Hyper(lr=LR, l2r=L2R, cmi=CMI),
        partial(theirs_at_last, at_last(FEDSR)),
        wide_clients,
        ROUNDS,
        f"{SENT}; {CLIPPED}; the last two layers by the cross-entropy alone, by all of the loss there; one noise "
        "for all examples on both sides",
        same_noise,
    ),
    "Ditto": Case(
        REPOSITORY,
        f"{FOLDER}/main_fed_ditto.py",
        lambda _: fljax.ditto(dense(), WORK, weighting="uniform"),
        fljax.ditto.Hyper(lr=LR, lr_decay=DECAY, lam=LAM),
        partial(theirs, DITTO),
        wide_clients,
        ROUNDS,
        CLIPPED,
    ),
    "LG-FedAvg": Case(
        REPOSITORY,
        f"{FOLDER}/main_fed.py",
        lambda _: fljax.lg_fedavg(dense(), WORK, n_shared=2),
        fljax.lg_fedavg.Hyper(lr=LR, lr_decay=DECAY),
        partial(theirs, shared("lg")),
        wide_clients,
        ROUNDS,
        CLIPPED,
    ),
}
