"""FedOpt: FedAvg whose server takes the step of an optimiser (FedAvgM, FedAdam, FedYogi).

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021,
https://arxiv.org/abs/2003.00295.
The way from the server's model to the clients' mean is a gradient, reversed, for momentum, Adam or Yogi.

Differences from the paper: Adam and Yogi are optax's, which correct the moments' bias; Adam's second moment starts at 0
and Yogi's at 1e-6, not at tau^2. `with_server_optimizer` gives any method of one averaged model such a server.
"""

import inspect
from collections import namedtuple
from functools import cache
from typing import Any, Literal, NamedTuple, get_type_hints

import optax
from jax import Array

from fljax import tree
from fljax.algorithms.fedavg import fedavg
from fljax.server.optimizer import check_server_optimizer, numbers_of, server_optimizer, server_step
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Params, State, Work


class FedOptHyper(NamedTuple):
    """Numbers of FedOpt.

    lr: clients' learning rate, > 0.
    server_lr: learning rate of the server, > 0.
    beta1: memory of the server's first moment, in [0, 1). The paper has 0.9.
    beta2: memory of the server's second moment, in [0, 1); "adam" and "yogi". The paper has 0.99.
    tau: adaptivity, > 0; "adam" and "yogi". The paper has 0.001.
    lr_decay: factor on `lr` per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    server_lr: Array | float = 0.03
    beta1: Array | float = 0.9
    beta2: Array | float = 0.99
    tau: Array | float = 1e-3
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


NUMBERS = {
    "sgd": ("server_lr",),
    "momentum": ("server_lr", "beta1"),
    "adam": ("server_lr", "beta1", "beta2", "tau"),
    "yogi": ("server_lr", "beta1", "beta2", "tau"),
}
"""Server optimiser -> the fields of `FedOptHyper` that it reads."""


class OptimizedServer(NamedTuple):
    """What the server keeps."""

    theta: Params
    moments: optax.OptState


@cache
def fedopt(
    model: Model,
    work: Work,
    *,
    server_optimizer: Literal["sgd", "momentum", "adam", "yogi"] = "adam",
    weighting: str = "size",
) -> Algorithm:
    """FedOpt: ``theta <- ServerOpt(theta, theta - sum_i omega_i w_i / sum_i omega_i)``.

    Args:
        model: the network.
        work: local effort.
        server_optimizer: "momentum" is FedAvgM, "adam" FedAdam, "yogi" FedYogi; "sgd" with server_lr 1 is FedAvg.
        weighting: "size" (omega_i = n_i) or "uniform".
    """
    return with_server_optimizer(fedavg(model, work, weighting=weighting), server_optimizer)


@cache
def with_server_optimizer(algorithm: Algorithm, name: str) -> Algorithm:
    """``algorithm`` whose server takes an optimiser's step towards the model that it would have set.

    Its Hyper has the method's numbers and the optimiser's: `hyper_with`. For methods whose ``state.server`` is one
    model or the shared part of one; `fljax.algorithms.method_named` knows them as "fedprox+adam".

    Args:
        algorithm: from `fljax.algorithms`.
        name: "sgd", "momentum", "adam" or "yogi".

    Raises:
        ValueError: ``name`` is unknown, or, in ``init``, the method's server does not keep one model.
    """
    check_server_optimizer(name)

    def optimizer(hyper: Any) -> optax.GradientTransformation:
        return server_optimizer(name, numbers_of(hyper))

    def init(key: Key, hyper: Any, data: ClientData) -> State:
        state = algorithm.init(key, hyper, data)
        if not (isinstance(state.server, dict) and state.server):
            kept = type(state.server).__name__ if state.server else "nothing"
            raise ValueError(
                f"with_server_optimizer: the method's server keeps {kept}; choose one that keeps one model"
            )
        return State(
            OptimizedServer(state.server, optimizer(hyper).init(tree.split_statistics(state.server)[0])), state.clients
        )

    def round(key: Key, hyper: Any, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        theta, moments = state.server
        new, metrics = algorithm.round(key, hyper, State(theta, state.clients), cohort)
        theta, moments = server_step(optimizer(hyper), moments, theta, new.server)
        return State(OptimizedServer(theta, moments), new.clients), metrics

    def deploy(key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
        return algorithm.deploy(key, hyper, State(state.server.theta, state.clients), data)

    def join(key: Key, hyper: Any, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        assert algorithm.join is not None
        return algorithm.join(key, hyper, State(state.server.theta, state.clients), data, n_rounds)

    return Algorithm(init, round, deploy, algorithm.predict, join if algorithm.join else None)


@cache
def hyper_with(kind: type[Any], name: str) -> type[Any]:
    """The Hyper ``kind`` of a method with the numbers of the server optimiser ``name`` after its own."""
    numbers = {field: FedOptHyper._field_defaults[field] for field in NUMBERS[name]}
    if name in ("sgd", "momentum"):
        numbers["server_lr"] = 1.0  # which "sgd" needs to set the clients' mean
    made = namedtuple(
        f"{name.title()}{kind.__name__}",
        (*kind._fields, *numbers),
        defaults=(*(kind._field_defaults[field] for field in kind._fields), *numbers.values()),
    )
    made.__annotations__ = get_type_hints(kind) | dict.fromkeys(numbers, Array | float)
    own = [line for line in (FedOptHyper.__doc__ or "").splitlines() if line.strip().partition(":")[0] in numbers]
    made.__doc__ = "\n".join([inspect.getdoc(kind) or "", *(line.strip() for line in own)])
    return made
