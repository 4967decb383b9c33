"""The metrics that a user's own round gives back: what is taken, and what is refused by name before anything runs."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import fljax
from fljax.files import read_arrays, save_arrays
from fljax.folder.rounds import read_rounds
from fljax.rounds import clustered
from fljax.rounds.clustered import Clusters, Rule
from fljax.rounds.round_metrics import round_metrics
from fljax.rounds.uplink.chain import NOTHING, with_uplink
from fljax.rounds.uplink.downlink import with_downlink
from fljax.run.progress import BarProgress
from fljax.types import Cohort, Work

pytestmark = pytest.mark.usefixtures("one_device")

N, HYPER = 9, fljax.fedavg.Hyper(lr=0.1)
DUE = {"uplink": 1.0, "downlink": 2, "loss": 0.5}


@pytest.fixture
def metrics_of_round(federation):
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
def test_what_is_no_metric_is_refused_by_name(metrics_of_round, metrics, message):
    with pytest.raises(ValueError, match=message):
        metrics_of_round(metrics)


def test_numbers_of_python_and_numpy_and_jaxs_own_types_are_taken(metrics_of_round):
    own = {"a": 3, "b": np.float64(0.5), "c": np.arange(N), "d": True, "e": jnp.zeros(N, jnp.bfloat16)}
    own |= {"f": jnp.zeros((), jnp.int4), "g": jnp.zeros((), jnp.float8_e4m3fn), "h": jnp.zeros((), jnp.float16)}
    metrics = metrics_of_round(DUE | own)
    dtypes = {name: str(metrics[name].dtype) for name in own}
    expected = ("int32", "float32", "int32", "bool", "float32", "int32", "float32", "float16")
    assert dtypes == dict(zip(own, expected, strict=True))
    np.testing.assert_array_equal(metrics["c"], np.arange(N)[::-1])  # in order of client id
    assert {metrics[name].shape for name in (*DUE, "ok")} == {(N,)}
    assert metrics["ok"].dtype == bool
    assert metrics["ok"].all()


def test_every_entry_point_takes_what_a_round_gives(key, averaging, federation, tmp_path):
    def round(key, hyper, state, cohort):
        next_state, metrics = averaging.round(key, hyper, state, cohort)
        own = {"loss": metrics["loss"].mean(), "file": jnp.asarray(1.5, jnp.bfloat16), "n": 3}
        return next_state, own | {name: metrics[name] for name in ("uplink", "downlink")}

    own = averaging._replace(round=round)
    bar = BarProgress("own", Console(file=io.StringIO()))
    run = fljax.train(own, HYPER, federation, key, 2, folder=tmp_path / "run", progress=bar)
    loaded = read_rounds(tmp_path / "run")
    np.testing.assert_array_equal(loaded["file"], np.float32([1.5, 1.5]))
    assert {loaded[name].shape for name in ("loss", "ok")} == {(2, N)}
    np.testing.assert_array_equal(run.metrics["n"], [3, 3])
    sweep_metrics = fljax.sweep(own, HYPER, federation, key, 1, 2)
    assert not sweep_metrics["diverged"].any()

    without_loss = averaging._replace(
        round=lambda *arguments: (averaging.round(*arguments)[0], {"uplink": 1.0, "downlink": 1.0})
    )
    for start in (
        lambda: fljax.simulate(without_loss, HYPER, federation, key, 1),
        lambda: fljax.train(without_loss, HYPER, federation, key, 1, folder=tmp_path / "lacking"),
        lambda: fljax.sweep(without_loss, HYPER, federation, key, 1, 1),
    ):
        with pytest.raises(ValueError, match="no metric 'loss'"):
            start()


def test_a_log_has_a_line_a_minute(monkeypatch):
    """Where no bar can be drawn."""
    clock, output = iter([0.0, 30.0, 61.0, 61.0, 90.0]), io.StringIO()
    monkeypatch.setattr("fljax.run.progress.time.monotonic", lambda: next(clock, 1e3))
    bar = BarProgress("own", Console(file=output))
    metrics = {"accuracy_macro": np.array([np.nan, 0.25]), "active": np.ones((2, 1), bool), "ok": np.ones((2, 1), bool)}
    for done in (2, 4):
        bar.bar.update(bar.task, total=8)
        bar.chunk(done, metrics, 1.5)
    assert output.getvalue() == "own: 4 of 8 rounds, 1.5 rounds/s, accuracy 0.2500\n"


def test_colours_that_are_forced_draw_no_bar_into_a_pipe(monkeypatch, capsys):
    """FORCE_COLOR stands in the environment of CI services and notebooks."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    bar = BarProgress("own")
    bar.prepare()
    bar.start(0, 2)
    for _ in range(3):
        bar.bar.refresh()
    bar.stop()
    output = capsys.readouterr().out
    assert output.count("own") == 1
    assert "\x1b[32m" in output  # in colours


def test_a_rule_may_give_one_loss_and_not_one_value_a_cluster(key, model, federation):
    def first_clusters(key, hyper, data):
        return Clusters(jax.vmap(model.init)(jax.random.split(key, 2)), jnp.arange(N) % 2)

    def run_with(metrics):
        rule = Rule(first_clusters, after=lambda key, hyper, clusters, sent, cohort: (clusters, sent, metrics))
        algorithm = clustered(model, Work(1, 8), rule)
        return lambda: jax.eval_shape(lambda key: fljax.simulate(algorithm, HYPER, federation, key, 1), key)

    assert run_with({"loss": 0.25})()[1]["loss"].shape == (1, N)
    with pytest.raises(ValueError, match=r"'members' has shape \(2,\)"):
        run_with({"members": np.ones(2)})()


@pytest.mark.parametrize(("add_brick", "name"), [(with_uplink, "uplink"), (with_downlink, "downlink")])
def test_bricks_on_the_way_refuse_and_take_the_same(key, averaging, federation, add_brick, name):
    def metrics_with(metrics):
        exchange = averaging.exchange._replace(
            receive=lambda *arguments: (averaging.exchange.receive(*arguments)[0], metrics)
        )
        algorithm = add_brick(averaging._replace(round=exchange.round, exchange=exchange), NOTHING)
        return jax.eval_shape(lambda key: fljax.simulate(algorithm, HYPER, federation, key, 1), key)[1]

    assert metrics_with(DUE)[name].shape == (1, N)
    with pytest.raises(ValueError, match=f"no metric '{name}'"):
        metrics_with({other_name: value for other_name, value in DUE.items() if other_name != name})


def test_arrays_of_any_name_are_written(tmp_path):
    arrays = {"file": np.arange(3), "allow_pickle": np.float32(1)}
    save_arrays(tmp_path / "a.npz", arrays)
    loaded, _ = read_arrays(tmp_path / "a.npz", "")
    np.testing.assert_equal(loaded, arrays)


def test_a_metric_of_the_name_of_a_tests(key, averaging, federation):
    def round(key, hyper, state, cohort):
        state, metrics = averaging.round(key, hyper, state, cohort)
        return state, metrics | {"accuracy_macro": metrics["loss"]}

    method = averaging._replace(round=round, exchange=None)
    for run in (fljax.simulate, fljax.train, lambda *arguments, n_rounds: fljax.sweep(*arguments, 1, n_rounds)):
        with pytest.raises(
            ValueError, match=r"^a round returned a metric 'accuracy_macro', which its test has too; give"
        ):
            run(method, HYPER, federation, key, n_rounds=2)
