"""Files of a user's own, and all that is read of a finished run, changed at random: see `test_mutations`."""

import gzip
import json

import jax
import numpy as np
import pytest
from PIL import Image

import fljax
from fljax.data.own.files import read_own
from fljax.data.own.tables import Columns
from fljax.folder.names import names_as_json
from fljax.jobs.job import read_job
from fljax.report.summary import save_table
from fljax.results.finished import compare_runs
from fljax.rounds.clock.devices import devices_of_file
from fljax.run.models_on_disk import FILE, save_models
from fljax.run.train import train
from fljax.sealed import with_checksum
from tests.robustness.campaign import campaign, same

N, CLIENTS = 24, 3
COLUMNS = Columns(("sick",), "hospital")
IMAGE = {".png": "PNG", ".jpg": "JPEG", ".gif": "GIF", ".bmp": "BMP", ".tif": "TIFF", ".webp": "WEBP"}


@pytest.fixture
def table():
    """Columns of a small table."""
    rng = np.random.default_rng(0)
    features = {name: rng.normal(size=N).round(3) for name in ("age", "dose")}
    return features | {"hospital": np.arange(N) % CLIENTS, "sick": rng.integers(2, size=N)}


def usable(data):
    """Whether data of a user's own can be trained on."""
    x, y = np.asarray(data.examples.x), np.asarray(data.examples.y)
    clients_are_named = data.client is None or (len(data.client) == len(x) and data.client.max() < len(data.clients))
    return len(x) == len(y) > 0 and bool(np.isfinite(x).all()) and clients_are_named


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".csv.gz"])
def test_a_table(tmp_path, table, count, capsys, ending):
    file, mark = tmp_path / f"mine{ending}", "\t" if ending == ".tsv" else ","
    rows = [list(table), *zip(*table.values(), strict=True)]
    text = "".join(mark.join(map(str, row)) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(text, mtime=0) if ending == ".csv.gz" else text)
    campaign(f"own {ending}", file, lambda: read_own(file, COLUMNS), usable, count, capsys, file)


def test_parquet(tmp_path, table, count, capsys):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    file = tmp_path / "mine.parquet"
    pandas.DataFrame(table).to_parquet(file)
    campaign("own .parquet", file, lambda: read_own(file, COLUMNS), usable, count, capsys, file)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.filterwarnings("ignore")
def test_arrays(tmp_path, table, count, capsys, save):
    file = tmp_path / "mine.npz"
    save(file, x=np.stack([table["age"], table["dose"]], 1), y=table["sick"], client_ids=table["hospital"])
    campaign(f"own {save.__name__}", file, lambda: read_own(file), usable, count, capsys, file)


@pytest.mark.parametrize("ending", IMAGE)
def test_images(tmp_path, count, capsys, ending):
    rng = np.random.default_rng(0)
    for i in range(4):
        (folder := tmp_path / "own" / str(i % 2) / "cat").mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(256, size=(6, 5), dtype=np.uint8)).save(folder / f"{i}{ending}", IMAGE[ending])
    file = tmp_path / "own" / "1" / "cat" / f"1{ending}"
    folder = file.parents[2]
    campaign(f"own images {ending}", file, lambda: read_own(folder), usable, count, capsys, folder)


def test_a_trace_of_devices(tmp_path, count, capsys):
    file, rng = tmp_path / "trace.csv", np.random.default_rng(0)
    rows = rng.uniform(1, 100, size=(CLIENTS, 3)).round(2).tolist()
    file.write_text("speed,up,down\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))

    def is_finite(devices):
        return all(0 < value < float("inf") for row in devices for value in row)

    campaign("trace of devices", file, lambda: devices_of_file(file), is_finite, count, capsys, file)


@pytest.fixture(scope="module")
def folder(averaging, federation, tmp_path_factory):
    """A folder as `fljax run` leaves it."""
    folder = tmp_path_factory.mktemp("shown") / "x"
    hyper, key = fljax.fedavg.Hyper(), jax.random.key(0)
    run = train(averaging, hyper, federation, key, 2, folder=folder / "fedavg")
    save_models(folder / "fedavg" / FILE, fljax.deployed(averaging, hyper, run.state, federation, key))
    n_clients = len(federation.train.size)
    (folder / "names.json").write_text(names_as_json([f"client {i}" for i in range(n_clients)], ["ill", "well"]))
    settings = 'algorithm = ["fedavg"]\nrounds = 2\nseed = 3\n\n[partition]\nname = "dirichlet"\nbeta = 0.5\n'
    (folder / "config.toml").write_bytes(with_checksum("# the last line has a checksum\n" + settings))
    save_table(
        folder / "summary.csv", [{"algorithm": "fedavg", "accuracy_macro": 0.5, "seconds": 1.25}], read_again=True
    )
    return folder


def read_all(folder):
    """Everything that is read of a finished run."""
    run = fljax.load_run(folder)
    results = {name: (result.metrics, result.models, result.clients) for name, result in run.results.items()}
    return results, run.config, run.summary, compare_runs([folder]).rows


OF_A_RUN = ("config.toml", "names.json", "summary.csv", f"fedavg/{FILE}", "fedavg/rounds/00000000.npz")


@pytest.mark.parametrize("name", OF_A_RUN)
def test_a_finished_run(folder, count, capsys, name):
    expected = read_all(folder)

    def is_unchanged(everything):
        return same(everything[0], expected[0]) and everything[1:] == expected[1:]

    campaign(f"shown {name[-12:]}", folder / name, lambda: read_all(folder), is_unchanged, count, capsys, folder)


def test_settings_of_a_folder(folder, count, capsys):
    words = ["--folder", str(folder)]
    before = read_job(words).settings
    file = folder / "config.toml"
    campaign("config.toml", file, lambda: read_job(words).settings, lambda now: now == before, count, capsys, file)
    assert read_job(["--config", str(file), *words]).run.seed == 3


def test_leaf_json(tmp_path, table, count, capsys):
    x, y = np.stack([table["age"], table["dose"]], 1), table["sick"]
    users = {f"u{i}": {"x": x[i::CLIENTS].tolist(), "y": y[i::CLIENTS].tolist()} for i in range(CLIENTS)}
    sizes = [len(entry["y"]) for entry in users.values()]
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"users": list(users), "num_samples": sizes, "user_data": users}))
    campaign("own .json", file, lambda: read_own(file), usable, count, capsys, file)
