"""Made-up data sets in every format, and where real ones may be found."""

import gzip
import io
import json
import os
import sqlite3
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fljax.data.federation import on_host


@pytest.fixture(autouse=True)
def no_data_of_this_machine(tmp_path, monkeypatch):
    """Every test has an empty cache, and finds only the data that it makes."""
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FLJAX_DATA", str(tmp_path / "nothing"))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")


REAL = [os.environ.get("FLJAX_DATA"), Path(__file__).parents[2].parent / "shared" / "data" / "tfds"]


@pytest.fixture
def real_data():
    folder = next((Path(path) for path in REAL if path and (Path(path) / "mnist").is_dir()), None)
    if folder is None:
        pytest.skip("needs prepared TFDS sets (mnist, fashion_mnist) in the folder that FLJAX_DATA names")
    return folder


@pytest.fixture
def make_examples():
    """(n, n_test, n_classes) -> train and test whose image number i has the value i in its pixels: rows can be told."""

    def make(n: int = 1000, n_test: int = 200, n_classes: int = 10, seed: int = 0, side: int = 4):
        rng = np.random.default_rng(seed)
        y = rng.permutation(np.arange(n + n_test) % n_classes)
        x = np.zeros((n + n_test, side, side, 1), np.uint8)
        x[:, 0, 0, 0], x[:, 0, 1, 0] = np.arange(n + n_test) // 256, np.arange(n + n_test) % 256
        return on_host(x[:n], y[:n]), on_host(x[n:], y[n:])

    return make


@pytest.fixture
def idx_folder(tmp_path):
    """(prefix, gz, first_label) -> a folder of four IDX files, and the arrays in it."""

    def make(prefix: str = "", gz: bool = False, first_label: int = 0, test: str = "t10k"):
        rng, folder, arrays = np.random.default_rng(1), tmp_path / "idx", {}
        folder.mkdir()
        for split, n in (("train", 12), (test, 5)):
            x = rng.integers(256, size=(n, 6, 7), dtype=np.uint8)
            y = (np.arange(n) % 10 + first_label).astype(np.uint8)
            arrays[split] = x, y
            for array, kind in ((x, "images-idx3"), (y, "labels-idx1")):
                data = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
                name = f"{prefix}{split}-{kind}-ubyte"
                (folder / (name + ".gz" if gz else name)).write_bytes(gzip.compress(data) if gz else data)
        return folder, arrays

    return make


@pytest.fixture
def leaf_folder(tmp_path):
    """A LEAF folder: two training shards and one test shard; "ann" is in all of them. And their content."""
    rng, content = np.random.default_rng(2), {}
    for file, sizes in {"train/a": {"ann": 3, "bob": 2}, "train/b": {"cyd": 4, "ann": 1}, "test/a": {"ann": 2}}.items():
        data = {
            u: {"x": rng.random((n, 784)).tolist(), "y": rng.integers(62, size=n).tolist()} for u, n in sizes.items()
        }
        content[file] = {"users": list(sizes), "num_samples": list(sizes.values()), "user_data": data}
        path = tmp_path / "leaf" / "data" / f"{file}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content[file]))
    return tmp_path / "leaf", content


@pytest.fixture
def sqlite_file(tmp_path):
    """(claimed) -> an ``emnist_all.sqlite`` of two writers, the second claiming ``claimed`` examples; and its rows."""
    from tensorflow_datasets.proto import tf_example_pb2

    def make(claimed: int = 2, label: int = 61):
        file, rng, rows = tmp_path / "emnist_all.sqlite", np.random.default_rng(3), []
        with sqlite3.connect(file) as database:
            database.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
            database.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
            for split, user, n in (("train", "w0", 3), ("train", "w1", 2), ("test", "w0", 1)):
                count = claimed if user == "w1" else n
                database.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (user, split, count))
                for _ in range(n):
                    example, pixels = tf_example_pb2.Example(), rng.random(784).astype(np.float32)
                    example.features.feature["pixels"].float_list.value.extend(pixels.tolist())
                    example.features.feature["label"].int64_list.value.append(label)
                    rows.append((split, user, pixels))
                    blob = example.SerializeToString()
                    database.execute("INSERT INTO examples VALUES (?, ?, ?)", (split, user, blob))
        database.close()
        return file, rows

    return make


@pytest.fixture
def celeba_folder(tmp_path):
    """A CelebA folder of ten plain-coloured images; image i shows celebrity i % 3 and smiles when i is even."""
    folder = tmp_path / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    names = [f"{i + 1:06}.jpg" for i in range(10)]
    for i, name in enumerate(names):
        Image.new("RGB", (178, 218), (20 * i, 100, 50)).save(folder / "img_align_celeba" / name, quality=95)
    (folder / "identity_CelebA.txt").write_text("".join(f"{name} {i % 3}\n" for i, name in enumerate(names)))
    lines = [f"{name} -1 {1 if i % 2 == 0 else -1}" for i, name in enumerate(names)]
    (folder / "list_attr_celeba.txt").write_text("10\nBald Smiling\n" + "\n".join(lines) + "\n")
    return folder


N = {"train": 7, "validation": 2, "test": 3}


@pytest.fixture
def prepare_set(tmp_path):
    """(name, splits, shape, labels from) -> a folder with the set prepared in it; pixels of image i are i."""
    import tensorflow_datasets as tfds

    def make(name, shape=(32, 32, 3), first_label=0, splits=("train", "test"), celeb=False):
        image = {"image": tfds.features.Image(shape=shape)}
        label_features = {"label": tfds.features.Scalar(np.int64)}
        celeb_features = {"attributes": {"Smiling": np.bool_}, "identity": {"Identity_No": np.int64}}

        def records(split):
            for i in range(N[split]):
                pixels = np.full(shape, i, np.uint8)
                pixels[0, 1] = 255  # not symmetric, to see a transposition
                celeb_labels = {"attributes": {"Smiling": i % 2 == 1}, "identity": {"Identity_No": i % 3}}
                png = io.BytesIO()
                Image.fromarray(pixels.squeeze()).save(png, "png")
                png.seek(0)
                yield i, {"image": png, **(celeb_labels if celeb else {"label": i + first_label})}

        class PreparedSet(tfds.core.GeneratorBasedBuilder, skip_registration=True):
            VERSION = tfds.core.Version("1.0.0")
            name = "made"

            def _info(self):
                return self.dataset_info_from_configs(
                    features=tfds.features.FeaturesDict(image | (celeb_features if celeb else label_features))
                )

            def _split_generators(self, dl_manager):
                return {split: records(split) for split in splits}

            def _generate_examples(self):
                raise NotImplementedError

        builder = PreparedSet(data_dir=tmp_path / "made", file_format="array_record")
        builder.download_and_prepare()
        folder = tmp_path / "tfds" / name / "1.0.0"
        folder.parent.mkdir(parents=True)
        (tmp_path / "made" / "made" / "1.0.0").rename(folder)
        return folder

    return make
