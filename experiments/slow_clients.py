"""Accuracy against simulated time, on real images: rounds that wait for all, for a deadline, for tiers, or for nobody.

    python experiments/slow_clients.py --smoke          # all clocks for the time of four rounds: a minute or two
    python experiments/slow_clients.py                  # tables and figure, smoke scale: digits, 30 clients, one seed
    python experiments/slow_clients.py clocks --seeds 3
    python experiments/slow_clients.py --scale paper

``clocks``: FedAvg with 10 clients a round on devices whose speeds are log-normal (deviation 1 of the logarithm): rounds
that wait for the slowest; that ask more clients and take the first ones; that end at a deadline, where who is late is
left out or sends a part of its work; of tiers of like speed; and without waiting, a buffer of 5 updates (FedBuff) or of
one (FedAsync, whose server goes 0.6 of the way). All have the simulated seconds of the first, and as many rounds as end
within them. ``answers``: clients that answer now and then. ``stragglers``: what FedProx's paper (MLSys 2020) shows in
its figure of systems heterogeneity, on its Synthetic(1, 1): clients that do 1 to 20 of 20 epochs, and are dropped or
not.

Smoke: 1,797 digits of 8 x 8 pixels, Dirichlet labels of beta 0.5, an MLP 64-32-10, 30 synchronous rounds' time. Paper:
MNIST (FLJAX_DATA names its folder), 100 clients, an MLP 784-64-10, 100 rounds' time, 3 seeds. Stragglers: 50 and 200
rounds, FedProx's batches of 10 and learning rate 0.01 and its mu of 1.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
from lines import keep_numbers
from reporting import Scale, main
from tables import Row, show, spread

import fljax
from fljax import tree
from fljax.client.steps import n_steps
from fljax.data.datasets import load
from fljax.data.federation import n_classes
from fljax.data.synthetic import synthetic
from fljax.models import mlp
from fljax.report import plots
from fljax.rounds import stragglers, uniform
from fljax.rounds.clock import (
    Devices,
    Schedule,
    asynchronous,
    buffered,
    drawn_devices,
    over_selection,
    partial_by_deadline,
    round_seconds,
    tiers,
    with_availability,
    with_deadline,
)
from fljax.rounds.sampling import Sampling
from fljax.types import Algorithm, Federation, Work

PARTICIPANTS, TARGET, LR = 10, 0.8, 0.1
SYNCHRONOUS = "waits for the slowest"


class Clock(NamedTuple):
    """One way to spend the time."""

    algorithm: Algorithm
    sampling: Sampling
    n_rounds: int  # that are run; those within the time count
    ends: Sequence[float] | None = None  # (rounds,) seconds at which rounds end; None: follows from the run
    deadline: float | None = None


class Line(NamedTuple):
    """A run against simulated time."""

    seconds: np.ndarray  # (rounds,) at which each round ends
    accuracy: np.ndarray  # (rounds,)
    updates: np.ndarray  # (rounds,) that counted


@cache
def federation(paper: bool, seed: int) -> Federation:
    """Real images, whose labels are skewed."""
    train, test = load("mnist" if paper else "digits")
    return fljax.PARTITIONS["dirichlet"](train, test, 100 if paper else 30, beta=0.5, seed=seed)


@cache
def fedavg(paper: bool) -> Algorithm:
    """The method on its network."""
    first = federation(paper, 0)
    model = mlp(first.train.pool.x.shape[1:], (64 if paper else 32,), n_classes(first))
    return fljax.fedavg(model, work_of(paper))


def work_of(paper: bool) -> Work:
    """The clients' local work in a round."""
    return Work(5 if paper else 2, 32)


def devices_of(paper: bool, seed: int) -> Devices:
    """The clients' devices, drawn by the seed."""
    return drawn_devices(len(federation(paper, seed).train.size), spread=1.0, seed=seed)


def seconds_of(paper: bool, seed: int) -> np.ndarray:
    """(clients,) seconds of a round of each client."""
    algorithm, data = fedavg(paper), federation(paper, seed).train
    state = jax.eval_shape(algorithm.init, jax.random.key(0), fljax.fedavg.Hyper(), data)
    return devices_of(paper, seed).seconds(data, work_of(paper), float(tree.size(state.server)))


def steps_and_speed(paper: bool, seed: int) -> tuple[Sequence[int], Sequence[float]]:
    """(clients,) local steps of a round of each client, and those of a second."""
    steps = n_steps(np.asarray(federation(paper, seed).train.size), work_of(paper))
    return steps.tolist(), devices_of(paper, seed).speed


def run(scale: Scale, clock: Clock, seconds: np.ndarray, seed: int) -> Line:
    """A run of one clock."""
    arguments = (clock.algorithm, fljax.fedavg.Hyper(lr=LR), federation(scale.paper, seed), jax.random.key(seed))
    metrics = jax.device_get(fljax.simulate(*arguments, clock.n_rounds, sampling=clock.sampling)[1])
    durations = round_seconds(metrics, tuple(seconds), clock.deadline)
    ends = np.cumsum(durations) if clock.ends is None else np.asarray(clock.ends)
    return Line(ends, metrics["accuracy_macro"], metrics["active"].sum(axis=1))


def within(line: Line, budget: float) -> Line:
    """The part of a run that fits the time."""
    n_rounds = int(np.searchsorted(line.seconds, budget * (1 + 1e-9), side="right"))
    return Line(*(values[:n_rounds] for values in line))


def filled(scale: Scale, clock: Clock, seconds: np.ndarray, budget: float, seed: int) -> Line:
    """The part of a run that fits the time; twice as many rounds are run as long as they end before it does."""
    line = run(scale, clock, seconds, seed)
    while line.seconds[-1] <= budget:
        clock = clock._replace(n_rounds=2 * clock.n_rounds)
        line = run(scale, clock, seconds, seed)
    return within(line, budget)


def stale(scale: Scale, seconds: np.ndarray, buffer: int, budget: float, seed: int, **options: Any) -> Clock:
    """Rounds that do not wait, as many as end within the time."""
    n_rounds, schedule = 1, None
    while schedule is None or schedule.ends[-1] <= budget:
        n_rounds *= 2
        schedule = asynchronous(tuple(seconds), concurrency=PARTICIPANTS, buffer=buffer, n_rounds=n_rounds, seed=seed)
    count = max(1, int(np.searchsorted(schedule.ends, budget, side="right")))
    part = Schedule(schedule.ids[:count], schedule.staleness[:count], schedule.ends[:count])
    return Clock(buffered(fedavg(scale.paper), part, **options), part.sampling, count, part.ends)


def waiting(scale: Scale, seconds: np.ndarray, n_sync: int, seed: int) -> dict[str, Clock]:
    """Rounds that wait for somebody, with the number of rounds that is tried first."""
    algorithm, n_clients, client_seconds = fedavg(scale.paper), len(seconds), tuple(seconds)
    sampling, larger_sampling = uniform(PARTICIPANTS / n_clients), uniform(1.5 * PARTICIPANTS / n_clients)
    deadline, (steps, speed) = float(np.quantile(seconds, 0.6)), steps_and_speed(scale.paper, seed)
    partial_work = partial_by_deadline(sampling, client_seconds, deadline, steps=steps, speed=speed)
    return {
        SYNCHRONOUS: Clock(algorithm, sampling, n_sync),
        "first 10 of 15": Clock(algorithm, over_selection(larger_sampling, client_seconds, PARTICIPANTS), 4 * n_sync),
        "deadline": Clock(algorithm, with_deadline(sampling, client_seconds, deadline), 4 * n_sync, deadline=deadline),
        "deadline, late parts count": Clock(algorithm, partial_work, 4 * n_sync, deadline=deadline),
        "tiers": Clock(algorithm, tiers(client_seconds, 3, min(PARTICIPANTS, n_clients // 3)), 2 * n_sync),
    }


def lines_of(scale: Scale, seed: int) -> dict[str, Line]:
    """Every clock within the time of the rounds that wait for the slowest."""
    seconds, n_sync = seconds_of(scale.paper, seed), scale.rounds or scale.pick(30, 100, brief=4)
    waiting_clocks = waiting(scale, seconds, n_sync, seed)
    lines = {SYNCHRONOUS: run(scale, waiting_clocks.pop(SYNCHRONOUS), seconds, seed)}
    budget = float(lines[SYNCHRONOUS].seconds[-1])
    lines |= {name: filled(scale, clock, seconds, budget, seed) for name, clock in waiting_clocks.items()}
    for name, clock in (
        ("FedBuff, 5 updates", stale(scale, seconds, 5, budget, seed)),
        ("FedAsync", stale(scale, seconds, 1, budget, seed, mixing="models", share=0.6)),
    ):
        lines[name] = run(scale, clock, seconds, seed)
    return lines


def row_of(name: str, seed_lines: Sequence[Line]) -> Row:
    """One line of the table."""
    reached = [
        line.seconds[rounds_reached[0]]
        for line in seed_lines
        if len(rounds_reached := np.flatnonzero(line.accuracy >= TARGET))
    ]
    return {
        "rounds": name,
        "accuracy at the end": spread(line.accuracy[-1] for line in seed_lines),
        f"seconds to {TARGET}": f"{np.mean(reached):.0f} ({len(reached)} of {len(seed_lines)})" if reached else "-",
        "versions": spread(len(line.seconds) for line in seed_lines),
        "updates": spread(line.updates.sum() for line in seed_lines),
    }


def clocks(scale: Scale) -> None:
    """Every way to spend the same simulated time."""
    seed_lines = [lines_of(scale, seed) for seed in range(scale.n_seeds)]
    rows, numbers = [], {}
    for name in seed_lines[0]:
        rows.append(row_of(name, [lines[name] for lines in seed_lines]))
        for seed, lines in enumerate(seed_lines):
            numbers[name, "same time", seed, "accuracy_macro"] = float(lines[name].accuracy[-1])
            numbers[name, "same time", seed, "seconds"] = float(lines[name].seconds[-1])
    planned = scale.pick(30, 100, brief=4)
    place = ("slow_clients", "clocks", "mnist" if scale.paper else "digits")
    keep_numbers(scale, place, numbers, (scale.rounds or planned, planned), participants=PARTICIPANTS, lr=LR)
    curves = {name: (line.seconds, line.accuracy) for name, line in seed_lines[0].items()}
    figure = plots.learning_curves(curves, "test accuracy")
    figure.axes[0].set_xlabel("simulated seconds")
    show(scale, "clocks", "Accuracy in the same simulated time", rows, figure)


def answers(scale: Scale) -> None:
    """Clients that answer half of the time, in rounds that wait for those who do."""
    rows = []
    for chance in scale.pick((1.0, 0.5, 0.2), (1.0, 0.5, 0.2), brief=(0.5,)):
        lines = []
        for seed in range(scale.n_seeds):
            seconds = seconds_of(scale.paper, seed)
            sampling = with_availability(uniform(PARTICIPANTS / len(seconds)), (chance,) * len(seconds))
            n_rounds = scale.rounds or scale.pick(30, 100, brief=4)
            lines.append(run(scale, Clock(fedavg(scale.paper), sampling, n_rounds), seconds, seed))
        row = row_of(f"answer with probability {chance:g}", lines)
        rows.append(row | {"seconds": spread(line.seconds[-1] for line in lines)})
    show(scale, "answers", "Clients that do not always answer", rows)


EPOCHS, MU, SHARES = 20, 1.0, (0.0, 0.5, 0.9)


def straggling(scale: Scale) -> None:
    """Synthetic(1, 1) with a share of stragglers in each round, which are dropped, or whose parts count."""
    n_rounds, work = scale.rounds or scale.pick(50, 200, brief=4), Work(EPOCHS, 10)
    model = fljax.MODELS["logistic_regression"]((60,), 10)
    sampling = uniform(1 / 3)  # 10 of 30, as there
    fedavg, fedprox, fednova = (method(model, work) for method in (fljax.fedavg, fljax.fedprox, fljax.fednova))
    fedavg_hyper, fedprox_hyper = fljax.fedavg.Hyper(lr=0.01), fljax.fedprox.Hyper(lr=0.01, mu=MU)
    methods = {
        "FedAvg, which drops them": (fedavg, fedavg_hyper, True),
        "FedAvg, whose parts count (FedProx, mu 0)": (fedavg, fedavg_hyper, False),
        f"FedProx, mu {MU:g}": (fedprox, fedprox_hyper, False),
        "FedNova": (fednova, fedavg_hyper, False),
    }
    rows, numbers = [], {}
    for share in scale.pick(SHARES, SHARES, brief=SHARES[-1:]):
        late_sampling = stragglers(sampling, share, epochs=EPOCHS)
        for name, (algorithm, hyper, is_dropped) in methods.items():
            options: dict[str, Any] = (
                {"sampling": sampling, "dropout": share} if is_dropped else {"sampling": late_sampling}
            )
            seed_results = []
            for seed in range(scale.n_seeds):
                arguments = algorithm, hyper, synthetic(1.0, 1.0, seed=seed), jax.random.key(seed), n_rounds
                metrics = jax.device_get(fljax.simulate(*arguments, evaluate_every=n_rounds, **options)[1])
                seed_results.append({name: float(metrics[name][-1]) for name in ("accuracy_micro", "test_loss")})
                numbers |= {
                    (name, f"{share:g} stragglers", seed, metric): value for metric, value in seed_results[-1].items()
                }
            columns = {metric: spread(end[metric] for end in seed_results) for metric in seed_results[0]}
            rows.append({"stragglers": f"{100 * share:g} %", "method": name, **columns})
    planned = scale.pick(50, 200, brief=4)
    place = ("slow_clients", "stragglers", "synthetic_1_1")
    keep_numbers(scale, place, numbers, (scale.rounds or planned, planned), epochs=EPOCHS, lr=0.01, mu=MU)
    show(scale, "stragglers", "Stragglers on Synthetic(1, 1), after the last round", rows)


if __name__ == "__main__":
    main(__doc__ or "", {"clocks": clocks, "answers": answers, "stragglers": straggling}, (1, 3))
