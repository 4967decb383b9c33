"""Sets by natural user: LEAF, TensorFlow Federated, CelebA."""

import json
import pickle
import sqlite3

import numpy as np
import pytest

from fljax.data.cache import folder as cache_folder
from fljax.data.datasets import load
from fljax.data.partition import natural
from fljax.data.shown import short
from fljax.data.users import encode


def test_leaf_shards_by_writer_with_ink_bright(leaf_folder):
    folder, content = leaf_folder
    train, test = load("femnist", folder)
    assert train.names == test.names == ("ann", "bob", "cyd")
    np.testing.assert_array_equal(train.user, [0, 0, 0, 1, 1, 2, 2, 2, 2, 0])
    np.testing.assert_array_equal(test.user, [0, 0])
    cyd = content["train/b"]["user_data"]["cyd"]
    np.testing.assert_array_equal(train.y[5:9], cyd["y"])
    np.testing.assert_array_equal(train.x[5].ravel(), np.round(255 * (1 - np.float32(cyd["x"][0]))))
    np.testing.assert_array_equal(load("femnist", folder / "data")[0].x, train.x)
    assert natural(train, test, 0, min_size=2).train.size.shape == (3,)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: c["num_samples"].__setitem__(0, 9), r"user ann has 3 examples, 3 labels, but should have 9"),
        (lambda c: c["user_data"]["bob"]["y"].pop(), r"user bob has 2 examples, 1 labels"),
        (lambda c: c["users"].append("eve"), r"lists 3 users, 2 sizes and data of 2"),
        (lambda c: c["user_data"]["bob"]["y"].__setitem__(0, 62), r"labels from \d+ to 62"),
        (lambda c: c["user_data"]["bob"]["y"].__setitem__(0, -1), r"labels from -1"),
        (lambda c: c["user_data"]["bob"]["x"].__setitem__(0, [0.5] * 783), "not 784 numbers"),
        (lambda c: c["user_data"]["bob"]["x"].__setitem__(0, "photo.png"), "not 784 numbers"),
        (lambda c: c["user_data"]["bob"]["x"][0].__setitem__(0, float("nan")), "pixels outside 0 to 1"),
        (lambda c: c["user_data"]["bob"]["x"][0].__setitem__(0, 2), "pixels outside 0 to 1"),
        (lambda c: c.pop("user_data"), "not a whole LEAF shard"),
    ],
)
def test_broken_leaf_shards(leaf_folder, damage, message):
    folder, content = leaf_folder
    file = folder / "data" / "train" / "a.json"
    damage(content["train/a"])
    file.write_text(json.dumps(content["train/a"]))
    with pytest.raises(ValueError, match=message) as error:
        load("femnist", folder)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(cache_folder().rglob("*.npy"))


@pytest.mark.parametrize(
    ("content", "message"), [(b'{"users": ["a', "LEAF shard"), (pickle.dumps({}), "a Python pickle")]
)
def test_leaf_shards_that_are_not_json(leaf_folder, content, message):
    (leaf_folder[0] / "data" / "train" / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load("femnist", leaf_folder[0])


def test_leaf_without_a_test_folder(leaf_folder):
    (leaf_folder[0] / "data" / "test" / "a.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"test has no \.json"):
        load("femnist", leaf_folder[0])


def test_sqlite_by_writer(sqlite_file, tmp_path):
    file, rows = sqlite_file()
    train, test = load("femnist", tmp_path)
    assert train.names == ("w0", "w1")
    np.testing.assert_array_equal(train.user, [0, 0, 0, 1, 1])
    np.testing.assert_array_equal(test.y, [61])
    pixels = np.stack([pixels for split, _, pixels in rows if split == "train"])
    np.testing.assert_array_equal(np.asarray(train.x).reshape(5, 784), np.round(255 * (1 - pixels)))
    np.testing.assert_array_equal(load("femnist", file)[0].x, train.x)


def test_sqlite_with_a_wrong_count_or_label(sqlite_file, tmp_path):
    file, _ = sqlite_file(claimed=3)
    with pytest.raises(ValueError, match="train user w1 has 2 examples, but should have 3"):
        load("femnist", tmp_path)
    file.unlink()
    sqlite_file(label=62)
    with pytest.raises(ValueError, match="labels from 62 to 62"):
        load("femnist", tmp_path)


def test_broken_sqlite(tmp_path):
    file = tmp_path / "emnist_all.sqlite"
    file.write_bytes(b"not a database, though it is long enough to be looked at " * 20)
    with pytest.raises(ValueError, match=r"not a whole emnist_all.sqlite"):
        load("femnist", tmp_path)
    file.unlink()
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE other (x TEXT)")
    database.close()
    with pytest.raises(ValueError, match="no such table"):
        load("femnist", tmp_path)


def test_sqlite_with_a_damaged_record(sqlite_file, tmp_path):
    file, _ = sqlite_file()
    with sqlite3.connect(file) as database:
        database.execute("UPDATE examples SET serialized_example_proto = x'ff00ff'")
    database.close()
    with pytest.raises(ValueError, match=r"not a whole emnist_all.sqlite"):
        load("femnist", tmp_path)


def test_celeba_by_celebrity(celeba_folder):
    train, test = load("celeb_a", celeba_folder)
    assert (train.x.shape, test.x.shape) == ((8, 84, 84, 3), (2, 84, 84, 3))
    np.testing.assert_array_equal(train.y, [1, 0, 1, 0, 0, 1, 0, 1])  # images 0-3 and 5-8; even ones smile
    assert [test.names[user] for user in test.user] == ["1", "0"]  # images 4 and 9
    assert abs(int(train.x[4, 40, 40, 0]) - 100) <= 3  # image 5 is (100, 100, 50), through JPEG
    np.testing.assert_array_equal(load("celeb_a", celeba_folder.parent)[0].x, train.x)


@pytest.mark.parametrize("name", ["list_attr_celeba.txt", "identity_CelebA.txt"])
def test_celeba_with_a_missing_list(celeba_folder, name):
    (celeba_folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {name}"):
        load("celeb_a", celeba_folder)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("list_attr_celeba.txt", "10\n", "11\n", "has 10 images, but its first line says 11"),
        ("list_attr_celeba.txt", "Smiling", "Frowning", "names of the attributes"),
        ("list_attr_celeba.txt", "000003.jpg -1 1", "000003.jpg -1 7", "line 5 is not an image"),
        ("list_attr_celeba.txt", "000003", "000033", "others"),
        ("identity_CelebA.txt", "000002.jpg 1", "000002.jpg one", "line 2 is not 'image number'"),
    ],
)
def test_celeba_with_a_broken_list(celeba_folder, name, old, new, message):
    file = celeba_folder / name
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message) as error:
        load("celeb_a", celeba_folder)
    assert "\n" not in str(error.value)


def test_celeba_with_a_missing_or_broken_image(celeba_folder):
    file = celeba_folder / "img_align_celeba" / "000002.jpg"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"000002.jpg is not a whole image"):
        load("celeb_a", celeba_folder)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"000002.jpg is missing"):
        load("celeb_a", celeba_folder)


def test_names_that_would_be_cut_are_refused():
    assert encode(["é"])[0].decode() == "é"
    assert encode(["x" * 64])[0].decode() == "x" * 64
    with pytest.raises(ValueError, match="more than 64 bytes"):
        encode(["x" * 65])
    for name in ("a\0", "\ud800", "é\udfff"):
        with pytest.raises(ValueError, match="a zero byte or half a character in the name"):
            encode(["ann", name])


def test_values_of_files_are_told_in_sixty_characters():
    assert short("x" * 58) == f"'{58 * 'x'}'"
    assert short("x" * 59) == f"'{56 * 'x'}..."
