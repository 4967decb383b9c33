"""What comparisons with others' code share: small clients, one first model, and the outputs that clients are tested by.

`pfllib_steps.py` and `authors_steps.py` run someone else's code and fljax from the same models on the same examples, in
steps that are each on all examples of a client, so that no order of batches matters, and tell how far apart the outputs
are. float32 rounds to about 1e-7 of the largest output.
"""

import argparse
import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from outcomes import Outcome

import fljax
from fljax.models import mlp
from fljax.types import Algorithm, Federation, Model, ModelTable, State

N_CLASSES, N_INPUTS, N_HIDDEN, N_EXAMPLES, N_TESTS = 6, 10, 12, 24, 20

Outputs = np.ndarray
"""(clients, tests, classes) what the two sides take the largest of in a test."""


def clients(
    n_clients: int = 4, n_groups: int = 1, alike: bool = False, seed: int = 0, sizes: Sequence[int] = ()
) -> Federation:
    """Clients of two or three classes each, around centres that all share.

    Args:
        n_clients: how many.
        n_groups: client i is in group ``i % n_groups``, whose labels are all moved on by as many classes: there is no
            model for two groups.
        alike: all training examples of a client are one.
        seed: of the examples.
        sizes: training examples of each client; none: `N_EXAMPLES` of each.
    """
    rng, xs, ys, parts = np.random.default_rng(seed), [], [], []
    sizes = sizes or [N_EXAMPLES] * n_clients
    centre = rng.normal(size=(N_CLASSES, N_INPUTS))
    for i, size in enumerate(sizes):
        classes = [(2 * i) % N_CLASSES, (2 * i + 1) % N_CLASSES, (i + 3) % N_CLASSES]
        y = rng.choice(classes, size=size + N_TESTS)
        x = (centre[y] + rng.normal(size=(len(y), N_INPUTS))).astype(np.float32)
        if alike:
            x[:size], y[:size] = x[0], y[0]
        xs.append(x)
        ys.append((y + i % n_groups) % N_CLASSES)
        parts += ["train"] * size + ["test"] * N_TESTS
    client = np.repeat(np.arange(n_clients), [len(y) for y in ys])
    return fljax.federation_from_arrays(np.concatenate(xs), np.concatenate(ys), client, part=np.array(parts))


def uneven(federation: Federation) -> Federation:
    """Each client trains on three examples fewer than the one before it."""
    size = federation.train.size - 3 * jnp.arange(federation.train.n_clients, dtype=federation.train.size.dtype)
    return federation._replace(train=federation.train._replace(size=size))


def examples(federation: Federation, client: int, is_train: bool) -> tuple[np.ndarray, np.ndarray]:
    """(x, y) of a client, in the order of its table."""
    data = federation.train if is_train else federation.test
    rows = np.asarray(data.index[client, : int(data.size[client])])
    return np.asarray(data.pool.x)[rows], np.asarray(data.pool.y)[rows]


def tests(federation: Federation) -> list[np.ndarray]:
    """The test examples of each client."""
    return [examples(federation, i, is_train=False)[0] for i in range(federation.test.n_clients)]


def small_network() -> Model:
    """One hidden layer, PyTorch's draw of its first parameters."""
    return mlp((N_INPUTS,), (N_HIDDEN,), N_CLASSES, init="pytorch")


def torch_network() -> Any:
    """The class of `small_network` in PyTorch, with layers ``fc1`` and ``fc``."""
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc = torch.nn.Linear(N_INPUTS, N_HIDDEN), torch.nn.Linear(N_HIDDEN, N_CLASSES)

        def forward(self, x: Any) -> Any:
            return self.fc(torch.relu(self.fc1(x)))

    return Network


def pytorch(parser: argparse.ArgumentParser) -> Any:
    """The module; where it is not installed, the script ends with one line."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        parser.error("this runs others' code, which needs PyTorch: pip install torch")


def row(models: ModelTable, client: int) -> dict[str, Any]:
    """The model that a client is tested with."""
    return jax.tree.map(lambda leaf: leaf[models.row[client]], models.params)


def deployed_outputs(algorithm: Algorithm, hyper: Any, state: State, federation: Federation) -> Outputs:
    """What clients' tests read of the models that they hold."""
    models = algorithm.deploy(jax.random.key(0), hyper, state, federation.train)
    return np.stack([algorithm.predict(row(models, i), jnp.asarray(x)) for i, x in enumerate(tests(federation))])


def ours(
    algorithm: Algorithm,
    hyper: Any,
    federation: Federation,
    n_rounds: int,
    outputs: Callable[[Algorithm, Any, State, Federation], Outputs] = deployed_outputs,
    sampling: fljax.rounds.Sampling | None = None,
) -> tuple[State, list[State], list[Outputs]]:
    """The first state, all states, and outputs, after 0, 1, ... rounds, of all clients or those of a sampling."""
    first_state = algorithm.init(jax.random.key(3), hyper, federation.train)
    algorithm = algorithm._replace(init=lambda key, hyper, data: first_state)
    run = partial(fljax.train, algorithm, hyper, federation, jax.random.key(1), sampling=sampling, compile="fast")
    states = [first_state, *(run(n).state for n in range(1, n_rounds + 1))]
    return first_state, states, [outputs(algorithm, hyper, state, federation) for state in states]


def lines(
    name: str,
    setting: str,
    our_outputs: Sequence[Outputs],
    their_outputs: Sequence[Outputs],
    n_rounds: int,
    seconds: float,
    settings: str,
) -> list[Outcome]:
    """How far apart the last ``n_rounds`` are, as lines of the results, the most of them, and the largest output."""
    pairs = zip(our_outputs[-n_rounds:], their_outputs[-n_rounds:], strict=True)
    differences = [float(np.abs(np.subtract(a, b, out=np.zeros(a.shape), where=a != b)).max()) for a, b in pairs]
    metrics = {"difference after 1": differences[0], f"difference after {n_rounds}": differences[-1]}
    metrics["largest difference"] = max(differences)
    metrics["largest output"] = float(np.abs(their_outputs[-1][np.isfinite(their_outputs[-1])]).max())
    return [
        Outcome(name, setting, 0, metric, value, None, n_rounds, seconds, settings) for metric, value in metrics.items()
    ]


def load(layer: Any, **parameters: Any) -> None:
    """Puts our parameters into a layer of PyTorch."""
    import torch

    with torch.no_grad():
        for name, value in parameters.items():
            getattr(layer, name).copy_(torch.tensor(np.array(value)))


def load_dense(layer: Any, parameters: Mapping[str, Any]) -> None:
    """As `load`, of a dense layer: PyTorch's kernels are (out, in)."""
    load(layer, weight=np.asarray(parameters["kernel"]).T, bias=parameters["bias"])


def torch_outputs(models: Sequence[Any], federation: Federation) -> Outputs:
    """What each client's model says of its test examples."""
    import torch

    with torch.no_grad():
        return np.stack([model(torch.tensor(x)).numpy() for model, x in zip(models, tests(federation), strict=True)])


def load_network(network: Any, parameters: Mapping[str, Any]) -> Any:
    """A `torch_network` with our parameters; the network."""
    load_dense(network.fc1, parameters["fc1"])
    load_dense(network.fc, parameters["fc2"])
    return network
