"""The metrics that a user's own round gives back: what is taken, and what is refused by name before anything runs."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import fljax
from fljax.files import read_arrays, save_arrays
from fljax.rounds import clustered
from fljax.rounds.clustered import Clusters, Rule
from fljax.rounds.uplink.chain import NOTHING, with_uplink
from fljax.rounds.uplink.downlink import with_downlink
from fljax.run.one_round import round_metrics
from fljax.run.progress import BarProgress
from fljax.run.rounds import read_rounds
from fljax.types import Cohort, Work

N, HYPER = 9, fljax.fedavg.Hyper(lr=0.1)
DUE = {"uplink": 1.0, "downlink": 2, "loss": 0.5}


@pytest.fixture
def told(federation):
    ids = jnp.arange(N)[::-1]
    cohort = Cohort(jnp.int32(0), ids, federation.train, ids >= 0, None, ids)
    return lambda metrics: round_metrics(metrics, cohort, federation)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (DUE | {"m": jnp.array([10.0, 20.0])}, r"'m' has shape \(2,\); give \(\) or \(cohort,\) = \(9,\)"),
        (DUE | {"m": jnp.zeros(0)}, r"'m' has shape \(0,\)"),
        (DUE | {"m": np.zeros((N, 1))}, r"'m' has shape \(9, 1\)"),
        (DUE | {"m": "high"}, "'m' is 'high'; give a number or an array"),
        (DUE | {"m": None}, "'m' is None"),
        (DUE | {"m": [1.0] * N}, r"'m' is \[1.0, 1.0"),
        (DUE | {"m": np.array("high")}, "'m' has dtype <U4"),
        (DUE | {"m": jnp.complex64(1)}, "'m' has dtype complex64"),
        (DUE | {"m": jax.random.key(0)}, "'m' has dtype key"),
        (DUE | {"m": np.int64(2**40)}, "'m' is 1099511627776, which int32 does not hold"),
        (DUE | {"ok": 1.0}, "'ok' has dtype float32; give bool"),
        (DUE | {3: 1.0}, "the name 3; give a str"),
        ({"loss": 0.5, "downlink": 2}, r"no metric 'uplink' \(its metrics: 'loss', 'downlink'\)"),
        ({"uplink": 1.0, "loss": 2}, "no metric 'downlink'"),
        ({"uplink": 1.0, "downlink": 2}, "no metric 'loss'"),
        (DUE | {"round": 1}, "a metric 'round', which a run adds itself; give it another name"),
        (DUE | {"ids": 1}, "a metric 'ids'"),
        (DUE | {"n_not_finite": 1}, "a metric 'n_not_finite'"),
        (
            DUE | {"client_drift": jnp.ones(N)},
            "'client_drift', .*, as those of clients' tests are named",
        ),
        (None, "a round returned NoneType for its metrics; return a dict"),
    ],
)
def test_what_is_no_metric_is_refused_by_name(told, metrics, message):
    with pytest.raises(ValueError, match=message):
        told(metrics)


def test_numbers_of_python_and_numpy_and_jaxs_own_types_are_taken(told):
    given = {"a": 3, "b": np.float64(0.5), "c": np.arange(N), "d": True, "e": jnp.zeros(N, jnp.bfloat16)}
    given |= {"f": jnp.zeros((), jnp.int4), "g": jnp.zeros((), jnp.float8_e4m3fn), "h": jnp.zeros((), jnp.float16)}
    found = told(DUE | given)
    kinds = {name: str(found[name].dtype) for name in given}
    expected = ("int32", "float32", "int32", "bool", "float32", "int32", "float32", "float16")
    assert kinds == dict(zip(given, expected, strict=True))
    np.testing.assert_array_equal(found["c"], np.arange(N)[::-1])  # in order of client id
    assert {found[name].shape for name in (*DUE, "ok")} == {(N,)}
    assert found["ok"].dtype == bool
    assert found["ok"].all()


def test_every_entry_point_takes_what_a_round_gives(key, averaging, federation, tmp_path):
    def round(key, hyper, state, cohort):
        new, metrics = averaging.round(key, hyper, state, cohort)
        own = {"loss": metrics["loss"].mean(), "file": jnp.asarray(1.5, jnp.bfloat16), "n": 3}
        return new, own | {name: metrics[name] for name in ("uplink", "downlink")}

    own = averaging._replace(round=round)
    bar = BarProgress("own", Console(file=io.StringIO()))
    run = fljax.train(own, HYPER, federation, key, 2, folder=tmp_path / "run", progress=bar)
    stored = read_rounds(tmp_path / "run")
    np.testing.assert_array_equal(stored["file"], np.float32([1.5, 1.5]))
    assert {stored[name].shape for name in ("loss", "ok")} == {(2, N)}
    np.testing.assert_array_equal(run.metrics["n"], [3, 3])
    swept = fljax.sweep(own, HYPER, federation, key, 1, 2)
    assert not swept["diverged"].any()

    lacking = averaging._replace(round=lambda *given: (averaging.round(*given)[0], {"uplink": 1.0, "downlink": 1.0}))
    for entry in (
        lambda: fljax.simulate(lacking, HYPER, federation, key, 1),
        lambda: fljax.train(lacking, HYPER, federation, key, 1, folder=tmp_path / "lacking"),
        lambda: fljax.sweep(lacking, HYPER, federation, key, 1, 1),
    ):
        with pytest.raises(ValueError, match="no metric 'loss'"):
            entry()


def test_a_log_has_a_line_a_minute(monkeypatch):
    """Where no bar can be drawn."""
    clock, file = iter([0.0, 30.0, 61.0, 61.0, 90.0]), io.StringIO()
    monkeypatch.setattr("fljax.run.progress.time.monotonic", lambda: next(clock, 1e3))
    bar = BarProgress("own", Console(file=file))
    metrics = {"accuracy_macro": np.array([np.nan, 0.25]), "active": np.ones((2, 1), bool), "ok": np.ones((2, 1), bool)}
    for done in (2, 4):
        bar.bar.update(bar.task, total=8)
        bar.chunk(done, metrics, 1.5)
    assert file.getvalue() == "own: 4 of 8 rounds, 1.5 rounds/s, accuracy 0.2500\n"


def test_a_rule_may_give_one_loss_and_not_one_value_a_cluster(key, model, federation):
    def begin(key, hyper, data):
        return Clusters(jax.vmap(model.init)(jax.random.split(key, 2)), jnp.arange(N) % 2)

    def giving(metrics):
        rule = Rule(begin, after=lambda key, hyper, clusters, sent, cohort: (clusters, sent, metrics))
        algorithm = clustered(model, Work(1, 8), rule)
        return lambda: jax.eval_shape(lambda key: fljax.simulate(algorithm, HYPER, federation, key, 1), key)

    assert giving({"loss": 0.25})()[1]["loss"].shape == (1, N)
    with pytest.raises(ValueError, match=r"'members' has shape \(2,\)"):
        giving({"members": np.ones(2)})()


@pytest.mark.parametrize(("put", "name"), [(with_uplink, "uplink"), (with_downlink, "downlink")])
def test_bricks_on_the_way_refuse_and_take_the_same(key, averaging, federation, put, name):
    def traced(metrics):
        halves = averaging.exchange._replace(receive=lambda *given: (averaging.exchange.receive(*given)[0], metrics))
        algorithm = put(averaging._replace(round=halves.round, exchange=halves), NOTHING)
        return jax.eval_shape(lambda key: fljax.simulate(algorithm, HYPER, federation, key, 1), key)[1]

    assert traced(DUE)[name].shape == (1, N)
    with pytest.raises(ValueError, match=f"no metric '{name}'"):
        traced({other: value for other, value in DUE.items() if other != name})


def test_arrays_of_any_name_are_written(tmp_path):
    arrays = {"file": np.arange(3), "allow_pickle": np.float32(1)}
    save_arrays(tmp_path / "a.npz", arrays)
    found, _ = read_arrays(tmp_path / "a.npz", "")
    np.testing.assert_equal(found, arrays)


def test_a_metric_of_the_name_of_a_tests(key, averaging, federation):
    def round(key, hyper, state, cohort):
        state, metrics = averaging.round(key, hyper, state, cohort)
        return state, metrics | {"accuracy_macro": metrics["loss"]}

    mine = averaging._replace(round=round, exchange=None)
    for run in (fljax.simulate, fljax.train, lambda *of, n_rounds: fljax.sweep(*of, 1, n_rounds)):
        with pytest.raises(
            ValueError, match=r"^a round returned a metric 'accuracy_macro', which its test has too; give"
        ):
            run(mine, HYPER, federation, key, n_rounds=2)
