"""Accuracy against the privacy budget, and against the bits that travel, on real images.

    python experiments/private.py --smoke              # a part of each table, five rounds: a minute or two
    python experiments/private.py                      # all tables, smoke scale: digits, one seed
    python experiments/private.py clients --seeds 3
    python experiments/private.py --scale paper        # MNIST, FLJAX_DATA names its folder

``clients``: differential privacy of clients (DP-FedAvg) at several targets of epsilon, fixed and adaptive clip, Poisson
sampling. ``correlated``: the same where a client comes at most once in ten rounds, with noise that is correlated over
as many (DP-FTRL by banded matrices). ``examples``: DP-SGD in local training. ``compression``: chains of top-k,
quantisation and error feedback, with what they send. All targets of a table are runs of one compiled program.

Smoke: 1,797 digits, 90 clients, logistic regression, 20 rounds, 60 of ``correlated``. Paper: 60,000 MNIST images, 600
clients, 100 rounds, 300 of ``correlated``.
"""

from functools import cache
from typing import Any

import jax
from reporting import Scale, main
from table_figures import against
from tables import Row, show, spread

import fljax
from fljax.data.datasets import load
from fljax.data.federation import n_classes
from fljax.models import logistic_regression
from fljax.rounds import Sampling, least_recent, poisson, uniform
from fljax.types import Federation, Work

DELTA = 1e-3
TARGETS = (2.0, 8.0, 32.0)
REST, BANDS = 10, (1, 4, 10)
"""Rounds of which a client comes in one, and over which noise is correlated; 1: independent, as in `clients`."""

CHAINS: dict[str, dict[str, float]] = {
    "": {},
    "+top_k": {"top_share": 0.05},
    "+error_feedback+top_k": {"top_share": 0.05},
    "+quantize": {"bits": 4},
    "+clip_update+error_feedback+top_k+quantize": {"clip": 5.0, "top_share": 0.05, "bits": 8},
    "+low_rank": {"rank": 2},
    "+error_feedback+sign": {},
    "+secure_sum": {},
}
BRIEF = ("", "+clip_update+error_feedback+top_k+quantize")
PRIVATE = ("fedavg+dp_sgd", "ditto+dp_sgd")


@cache
def federation(paper: bool, seed: int) -> Federation:
    """Real images, dealt out alike."""
    train, test = load("mnist" if paper else "digits")
    return fljax.PARTITIONS["iid"](train, test, 600 if paper else 90, seed=seed)


def measured(
    scale: Scale, name: str, numbers: dict[str, Any], sampling: Sampling, work: Work, planned: int | None = None
) -> Row:
    """One method over all seeds: accuracy after the last round, and what it cost."""
    n_rounds = scale.rounds or planned or scale.pick(20, 100, brief=5)
    method, seed_metrics = fljax.compose(name), []
    first = federation(scale.paper, 0)
    algorithm = method(logistic_regression(first.train.pool.x.shape[1:], n_classes(first)), work)
    for seed in range(scale.n_seeds):
        arguments = (algorithm, method.Hyper(**numbers), federation(scale.paper, seed), jax.random.key(seed), n_rounds)
        seed_metrics.append(jax.device_get(fljax.simulate(*arguments, sampling=sampling, evaluate_every=n_rounds)[1]))
    row: Row = {"method": name, "accuracy": spread(metrics["accuracy_macro"][-1] for metrics in seed_metrics)}
    if "epsilon" in seed_metrics[0]:
        row["epsilon"] = round(float(seed_metrics[0]["epsilon"][-1]), 3)
    return row | {"kB up a client and round": spread(metrics["uplink"].mean() * 4 / 1000 for metrics in seed_metrics)}


def clients(scale: Scale) -> None:
    """Differential privacy of clients."""
    sampling, work, rows = (
        poisson(0.3),
        Work(1, 10),
        [measured(scale, "fedavg", {"lr": 0.2}, poisson(0.3), Work(1, 10))],
    )
    for brick, clip in (
        ("client_dp", {"dp_clip": 0.5}),
        ("adaptive_client_dp", {"first_clip": 0.5, "count_noise": 50.0}),
    ):
        for target in scale.pick((None, *TARGETS), (None, *TARGETS), brief=(8.0,)):
            noise = {"noise_multiplier": 0.0} if target is None else {"target_epsilon": target}
            numbers = {"lr": 0.2, "delta": DELTA, **clip, **noise}
            rows.append({"target": target} | measured(scale, f"fedavg+{brick}", numbers, sampling, work))
    show(scale, "clients", f"Privacy of clients, delta {DELTA:g}", rows, against(rows, "epsilon"))


def correlated(scale: Scale) -> None:
    """Differential privacy of clients that rest between their rounds, by how many rounds their noise is correlated."""
    sampling, planned, rows = least_recent(0.1, separation=REST), scale.pick(60, 300, brief=10), []
    rows.append(measured(scale, "fedavg", {"lr": 0.5}, sampling, Work(1, 10), planned))
    for bands in scale.pick(BANDS, BANDS, brief=BANDS[-1:]):
        for target in scale.pick(TARGETS, TARGETS, brief=(8.0,)):
            numbers = {"lr": 0.5, "delta": DELTA, "dp_clip": 0.5, "bands": bands, "target_epsilon": target}
            row = measured(scale, "fedavg+banded_client_dp", numbers, sampling, Work(1, 10), planned)
            rows.append({"noise": f"{bands} bands", "target": target} | row)
    show(scale, "correlated", f"Correlated noise, delta {DELTA:g}", rows, against(rows[1:], "epsilon", by="noise"))


def examples(scale: Scale) -> None:
    """Differential privacy of examples, in FedAvg and in a personalised method."""
    rows = []
    for name in scale.pick(PRIVATE, PRIVATE, brief=PRIVATE[:1]):
        for noise in (0.0, 1.0, 4.0):
            numbers = {"lr": 0.2, "delta": DELTA, "example_clip": 1.0, "example_noise": noise}
            rows.append({"noise": noise} | measured(scale, name, numbers, uniform(), Work(1, 10)))
    show(scale, "examples", f"Privacy of examples, delta {DELTA:g}", rows, against(rows, "noise"))


def chains(scale: Scale) -> tuple[str, ...]:
    """Names of the chains that are run."""
    return scale.pick(tuple(CHAINS), tuple(CHAINS), brief=BRIEF)


def compression(scale: Scale) -> None:
    """Chains between clients and server, and what they send."""
    chosen = scale.chosen(dict.fromkeys(chains(scale)))
    rows = [measured(scale, f"fedavg{name}", {"lr": 0.2, **CHAINS[name]}, uniform(0.3), Work(1, 10)) for name in chosen]
    show(scale, "compression", "What travels", rows, against(rows, "kB up a client and round"))


if __name__ == "__main__":
    main(
        __doc__ or "",
        {"clients": clients, "correlated": correlated, "examples": examples, "compression": compression},
        (1, 3),
        only=chains,
    )
