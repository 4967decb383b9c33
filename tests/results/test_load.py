"""Results in hand: folders read back, models taken elsewhere, numbers to loggers, figures that stay legible."""

import copy
import json
import pickle
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import serialization
from flax.traverse_util import unflatten_dict
from matplotlib.text import Text
from safetensors.numpy import load_file
from scipy.optimize import isotonic_regression
from sklearn.metrics import confusion_matrix

import fljax
from fljax.files import save_arrays
from fljax.metrics.cost import Link
from fljax.metrics.spread import spread_over_clients, spreads, worst
from fljax.report import plots
from fljax.report.frames import read_table, stacked
from fljax.results.load import LoadedRun
from fljax.results.load_comparison import LoadedComparison
from fljax.results.measures import over_rounds
from fljax.results.result import NEW_TESTS, Result
from fljax.run.logging import LogProgress, scalars, to_mlflow, to_tensorboard, to_wandb
from fljax.run.models_on_disk import FILE, OF_NEW, read_models
from tests.oracle import rows_of

pytestmark = pytest.mark.usefixtures("one_device")


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(6)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(nn.Dropout(0.2, deterministic=not train)(nn.relu(x)))


ROUNDS = 3


class Recorder:
    """A logger that remembers, under the names of three packages."""

    def __init__(self):
        self.rows = {}

    def log(self, values, step):
        self.rows.setdefault(step, {}).update(values)

    log_metrics = log

    def add_scalar(self, name, value, step):
        self.log({name: value}, step)


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    """A folder with a finished run, its parts, and what loggers were told."""
    rng, key = np.random.default_rng(0), jax.random.key(0)
    x, y = rng.normal(size=(120, 4)).astype(np.float32), rng.integers(10, size=120)
    federation = fljax.federation_from_arrays(x, y, np.arange(120) % 4)
    algorithm, hyper = fljax.fedbn(fljax.from_linen(Net(), (4,)), fljax.Work(1, 8)), fljax.fedbn.Hyper(lr=0.1)
    folder, records = tmp_path_factory.mktemp("run") / "fedbn", [Recorder(), Recorder(), Recorder()]
    loggers = [to_tensorboard(records[0]), to_wandb(records[1]), to_mlflow(records[2])]
    run = fljax.train(algorithm, hyper, federation, key, ROUNDS, folder=folder, progress=LogProgress(loggers))
    models = fljax.deployed(algorithm, hyper, run.state, federation, key)
    fljax.save_models(folder / FILE, models)
    return folder, algorithm, federation, run, models, records


def test_a_folder_is_arrays_and_frames_and_models(trained_run):
    folder, _, _, run, models, _ = trained_run
    loaded = fljax.load_run(folder)
    result = loaded["fedbn"]
    assert list(loaded) == list(loaded.keys()) == ["fedbn"]
    assert len(loaded) == 1
    assert "fedbn" in loaded
    assert "ditto" not in loaded
    assert dict(loaded)["fedbn"] is result
    for name, value in run.metrics.items():
        np.testing.assert_array_equal(result.metrics[name], value)
    assert "fedbn: 3 rounds, accuracy_macro" in repr(loaded)
    assert list(result.rounds()["round"]) == [1, 2, 3]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for name in ("loss", "uplink", "downlink", "n_not_finite", "accuracy_macro"):
        np.testing.assert_allclose(result.rounds()[name], [line[name] for line in lines], rtol=1e-6)
    np.testing.assert_array_equal(result.tests()["client_accuracy"], run.metrics["client_accuracy"][-1])
    jax.tree.map(np.testing.assert_array_equal, result.client_model(2), fljax.client_model(models, 2))
    with pytest.raises(ValueError, match="client=4 does not exist; choose 0 to 3"):
        result.client_model(4)
    with pytest.raises(ValueError, match=r"client=2.5 is not a whole number"):
        result.client_model(2.5)
    with pytest.raises(ValueError, match="no client 'x'"):
        result.client_model("x")
    with pytest.raises(ValueError, match="has no 'fedavg'; it has fedbn"):
        loaded["fedavg"]
    for no_run in (folder / "gone", folder / "rounds"):
        with pytest.raises(ValueError, match=r"no folder|holds no results"):
            fljax.load_run(no_run)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"evaluate_every": 2, "rounds": 8}, [0.5, 0.5, np.nan]),
        ({}, [0.5, 0.5, np.nan]),  # a folder of `fljax.train`, which does not say when it tests
        ({"evaluate_every": 3, "rounds": 8}, [np.nan] * 3),  # its last round was tested and came to nothing
        ({"evaluate_every": 2, "rounds": 3}, [np.nan] * 3),  # as the last of a run is, whenever it tests
    ],
)
def test_a_run_stopped_between_two_tests_has_its_last_one(tmp_path, config, expected):
    clients = np.full((3, 3), np.nan)
    clients[1] = [0.5, 0.5, np.nan]
    metrics = {"ids": np.zeros((3, 2), np.int32), "client_accuracy": clients, "accuracy_macro": clients[:, 0]}
    result = Result("fedavg", tmp_path, metrics, config=config)
    np.testing.assert_array_equal(result.tests()["client_accuracy"], expected)
    assert repr(result) == f"<fedavg: 3 rounds, accuracy_macro {expected[0]:.4f}>"


def test_models_of_a_run_that_was_resumed_and_stopped_are_refused(trained_run):
    folder, _, _, _, models, _ = trained_run
    result, content = fljax.load_run(folder)["fedbn"], (folder / FILE).read_bytes()
    try:
        fljax.save_models(folder / FILE, models, ROUNDS - 1)
        with pytest.raises(
            ValueError, match=r"models.npz was written after 2 rounds, but the run was interrupted after 3; resume"
        ):
            _ = result.models
        fljax.save_models(folder / FILE, models, ROUNDS)
        jax.tree.map(np.testing.assert_array_equal, result.models, jax.device_get(models))
    finally:
        (folder / FILE).write_bytes(content)


def test_frames_where_pandas_is(trained_run):
    pandas = pytest.importorskip("pandas")
    result = fljax.load_run(trained_run[0])["fedbn"]
    frame = result.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == ROUNDS
    assert set(result.frame("tests").columns) == {"client", "client_accuracy", "client_f1", "client_loss"}


def test_metrics_are_a_frame_before_anything_is_written(trained_run):
    pandas = pytest.importorskip("pandas")
    folder, _, _, run, *_ = trained_run
    frame, loaded_frame = fljax.frame(run.metrics), fljax.load_run(folder).frame()
    assert loaded_frame.pop("algorithm").eq("fedbn").all()
    pandas.testing.assert_frame_equal(frame, loaded_frame)
    with pytest.raises(ValueError, match="metrics is of type int; give the dictionary "):
        fljax.frame(3)
    with pytest.raises(ValueError, match="metrics have no 'ids'"):
        fljax.frame({"accuracy_macro": np.zeros(3)})
    with pytest.raises(ValueError, match=r"\['ids'\] has shape \(1, 3, 4\); give those of one run"):
        fljax.frame({name: value[None] for name, value in run.metrics.items()})


@pytest.mark.parametrize("format", ["safetensors", "flax"])
def test_exported_models_give_the_same_logits_in_plain_flax(trained_run, tmp_path, format):
    _, algorithm, federation, _, models, _ = trained_run
    files = fljax.export_models(models, tmp_path, format=format)
    assert json.loads((tmp_path / "models.json").read_text())["3"] == files[3].name
    if format == "flax":
        params = serialization.msgpack_restore(files[3].read_bytes())
    else:
        params = unflatten_dict(load_file(files[3]), sep=".")
    statistics = {"batch_stats": params.pop("batch_stats")}
    x = np.asarray(federation.train.pool.x)[:5]
    logits = jax.jit(Net().apply, static_argnums=2)({"params": params, **statistics}, x, False)
    np.testing.assert_allclose(logits, jax.jit(algorithm.predict)(fljax.client_model(models, 3), x), rtol=1e-6)


def test_a_model_that_several_hold_is_written_once(trained_run, tmp_path):
    models = fljax.ModelTable(trained_run[4].params, jnp.array([1, 1, 0, 1]))
    files = fljax.export_models(models, tmp_path, each="model", names=["a", "b", "c", "d"])
    assert [file.name for file in files] == ["model_1.safetensors", "model_0.safetensors"]
    assert json.loads((tmp_path / "models.json").read_text())["d"] == "model_1.safetensors"
    with pytest.raises(ValueError, match="format='onnx'"):
        fljax.export_models(models, tmp_path, format="onnx")
    with pytest.raises(ValueError, match="2 names for 4 clients"):
        fljax.export_models(models, tmp_path, names=["a", "b"])
    with pytest.raises(ValueError, match="two clients would have the same file name"):
        fljax.export_models(models, tmp_path, names=["a/", "a:", "c", "d"])


def test_a_client_without_a_model_has_none(trained_run, tmp_path):
    models = fljax.ModelTable(trained_run[4].params, jnp.array([0, 0, 1, -1]))
    with pytest.raises(ValueError, match="client=3 holds no model: its row is -1"):
        fljax.client_model(models, 3)
    for unit, n_files in (("client", 3), ("model", 2)):
        files = fljax.export_models(models, tmp_path / unit, each=unit, names=["a", "b", "c", "d"], format="flax")
        assert {path.name for path in (tmp_path / unit).glob("*.msgpack")} == {path.name for path in files}
        assert len(files) == n_files
        file_names = json.loads((tmp_path / unit / "models.json").read_text())
        assert file_names["d"] is None
        assert file_names["c"] == files[-1].name
    shared = fljax.ModelTable(jax.tree.map(lambda leaf: leaf[:1], models.params), models.row)
    assert len(fljax.export_models(shared, tmp_path / "shared", each="model", format="flax")) == 1  # it is everybody's
    with pytest.raises(ValueError, match="two clients have the same name"):
        fljax.export_models(models, tmp_path, each="model", names=["a", "a", "b", "c"])
    np.savez(tmp_path / "other.npz", a=np.ones(2))
    with pytest.raises(ValueError, match="cannot be read"):
        read_models(tmp_path / "other.npz")
    save_arrays(tmp_path / "sealed.npz", {"a": np.ones(2)})
    with pytest.raises(ValueError, match="has no models"):
        read_models(tmp_path / "sealed.npz")


def test_methods_are_in_the_order_in_which_they_were_run_and_others_come_last(trained_run, tmp_path):
    for name in ("a", "b", "c", "0"):
        shutil.copytree(trained_run[0], tmp_path / name)
    (tmp_path / "config.toml").write_text('algorithm = ["c", "./mine.py:b", "a"]\n')
    assert list(fljax.load_run(tmp_path)) == ["c", "b", "a", "0"]


def test_a_loaded_run_can_be_copied_and_named_from_within(trained_run, monkeypatch):
    run = fljax.load_run(trained_run[0])
    copied = pickle.loads(pickle.dumps(run))
    assert list(copied) == list(copy.deepcopy(run)) == list(run) == [trained_run[0].name]
    monkeypatch.chdir(trained_run[0])
    assert list(fljax.load_run(".")) == [trained_run[0].name]


def test_loggers_are_told_the_mean_of_those_whose_training_counts():
    ok, active = np.array([[True, False, True]]), np.array([[True, True, False]])
    metrics = {"loss": np.array([[0.5, np.nan, 9.0]]), "ok": ok, "active": active, "more": np.array([2.0])}
    metrics |= {"uplink": np.array([[4.0, 2.0, 0.0]]), "downlink": np.ones((1, 3)), "label": np.zeros((1, 3), int)}
    assert scalars(metrics, 0) == {"loss": 0.5, "uplink": 3.0, "downlink": 1.0, "more": 2.0}
    without_active = scalars(metrics | {"active": np.zeros((1, 3), bool)}, 0)
    assert without_active == {"more": 2.0}


def test_models_on_disk_are_what_was_saved(trained_run, tmp_path):
    folder, *_, models, _ = trained_run
    loaded = read_models(folder / FILE)
    jax.tree.map(np.testing.assert_array_equal, loaded, jax.device_get(models))
    with pytest.raises(ValueError, match=r"fljax\.save_models"):
        read_models(tmp_path / FILE)


AWKWARD = (
    {"row": 1, "x": 2},
    {"file": 1, "allow_pickle": 2},
    {"a": {"b/c": 1}, "a/b": {"c": 2}, "a%2Fb": {"c": 3}},
    {"x": 1, "x.npy": 2},
    {"b%c": {"%": 1}},
)
"""Names that a file of arrays has other uses for."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("params", AWKWARD)
def test_leaves_of_any_name_and_dtype_are_read_back(tmp_path, params, dtype):
    params = jax.tree.map(lambda value: np.full((2, 3), value).astype(dtype), params)
    models, path = fljax.ModelTable(params, np.array([1, 0, 1])), str(tmp_path / FILE)
    fljax.save_models(path, models)
    loaded = read_models(path)
    assert jax.tree.map(lambda leaf: leaf.dtype, loaded.params) == jax.tree.map(lambda leaf: leaf.dtype, params)
    jax.tree.map(np.testing.assert_array_equal, loaded, models)


def test_files_of_before_are_read(tmp_path):
    """Names without a percent sign stand there as they are; a bfloat16 was two bytes of nothing known."""
    value = np.ones((1, 3), jnp.bfloat16)
    save_arrays(tmp_path / FILE, {"fc1/kernel": value, "row": np.zeros(2, np.int32)})
    loaded = read_models(tmp_path / FILE)
    assert loaded.params["fc1"]["kernel"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(loaded.params["fc1"]["kernel"], value)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ((1, 2), r"params\['fc1'\] is a tuple; give an array, or a dict"),
        ([1, 2], r"params\['fc1'\] is a list"),
        ({"w": 1, "b": None}, r"params\['fc1'\]\['b'\] is a NoneType"),
        ({0: 1}, r"params\['fc1'\] has the key 0, a int; give strings"),
    ],
)
def test_parameters_that_files_cannot_name_are_refused(tmp_path, layer, message):
    models = fljax.ModelTable(jax.tree.map(lambda value: np.full(3, value), {"fc1": layer}), np.zeros(2, np.int32))
    with pytest.raises(ValueError, match=message):
        fljax.save_models(tmp_path / FILE, models)
    with pytest.raises(ValueError, match=message):
        fljax.export_models(models, tmp_path)


def test_what_cannot_be_exported_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"models is None, not a ModelTable; give those of fljax.deployed"):
        fljax.export_models(None, tmp_path)
    models = fljax.ModelTable({"a": {"b.c": np.ones(1)}, "a.b": {"c": np.zeros(1)}}, np.zeros(2, np.int32))
    with pytest.raises(ValueError, match="two leaves have the same dotted name"):
        fljax.export_models(models, tmp_path)
    with pytest.raises(ValueError, match="each='clients' is unknown; choose one of 'client', 'model'"):
        fljax.export_models(models, tmp_path, each="clients")


def test_loggers_are_told_every_round(trained_run):
    *_, run, _, records = trained_run
    assert records[0].rows == records[1].rows == records[2].rows
    assert sorted(records[0].rows) == [1, 2, 3]
    assert records[0].rows[2]["accuracy_macro"] == pytest.approx(float(run.metrics["accuracy_macro"][1]))
    assert records[0].rows[3]["loss"] == pytest.approx(float(run.metrics["loss"][2].mean()), rel=1e-6)
    assert records[0].rows[1]["uplink"] == run.metrics["uplink"][0, 0]


def test_what_one_of_several_runs_does_not_have_is_nan_in_their_columns():
    runs = [({"seed": 3}, {"round": np.arange(2)}), ({"seed": 4}, {"round": np.arange(1), "ari": np.ones(1)})]
    columns = stacked(runs)
    np.testing.assert_array_equal(columns["seed"], [3, 3, 4])
    np.testing.assert_array_equal(columns["ari"], [np.nan, np.nan, 1])


def test_clients_that_were_held_out_have_models_and_tests_of_their_own(trained_run, tmp_path):
    models = trained_run[4]
    held_out = fljax.ModelTable(jax.tree.map(lambda leaf: np.asarray(leaf) + 1, models.params), np.array([2, 0]))
    fljax.save_models(tmp_path / FILE, models)
    fljax.save_models(tmp_path / OF_NEW, held_out)
    save_arrays(tmp_path / NEW_TESTS, {"client_loss": np.array([0.5, 0.25]), "test_loss": np.array(0.375)})
    result = Result("fedbn", tmp_path, {}, tuple("abcd"), {}, ("e", "f"))
    jax.tree.map(np.testing.assert_array_equal, result.client_model("f"), fljax.client_model(held_out, 1))
    jax.tree.map(np.testing.assert_array_equal, result.client_model("b"), fljax.client_model(models, 1))
    tests = result.new_tests()
    assert {name: column.tolist() for name, column in tests.items()} == {
        "client": ["e", "f"],
        "client_loss": [0.5, 0.25],
    }
    with pytest.raises(ValueError, match="no client 'g'"):
        result.client_model("g")


def test_a_frame_of_what_a_comparison_does_not_have_is_refused(tmp_path):
    comparison = LoadedComparison(tmp_path, {}, [])
    for of in ("new_tests", "folder"):
        with pytest.raises(ValueError, match=f"^of='{of}' is unknown; choose 'rounds', 'tests'$"):
            comparison.frame(of)
    with pytest.raises(ValueError, match=r"choose 'rounds', 'tests', 'new_tests'$"):
        Result("fedavg", tmp_path, {}).frame("models")


def test_cells_of_a_table_are_numbers_or_text(tmp_path):
    (tmp_path / "table.csv").write_text("a,b,c,d,e,007\n1,0.5,,1_0,nan,007\n")
    (row,) = read_table(tmp_path / "table.csv", ("007",))
    assert np.isnan(row.pop("e"))
    assert row == {"a": 1, "b": 0.5, "c": None, "d": "1_0", "007": "007"}
    assert isinstance(row["a"], int)
    assert read_table(tmp_path / "none.csv") == []
    (tmp_path / "clients.csv").write_text("client,group\n007,1\n")
    for names, client in ((("007",), "007"), ((), 7)):  # names may be numbers
        run = LoadedRun(tmp_path, {}, {"fedavg": Result("fedavg", tmp_path, {}, names)}, [])
        assert run.client_rows() == [{"client": client, "group": 1}]


def test_rounds_and_seconds_of_a_table_are_those_since_the_run_began():
    run = SimpleNamespace(metrics={"ids": np.zeros((3, 2), int), "simulated_seconds": np.float32([1, 2, 4])})
    np.testing.assert_array_equal(over_rounds(run, "simulated_seconds"), [1, 3, 7])
    np.testing.assert_array_equal(over_rounds(run, "rounds"), [1, 2, 3])


def test_megabytes_of_edges_in_a_table_are_those_since_the_run_began():
    metrics = {"ids": np.zeros((3, 2), int), "client_accuracy": np.zeros((3, 5))}
    metrics |= {"edge_uplink": np.float32([1000, 0, 4000]), "edge_downlink": np.float32([2000, 0, 4000])}
    run = SimpleNamespace(metrics=metrics)
    np.testing.assert_allclose(over_rounds(run, "edge_megabytes_up"), [0.0008, 0.0008, 0.004])
    np.testing.assert_allclose(over_rounds(run, "edge_megabytes_down"), [0.0016, 0.0016, 0.0048])


def test_rounds_megabytes_and_seconds_until_a_target():
    metrics = {
        "accuracy_macro": np.array([0.1, np.nan, 0.5, 0.7]),
        "ids": np.array([[0, 1], [1, 2], [0, 2], [0, 1]]),
        "active": np.array([[1, 1], [1, 0], [1, 1], [1, 1]], bool),
        "uplink": np.full((4, 2), 250.0),
        "downlink": np.full((4, 2), 500.0),
    }
    reached = fljax.reach(metrics, 0.5, n_clients=4, link=Link(uplink=8000.0, downlink=16000.0))
    assert reached.round == 3
    assert reached.megabytes_up == pytest.approx(5 * 1000 / 4 / 1e6)  # five uploads of a kilobyte
    assert reached.megabytes_down == pytest.approx(5 * 2000 / 4 / 1e6)
    assert reached.seconds == pytest.approx(3 * 2.0)
    assert reached.edge_megabytes_up is reached.edge_megabytes_down is None
    of_edges = {"edge_uplink": np.array([0, 2000, 0, 4000.0]), "edge_downlink": np.array([0, 1000, 3000.0, 9000])}
    with_edges = fljax.reach(metrics | of_edges, 0.5, n_clients=4)
    assert with_edges.edge_megabytes_up == pytest.approx(0.002)
    assert with_edges.edge_megabytes_down == pytest.approx(0.004)
    assert fljax.reach(metrics, 0.8, n_clients=4) is fljax.reach(metrics, 1, n_clients=4) is None
    with pytest.raises(ValueError, match="target=80: accuracy_macro is at most 1; give a share"):
        fljax.reach(metrics, 80, n_clients=4)
    with pytest.raises(ValueError, match=r"n_clients=2, but there is a participant 2; give 3 or more"):
        fljax.reach(metrics, 0.5, n_clients=2)
    with pytest.raises(ValueError, match="n_clients=0"):
        fljax.reach(metrics, 0.8, n_clients=0)
    clocked = metrics | {"simulated_seconds": np.array([1.5, 0.25, 4.0, 9.0])}
    assert fljax.reach(clocked, 0.5, n_clients=4).seconds == 5.75
    assert fljax.reach(clocked, 0.5, n_clients=4, link=Link(uplink=8000.0, downlink=16000.0)).seconds == reached.seconds
    with pytest.raises(ValueError, match="measure='r2'"):
        fljax.reach(metrics, 0.5, n_clients=4, measure="r2")


def test_confusion_matrices_are_scikit_learns(trained_run):
    _, algorithm, federation, _, models, _ = trained_run
    matrices = jax.jit(fljax.confusion_matrices, static_argnums=(0, 3))
    counts, predict = np.asarray(matrices(algorithm.predict, models, federation.test, 10)), jax.jit(algorithm.predict)
    for i in range(4):
        rows = rows_of(federation.test, i)
        predicted = np.argmax(predict(fljax.client_model(models, i), federation.test.pool.x), axis=1)[rows]
        labels = np.asarray(federation.test.pool.y)[rows]
        np.testing.assert_array_equal(counts[i], confusion_matrix(labels, predicted, labels=range(10)))


def test_worst_clients():
    assert worst(np.array([0.9, 0.1, 0.5, np.nan])) == 0.1
    assert worst(np.arange(40.0)) == np.arange(4).mean()


def test_the_spreads_of_many_runs_are_those_of_each_row():
    rng = np.random.default_rng(0)
    values = rng.random((3, 2, 5, 23)).astype(np.float32)
    values[rng.random(values.shape) < 0.2] = np.nan
    values[0, 1, 2] = np.nan
    metrics = {"client_average_precision": values}
    for name in spreads(metrics):
        spread = spread_over_clients(metrics, name)
        assert spread.shape == (3, 2, 5)
        for position in np.ndindex(3, 2, 5):
            finite = np.sort(values[position][np.isfinite(values[position])].astype(np.float64))
            tenth = finite[: max(1, int(np.ceil(0.1 * len(finite))))]
            expected = np.nan if not len(finite) else finite.std() if name.endswith("deviation") else tenth.mean()
            np.testing.assert_allclose(spread[position], expected, rtol=1e-12)


def test_a_spread_over_clients_is_none_in_a_round_without_a_test():
    """As NumPy's, of those who were tested, in float64."""
    rounds = np.array([[np.nan, np.nan, np.nan], [0.25, np.nan, 0.75], [-np.inf, 0.5, 1.5]], np.float32)
    np.testing.assert_array_equal(spread_over_clients({"client_r2": rounds}, "r2_deviation"), [np.nan, 0.25, 0.5])
    np.testing.assert_array_equal(spread_over_clients({"client_r2": rounds}, "r2_worst10"), [np.nan, 0.25, 0.5])
    assert spreads({"client_r2", "client_loss", "r2_macro"}) == ["r2_worst10", "r2_deviation"]


@pytest.mark.parametrize("n", [1, 3, 12])
def test_names_of_curves_stay_on_the_figure_and_apart(n):
    curves = {f"method {i}": (np.arange(1, 30), np.full(29, 0.9 + 1e-4 * i)) for i in range(n)}
    figure = plots.learning_curves(curves)
    figure.canvas.draw()
    (axes,) = figure.axes
    box, names = axes.get_window_extent(), [text.get_window_extent() for text in axes.texts]
    assert len(names) == n
    for name in names:
        assert box.y0 - name.height < name.y0
        assert name.y1 < box.y1 + name.height
    bottoms = np.sort([name.y0 for name in names])
    assert (np.diff(bottoms) > 0.85 * names[0].height).all()
    styles = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(styles) == n


def test_lines_lead_to_names_and_not_through_them():
    curves = {name: (np.arange(1, 5), np.full(4, last)) for name, last in (("a", 0.9), ("other", 0.9), ("c", 0.1))}
    figure = plots.learning_curves(curves)
    figure.canvas.draw()
    first_name, second_name, third_name = figure.axes[0].texts
    assert third_name.arrow_patch is None  # it stands where the curve ends
    for name in (first_name, second_name):
        assert name.arrow_patch.get_window_extent().x1 < Text.get_window_extent(name).x0 + 4


def test_names_of_curves_move_as_little_as_need_be():
    np.testing.assert_allclose(plots._apart(np.array([0.5, 0.9, 0.5]), 0.2, 0, 1), [0.4, 0.9, 0.6])
    np.testing.assert_allclose(plots._apart(np.array([0.99, 0.98]), 0.2, 0, 1), [1.0, 0.8])
    np.testing.assert_allclose(plots._apart(np.zeros(5), 0.5, 0, 1), np.linspace(0, 1, 5))


def test_nearest_ascending_numbers_are_scipys():
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 40):
        values = rng.integers(0, 6, n) / 4  # with ties
        np.testing.assert_allclose(plots._ascending(values), isotonic_regression(values).x, atol=1e-12)


def test_figures_are_png_and_pdf(tmp_path):
    label = np.array([[0, -1, 1], [0, 0, 1]])
    counts = np.array([[3, 1], [0, 4]])
    for name, figure in {
        "clients": plots.over_clients({"a": np.array([0.1, np.nan, 0.5]), "b": np.full(3, np.nan)}),
        "time": plots.clusters_over_time(label),
        "confusion": plots.confusion(counts, ["cat", "dog"]),
    }.items():
        plots.save(figure, tmp_path / f"{name}.png", pdf=True)
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert (tmp_path / f"{name}.pdf").read_bytes()[:4] == b"%PDF"


def test_a_comparison_and_a_sweep_are_told_from_a_run(tmp_path):
    (tmp_path / "compared" / "seed_3").mkdir(parents=True)
    (tmp_path / "swept").mkdir()
    (tmp_path / "swept" / "table.csv").touch()
    with pytest.raises(ValueError, match=r"it is a comparison of seed_3; read it with fljax\.load_comparison"):
        fljax.load_run(tmp_path / "compared")
    with pytest.raises(ValueError, match=r"swept holds no results: it is a sweep; read it with fljax\.load_sweep"):
        fljax.load_run(tmp_path / "swept")
