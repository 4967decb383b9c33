"""Every kind of file that the project reads, changed at random.

Its own files are noticed to be others, or read as they were written; files from elsewhere are refused in one line that
names them, or read. ``FLJAX_CASES`` sets how many changes are made to each kind.
"""

import json

import jax
import numpy as np
import pytest

import fljax
from fljax.data import cache
from fljax.data.datasets import load
from fljax.folder import checkpoint
from fljax.folder.rounds import read_whole
from fljax.run.sweep.parts import Part, Store
from fljax.run.train import train
from tests.robustness.campaign import campaign, same


@pytest.fixture(scope="module")
def finished_folder(averaging, federation, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    options = {"seconds_per_chunk": 1e-9, "seconds_per_checkpoint": 1e9}
    train(averaging, fljax.fedavg.Hyper(), federation, jax.random.key(0), 3, folder=folder, **options)
    return folder


@pytest.mark.parametrize("name", ["checkpoints/last.msgpack", "metrics.jsonl", "rounds/00000001.npz"])
def test_a_run(finished_folder, averaging, federation, count, capsys, name):
    state_shapes = jax.eval_shape(averaging.init, jax.random.key(0), fljax.fedavg.Hyper(), federation.train)

    def read():
        result = checkpoint.newest(
            finished_folder, state_shapes, lambda c: read_whole(finished_folder, c.round, c.written)
        )
        return result[0]._replace(identity=json.dumps(result[0].identity), history=""), result[1]

    expected = read()
    file = finished_folder / name
    campaign(name, file, read, lambda result: same(result, expected), count, capsys, finished_folder)


@pytest.mark.parametrize("name", ["search.json", "00-0000-000000.npz", "begun.npz"])
def test_a_search(tmp_path, count, capsys, name):
    cells = np.arange(4)
    identity = {"algorithm": "fedavg", "hyper.lr": [0.1, 0.2], "key": [0, 0], "n_seeds": 2, "points": [0, 1]}
    identity["halving"] = None
    store = Store(tmp_path, n_seeds=2).open(identity)
    rng = np.random.default_rng(0)
    part = Part(cells, np.zeros(4, np.int32), [rng.normal(size=(4, 30))], {"loss": rng.normal(size=(4, 2))})
    store.write(0, part)
    store.write(0, part, is_finished=False)

    def read():
        if name == "begun.npz":
            return [store.open(identity).read_begun(0, cells, 3)]
        return store.open(identity).read(0, cells, 2)

    campaign(name, tmp_path / "parts" / name, read, lambda result: same(result, [part]), count, capsys, tmp_path)


@pytest.mark.parametrize("name", ["x.npy", "y.npy", "checksums.json"])
def test_decoded_examples(count, capsys, name):
    rng = np.random.default_rng(0)
    columns = {"x": rng.integers(256, size=(50, 4, 4, 1), dtype=np.uint8), "y": np.arange(50, dtype=np.int32)}

    def read():
        return {name: column.copy() for name, column in cache.cached("set/train", lambda: [columns]).items()}

    read()
    file = cache.entry_of("set/train") / name
    campaign(f"cache {name}", file, read, lambda result: same(result, columns), count, capsys, cache.folder())


def readable(splits):
    """Whether data that was read can be trained on."""
    for split in splits:
        x, y = np.asarray(split.x), np.asarray(split.y)
        if x.dtype != np.uint8 or x.ndim != 4 or len(x) != len(y) or y.min() < 0 or y.max() >= 62:
            return False
        if hasattr(split, "user") and not (len(split.user) == len(y) and max(split.user) < len(split.names)):
            return False
    return True


def read_anew(name, folder):
    """`load` as if nothing had been decoded before."""

    def read():
        for file in cache.folder().rglob("checksums.json"):
            file.unlink()
        return load(name, folder)

    return read


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("file_name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_idx(idx_folder, count, capsys, gz, file_name):
    folder, _ = idx_folder(gz=gz)
    name = file_name + ".gz" * gz
    campaign(name, folder / name, read_anew("mnist", folder), readable, count, capsys, folder)


def test_leaf(leaf_folder, count, capsys):
    file = leaf_folder[0] / "data" / "train" / "a.json"
    campaign("LEAF shard", file, read_anew("femnist", leaf_folder[0]), readable, count, capsys, file.parent)


def test_sqlite(sqlite_file, count, capsys):
    file, _ = sqlite_file()
    campaign("TFF sqlite", file, read_anew("femnist", file), readable, count, capsys, file)


@pytest.mark.parametrize("file_name", ["identity_CelebA.txt", "list_attr_celeba.txt", "img_align_celeba/000002.jpg"])
def test_celeba(celeba_folder, count, capsys, file_name):
    read = read_anew("celeb_a", celeba_folder)
    campaign(f"CelebA {file_name[-20:]}", celeba_folder / file_name, read, readable, count, capsys, celeba_folder)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pattern", ["dataset_info.json", "features.json", "*train.array_record*"])
def test_prepared(prepare_set, count, capsys, pattern):
    folder = prepare_set("cifar10")
    file = next(folder.glob(pattern))
    read = read_anew("cifar10", folder.parents[1])
    campaign(f"TFDS {pattern.strip('*')}", file, read, readable, count, capsys, folder)
