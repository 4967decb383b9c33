"""Folders that were damaged: one clear line that names the file and what to do, before anything is trained."""

import json
import shutil

import jax
import numpy as np
import pytest
from flax import serialization

import fljax
from fljax.files import save_arrays
from fljax.folder.checkpoint import read_rounds, seal
from fljax.folder.rounds import cut_back
from fljax.run.sweep import search
from fljax.run.train import train
from tests.slow import slow_rows

pytestmark = pytest.mark.usefixtures("one_device")

HYPERS = fljax.fedavg.Hyper(lr=[0.1, 0.2, 0.3])
ONE_CHECKPOINT = {"seconds_per_chunk": 1e-9, "seconds_per_checkpoint": 1e9}
CHECKPOINT = "checkpoints/last.msgpack"


class NothingIsTrained:
    """A progress bar that sees no chunk."""

    def prepare(self): ...

    def start(self, done, n_rounds): ...
    def stop(self): ...
    def chunk(self, done, metrics, rounds_per_second):
        raise AssertionError("a damaged folder was trained on")


@pytest.fixture(scope="module")
def finished_folder(averaging, federation, tmp_path_factory):
    """A run of three rounds in as many chunks."""
    folder = tmp_path_factory.mktemp("finished")
    train(averaging, fljax.fedavg.Hyper(), federation, jax.random.key(0), 3, folder=folder, **ONE_CHECKPOINT)
    assert len(list(folder.glob("rounds/*.npz"))) == 3
    return folder


@pytest.fixture
def folder(finished_folder, tmp_path):
    return shutil.copytree(finished_folder, tmp_path / "run")


@pytest.fixture
def go_on(key, averaging, federation, folder):
    def run(n_rounds, progress=None):
        return train(averaging, fljax.fedavg.Hyper(), federation, key, n_rounds, folder=folder, progress=progress)

    return run


def test_what_a_killed_process_had_not_yet_written_is_removed(folder):
    partial_file = folder / "rounds/00000001.npz.part"
    partial_file.write_bytes(b"half")
    cut_back(folder, 3, (folder / "metrics.jsonl").stat().st_size)
    assert not partial_file.exists()
    assert len(list(folder.glob("rounds/*.npz"))) == 3


def truncated(path):
    path.write_bytes(path.read_bytes()[:-100])


def without(name):
    def change(path):
        content = serialization.msgpack_restore(path.read_bytes())
        del content[name]
        path.write_bytes(seal(serialization.msgpack_serialize(content)))

    return change


def with_identity(value):
    def change(path):
        content = serialization.msgpack_restore(path.read_bytes())
        path.write_bytes(seal(serialization.msgpack_serialize(content | {"identity": value})))

    return change


def emptied(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("n_rounds", [3, 5])
@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("rounds/00000001.npz", truncated, r"00000001.npz cannot be read \(.*\); restore it from a copy, or delete"),
        ("rounds/00000001.npz", emptied, r"00000001.npz cannot be read"),
        ("rounds/00000001.npz", lambda path: path.unlink(), "00000001.npz is missing; restore it from a copy"),
        ("rounds/00000002.npz", lambda path: path.unlink(), "00000002.npz is missing; restore it from a copy"),
        (
            "rounds/00000001.npz",
            lambda path: np.savez(path, x=np.ones(1)),
            r"00000001.npz cannot be read \(no checksum",
        ),
        (
            "rounds/00000001.npz",
            lambda path: save_arrays(path, {"x": np.ones(1)}),
            "00000001.npz belongs to another run",
        ),
        ("metrics.jsonl", lambda path: path.unlink(), "metrics.jsonl is missing; restore it from a copy, or delete"),
        ("metrics.jsonl", truncated, r"metrics.jsonl has \d+ of its first \d+ bytes; restore it"),
        (CHECKPOINT, truncated, r"last.msgpack is not a whole checkpoint \(its checksum is wrong\); restore it"),
        (CHECKPOINT, emptied, "last.msgpack is not a whole checkpoint"),
        (CHECKPOINT, without("identity"), r"last.msgpack is not a checkpoint .* \('identity'\); use another folder"),
        (CHECKPOINT, without("metrics_bytes"), "last.msgpack is not a checkpoint"),
        (CHECKPOINT, with_identity("[1]"), "last.msgpack is not a checkpoint"),
        (CHECKPOINT, with_identity("{"), "last.msgpack is not a checkpoint"),
    ],
)
def test_a_damaged_run_is_named_before_it_is_gone_on_with(go_on, folder, name, damage, message, n_rounds):
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file() and path != folder / name}
    damage(folder / name)
    with pytest.raises(ValueError, match=message):
        go_on(n_rounds, NothingIsTrained())
    assert {path: path.stat().st_size for path in sizes} == sizes  # nothing was lost on top of it


def test_stray_files_are_nobodys_business(go_on, folder):
    for name in ("rounds/notes.txt", "rounds/old.npz", "rounds/1.npz", "rounds/notes.part", "notes"):
        (folder / name).write_text("mine")
    (folder / "rounds/00000003.npz.part").write_text("a part")
    assert len(go_on(4).metrics["ids"]) == 4
    assert (folder / "rounds/notes.txt").read_text() == (folder / "rounds/notes.part").read_text() == "mine"
    assert not (folder / "rounds/00000003.npz.part").exists()
    assert len(read_rounds(folder)["ids"]) == 4


@pytest.fixture(scope="module")
def search_folder(averaging, federation, tmp_path_factory):
    folder = tmp_path_factory.mktemp("searched")
    search(averaging, HYPERS, federation, jax.random.key(0), 1, 2, halving=2, folder=folder)
    return folder


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("search.json", truncated, r"search.json is damaged; restore it from a copy, or delete"),
        ("search.json", lambda path: path.unlink(), "search.json is missing; restore it from a copy, or delete"),
        (
            "00-0000-000000.npz",
            truncated,
            r"00-0000-000000.npz cannot be read \(.*\); delete it, and its runs are made again",
        ),
        ("00-0000-000000.npz", lambda path: save_arrays(path, {"x": np.ones(1)}), "000000.npz is not a batch of this"),
        (
            "01-0000-000009.npz",
            lambda path: shutil.copy(path.with_name("00-0000-000000.npz"), path),
            "is not a batch of this",
        ),
        *slow_rows(
            ("search.json", lambda path: path.write_text("[1]"), "search.json is damaged"),
            (
                "search.json",
                lambda path: path.write_text(path.read_text().replace("1", "2", 1)),
                "is damaged",
            ),
            ("00-0000-000000.npz", lambda path: np.savez(path, x=np.ones(1)), "000000.npz cannot be read"),
            (
                "00-0000-000001.npz",
                lambda path: shutil.copy(path.with_name("00-0000-000000.npz"), path),
                "is not a batch of this",
            ),
        ),
    ],
)
def test_a_damaged_search_is_named(search_folder, averaging, federation, key, tmp_path, name, damage, message):
    folder = shutil.copytree(search_folder, tmp_path / "search")
    damage(folder / "parts" / name)
    with pytest.raises(ValueError, match=message):
        search(averaging, HYPERS, federation, key, 1, 2, halving=2, folder=folder)


def test_stray_files_of_a_search_are_nobodys_business(search_folder, averaging, federation, key, tmp_path):
    folder = shutil.copytree(search_folder, tmp_path / "search")
    np.savez(folder / "parts" / "00-mine.npz", x=np.ones(1))
    np.savez(folder / "parts" / "mine.npz", x=np.ones(1))
    (folder / "parts" / "00-0000-000000.npz.part").write_text("a part")
    result = search(averaging, HYPERS, federation, key, 1, 2, halving=2, folder=folder)
    assert sorted(result.rounds) == [1, 2, 2]
    assert json.loads((folder / "parts" / "search.json").read_text())["metric"] == "accuracy_macro"


def test_a_halved_search_by_another_metric_is_another(search_folder, averaging, federation, key, tmp_path):
    folder = shutil.copytree(search_folder, tmp_path / "search")
    with pytest.raises(ValueError, match="holds a run with metric='accuracy_macro', not 'test_loss'"):
        search(averaging, HYPERS, federation, key, 1, 2, halving=2, metric="test_loss", folder=folder)
