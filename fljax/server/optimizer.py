"""The server's step as an optimiser's: the way from the old model to the clients' mean is its gradient, reversed."""

from typing import Any, NamedTuple

import jax
import optax
from jax import Array

from fljax import tree
from fljax.types import Params

SERVER_OPTIMIZERS = ("sgd", "momentum", "adagrad", "adam", "yogi")
"""Names that `server_optimizer` knows."""


class ServerNumbers(NamedTuple):
    """Numbers of the server's optimiser; each optimiser reads its own.

    lr: learning rate, > 0; 1 with "sgd" is the mean itself.
    beta1: memory of the first moment, in [0, 1): the momentum; not of "adagrad".
    beta2: memory of the second moment, in [0, 1); "adam" and "yogi".
    tau: degree of adaptivity, > 0, added to the root of the second moment; "adam" and "yogi". Of "adagrad" the root of
        the sum of squares before the first step.
    """

    lr: Array | float = 1.0
    beta1: Array | float = 0.9
    beta2: Array | float = 0.99
    tau: Array | float = 1e-3


def server_numbers(hyper: Any) -> ServerNumbers:
    """The server's numbers in a method's Hyper, whose learning rate is ``server_lr``; those it lacks are default."""
    given = {field: getattr(hyper, field) for field in ("beta1", "beta2", "tau") if hasattr(hyper, field)}
    return ServerNumbers(hyper.server_lr, **given)


def server_optimizer(name: str, numbers: ServerNumbers) -> optax.GradientTransformation:
    """The optax transformation of that name.

    "adam" and "yogi" are optax's, which differ from the paper of `server_step`: they correct the moments' bias, and the
    second moment starts at 0 ("adam") and 1e-6 ("yogi"), not at tau^2. "adagrad" is optax's too: the sum of squares
    starts at tau^2, as there, and its root is the divisor, to which the paper adds tau once more.

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
        return optax.adagrad(lr, initial_accumulator_value=tau**2, eps=0.0)  # pyright: ignore[reportArgumentType]
    if name == "adam":
        return optax.adam(lr, b1=beta1, b2=beta2, eps=tau)  # pyright: ignore[reportArgumentType]
    return optax.yogi(lr, b1=beta1, b2=beta2, eps=tau)  # pyright: ignore[reportArgumentType]


def check_server_optimizer(name: str) -> None:
    """Raises ValueError unless ``name`` is one of `SERVER_OPTIMIZERS`."""
    if name not in SERVER_OPTIMIZERS:
        raise ValueError(f"server_optimizer={name!r} is unknown; choose one of {SERVER_OPTIMIZERS}")


def server_step(
    optimizer: optax.GradientTransformation, optimizer_state: optax.OptState, theta: Params, mean: Params
) -> tuple[Params, optax.OptState]:
    """One step from ``theta`` along the pseudo-gradient ``theta - mean``: (new model, optimiser state).

    Running statistics become the mean's. The state is ``optimizer.init`` of the trainable parameters. Of the paper's
    optimisers `server_optimizer` says how it differs.

    Source: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021.
    """
    trainable, _ = tree.split_statistics(theta)
    goal, statistics = tree.split_statistics(mean)
    with jax.numpy_dtype_promotion("standard"):  # optax raises float betas to an int count
        updates, moved = optimizer.update(tree.subtract(trainable, goal), optimizer_state, trainable)
    params = tree.join_statistics(optax.apply_updates(trainable, updates), statistics)
    return params, tree.as_before(moved, optimizer_state)
