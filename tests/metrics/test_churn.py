"""Changes of cluster against `fljax.server.churn`, by hand, and in the metrics of clustered runs."""

import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import fljax
from fljax.algorithms.ifca import ifca
from fljax.metrics.churn import _most_kept, churn_of_rounds
from fljax.report.summary import Outcome, final_table
from fljax.rounds.round_metrics import round_metrics
from fljax.run.simulate import simulate
from fljax.run.train import train
from fljax.server import churn
from fljax.types import Cohort, ModelTable, Work

ROUNDS = 6


def metrics_of(ids, label, active=None):
    ids = np.asarray(ids)
    active = np.ones(ids.shape, bool) if active is None else np.asarray(active)
    return {"ids": ids, "label": np.asarray(label), "active": active}


@pytest.mark.parametrize("n_clusters", [2, 4, 12])
def test_full_rounds_equal_the_servers_measure(n_clusters):
    rng = np.random.default_rng(n_clusters)
    label = rng.integers(-1, n_clusters - 1, (5, 12))
    label[3] = rng.permutation(n_clusters + 1)[label[2] + 1]  # names change, clusters do not
    measured, last_label = churn_of_rounds(metrics_of([np.arange(12)] * 5, label), 12)
    expected = [float(churn(jnp.asarray(a), jnp.asarray(b))) for a, b in itertools.pairwise(label)]
    np.testing.assert_allclose(measured, [0, *expected], rtol=1e-6)
    assert measured[3] == 0
    np.testing.assert_array_equal(last_label, label[-1])


def test_the_most_clients_that_stay_are_those_of_scipys_assignment():
    rng = np.random.default_rng(0)
    for rows, columns in ((1, 1), (2, 2), (2, 5), (4, 3), (5, 5)) * 8:
        counts = rng.integers(0, 4, (rows, columns))  # small, so that many are equal
        assert _most_kept(counts) == counts[linear_sum_assignment(counts, maximize=True)].sum()


def test_who_was_away_is_compared_with_when_it_last_took_part():
    ids = [[0, 1, 2, 3], [2, 3, 4, 5], [0, 1, 4, 5]]
    label = [[0, 0, 1, 1], [1, 0, 0, 0], [0, 0, 1, 0]]
    # Of the second round's four, 2 and 3 had a label and are now apart; of the third's, 4 left 5 and went nowhere else.
    measured, _ = churn_of_rounds(metrics_of(ids, label), 6)
    np.testing.assert_allclose(measured, [0, 0.5, 0.25])
    active = [[True] * 4, [True] * 4, [True, True, False, True]]
    np.testing.assert_allclose(churn_of_rounds(metrics_of(ids, label, active), 6)[0], [0, 0.5, 0])


def test_chunks_equal_the_whole():
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(20)[:9] for _ in range(8)])
    metrics = metrics_of(ids, rng.integers(0, 3, ids.shape), rng.random(ids.shape) < 0.8)
    first_churn, labels = churn_of_rounds({name: value[:3] for name, value in metrics.items()}, 20)
    second_churn, _ = churn_of_rounds({name: value[3:] for name, value in metrics.items()}, 20, labels)
    np.testing.assert_array_equal(churn_of_rounds(metrics, 20)[0], [*first_churn, *second_churn])


class Stop(Exception):
    pass


class StopAtTheThird:
    def prepare(self): ...

    def start(self, done, n_rounds): ...
    def stop(self): ...
    def chunk(self, done, metrics, rounds_per_second):
        if done >= 3:
            raise Stop


@pytest.mark.slow
def test_clustered_runs_report_churn_however_they_are_run(key, model, federation, tmp_path):
    algorithm, options = ifca(model, Work(1, 8), 3), {"participation": 0.5, "evaluate_every": ROUNDS}
    _, simulated = simulate(algorithm, fljax.ifca.Hyper(), federation, key, ROUNDS, **options)
    assert simulated["churn"].shape == (ROUNDS,)
    options |= {"folder": tmp_path, "seconds_per_checkpoint": 0.0, "seconds_per_chunk": 1e-9}
    with pytest.raises(Stop):
        train(algorithm, fljax.ifca.Hyper(), federation, key, ROUNDS, progress=StopAtTheThird(), **options)
    run = train(algorithm, fljax.ifca.Hyper(), federation, key, ROUNDS, **options)
    np.testing.assert_allclose(run.metrics["churn"], simulated["churn"])
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([row["churn"] for row in rows], simulated["churn"])
    expected, _ = churn_of_rounds(run.metrics, 9)
    np.testing.assert_array_equal(run.metrics["churn"], expected)
    assert expected.any()  # or the test sees nothing


def test_the_final_table_has_its_mean():
    metrics = {name: np.ones(2) for name in ("accuracy_macro", "accuracy_micro", "accuracy_p10", "f1_macro")}
    metrics |= metrics_of([[0, 1]] * 2, [[0, 1]] * 2) | {"uplink": np.ones(2), "downlink": np.ones(2)}
    metrics["ok"] = metrics["active"]
    models = ModelTable({"fc1": jnp.zeros((2, 3))}, jnp.arange(2))
    (unclustered_row,) = final_table({"a": Outcome(metrics, models, 1.0)})
    (clustered_row,) = final_table({"a": Outcome(metrics | {"churn": np.array([0, 0.5])}, models, 1.0)})
    assert (unclustered_row["churn"], clustered_row["churn"]) == (None, 0.25)


def test_agreement_with_the_true_groups_is_of_those_who_take_part(federation):
    """A place that nobody takes, or a client that drops out, changes nothing, whatever it is labelled."""
    ids, active = jnp.arange(9), jnp.arange(9) != 4
    cohort = Cohort(jnp.int32(0), ids, federation.train, active, None, ids)
    work_metrics = {"uplink": jnp.float32(1), "downlink": jnp.float32(1), "loss": jnp.float32(1)}
    for wrong in range(3):
        label = federation.group.at[4].set(wrong)
        assert float(round_metrics(work_metrics | {"label": label}, cohort, federation)["ari"]) == 1
    one_active = cohort._replace(active=ids == 4)
    assert float(round_metrics(work_metrics | {"label": label}, one_active, federation)["ari"]) == 1
    all_active = cohort._replace(active=ids >= 0)
    scores = [
        float(round_metrics(work_metrics | {"label": federation.group.at[4].set(wrong)}, all_active, federation)["ari"])
        for wrong in range(3)
    ]
    assert sorted(scores)[0] < sorted(scores)[-1] == 1
