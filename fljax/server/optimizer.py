"""Server optimisers: the old model minus the clients' mean is the pseudo-gradient of the server's step."""

from typing import Any, NamedTuple

import jax
import optax
from jax import Array

from fljax import tree
from fljax.types import Params

SERVER_OPTIMIZERS = ("sgd", "momentum", "adagrad", "adam", "yogi")
"""Names that `server_optimizer` accepts."""

EPS_ROOT = 1e-37
"""Adam's ``eps_root``: steps are the same, but the root has a derivative where all gradients have been 0, so that
`fljax.hypergradient` does not give NaN."""


class ServerNumbers(NamedTuple):
    """Hyperparameters of the server's optimiser; each optimiser reads those that it needs.

    lr: learning rate, > 0; with "sgd" and lr 1, the new model is the mean.
    beta1: decay rate of the first moment, in [0, 1); the momentum of "momentum"; for "adam" and "yogi" too.
    beta2: decay rate of the second moment, in [0, 1); for "adam" and "yogi".
    tau: adaptivity, > 0, added to the root of the second moment; for "adam" and "yogi". For "adagrad", the root of the
        initial sum of squares.
    """

    lr: Array | float = 1.0
    beta1: Array | float = 0.9
    beta2: Array | float = 0.99
    tau: Array | float = 1e-3


def server_numbers(hyper: Any) -> ServerNumbers:
    """The server's hyperparameters from a method's Hyper, with ``server_lr`` as lr; defaults for those it lacks."""
    numbers = {field: getattr(hyper, field) for field in ("beta1", "beta2", "tau") if hasattr(hyper, field)}
    return ServerNumbers(hyper.server_lr, **numbers)


def server_optimizer(name: str, numbers: ServerNumbers) -> optax.GradientTransformation:
    """The optax transformation with this name.

    "adam" and "yogi" are optax's and differ from the paper cited in `server_step`: they correct the moments' bias, and
    the second moment starts at 0 ("adam") or 1e-6 ("yogi"), not at tau^2. "adagrad" is optax's too: the sum of squares
    starts at tau^2, as in the paper, and the divisor is its root, to which the paper adds tau.

    Raises:
        ValueError: ``name`` is not one of `SERVER_OPTIMIZERS`.
    """
    check_server_optimizer(name)
    lr, beta1, beta2, tau = numbers
    if name == "sgd":
        return optax.sgd(lr)
    if name == "momentum":
        return optax.sgd(lr, momentum=beta1)
    if name == "adagrad":
        return optax.adagrad(lr, initial_accumulator_value=tau**2, eps=0.0)
    if name == "adam":
        return optax.adam(lr, b1=beta1, b2=beta2, eps=tau, eps_root=EPS_ROOT)
    return optax.yogi(lr, b1=beta1, b2=beta2, eps=tau)


def check_server_optimizer(name: str) -> None:
    """Raises ValueError unless ``name`` is one of `SERVER_OPTIMIZERS`."""
    if name not in SERVER_OPTIMIZERS:
        raise ValueError(f"server_optimizer={name!r} is unknown; choose one of {SERVER_OPTIMIZERS}")


def server_step(
    optimizer: optax.GradientTransformation, optimizer_state: optax.OptState, theta: Params, mean: Params
) -> tuple[Params, optax.OptState]:
    """One step from ``theta`` along the pseudo-gradient ``theta - mean``: (new model, optimiser state).

    Running statistics are taken from ``mean``. The initial state is ``optimizer.init`` of the trainable parameters. For
    differences from the paper's optimisers see `server_optimizer`.

    Source: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021.
    """
    trainable, _ = tree.split_statistics(theta)
    goal, statistics = tree.split_statistics(mean)
    with jax.numpy_dtype_promotion("standard"):  # optax raises float betas to an int count
        updates, new_state = optimizer.update(tree.subtract(trainable, goal), optimizer_state, trainable)
    params = tree.join_statistics(optax.apply_updates(trainable, updates), statistics)
    return params, tree.as_before(new_state, optimizer_state)
