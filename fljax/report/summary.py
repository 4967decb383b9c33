"""The results: the final table of several methods, and the arrays of its figures, as plain data."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its parts are imported when they are first used

from fljax import tree
from fljax.files import write_atomically
from fljax.metrics.agreement import agreement
from fljax.metrics.best_round import at_best_validation, best_round
from fljax.metrics.cost import EDGE_TRAFFIC, edge_traffic, megabytes_over_rounds, traffic_of_clients
from fljax.metrics.headline import MEANS, VALIDATION, Measures, measures_of, scores_in
from fljax.metrics.participants import n_not_finite
from fljax.metrics.spread import spread_over_clients, spreads
from fljax.rounds.round_metrics import OF_CLIENT, ROW
from fljax.sealed import write_listed
from fljax.types import Federation, ModelTable

Row = dict[str, str | float | int | None]
"""One method's row of the final table; None in columns that do not apply."""

_AT_ONCE = 1 << 22
"""Numbers that are converted into float64 at once."""


class Outcome(NamedTuple):
    """A finished run, as a report needs it."""

    metrics: Mapping[str, np.ndarray]  # of all rounds
    deployed: ModelTable  # the models with which clients were last tested
    seconds: float  # of the run's rounds; NaN if not known
    compile_seconds: float = float("nan")  # of tracing and compiling before them, or of reading kept programs
    newcomers: Mapping[str, np.ndarray] | None = None  # test metrics of new clients


def final_table(outcomes: Mapping[str, Outcome], group: np.ndarray | None = None) -> list[Row]:
    """One row per method: the last round, and the best one.

    Columns: ``algorithm``, ``rounds`` (made so far), ``accuracy_macro``, ``accuracy_micro``, ``accuracy_p10``,
    ``f1_macro``, ``accuracy_worst10`` (mean over the worst tenth of the clients), ``accuracy_deviation`` (standard
    deviation over the clients), ``best_accuracy`` and ``best_round`` (of accuracy_macro, rounds count from 1), ``ari``
    (agreement of the clusters with the true ``group``; for clustered methods), ``n_clusters`` in use, ``churn`` (mean
    share of a round's participants that changed cluster), ``megabytes_up`` and ``megabytes_down`` (10^6 bytes, mean
    over all clients, whole run), ``edge_megabytes_up`` and ``edge_megabytes_down`` (those between edge servers and the
    cloud, divided by the clients too), ``n_not_finite`` (participants' results that were left out, of all rounds),
    ``epsilon`` spent by a private method, ``attack_success`` of a trigger, ``simulated_seconds`` of the whole run if
    clients have a clock, ``seconds`` of the rounds and ``compile_seconds`` before them (of all calls that made rounds),
    and ``new_accuracy_macro``, ``new_accuracy_micro``, ``new_accuracy_p10`` of new clients. In regression ``r2_micro``,
    ``r2_macro``, ``r2_p10``, ``mae_macro`` and ``best_r2`` replace accuracies, F1 and ``best_accuracy``. If the model
    is `fljax.validated`, ``accuracy_at_best_val`` (``r2_at_best_val``) is the test accuracy in round
    ``best_val_round``, the best on the validation split. Each further score (`fljax.scored`) has ``NAME_macro`` and
    ``NAME_micro``.
    """
    return [{"algorithm": name, **_row(outcome, group)} for name, outcome in outcomes.items()]


def _row(outcome: Outcome, group: np.ndarray | None) -> Row:
    metrics, label = outcome.metrics, final_label(outcome)
    measures = measures_of(metrics)
    accuracy = metrics[measures.headline]
    best = int(np.nanargmax(accuracy)) if np.isfinite(accuracy).any() else len(accuracy) - 1
    traffic = traffic_of_clients(metrics, len(outcome.deployed.row))
    names = (*measures.scores, measures.beside, *(f"{name}_{mean}" for name in scores_in(metrics) for mean in MEANS))
    last, newcomers = {name: float(metrics[name][-1]) for name in names}, outcome.newcomers
    return {
        "rounds": len(accuracy),
        **last,
        **_spread_columns(metrics, measures),
        measures.best: float(accuracy[best]),
        "best_round": best + 1,
        **_by_validation(metrics, measures),
        "ari": None if label is None or group is None or (label >= 0).sum() < 2 else agreement(label, group),
        "churn": float(np.mean(metrics["churn"])) if "churn" in metrics else None,
        "n_clusters": None if label is None else len(np.unique(label[label >= 0])),
        "megabytes_up": float(traffic.uplink.mean() / 1e6),
        "megabytes_down": float(traffic.downlink.mean() / 1e6),
        **_of_edges(metrics, len(traffic.uplink)),
        "n_not_finite": int(n_not_finite(metrics).sum()),
        **optional_columns(metrics),
        "seconds": _none_if_nan(outcome.seconds),
        "compile_seconds": _none_if_nan(outcome.compile_seconds),
        **{f"new_{name}": None if newcomers is None else float(newcomers[name]) for name in measures.scores},
    }


def _of_edges(metrics: Mapping[str, np.ndarray], n_clients: int) -> Row:
    """The traffic between edge servers and the cloud; None in a method without them."""
    measured = edge_traffic(metrics)
    return {
        column: float(megabytes_over_rounds(metrics, name, n_clients)[-1]) if column in measured else None
        for column, name in EDGE_TRAFFIC.items()
    }


def _by_validation(metrics: Mapping[str, np.ndarray], measures: Measures) -> Row:
    """The headline in the round that was best on the validation split, if that was tested."""
    if VALIDATION + measures.headline not in metrics:
        return {}
    best, value = best_round(metrics), float(at_best_validation(metrics)[-1])
    return {measures.by_validation: _none_if_nan(value), "best_val_round": None if best is None else best + 1}


def optional_columns(metrics: Mapping[str, np.ndarray]) -> Row:
    """Columns by the last round that only some runs have, None in others: see `final_table`."""
    return {
        "epsilon": float(metrics["epsilon"][-1]) if "epsilon" in metrics else None,
        "attack_success": float(metrics["attack_success"][-1]) if "attack_success" in metrics else None,
        "simulated_seconds": float(np.sum(metrics["simulated_seconds"])) if "simulated_seconds" in metrics else None,
    }


def _none_if_nan(number: float) -> float | None:
    return None if np.isnan(number) else number


def _spread_columns(metrics: Mapping[str, np.ndarray], measures: Measures) -> Row:
    """The spread of the headline over the clients."""
    kind = measures.kind + "_"
    last = {name: value[-1:] for name, value in metrics.items() if name.startswith(OF_CLIENT)}
    return {
        name: _none_if_nan(float(spread_over_clients(last, name)[0])) for name in spreads(last) if name.startswith(kind)
    }


def client_table(outcomes: Mapping[str, Outcome], federation: Federation, names: Sequence[str] = ()) -> list[Row]:
    """One row per client: its name or number, its true group, its sizes, and its last test with each method.

    Columns: ``client``, ``group``, ``n_train``, ``n_test``, and ``"METHOD client_accuracy"`` and so on.
    """
    n_clients = len(federation.train.size)
    sizes = {"n_train": np.asarray(federation.train.size), "n_test": np.asarray(federation.test.size)}
    tests = {
        f"{method} {name}": np.asarray(values[-1])
        for method, outcome in outcomes.items()
        for name, values in outcome.metrics.items()
        if name.startswith(OF_CLIENT) and name != ROW  # the column of clusters has it
    }
    groups = None if federation.group is None else np.asarray(federation.group)
    labels = {
        f"{name} cluster": label for name, outcome in outcomes.items() if (label := final_label(outcome)) is not None
    }
    return [
        {
            "client": names[i] if names else i,
            "group": None if groups is None else int(groups[i]),
            **{name: int(values[i]) for name, values in sizes.items()},
            **{name: int(values[i]) for name, values in labels.items()},
            **{name: float(values[i]) for name, values in tests.items()},
        }
        for i in range(n_clients)
    ]


def final_label(outcome: Outcome) -> np.ndarray | None:
    """(clients,) each client's cluster at the end, -1 if not known; None for a method without clusters.

    It is the row number of the deployed model if some clients share a model but not all, else the label that the last
    round reported for its participants.
    """
    if "label" not in outcome.metrics:
        return None
    label = np.asarray(outcome.deployed.row)
    if tree.n_rows(outcome.deployed.params) > 1 and len(np.unique(label)) < len(label):
        return label
    label, active = np.full(len(label), -1), outcome.metrics["active"][-1]
    label[outcome.metrics["ids"][-1][active]] = outcome.metrics["label"][-1][active]
    return label


def labels_over_time(outcome: Outcome) -> np.ndarray:
    """(rounds, clients) each client's cluster as last reported, -1 before its first participation."""
    ids, active, label = (np.asarray(outcome.metrics[name]) for name in ("ids", "active", "label"))
    labels = np.full((len(ids), len(outcome.deployed.row)), -1)
    for i in range(len(ids)):
        labels[i] = labels[i - 1] if i else -1
        labels[i, ids[i][active[i]]] = label[i][active[i]]
    return labels


def curve(
    metrics: Mapping[str, np.ndarray], name: str | None = None, *, seconds: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The rounds (counted from 1) in which clients were tested, and the metric ``name`` there; None: the headline.

    With ``seconds``, the simulated seconds at the ends of these rounds instead of the rounds.
    """
    name = measures_of(metrics).headline if name is None else name
    finite = np.isfinite(metrics[name])
    ends = np.cumsum(metrics["simulated_seconds"], dtype=np.float64)[finite] if seconds else np.flatnonzero(finite) + 1
    return ends, metrics[name][finite]


def principal_components(models: ModelTable) -> tuple[np.ndarray, np.ndarray]:
    """Two principal components of the clients' deployed models, trainable parameters only.

    Returns:
        (clients, 2) coordinates, NaN for a client without a model, and the share (2,) of the variance that each
        component explains; zeros if all models are equal.
    """
    n_rows = tree.n_rows(models.params)
    row_of_client = np.asarray(models.row) * (n_rows > 1)  # a single row is shared by all
    has_model = (row_of_client >= 0) & (row_of_client < n_rows)
    if not has_model.all():  # some clients have no model
        known_coordinates, share = principal_components(models._replace(row=jnp.asarray(row_of_client[has_model])))
        coordinates = np.full((len(row_of_client), 2), np.nan)
        coordinates[has_model] = known_coordinates
        return coordinates, share
    leaves = [leaf for leaf in jax.tree.leaves(tree.split_statistics(models.params)[0]) if leaf.shape[0] == n_rows]
    rows = np.concatenate([np.asarray(leaf).reshape(n_rows, -1) for leaf in leaves], axis=1)
    vectors = rows[row_of_client]  # leaves that all share do not add to the variance
    if len(vectors) < 2 or not np.ptp(vectors, axis=0).any():
        return np.zeros((len(vectors), 2)), np.zeros(2)
    return _two_components(vectors - vectors.mean(axis=0, dtype=np.float64).astype(vectors.dtype))


def _two_components(centred: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`principal_components` of rows (clients, parameters) of mean 0.

    Computed from the scalar products of clients or of parameters, whichever are fewer; all components of many clients,
    of which two are drawn, would take longer than the rounds.
    """
    is_wide = centred.shape[1] > centred.shape[0]
    tall = centred.T if is_wide else centred
    n = tall.shape[1]
    products = np.zeros((n, n))
    for part in np.array_split(tall, 1 + tall.size // _AT_ONCE):
        part = part.astype(np.float64)
        products += part.T @ part
    largest_two: Any = scipy.linalg.eigh(products, subset_by_index=(max(n - 2, 0), n - 1))
    singular_values, eigenvectors = np.sqrt(np.maximum(largest_two[0][::-1], 0)), largest_two[1][:, ::-1]
    directions = centred.T @ eigenvectors if is_wide else eigenvectors
    coordinates = eigenvectors * singular_values if is_wide else centred @ eigenvectors
    # A direction and its opposite are equivalent: choose the sign so that the largest entry is positive.
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=0)[None], axis=0)
    coordinates, pad = np.where(largest < 0, -1, 1) * coordinates, 2 - len(singular_values)
    return np.pad(coordinates, ((0, 0), (0, pad))), np.pad(singular_values**2 / np.trace(products), (0, pad))


def finite(models: ModelTable) -> bool:
    """Whether every deployed model is finite."""
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(models.params))


def save_table(path: Path, rows: Sequence[Row], read_again: bool = False) -> None:
    """Writes the table as CSV; None is an empty cell. With ``read_again``, a checksum is written into a file beside
    it."""
    text = io.StringIO(newline="")
    writer: Any = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write: Any = write_listed if read_again else write_atomically
    write(path, text.getvalue().encode())


def save_formats(folder: Path, name: str, rows: Sequence[Row], markdown: str, latex: str) -> None:
    """Writes a table as ``name``.csv, .md and .tex into ``folder``, which is created if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    save_table(folder / f"{name}.csv", rows, read_again=True)
    write_atomically(folder / f"{name}.md", markdown.encode())
    write_atomically(folder / f"{name}.tex", latex.encode())
