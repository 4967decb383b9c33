"""Files from elsewhere that are broken or made to do harm: one line that names the file, and nothing else happens."""

import gzip
import json
import sqlite3
import struct
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from fljax.data.cache import folder as cache_folder
from fljax.data.datasets import load
from fljax.data.users import encode
from tests.slow import slow

DEEP = "[" * 100_000 + "]" * 100_000


def check_refused(name, folder, message, *texts):
    """`load` fails in one line that has all of these."""
    with pytest.raises(ValueError, match=message) as error:
        load(name, folder)
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 700
    for expected in texts:
        assert str(expected) in text
    assert not list(cache_folder().rglob("*.npy"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: c["user_data"]["bob"].pop("x"), "user 'bob' has no lists x and y"),
        (lambda c: c["user_data"].__setitem__("bob", [1]), "user 'bob' has no lists x and y"),
        (lambda c: c["user_data"]["bob"].__setitem__("y", 3), "user 'bob' has no lists x and y"),
        (lambda c: c["users"].__setitem__(1, 7), "lists the user 7, which is not a text"),
        (lambda c: c["users"].__setitem__(1, None), "lists the user None, which is not a text"),
        (lambda c: c["users"].__setitem__(1, ["bob"]), r"lists the user \['bob'\], which is not a text"),
        (lambda c: c["users"].append("bob"), "lists user 'bob' twice"),
        (lambda c: c.__setitem__("users", {"ann": 1}), "users, num_samples or user_data is missing"),
        (lambda c: c["num_samples"].__setitem__(0, "3"), "user ann has 3 examples, 3 labels, but should have '3'"),
        (lambda c: c["num_samples"].__setitem__(0, None), "but should have None"),
        (lambda c: c["user_data"]["bob"]["y"].__setitem__(0, "seven"), "has the label 'seven'; FEMNIST's are 0 to 61"),
        (lambda c: c["user_data"]["bob"]["y"].__setitem__(0, 1.5), "has the label 1.5"),
        (lambda c: c["user_data"]["bob"]["y"].__setitem__(0, True), "has the label True"),
        (lambda c: c["user_data"]["bob"]["y"].__setitem__(0, [1]), r"has the label \[1\]"),
        (lambda c: c["user_data"]["bob"]["y"].__setitem__(0, 10**300), "labels from [0-9]* to 1000"),
        (lambda c: c["user_data"]["bob"]["x"].__setitem__(0, {"a": 1}), "not 784 numbers"),
        (lambda c: c["user_data"]["bob"]["x"][0].__setitem__(0, None), "pixels outside|not 784 numbers"),
        (lambda c: c["user_data"]["bob"]["x"][0].__setitem__(0, 10**400), "not 784 numbers"),
    ],
)
def test_leaf_shards_of_other_things(leaf_folder, damage, message):
    folder, content = leaf_folder
    file = folder / "data" / "train" / "a.json"
    damage(content["train/a"])
    file.write_text(json.dumps(content["train/a"]))
    check_refused("femnist", folder, message, file)


@pytest.mark.parametrize("name", ["bob\0", "\0", "b\0b", "\ud800"])
def test_leaf_users_whose_names_would_become_others(leaf_folder, name):
    folder, content = leaf_folder
    shard = content["train/a"]
    shard["users"].append(name)
    shard["num_samples"].append(1)
    shard["user_data"][name] = {"x": [[0.5] * 784], "y": [1]}
    file = folder / "data" / "train" / "a.json"
    file.write_text(json.dumps(shard))
    check_refused("femnist", folder, "has a zero byte or half a character in the name", file)
    with pytest.raises(ValueError, match="zero byte"):
        encode([name])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DEEP, "nested hundreds deep"),
        ('{"users": ' + DEEP + "}", "nested hundreds deep"),
        ("[1, 2]", "a list, not an object"),
        ('"text"', "a str, not an object"),
        ('{"users": [], "users": []}', "the key 'users' twice in one object"),
        ("1" * 5000, "is not a whole LEAF shard but something that begins with 31313131"),
        ('{"users": ["\xff"', "is not a whole LEAF shard"),
    ],
)
def test_json_that_is_none_or_too_deep(leaf_folder, text, message):
    file = leaf_folder[0] / "data" / "train" / "a.json"
    file.write_bytes(text.encode("latin-1"))
    check_refused("femnist", leaf_folder[0], message, file)


def test_json_that_is_too_large(leaf_folder):
    file = leaf_folder[0] / "data" / "train" / "a.json"
    with file.open("wb") as stream:
        stream.truncate(2 << 30)  # a hole: takes no room on the disk
    check_refused("femnist", leaf_folder[0], r"has 2,147,483,648 bytes; at most 1,073,741,824 are read", file)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE examples SET serialized_example_proto = 'text'", "has 'text' instead of a record of bytes"),
        ("UPDATE examples SET serialized_example_proto = NULL", "has None instead of a record of bytes"),
        ("UPDATE examples SET serialized_example_proto = 5", "has 5 instead of a record of bytes"),
        ("UPDATE examples SET serialized_example_proto = x''", "not a whole emnist_all.sqlite|784 numbers"),
        ("UPDATE client_metadata SET num_examples = 'many'", "should have 'many'"),
        ("UPDATE client_metadata SET client_id = NULL", "has 0 examples, but should have"),
        ("UPDATE examples SET client_id = x'ff00'", "examples, but should have"),
        ("UPDATE examples SET client_id = client_id || char(0)", "examples, but should have|zero byte"),
    ],
)
def test_sqlite_of_other_things(sqlite_file, tmp_path, statement, message):
    file, _ = sqlite_file()
    with sqlite3.connect(file) as database:
        database.execute(statement)
    database.close()
    check_refused("femnist", tmp_path, message, file)


def info_with(**changes):
    return lambda folder: rewrite(folder / "dataset_info.json", changes)


def rewrite(file, changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


SPLIT = {"name": "train", "shardLengths": ["7"], "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("damage", "message", "file"),
    [
        (info_with(splits=None), "does not describe its splits, which are None", "dataset_info.json"),
        (info_with(splits={"train": 1}), "does not describe its splits", "dataset_info.json"),
        (info_with(splits=["train"]), "does not describe its splits", "dataset_info.json"),
        (info_with(splits=[{"name": 3, "shardLengths": ["1"]}]), "does not describe its splits", "dataset_info.json"),
        (info_with(splits=[SPLIT | {"shardLengths": "77"}]), "does not describe its splits", "dataset_info.json"),
        (info_with(splits=[SPLIT | {"shardLengths": ["-7"]}]), "does not describe its splits", "dataset_info.json"),
        (info_with(splits=[SPLIT | {"shardLengths": [None]}]), "does not describe its splits", "dataset_info.json"),
        (info_with(splits=[SPLIT | {"filepathTemplate": "../{SPLIT}"}]), "not a file inside", "dataset_info.json"),
        (info_with(splits=[SPLIT | {"name": "/etc/passwd"}]), "not a file inside", "dataset_info.json"),
        (info_with(name="../../made"), "not a file inside", "dataset_info.json"),
        (info_with(fileFormat=["array_record"]), "is prepared as", "cifar10"),
        (lambda folder: (folder / "dataset_info.json").write_text("[1]"), "a list, not an object", "dataset_info.json"),
        (lambda folder: (folder / "dataset_info.json").write_text(DEEP), "nested hundreds deep", "dataset_info.json"),
        (
            lambda folder: (folder / "dataset_info.json").write_bytes(b"\xff\xfe{"),
            "is not a whole dataset_info.json",
            "cifar10",
        ),
        (lambda folder: (folder / "features.json").write_text(DEEP), "nested hundreds deep", "features.json"),
        (lambda folder: (folder / "features.json").write_text("[]"), "a list, not an object", "features.json"),
        (lambda folder: (folder / "features.json").write_text("{}"), "split train is damaged", "cifar10"),
        (lambda folder: rewrite(folder / "features.json", {"type": "os.path.Evil"}), "'os.path.Evil'", "features.json"),
        (lambda folder: (folder / "features.json").unlink(), "split train is damaged", "cifar10"),
    ],
)
def test_prepared_sets_with_other_metadata(prepare_set, damage, message, file):
    folder = prepare_set("cifar10")
    damage(folder)
    check_refused("cifar10", folder.parents[1], message, folder, file)


def test_a_prepared_set_without_splits(prepare_set):
    folder = prepare_set("cifar10")
    file = folder / "dataset_info.json"
    info = json.loads(file.read_text())
    del info["splits"]
    file.write_text(json.dumps(info))
    check_refused("cifar10", folder.parents[1], "does not describe its splits, which are None", file)


def write_large_image(path, side):
    """A PNG of ``side`` x ``side`` black pixels; takes 1/1000 of that on the disk."""
    Image.new("1", (side, side)).save(path, "png")


@pytest.mark.parametrize("side", [20_000, 5_000])
def test_celeba_with_an_image_that_is_too_large(celeba_folder, side):
    file = celeba_folder / "img_align_celeba" / "000002.jpg"
    write_large_image(file, side)
    check_refused("celeb_a", celeba_folder, r"is too large \(.*\); images of at most 16,777,216 pixels are read", file)


@pytest.mark.parametrize(
    "name", ["../../x.png", "/etc/x.png", "a/../../../x.png", "..", ".", "C:\\x.png", "..\\x", "\0"]
)
def test_celeba_lists_that_lead_elsewhere(celeba_folder, tmp_path, name):
    Image.new("RGB", (178, 218)).save(tmp_path / "x.png")
    for list_name in ("identity_CelebA.txt", "list_attr_celeba.txt"):
        file = celeba_folder / list_name
        file.write_text(file.read_text().replace("000002.jpg", name))
    check_refused("celeb_a", celeba_folder, "which is not a file inside", "identity_CelebA.txt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("identity_CelebA.txt", b"\xff\xfe\x00", "identity_CelebA.txt is not a text"),
        ("list_attr_celeba.txt", b"\xff\xfe\x00", "list_attr_celeba.txt is not a text"),
        ("list_attr_celeba.txt", "²\nSmiling\n".encode(), "does not begin with a count"),
        ("list_attr_celeba.txt", b"9" * 5000 + b"\nSmiling\n", "has 0 images, but its first line says 9999"),
        ("identity_CelebA.txt", b"000001.jpg 1\n" * 2, "names the image '000001.jpg' twice"),
    ],
)
def test_celeba_lists_of_other_things(celeba_folder, name, content, message):
    (celeba_folder / name).write_bytes(content)
    check_refused("celeb_a", celeba_folder, message)


def idx(*shape, body=None):
    size = int(np.prod(shape))
    head = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    return head + (bytes(size) if body is None else body)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte", idx(12, 0, 7), r"is empty: its shape is \(12, 0, 7\)"),
        ("train-images-idx3-ubyte", idx(0, 6, 7), r"is empty: its shape is \(0, 6, 7\)"),
        ("t10k-images-idx3-ubyte", idx(5, 5, 7), r"training images \(6, 7, 1\) and test images \(5, 7, 1\)"),
        ("t10k-images-idx3-ubyte", idx(5, 7, 6), r"training images \(6, 7, 1\) and test images \(7, 6, 1\)"),
        ("train-images-idx3-ubyte", idx(2**32 - 1, 2**32 - 1, 9, body=b""), "at most 2,147,483,648 are read"),
    ],
)
@pytest.mark.parametrize("gz", [False, True])
def test_idx_files_of_other_sizes(idx_folder, name, content, message, gz):
    folder, _ = idx_folder(gz=gz)
    (folder / (name + ".gz" if gz else name)).write_bytes(gzip.compress(content) if gz else content)
    check_refused("mnist", folder, message, folder)


BOMB = """
import gzip, resource, sys
from pathlib import Path
from fljax.data.datasets import load
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    load("mnist", sys.argv[1])
except ValueError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) // 1024)
"""


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte.gz", *slow("train-labels-idx1-ubyte.gz")])
def test_a_gzip_bomb_is_not_unfolded(idx_folder, name):
    folder, _ = idx_folder(gz=True)
    blocks = gzip.compress(bytes(1 << 26)) * 40  # 2.7 GB of zeros in 2.6 MB
    content = gzip.compress(gzip.decompress((folder / name).read_bytes()))
    (folder / name).write_bytes(content + blocks)
    process = subprocess.run([sys.executable, "-c", BOMB, folder], capture_output=True, text=True, check=True)
    message, megabytes = process.stdout.splitlines()
    assert name in message
    assert "too long" in message or "more than 2,147,483,648 bytes decompressed" in message
    assert int(megabytes) < 100


def test_mnist_and_fashion_mnist_of_other_sizes(idx_folder, tmp_path):
    folder, _ = idx_folder()
    for name in ("mnist", "fashion_mnist"):
        target = tmp_path / "both" / name
        target.mkdir(parents=True)
        for file in folder.iterdir():
            (target / file.name).write_bytes(file.read_bytes())
    for split, n in (("train", 12), ("t10k", 5)):
        (tmp_path / "both" / "mnist" / f"{split}-images-idx3-ubyte").write_bytes(idx(n, 3, 3))
    check_refused(
        "mnist_fashion", tmp_path / "both", r"images of mnist are \(3, 3, 1\) and those of fashion_mnist \(6, 7, 1\)"
    )
