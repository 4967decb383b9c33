"""FedOpt: FedAvg whose server takes the step of an optimiser (FedAvgM, FedAdam, FedYogi).

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021,
https://arxiv.org/abs/2003.00295.
The way from the server's model to the clients' mean is a gradient, reversed, for momentum, Adam or Yogi.

Differences from the paper: Adam and Yogi are optax's, which correct the moments' bias; Adam's second moment starts at 0
and Yogi's at 1e-6, not at tau^2. `with_server_optimizer` gives any method of one averaged model such a server.
"""

from functools import cache
from typing import Any, Literal, NamedTuple

import optax
from jax import Array

from fljax import tree
from fljax.algorithms.fedavg import FedAvgHyper, fedavg
from fljax.server.optimizer import ServerNumbers, check_server_optimizer, server_optimizer, server_step
from fljax.types import Algorithm, Assigned, ClientData, Cohort, Key, Metrics, Model, Params, State, Work


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


class OptimizedHyper(NamedTuple):
    """Numbers of a method with a server optimiser."""

    method: Any  # the method's own Hyper
    server: ServerNumbers


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
    optimized = with_server_optimizer(fedavg(model, work, weighting=weighting), server_optimizer)

    def inner(hyper: FedOptHyper) -> OptimizedHyper:
        method = FedAvgHyper(hyper.lr, hyper.lr_decay, hyper.momentum)
        return OptimizedHyper(method, ServerNumbers(hyper.server_lr, hyper.beta1, hyper.beta2, hyper.tau))

    def init(key: Key, hyper: FedOptHyper, data: ClientData) -> State:
        return optimized.init(key, inner(hyper), data)

    def round(key: Key, hyper: FedOptHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        return optimized.round(key, inner(hyper), state, cohort)

    def deploy(key: Key, hyper: FedOptHyper, state: State, data: ClientData) -> Assigned:
        return optimized.deploy(key, inner(hyper), state, data)

    return Algorithm(init, round, deploy, optimized.predict)


@cache
def with_server_optimizer(algorithm: Algorithm, name: str) -> Algorithm:
    """``algorithm`` whose server takes an optimiser's step towards the model that it would have set.

    Its Hyper is `OptimizedHyper`. For methods whose ``state.server`` is one model: FedAvg, FedProx, FedDist, FedDWS,
    FedDANE, Per-FedAvg, FedBABU, FedAvg-FT, Ditto, and the shared part of FedPer, FedRep and LG-FedAvg.

    Args:
        algorithm: from `fljax.algorithms`.
        name: "sgd", "momentum", "adam" or "yogi".

    Raises:
        ValueError: ``name`` is unknown.
    """
    check_server_optimizer(name)

    def init(key: Key, hyper: OptimizedHyper, data: ClientData) -> State:
        state = algorithm.init(key, hyper.method, data)
        moments = server_optimizer(name, hyper.server).init(tree.split_statistics(state.server)[0])
        return State(OptimizedServer(state.server, moments), state.clients)

    def round(key: Key, hyper: OptimizedHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        theta, moments = state.server
        new, metrics = algorithm.round(key, hyper.method, State(theta, state.clients), cohort)
        theta, moments = server_step(server_optimizer(name, hyper.server), moments, theta, new.server)
        return State(OptimizedServer(theta, moments), new.clients), metrics

    def deploy(key: Key, hyper: OptimizedHyper, state: State, data: ClientData) -> Assigned:
        return algorithm.deploy(key, hyper.method, State(state.server.theta, state.clients), data)

    def join(key: Key, hyper: OptimizedHyper, state: State, data: ClientData, n_rounds: Array) -> Assigned:
        assert algorithm.join is not None
        return algorithm.join(key, hyper.method, State(state.server.theta, state.clients), data, n_rounds)

    return Algorithm(init, round, deploy, algorithm.predict, join if algorithm.join else None)
