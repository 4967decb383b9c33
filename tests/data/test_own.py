"""Data of one's own: from arrays, tables, files, with the place of whatever is wrong in it."""

import gzip
import json
from pathlib import Path

import chex
import numpy as np
import pytest
from PIL import Image
from sklearn.preprocessing import OneHotEncoder

import fljax
from fljax.data.draw import draw
from fljax.data.own.arrays import own_data
from fljax.data.own.bad_cells import Where
from fljax.data.own.by_client import federation_from_clients
from fljax.data.own.columns import features_of, text_of
from fljax.data.own.file_kinds import is_packed, stem_of
from fljax.data.own.files import n_bytes_unpacked, read_own
from fljax.data.own.label_columns import labels_of
from fljax.data.own.number_columns import numbers_of
from fljax.data.own.numbered import numbered
from fljax.data.own.tables import Columns, from_frame, from_hugging_face

COLUMNS = Columns(("sick",), "hospital")


def rows_of(data):
    """(x, y) of each client of a split."""
    x, y = np.asarray(data.pool.x), np.asarray(data.pool.y)
    index, size = np.asarray(data.index), np.asarray(data.size)
    return [(x[index[i, :n]], y[index[i, :n]]) for i, n in enumerate(size)]


@pytest.fixture
def arrays():
    """60 examples of three clients, whose first feature is the client and whose second the label."""
    rng = np.random.default_rng(0)
    client, y = rng.permutation(np.repeat([0, 1, 2], [10, 20, 30])), rng.integers(2, size=60)
    return np.stack([client, y, rng.normal(size=60)], axis=1).astype(np.float32), y, client


def test_every_client_owns_its_examples_in_the_order_of_names(arrays):
    x, y, client = arrays
    federation = fljax.federation_from_arrays(x, y, np.array(["b", "c", "a"])[client], split=(0.6, 0.2, 0.2))
    for split in (federation.train, federation.val, federation.test):
        for i, (inputs, labels) in enumerate(rows_of(split)):
            assert set(inputs[:, 0]) == {(i + 2) % 3}  # a, b, c are clients 2, 0, 1
            np.testing.assert_array_equal(inputs[:, 1], labels)
    assert [int(sum(s.size[i] for s in (federation.train, federation.val, federation.test))) for i in range(3)] == [
        30,
        10,
        20,
    ]
    with_other_ids = fljax.federation_from_arrays(x, y, 7 + client, split=(0.6, 0.2, 0.2))
    np.testing.assert_array_equal(with_other_ids.train.size, np.roll(federation.train.size, -1))


def test_given_parts_are_kept(arrays):
    x, y, client = arrays
    part = np.where(np.arange(60) % 3 == 0, "test", "train")
    federation = fljax.federation_from_arrays(x, y, client, part=part)
    assert federation.val is None
    for split, name in ((federation.train, "train"), (federation.test, "test")):
        for i, (inputs, _) in enumerate(rows_of(split)):
            np.testing.assert_array_equal(inputs, x[(client == i) & (part == name)])


@pytest.mark.slow
def test_a_client_whose_parts_have_no_test_examples_trains_and_is_not_tested(arrays, key, tmp_path):
    x, y, client = arrays
    part = np.where((np.arange(60) % 3 == 0) & (client != 1), "test", "train")
    federation = fljax.federation_from_arrays(x, y, client, part=part)
    train_rows = [np.flatnonzero((client == i) & (part == "train")) for i in range(3)]
    test_rows = [np.flatnonzero((client == i) & (part == "test")) for i in range(3)]
    built = fljax.build(fljax.Examples(x, y), train_rows, (1.0, 0.0, 0.0), test_owned=test_rows)
    chex.assert_trees_all_equal(built, federation)
    algorithm = fljax.fedavg(fljax.MODELS["logistic_regression"]((3,), 2), fljax.Work(1, 8))
    metrics = fljax.train(algorithm, fljax.fedavg.Hyper(lr=0.1), federation, key, 2, folder=tmp_path).metrics
    accuracy, (result,) = metrics["client_accuracy"], fljax.load_run(tmp_path).results.values()
    np.testing.assert_array_equal(result.tests()["client_accuracy"], accuracy[-1])
    assert np.isnan(accuracy).tolist() == [[False, True, False]] * 2
    np.testing.assert_allclose(metrics["accuracy_macro"], accuracy[:, [0, 2]].mean(axis=1), rtol=1e-6)
    assert metrics["ids"].tolist() == [[0, 1, 2]] * 2
    assert draw(federation, tmp_path / "who.png", "").exists()


def test_clients_without_validation_examples_are_named_by_their_names(arrays):
    x, y, client = arrays
    names, nth = np.array(["a", "b", "c"])[client], np.zeros(60, int)
    for i in range(3):
        nth[client == i] = np.arange((client == i).sum())
    part = np.array(["train", "test", "val"])[nth % 3]
    part[(client == 1) & (part == "val")] = "train"
    with pytest.raises(ValueError, match=r"client 'b' has no val examples; .*leave it out, or mark no example as val"):
        fljax.federation_from_arrays(x, y, names, part=part)
    only_small = np.where((part == "val") & (client != 0), "train", part)  # the client of 10 examples alone has some
    assert own_data(x, y, names, part=only_small).federation(min_size=11).val is None


def test_per_client_arrays_are_the_same_as_ids(arrays):
    x, y, client = arrays
    order = np.argsort(client, kind="stable")
    data = {f"c{i}": (x[client == i], y[client == i]) for i in range(3)}
    by_client, by_ids = federation_from_clients(data), fljax.federation_from_arrays(x[order], y[order], client[order])
    for rows, expected in zip(rows_of(by_client.train), rows_of(by_ids.train), strict=True):
        np.testing.assert_array_equal(rows[0], expected[0])


class Items:
    """What data sets of PyTorch have in common: a length and items, and no end of an iteration."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i % len(self.items)]


def test_data_sets_of_items_are_the_same_as_pairs_of_arrays(arrays):
    x, y, client = arrays
    pairs = [(x[client == i], y[client == i]) for i in range(3)]
    items = [Items([(rows, int(label)) for rows, label in zip(*pair, strict=True)]) for pair in pairs]
    expected = federation_from_clients(pairs)
    for data in (items, {"a": items[0], "b": pairs[1], "c": items[2]}, [list(pair) for pair in pairs]):
        federation = federation_from_clients(data)
        for split in ("train", "test"):
            for rows, expected_rows in zip(
                rows_of(getattr(federation, split)), rows_of(getattr(expected, split)), strict=True
            ):
                np.testing.assert_array_equal(rows[0], expected_rows[0])
                np.testing.assert_array_equal(rows[1], expected_rows[1])


@pytest.mark.parametrize("parts", [("train", "test"), ("train", "val", "test")])
def test_clients_with_splits_of_their_own_are_the_same_as_parts(arrays, parts):
    x, y, client = arrays
    part = np.array(parts)[np.arange(len(y)) % len(parts)]
    expected = fljax.federation_from_arrays(x, y, client, part=part)
    pairs = {
        name: [(x[rows], y[rows]) for rows in ((client == i) & (part == name) for i in range(3))] for name in parts
    }
    data_sets = [Items([(row, int(label)) for row, label in zip(*pair, strict=True)]) for pair in pairs["test"]]
    named = {name: dict(zip("abc", pairs_of, strict=True)) for name, pairs_of in pairs.items()}
    for given in (pairs, named, pairs | {"test": data_sets}):
        federation = federation_from_clients(given["train"], val=given.get("val"), test=given["test"])
        assert (federation.val is None) == ("val" not in parts)
        for split in parts:
            actual, wanted = rows_of(getattr(federation, split)), rows_of(getattr(expected, split))
            for rows, expected_rows in zip(actual, wanted, strict=True):
                np.testing.assert_array_equal(rows[0], expected_rows[0])
                np.testing.assert_array_equal(rows[1], expected_rows[1])


def test_a_client_without_test_examples_is_not_tested(arrays):
    x, y, client = arrays
    pairs = {name: (x[client == i], y[client == i]) for i, name in enumerate("abc")}
    for federation in (
        federation_from_clients(pairs, test={"a": pairs["a"], "c": pairs["c"]}),
        federation_from_clients([*pairs.values()], test=(pairs[name] if name != "b" else None for name in "abc")),
    ):
        np.testing.assert_array_equal(federation.train.size, np.bincount(client))
        np.testing.assert_array_equal(federation.test.size, np.bincount(client) * [1, 0, 1])


PAIR = (np.zeros((4, 2), np.float32), np.arange(4) % 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"val": [PAIR, PAIR]}, "val is given, but test is not; give both, or neither and the shares as split"),
        ({"test": [PAIR, PAIR], "split": (0.5, 0, 0.5)}, r"split=\(0.5, 0, 0.5\) and test are both given; leave one"),
        ({"test": [PAIR]}, "test has 1 clients, clients 2; give one each, None for none"),
        ({"test": [PAIR] * 3}, "test has examples of client 2, but clients does not; give them to both"),
        ({"test": {"a": PAIR}}, "test has examples of client 'a', but clients does not"),
        ({"test": 3}, "test=3 has no clients; give a pair"),
        ({"test": [None, None]}, "no clients in test; give a pair"),
        ({"test": [PAIR, (PAIR[0][:, :1], PAIR[1])]}, r"client 1, test, has examples of shape \(1,\) and"),
        ({"test": [PAIR, PAIR], "val": [PAIR, 3]}, "client 1, val, has a int; give a pair of arrays"),
        ({"test": [PAIR, PAIR], "val": [PAIR, None]}, "client '1' has no val examples; add some"),
    ],
)
def test_splits_that_do_not_fit_the_clients_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        federation_from_clients([PAIR, PAIR], **given)


def test_two_examples_of_two_features_are_a_pair():
    """Not a data set of two items."""
    x, y = np.float32([[1, 2], [3, 4]]), np.array([0, 1])
    pool = federation_from_clients([(x, y)], split=(0.5, 0.0, 0.5)).train.pool
    np.testing.assert_array_equal(pool.x, x)
    np.testing.assert_array_equal(pool.y, y)


ONE = (np.zeros(2), 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([ONE, ONE, ONE], "client 'a' has a list of length 3; give a pair of arrays .x, y., or a data set"),
        ({"x": np.zeros((4, 2)), "y": np.zeros(4)}, "client 'a' has a dict; give a pair of arrays"),
        (3, "client 'a' has a int; give a pair of arrays"),
        (np.array(3), "client 'a' has a ndarray; give a pair of arrays"),
        ((1.5, 0), r"client 'a' has x of shape \(\) and y of shape \(\); give a pair of arrays"),
        (Items([]), "client 'a' has no examples; leave it out"),
        (Items([ONE, (*ONE, 1)]), "client 'a': item 1 is a tuple, not .x, y.; give"),
        (Items([{"x": 1}]), "client 'a': item 0 is a dict, not .x, y.; give"),
        (Items([ONE, (np.zeros(3), 0)]), r"the x of item 1 has shape \(3,\) and that of item 0 \(2,\)"),
    ],
)
def test_a_client_that_is_neither_pair_nor_data_set_is_refused(data, message):
    with pytest.raises(ValueError, match=message) as error:
        federation_from_clients({"a": data})
    assert "\n" not in str(error.value)


def test_labels_from_minus_one_are_names():
    data = fljax.own_data(np.zeros((4, 2), np.float32), np.array([1, -1, 1, -1]), np.zeros(4, int))
    assert data.classes == ("-1", "1")
    np.testing.assert_array_equal(data.examples.y, [1, 0, 1, 0])


def test_names_of_classes_and_clients_are_kept(arrays):
    x, y, client = arrays
    data = own_data(x, np.array(["well", "ill"])[y], client.astype(str))
    assert (data.classes, data.clients) == (("ill", "well"), ("0", "1", "2"))
    np.testing.assert_array_equal(data.examples.y, 1 - y)
    assert own_data(x, y, np.where(client == 0, "10", "9")).clients == ("9", "10")


def federation_with(arrays, **changes):
    x, y, client = arrays
    return fljax.federation_from_arrays(**{"x": x, "y": y, "client_ids": client} | changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y, c: {"y": y[:-1]}, "x has 60 examples and y 59"),
        (
            lambda x, y, c: {"x": x[:0], "y": y[:0], "client_ids": c[:0]},
            r"x has shape \(0, 3\); give .examples, ...., of",
        ),
        (lambda x, y, c: {"x": x[:, :0]}, r"x has shape \(60, 0\)"),
        (lambda x, y, c: {"x": 3}, r"x has shape \(\)"),
        (lambda x, y, c: {"client_ids": c[:5]}, "client_ids 5"),
        (lambda x, y, c: {"client_ids": 3}, "client_ids is one value, 3; give one for each of 60 examples"),
        (lambda x, y, c: {"part": "train"}, "part is one value, 'train'; give one for each"),
        (lambda x, y, c: {"part": np.full((60, 1), "train")}, r"part has shape \(60, 1\); give one for each example"),
        (lambda x, y, c: {"client_ids": c[:, None]}, r"client ids have shape \(60, 1\)"),
        (lambda x, y, c: {"x": np.where(np.arange(60)[:, None] == 7, np.nan, x)}, "example 7, column 0, of client"),
        (
            lambda x, y, c: {"x": np.where(np.arange(540).reshape(60, 3, 3, 1) == 7 * 9 + 5, np.inf, np.float32(0))},
            r"example 7 at \(1, 2, 0\), of client '.', is inf; correct it",
        ),
        (
            lambda x, y, c: {"x": np.where(np.arange(60)[:, None] == 7, -1e60, x.astype(float))},
            "7, column 0, of client .*, is -1e.60;",
        ),
        (
            lambda x, y, c: {"client_ids": np.where(np.arange(60) == 3, 9, c)},
            "client '9' has 1 examples, too few for 2",
        ),
        (lambda x, y, c: {"part": np.full(60, "train")}, "^no client has test examples; give some$"),
        (lambda x, y, c: {"part": np.where(c == 0, "test", "train")}, "client '0' has no train examples"),
        (
            lambda x, y, c: {"part": np.repeat(["train", "test"], 30), "split": (0.5, 0.0, 0.5)},
            r"^split=\(0.5, 0.0, 0.5\) is given, but part assigns each example to a split; leave one of them out$",
        ),
        (lambda x, y, c: {"part": np.full(60, "tset")}, "part of example 0 is 'tset'"),
        (lambda x, y, c: {"client_ids": np.array([None, *c[1:]], object)}, "client id of example 0 is missing"),
        *[
            (
                lambda x, y, c, split=split: {"split": split},
                "^split=.*: give fractions of train .above 0., validation and",
            )
            for split in (0.8, None, (0.8, 0.2), ("a", "b", "c"))
        ],
        (lambda x, y, c: {"seed": 1.5}, r"^seed=1\.5 is not a whole number; choose seed >= 0$"),
        (lambda x, y, c: {"seed": -1}, r"^seed=-1 is negative; choose seed >= 0$"),
        *[
            (
                lambda x, y, c, name=name: {name: [[1, 2], [3]] * 30},
                f"^{name}: examples have different shapes; give an a",
            )
            for name in ("x", "y", "client_ids", "part")
        ],
        (lambda x, y, c: {"min_size": 99}, "the largest has 30"),
        (lambda x, y, c: {"min_size": 2.5}, r"^min_size=2\.5 is not a whole number; choose min_size >= 0$"),
        (lambda x, y, c: {"y": np.where(c == 0, 1e39, 0.5)}, r"^label 1e\+39 is too large for float32"),
        (lambda x, y, c: {"x": np.arange(60).astype("m8[s]")[:, None]}, r"^x has dtype timedelta64\[s\]; give uint8"),
        (lambda x, y, c: {"y": np.arange(60).astype("m8[s]")}, r"^labels have dtype timedelta64\[s\]; give whole"),
    ],
)
def test_bad_arrays_are_refused_with_their_place(arrays, change, message):
    with pytest.raises(ValueError, match=message):
        federation_with(arrays, **change(*arrays))


def test_names_of_half_precision_are_numbered():
    """2 ** 63, up to which whole numbers are names, is beyond float16."""
    positions, names = numbered(np.float16([2, 10, 2]), "client id")
    assert (positions.tolist(), names) == ([0, 1, 0], ("2", "10"))


CSV = """hospital,age,blood,sick
north,50,1.5,yes
north,60,2.5,no
north,61,2.0,no
south,40,0.5,yes
south,41,0.25,no
"""


def write_table(folder: Path, text: str, name: str = "mine.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_csv_with_a_client_column(tmp_path):
    data = read_own(write_table(tmp_path, CSV), COLUMNS)
    assert (data.clients, data.classes) == (("north", "south"), ("no", "yes"))
    np.testing.assert_array_equal(data.examples.x, np.float32([[50, 1.5], [60, 2.5], [61, 2], [40, 0.5], [41, 0.25]]))
    np.testing.assert_array_equal(data.examples.y, [1, 0, 0, 1, 0])
    assert len(data.federation().train.size) == 2
    assert len(data.federation(min_size=3).train.size) == 1
    assert data.kept(3) == ("north",)
    marked = read_own(write_table(tmp_path, "\ufeff" + CSV), COLUMNS)  # as spreadsheets write it
    np.testing.assert_array_equal(marked.examples.x, data.examples.x)
    tabs = read_own(write_table(tmp_path, CSV.replace(",", "\t"), "mine.tsv"), COLUMNS._replace(features=("blood",)))
    np.testing.assert_array_equal(tabs.examples.x[:, 0], data.examples.x[:, 1])
    assert (
        read_own(write_table(tmp_path, CSV), Columns(("age",), "hospital", features=("blood",)), "regression").classes
        == ()
    )


@pytest.mark.parametrize("name", ["MINE.CSV", "mine.csv.gz", "Mine.Csv.GZ", "MINE.TSV", "mine.tsv.gz"])
def test_tables_with_names_in_capitals_or_packed_are_the_same(tmp_path, name):
    expected = read_own(write_table(tmp_path, CSV), COLUMNS)
    text = ("\ufeff" + CSV.replace(",", "\t") if "tsv" in name.lower() else CSV).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if is_packed(path) else text)
    data = read_own(path, COLUMNS)
    np.testing.assert_array_equal(data.examples.x, expected.examples.x)
    assert (data.clients, data.classes) == (expected.clients, expected.classes)
    assert stem_of(path).lower() == "mine"
    assert n_bytes_unpacked(path) == len(text)


def test_packed_tables_that_are_damaged_or_of_another_kind_are_refused(tmp_path):
    path, packed = tmp_path / "mine.csv.gz", gzip.compress(CSV.encode())
    damaged = bytes([*packed[:12], packed[12] ^ 0xFF, *packed[13:]])
    for content in (packed[:-9], CSV.encode(), damaged, packed[:-8] + bytes(4) + packed[-4:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"mine\.csv\.gz: cannot be unpacked by gzip: .*; pack it again") as error:
            read_own(path, COLUMNS)
        assert "\n" not in str(error.value)
        assert n_bytes_unpacked(path) <= 1032 * len(content)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"mine\.csv\.gz: "):
        read_own(path, COLUMNS)
    for name in ("mine.xlsx", "mine.npz.gz", "mine.gz"):
        with pytest.raises(ValueError, match=r"give \.csv, \.csv\.gz, \.tsv, \.tsv\.gz, \.parquet, \.npz, \.json or a"):
            read_own(write_table(tmp_path, CSV, name), COLUMNS)


@pytest.mark.parametrize(
    ("columns", "task", "dtype", "shape"),
    [
        (Columns(("age",), "hospital", features=("blood",)), "auto", np.int32, (5,)),
        (Columns(("age",), "hospital", features=("blood",)), "regression", np.float32, (5,)),
        (Columns(("blood",), "hospital", features=("age",)), "auto", np.float32, (5,)),
        (Columns(("blood", "age"), "hospital", features=("day",)), "auto", np.float32, (5, 2)),
        (Columns(("ill", "old"), "hospital", features=("day",)), "auto", np.float32, (5, 2)),
        (Columns(("ill", "old"), "hospital", features=("day",)), "labels", np.float32, (5, 2)),
        (Columns(("ill",), "hospital", features=("day",)), "labels", np.float32, (5, 1)),
        (Columns(("ill",), "hospital", features=("day",)), "regression", np.float32, (5,)),
    ],
)
def test_what_labels_are(tmp_path, columns, task, dtype, shape):
    days = "\n".join(
        f"{line},{f'{i},{i % 2},{i // 3}' if i else 'day,ill,old'}" for i, line in enumerate(CSV.splitlines())
    )
    y = read_own(write_table(tmp_path, days), columns, task).examples.y
    assert (y.dtype, y.shape) == (dtype, shape)


@pytest.mark.parametrize(
    ("old", "new", "columns", "message"),
    [
        (
            "2.5",
            "high",
            COLUMNS,
            "mine.csv: line 3 .client 'north'., column 'blood' is 'high', not a finite number; correct it, or leave "
            "the row or the column out; if it holds no numbers, name it by --category-column, --text-column or "
            "--ignored-column .in Python, in fljax.Columns.$",
        ),
        ("2.5", '"2,5"', COLUMNS, "column 'blood' is '2,5', not a finite number; write numbers with a decimal point"),
        ("2.5", "", COLUMNS, "line 3 .client 'north'., column 'blood' is empty; correct it, fill it"),
        ("2.5", "1e60", COLUMNS, "'1e60', not a finite number"),
        ("north,60,2.5", '\n\n"nor\nth",60,dear', COLUMNS, "line 5 .client 'nor.nth'., column 'blood' is 'dear'"),
        (
            "age,blood,sick\nnorth,50,1.5",
            '"age",blood,"si\nck"\nnorth,50,dear',
            COLUMNS._replace(label="si\nck"),
            "line 3 ",
        ),
        ("no\nnorth,61,2.0,no", "no\n\nnorth,61", COLUMNS, "line 5 has 2 values"),
        ("61,2.0,no", "61,2.0", COLUMNS, "line 4 has 3 values and the header 4 names"),
        ("south,40", ",40", COLUMNS, "line 5 .client ''., column 'hospital' is empty"),
        ("0.5,yes", "0.5,", COLUMNS, "line 5 .client 'south'., column 'sick' is empty"),
        ("age", "age", COLUMNS._replace(client="clinic"), "no column 'clinic'; the columns are hospital, age"),
        ("blood", " blood", COLUMNS._replace(client="clinic"), "the columns are hospital, age, ' blood', sick"),
        ("age", "blood", COLUMNS, "two columns have the same name"),
        ("age", "age", None, "name the column of the labels"),
        ("age", "age", Columns(("hospital",), "hospital"), "named twice: hospital"),
        ("age", "age", Columns(("sick",), "hospital", features=("age", "sick")), "named twice: sick"),
        ("age", "age", Columns(("sick",), "hospital", features=("age", "age")), "named twice: age"),
        ("age", "age", COLUMNS._replace(ignored=("sex",)), "no column 'sex'; the columns are hospital, age"),
        ("age", "age", COLUMNS._replace(ignored=("sick",)), "named twice: sick"),
        (
            "age",
            "age",
            COLUMNS._replace(ignored=("age",), features=("blood",)),
            "features and ignored columns are named; name",
        ),
        ("age", "age", COLUMNS._replace(ignored=("age", "blood")), "no column is left for the features"),
        (
            "age",
            "age",
            COLUMNS._replace(ignored="age", categories="age"),
            "category column 'age' is not a feature; .*are blood",
        ),
        ("age", "age", COLUMNS._replace(categories=("sex",)), "category column 'sex' is not a feature; .*age, blood"),
        (
            "2.5",
            "",
            COLUMNS._replace(categories=("blood",)),
            "line 3 .client 'north'., column 'blood' is empty; name",
        ),
        ("age", "age", COLUMNS._replace(categories=("age",)), "column 'age' has 5 categories in 5 rows; leave it out"),
    ],
)
def test_bad_tables_are_refused_with_line_column_and_client(tmp_path, old, new, columns, message):
    with pytest.raises(ValueError, match=message):
        read_own(write_table(tmp_path, CSV.replace(old, new)), columns)


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_quoted_names_do_not_say_how_a_table_is_separated(tmp_path, separator):
    """A comma or a line break in a quoted name is a part of it; a line without names does not count."""
    lines = [("hospital", '"age, in\nyears"', 'height"', "sick"), ("n", "50", "70", "yes"), ("s", "40", "60", "no")]
    path = write_table(tmp_path, "\n" + "\n".join(separator.join(line) for line in lines))
    data = read_own(path, Columns(("sick",), "hospital"))
    assert (data.inputs, data.clients, data.classes) == (("age, in\nyears", 'height"'), ("n", "s"), ("no", "yes"))
    with pytest.raises(ValueError, match=r"the columns are hospital, 'age, in\\nyears', height\", sick") as error:
        read_own(path, Columns(("ill",), "hospital"))
    assert "\n" not in str(error.value)
    lines = [
        [f'"{value}"' for value in line] for line in (("hospital", '""age""', "sick"), ("a,b", 5, 0), ("a,b", 6, 1))
    ]
    path.write_text("\n".join(separator.join(line) for line in lines))
    assert read_own(path, Columns(("sick",), "hospital")).clients == ("a,b",)


def test_a_column_of_categories_is_a_feature_for_each_word(tmp_path):
    """As scikit-learn encodes them, in the place of their column."""
    sex, ward, age = np.array(["f", "m", "f", "x", "m", "f"]), np.array([3, 1, 1, 3, 3, 1]), np.arange(6) + 40.0
    rows = "".join(f"{a},{s},{w},{i % 2},u\n" for i, (a, s, w) in enumerate(zip(age, sex, ward, strict=True)))
    data = read_own(
        write_table(tmp_path, "age,sex,ward,sick,site\n" + rows), Columns(("sick",), "site", categories=("ward", "sex"))
    )
    encoded = OneHotEncoder(sparse_output=False).fit_transform(np.stack([sex, ward.astype(str)], axis=1))
    np.testing.assert_array_equal(data.examples.x, np.float32(np.column_stack([age, encoded])))
    assert data.inputs == ("age", "sex=f", "sex=m", "sex=x", "ward=1", "ward=3")
    two_of_three = write_table(tmp_path, "sex,sick\nf,0\nm,1\nf,0\n", "few.csv")
    assert read_own(two_of_three, Columns(("sick",), categories="sex")).inputs == ("sex=f", "sex=m")
    of_sex = read_own(tmp_path / "mine.csv", Columns(("sick",), "site", features=("sex",), categories="sex"))
    assert of_sex.inputs == ("sex=f", "sex=m", "sex=x")
    np.savez(tmp_path / "mine.npz", x=np.ones((4, 2)), y=np.zeros(4, int))
    table = write_table(tmp_path, "sex=f,sex,sick\n" + "1,f,0\n2,m,1\n" * 2)
    for order in (("sex=f", "sex"), ("sex", "sex=f")):
        with pytest.raises(ValueError, match="a category of column 'sex' and another column are both called 'sex=f'"):
            read_own(table, Columns(("sick",), features=order, categories=("sex",)))
    columns = Columns(("sick",), features=("x",), categories=("x",))
    with pytest.raises(ValueError, match="column 'x' holds arrays, which cannot be categories"):
        from_frame(Frame(x=np.zeros((4, 2)), sick=np.arange(4) % 2), columns)
    with pytest.raises(ValueError, match="categories must be columns of a table"):
        read_own(tmp_path / "mine.npz", Columns((), categories=("x",)))


def test_an_ignored_column_is_not_read(tmp_path):
    rows = "north,61,2019-01-02,no\nnorth,35,,yes\nsouth,40,2020-02-03,no\nsouth,52,x,yes\n"
    path = write_table(tmp_path, "hospital,age,admitted,sick\n" + rows)
    with pytest.raises(ValueError, match=r"column 'admitted' is '2019-01-02'"):
        read_own(path, COLUMNS)
    data = read_own(path, COLUMNS._replace(ignored="admitted"))
    data_of_age = read_own(path, COLUMNS._replace(features=("age",)))
    assert data.inputs == data_of_age.inputs == ("age",)
    np.testing.assert_array_equal(data.examples.x, np.float32([[61], [35], [40], [52]]))
    np.savez(tmp_path / "mine.npz", x=np.ones((4, 2)), y=np.zeros(4, int), z=np.zeros(4))
    with pytest.raises(ValueError, match="only columns of a table can be ignored"):
        read_own(tmp_path / "mine.npz", Columns((), ignored=("z",)))


def test_floats_of_an_npz_are_classes_where_the_task_says_so(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.ones((4, 2)), y=np.array([0.0, 1.0, 1.0, 0.0]), client_ids=np.arange(4) // 2)
    assert read_own(tmp_path / "mine.npz", task="classification").examples.y.tolist() == [0, 1, 1, 0]
    assert read_own(tmp_path / "mine.npz").examples.y.dtype == np.float32
    for path in (tmp_path / "mine.npz", write_table(tmp_path, CSV)):
        with pytest.raises(ValueError, match="task='clasification' is unknown; choose one of"):
            read_own(path, None if path.suffix == ".npz" else COLUMNS, task="clasification")


def test_a_class_may_be_called_none(tmp_path):
    table = write_table(tmp_path, "dose,sick,site\n1,None,u\n2,Light,u\n3,nan,v\n4,None,v\n")
    assert read_own(table, Columns(("sick",), "site")).classes == ("Light", "None", "nan")
    beside_numbers = write_table(tmp_path, "dose,sick,site\n" + "1,0,u\n2,1,u\n3,unknown,v\n4,1,v\n" * 2)
    assert read_own(beside_numbers, Columns(("sick",), "site")).classes == ("0", "1", "unknown")
    table_of_numbers = write_table(tmp_path, "dose,sick,site\n1,0,u\n2,1,u\n3,nan,v\n")
    with pytest.raises(ValueError, match=r"line 4 .client 'v'., column 'sick' is empty"):
        read_own(table_of_numbers, Columns(("sick",), "site"))


@pytest.mark.parametrize("names", ["10 10.0 20 1e1", "-1 -1.0 1 -1", "0 0.0 1 0"])
def test_a_class_is_a_number_however_it_is_written(tmp_path, names):
    rows = "".join(f"{i},{name}\n" for i, name in enumerate(names.split()))
    data = read_own(write_table(tmp_path, "dose,sick\n" + rows), Columns(("sick",)))
    np.testing.assert_array_equal(data.examples.y, [0, 0, 1, 0])
    table = write_table(tmp_path, f"dose,sick\n1,{2**53}\n2,{2**53 + 1}\n")  # equal as float64
    assert read_own(table, Columns(("sick",))).classes == (str(2**53), str(2**53 + 1))


def test_many_whole_numbers_are_not_taken_for_classes(tmp_path):
    text = "c,x,target\n" + "".join(f"{i % 2},{i},{3 * i}\n" for i in range(150))
    columns = Columns(("target",), "c")
    with pytest.raises(ValueError, match="150 different whole numbers: say task"):
        read_own(write_table(tmp_path, text), columns)
    assert read_own(write_table(tmp_path, text), columns, "regression").examples.y.dtype == np.float32


class Frame(dict):
    """What pandas and polars frames have in common."""

    columns = property(lambda self: list(self))


def test_frames_and_hugging_face_data_sets(tmp_path):
    table = {
        "hospital": np.array(["n", "n", "s", "s"], object),
        "sick": np.array([0, 1, 1, 0]),
        "age": np.array([1.0, 2.0, 3.0, np.nan]),
    }
    with pytest.raises(ValueError, match=r"row 3 .client 's'., column 'age' is empty; .* the column out$"):
        from_frame(Frame(table), COLUMNS)
    table["age"][1:3] = np.inf
    with pytest.raises(
        ValueError,
        match=r"row 1 .client 'n'., column 'age' is 'inf', not a finite number \(2 more in this column\); correct",
    ):
        from_frame(Frame(table), COLUMNS)
    table["age"][1:] = 2, 3, 4
    data = from_frame(Frame(table), COLUMNS)
    np.testing.assert_array_equal(data.examples.x[:, 0], [1, 2, 3, 4])

    class Dataset(Frame):
        column_names = property(lambda self: list(self))

        def with_format(self, name):
            return self

    images = np.zeros((4, 8, 8), np.uint8)
    data = from_hugging_face(Dataset({"image": images} | {k: table[k] for k in ("hospital", "sick")}), COLUMNS)
    assert data.examples.x.shape == (4, 8, 8, 1)


def test_a_column_is_named_by_itself_and_what_is_no_table_is_refused():
    table = Frame({"hospital": np.array(["n", "s"], object), "sick": np.array([0, 1]), "age": np.array([1.0, 2.0])})
    data = from_frame(table, Columns("sick", "hospital", features="age"))
    chex.assert_trees_all_equal(data.examples, from_frame(table, Columns(("sick",), "hospital")).examples)
    for read, source, columns, message in (
        (from_frame, table, "sick", r"^columns is 'sick', not a Columns; give fljax.Columns\("),
        (from_frame, dict(table), COLUMNS, "^frame of type dict has no columns; give a pandas or polars frame"),
        (
            from_hugging_face,
            {"train": 1, "test": 2},
            COLUMNS,
            "^dataset is a dict of 'train', 'test', not .*; give one split, dataset",
        ),
        (
            from_hugging_face,
            [1],
            COLUMNS,
            r"^dataset=\[1\] is not a datasets.Dataset; for a frame use fljax.from_frame",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            read(source, columns)


def test_a_split_beside_one_that_the_data_says_is_refused():
    x, y, part = np.ones((12, 2), np.float32), np.arange(12) % 2, np.repeat(["train", "test"], 6)
    data = own_data(x, y, np.arange(12) % 3, part=part)
    assert data.federation().test.size.sum() == 6
    with pytest.raises(
        ValueError, match=r"^split=\(0.5, 0.0, 0.5\) is given, but part assigns each example to a split"
    ):
        data.federation((0.5, 0.0, 0.5))


def test_two_columns_of_one_name_are_refused():
    class Twice(dict):
        columns = ("age", "sick", "age")

    with pytest.raises(ValueError, match="two columns have the same name"):
        from_frame(Twice(age=np.zeros((4, 2)), sick=np.zeros(4)), Columns(("sick",)))
    with pytest.raises(ValueError, match="two columns have the same name"):
        from_frame(Frame({1: np.zeros(4), "1": np.ones(4), "sick": np.zeros(4)}), Columns(("sick",)))


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([[1, 2], [3, 4], [5]], r"row 2 .client 's'., column 'x' has shape \(1,\), row 0 has \(2,\)"),
        ([[1, 2], None, [3, 4]], r"row 1 .client 'n'., column 'x' has shape \(\), row 0 has \(2,\)"),
        ([[1, 2], [3, [4]], [5, 6]], "row 1 .client 'n'., column 'x' has lists of several lengths"),
        ([1.0, np.ones(2), 3.0], r"row 1 .client 'n'., column 'x' is '\[1. 1.\]', not a finite number"),
    ],
)
def test_cells_of_other_shapes_are_named(cells, message):
    column = np.empty(3, object)
    column[:] = cells
    table = Frame(x=column, sick=np.array([0, 1, 0]), hospital=np.array(["n", "n", "s"], object))
    with pytest.raises(ValueError, match=message):
        from_frame(table, COLUMNS)


@pytest.mark.parametrize(
    ("library", "class_name", "read"),
    [
        ("pandas", "DataFrame", from_frame),
        ("polars", "DataFrame", from_frame),
        ("datasets", "Dataset", from_hugging_face),
    ],
)
def test_tables_of_other_libraries_where_they_are(library, class_name, read):
    """The objects themselves; the test above has only what they have in common."""
    make = getattr(pytest.importorskip(library), class_name)
    table = {
        "hospital": ["n", "s", "n", "s"],
        "sick": ["no", "yes", "yes", "no"],
        "age": [1.5, 2.0, 3.0, 4.0],
        "k": [4, 3, 2, 1],
    }
    data = read(make(table) if library != "datasets" else make.from_dict(table), COLUMNS)
    np.testing.assert_array_equal(data.examples.x, [[1.5, 4], [2, 3], [3, 2], [4, 1]])
    np.testing.assert_array_equal(data.examples.y, [0, 1, 1, 0])
    assert (data.clients, data.classes) == (("n", "s"), ("no", "yes"))
    federation = data.federation((0.5, 0.0, 0.5))
    assert federation.train.size.tolist() == [1, 1]


def test_ids_and_labels_of_more_digits_than_int64_has():
    ids = ["9" * 30, "1" + "0" * 29, "2"]
    assert own_data(np.zeros((3, 1)), [0, 1, 0], ids).clients == ("2", "1" + "0" * 29, "9" * 30)
    assert own_data(np.zeros((3, 1)), [0, 1, 0], np.array([1e30, 2.0, 1e30])).clients == ("2.0", "1e+30")
    table = {"id": np.array(ids, object), "x": np.arange(3.0), "y": np.array([1e30, 2e30, 1e30])}

    class Frame(dict):
        columns = tuple(table)

    data = from_frame(Frame(table), Columns(("y",), "id"))
    assert (data.classes, data.examples.y.tolist()) == (("1e+30", "2e+30"), [0, 1, 0])
    with pytest.raises(ValueError, match="no rows; give the names"):
        from_frame(Frame({name: column[:0] for name, column in table.items()}), Columns(("y",), "id"))


def test_tokens_that_int32_does_not_hold_are_refused():
    x = np.array([[1], [3_000_000_000]], np.uint32)
    with pytest.raises(ValueError, match="uint32 values up to 3000000000"):
        own_data(x, [0, 1])
    np.testing.assert_array_equal(own_data(x[:1], [0]).examples.x, [[1]])


def test_a_client_without_examples_is_refused():
    data = (np.zeros((4, 2), np.float32), np.arange(4) % 2)
    with pytest.raises(ValueError, match="client 'b' has no examples; leave it out"):
        federation_from_clients({"a": data, "b": (data[0][:0], data[1][:0])})


@pytest.mark.parametrize(
    ("y", "task", "kind"),
    [
        (np.arange(6) % 2, "regression", np.float32),
        (np.arange(6) - 3, "regression", np.float32),
        (np.arange(6) % 2, "classification", np.int32),
        (np.arange(12).reshape(6, 2) % 2, "labels", np.float32),
        (np.arange(6) / 2, "regression", np.float32),
    ],
)
def test_labels_of_an_archive_are_those_of_the_task(tmp_path, y, task, kind):
    np.savez(tmp_path / "a.npz", x=np.zeros((6, 2), np.float32), y=y)
    data = read_own(tmp_path / "a.npz", task=task)
    labels = data.examples.y
    assert labels.dtype == kind
    np.testing.assert_array_equal(labels, y)
    assert data.classes == ()


@pytest.mark.parametrize(
    ("y", "columns", "task", "message"),
    [
        (np.arange(6) / 2, None, "classification", "float32 of shape .6,., for regression; choose --task regression"),
        (np.arange(6) % 2, None, "labels", "for classification; choose --task classification"),
        (np.array(list("ababab")), None, "regression", "for classification; choose --task classification"),
        (np.arange(6) % 2, COLUMNS, "auto", "a.npz: has no array sick; it has x, y"),
        (np.arange(6) % 2, Columns(("y",), "whose"), "auto", "a.npz: has no array whose; it has x, y"),
        (np.arange(6) % 2, Columns(("y", "x")), "auto", "a.npz: y, x are several arrays for one thing; name one"),
    ],
)
def test_what_an_archive_has_not_is_refused(tmp_path, y, columns, task, message):
    np.savez(tmp_path / "a.npz", x=np.zeros((6, 2), np.float32), y=y)
    with pytest.raises(ValueError, match=message):
        read_own(tmp_path / "a.npz", columns, task)


def test_npz(tmp_path, arrays):
    x, y, client = arrays
    np.savez(tmp_path / "a.npz", x=x, y=y, client_ids=client)
    np.testing.assert_array_equal(read_own(tmp_path / "a.npz").client, client)
    np.savez(
        tmp_path / "other.npz",
        images=x,
        targets=y,
        clients=client,
        split=np.where(np.arange(len(y)) % 2, "train", "dev"),
    )
    data = read_own(tmp_path / "other.npz")
    np.testing.assert_array_equal(data.client, client)
    np.testing.assert_array_equal(data.part == "val", np.arange(len(y)) % 2 == 0)
    np.savez(tmp_path / "b.npz", x=x)
    with pytest.raises(ValueError, match=r"b\.npz: has no array y; it has x"):
        read_own(tmp_path / "b.npz")
    (tmp_path / "c.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(ValueError, match=r"c\.npz"):
        read_own(tmp_path / "c.npz")
    with pytest.raises(
        ValueError, match=r"^mine.py:read is Python; a partition of yours can read any data: fljax run "
    ):
        fljax.read_own("mine.py:read")
    with pytest.raises(ValueError, match=r"there is no .*gone.npz"):
        read_own(tmp_path / "gone.npz")


def test_arrays_of_an_archive_may_have_any_name(tmp_path, arrays):
    x, y, client = arrays
    part = np.array(["train", "test"])[np.arange(60) % 2]
    np.savez(tmp_path / "a.npz", scans=x, sick=y, hospital=client, fold=part, x=-x, y=1 - y)
    data = read_own(tmp_path / "a.npz", Columns(("sick",), "hospital", "fold", ("scans",)))
    for actual, expected in ((data.examples.x, x), (data.examples.y, y), (data.client, client), (data.part, part)):
        np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(read_own(tmp_path / "a.npz").examples.x, -x)


def test_a_folder_of_images_for_each_client(tmp_path):
    rng = np.random.default_rng(0)
    for client in ("anna", "bert"):
        for label in ("cat", "dog"):
            (tmp_path / "pets" / client / label).mkdir(parents=True)
            for i in range(3):
                image = Image.fromarray(rng.integers(256, size=(4, 5, 3), dtype=np.uint8))
                image.save(tmp_path / "pets" / client / label / f"{i}.png")
    (tmp_path / "pets" / "bert" / "dog" / "._1.png").write_bytes(b"what macOS writes beside a file")
    data = read_own(tmp_path / "pets")
    assert (data.clients, data.classes, data.examples.x.shape) == (("anna", "bert"), ("cat", "dog"), (12, 4, 5, 3))
    np.testing.assert_array_equal(data.examples.y, np.tile(np.repeat([0, 1], 3), 2))
    Image.fromarray(np.zeros((3, 5, 3), np.uint8)).save(tmp_path / "pets" / "bert" / "dog" / "x.png")
    with pytest.raises(ValueError, match="one size"):
        read_own(tmp_path / "pets")
    with pytest.raises(ValueError, match="pets is a folder, but a column is given for label, client; leave it out"):
        read_own(tmp_path / "pets", COLUMNS)


def test_halves_for_a_partition(arrays):
    x, y, _ = arrays
    for fraction in (0.0, 1.0, np.nan):
        with pytest.raises(ValueError, match=f"test_fraction={fraction} is out of its range"):
            own_data(x, y).halves(fraction)
    train, test = own_data(x, y).halves(0.25, seed=1)
    assert (len(train.y), len(test.y)) == (45, 15)
    assert [len(half.y) for half in own_data(x[:3], y[:3]).halves(0.9)] == [1, 2]  # 0.9 of three is all of them
    with pytest.raises(ValueError, match="the data has 1 example, but a partition needs one to train and one to test"):
        own_data(x[:1], y[:1]).halves()
    x_of_both = np.concatenate([train.x, test.x])
    np.testing.assert_array_equal(np.sort(x_of_both[:, 2]), np.sort(x[:, 2]))
    with pytest.raises(ValueError, match="the data does not name its clients"):
        own_data(x, y).federation()


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (["train", "val", "test"], "20 examples are marked as val, but a partition takes"),
        (["train", "train", "train"], "no example is marked as test, but a partition needs some"),
        (["test", "test", "test"], "no example is marked as train"),
    ],
)
def test_parts_that_a_partition_cannot_mean_are_refused(arrays, part, message):
    x, y, _ = arrays
    with pytest.raises(ValueError, match=message):
        own_data(x, y, part=np.array(part)[np.arange(60) % 3]).halves()
    train, test = own_data(x, y, part=np.where(np.arange(60) < 40, "train", "test")).halves()
    assert (len(train.y), len(test.y)) == (40, 20)


def images(folder, mode="L", value=7, suffix="png"):
    """One image of each of two classes of a client."""
    for label in ("cat", "dog"):
        (folder / "anna" / label).mkdir(parents=True)
        Image.fromarray(
            np.full((2, 3), value, {"L": np.uint8, "I;16": np.uint16, "I": np.int32, "F": "f4"}[mode])
        ).save(folder / "anna" / label / f"a.{suffix}")


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_grey_images_of_16_bits_keep_the_upper_8(tmp_path, suffix):
    images(tmp_path, "I;16", 200 * 256 + 17, suffix)
    x = read_own(tmp_path).examples.x
    assert (x.shape, x.dtype) == ((2, 2, 3, 1), np.uint8)
    assert (x == 200).all()


@pytest.mark.parametrize(("mode", "message"), [("F", "floating-point numbers"), ("I", "whole numbers of 32 bits")])
def test_images_of_an_unknown_range_are_refused(tmp_path, mode, message):
    images(tmp_path, mode, 7, "tif")
    with pytest.raises(ValueError, match=f"a.tif has {message}; give images of 8 or 16 bits"):
        read_own(tmp_path)


def test_folders_beside_train_are_splits_or_refused(tmp_path):
    for name in ("train", "valid", "test"):
        images(tmp_path / name)
    assert read_own(tmp_path).part.tolist() == ["train"] * 2 + ["val"] * 2 + ["test"] * 2
    images(tmp_path / "extra")
    with pytest.raises(ValueError, match="has the folder extra beside train; name it train, val or test"):
        read_own(tmp_path)


class Unsaid:
    """The NA of pandas: what a comparison with it gives has no truth."""

    def __eq__(self, other):
        return self

    def __ne__(self, other):
        return self

    __hash__ = None

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


@pytest.mark.parametrize("gap", [None, float("nan"), np.datetime64("NaT", "s"), Unsaid()])
def test_missing_values_of_every_kind_are_named(gap):
    table = {"hospital": ["n", "n", "s"], "sick": ["no", "yes", "no"], "age": [1.0, 2.0, 3.0]}
    for name, message in (
        ("hospital", "row 1 .client ''., column 'hospital' is empty"),
        ("sick", "row 1 .client 'n'., column 'sick' is empty"),
        ("age", "row 1 .client 'n'., column 'age' is empty"),
    ):
        column = [table[name][0], gap, table[name][2]]
        frame = Frame({key: np.array(values, object) for key, values in (table | {name: column}).items()})
        with pytest.raises(ValueError, match=message):
            from_frame(frame, COLUMNS)
    with pytest.raises(ValueError, match="client id of example 1 is missing"):
        own_data(np.zeros((2, 1)), [0, 1], np.array(["n", gap], object))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array(["2020-01-01", "NaT"], "M8[D]"), "column 'age' has dates or durations .datetime64.D..; make"),
        (np.array([1, 2], "m8[h]"), "column 'age' has dates or durations"),
        (np.array([1, 2j]), "column 'age' has complex numbers .complex128."),
        (np.array([1.0, np.datetime64("2020-01-01")], object), "row 1 .*column 'age' is '2020-01-01', not a finite"),
        (np.array([1.0, np.complex128(2j)], object), "row 1 .*column 'age' is '2j', not a finite"),
    ],
)
def test_columns_that_are_no_numbers_are_refused(values, message):
    table = Frame({"hospital": np.array(["n", "s"]), "sick": np.array([0, 1]), "age": values})
    with pytest.raises(ValueError, match=message):
        from_frame(table, COLUMNS)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros(4), "client 'b' has labels of shape .. that are floating-point numbers and the first client of"),
        (np.array(list("abab")), "client 'b' has labels of shape .. that are names"),
        (np.zeros((4, 2), int), "client 'b' has labels of shape .2,. that are whole"),
    ],
)
def test_labels_of_clients_are_of_one_kind(labels, message):
    x = np.zeros((4, 2), np.float32)
    with pytest.raises(ValueError, match=message):
        federation_from_clients({"a": (x, np.arange(4) % 2), "b": (x, labels)})


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            np.zeros((4, 2), np.uint8),
            r"client 'b' has examples of shape \(2,\) and dtype uint8, the first client .*float32",
        ),
        (
            np.zeros((4, 3), np.float32),
            r"client 'b' has examples of shape \(3,\) and dtype float32, the first client of",
        ),
        (np.zeros((5, 2), np.float32), "client 'b' has 5 examples and 4 labels; give a label for each"),
    ],
)
def test_examples_of_clients_are_of_one_kind(x, message):
    y = np.arange(4) % 2
    with pytest.raises(ValueError, match=message):
        federation_from_clients({"a": (np.zeros((4, 2), np.float32), y), "b": (x, y)})


def test_whole_labels_of_any_types_are_classes():
    x, y = np.zeros((4, 2), np.float32), np.arange(4) % 2
    for first_type, second_type in ((np.int64, np.uint64), (np.uint64, np.int8), (bool, np.int32)):
        pool = federation_from_clients([(x, y.astype(first_type)), (x, y.astype(second_type))]).train.pool
        assert pool.y.dtype == np.int32
        np.testing.assert_array_equal(pool.y, np.tile(y, 2))


@pytest.mark.parametrize("dtype", ["S2", object])
def test_names_in_bytes_are_text(dtype):
    data = own_data(np.zeros((3, 1)), np.array([b"ill", b"ok", b"ill"], dtype), np.array([b"10", b"9", b"10"], dtype))
    assert data.clients == ("9", "10")
    assert data.client.tolist() == [1, 0, 1]
    assert data.classes == (("il", "ok") if dtype == "S2" else ("ill", "ok"))


LEAF = {
    "train": {"ann": ([[0.5, 1.5], [2.5, 1.0], [1.0, 1.0]], [2.0, 0.0, 1.0]), "bob": ([[0.25, 0.5]], [1.0])},
    "test": {"ann": ([[3.0, 4.5]], [0.0]), "bob": ([[9.0, 1.0], [0.0, 1.5]], [2.0, 2.0])},
}


def leaf_json(users):
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    return json.dumps({"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data})


@pytest.fixture
def leaf(tmp_path):
    """A folder as LEAF, FedProx and others write it."""
    for split, users in LEAF.items():
        (tmp_path / "mine" / "data" / split).mkdir(parents=True)
        (tmp_path / "mine" / "data" / split / "all.json").write_text(leaf_json(users))
    return tmp_path / "mine"


def test_a_folder_of_leafs_json_has_users_and_their_splits(leaf):
    data = read_own(leaf)
    assert data.clients == ("ann", "bob")
    federation = data.federation()
    assert (federation.train.size.tolist(), federation.test.size.tolist()) == ([3, 1], [1, 2])
    for name, split in (("train", federation.train), ("test", federation.test)):
        for i, (x, y) in enumerate(LEAF[name].values()):
            rows = np.asarray(split.index)[i, : split.size[i]]
            np.testing.assert_array_equal(np.asarray(federation.train.pool.x)[rows], np.float32(x))
            np.testing.assert_array_equal(np.asarray(federation.train.pool.y)[rows], np.int32(y))
    assert read_own(leaf, task="regression").examples.y.dtype == np.float32
    assert read_own(leaf / "data").clients == data.clients


def test_one_file_of_leafs_json_is_split_anew(leaf):
    data = read_own(leaf / "data" / "train" / "all.json")
    assert data.part is None
    assert np.asarray(data.examples.y).tolist() == [2, 0, 1, 1]
    (leaf / "words.json").write_text(leaf_json({"u": ([[1, 2], [3, 4]], ["sick", "well"])}))
    data_of_words = read_own(leaf / "words.json")
    assert data_of_words.classes == ("sick", "well")
    assert np.asarray(data_of_words.examples.x).dtype.kind == "i"  # tokens


PLAY = {
    "THE_TRAGEDY_ANNE": (["Now is th", "ow is the"], ["e", " "]),
    "THE_TRAGEDY_BOB": (["winter of", "inter of "], [" ", "o"]),
}


def test_leafs_shakespeare_is_the_tokens_that_leaf_gives_its_network(tmp_path):
    (tmp_path / "play.json").write_text(leaf_json(PLAY))
    data = read_own(tmp_path / "play.json")
    # LEAF's own list (models/utils/language_utils.py): newline, blank, !, ", &, ', (, ), comma, -, ., then the digits.
    assert (len(data.classes), data.classes[11:21], data.classes[-1]) == (80, tuple("0123456789"), "}")
    x, y = np.asarray(data.examples.x), np.asarray(data.examples.y)
    assert (x.dtype, y.dtype) == (np.int32, np.int32)
    decoded = ["".join(data.classes[token] for token in row) for row in x]
    assert decoded == [text for texts, _ in PLAY.values() for text in texts]
    assert [data.classes[token] for token in y] == ["e", " ", " ", "o"]
    assert data.clients == tuple(PLAY)
    assert data.client.tolist() == [0, 0, 1, 1]


def test_texts_of_other_letters_have_an_alphabet_of_their_own(tmp_path):
    (tmp_path / "other.json").write_text(leaf_json({"u": (["äb🎈", "bäc"], ["c", "ä"])}))
    data = read_own(tmp_path / "other.json")
    assert data.classes == ("b", "c", "ä", "🎈")
    assert np.asarray(data.examples.x).tolist() == [[2, 0, 3], [0, 2, 1]]
    assert np.asarray(data.examples.y).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ({"u": (["?!"], [0])}, r"mine.json: no text has a word"),
        ({"u": ([["id", "date", "query", "a text"]], [0])}, r"mine.json: examples are lists of texts; give one text"),
        ({"u": ([["id", "a text"]], [0])}, r"mine.json: examples are lists of texts; give one text per example, or"),
        ({"u": (["abc", "ab"], ["c", "d"])}, r"mine.json: texts have 2 to 3 characters; bring them to one length"),
        ({"u": (["", ""], ["c", "d"])}, r"mine.json: texts have 0 to 0 characters; bring them to one length"),
        ({"u": (["abc"], ["c"]), "v": ([[1.0]], [1.0])}, r"examples of user v have shape \(1,\) and those of u \(\)"),
        ({"u": (["abc"], ["c"]), "v": ([1.0], [1.0])}, r"one of the users u and v has texts, the other numbers"),
        ({"u": (["abc", 1], ["c", "d"])}, r"mine.json: x of user u is neither numbers nor texts"),
        ({"u": ([["a", 1]], [0])}, r"mine.json: x of user u is neither numbers nor texts"),
        ({"u": ([[["a", "b"]]], [0])}, r"mine.json: x of user u is neither numbers nor texts"),
        ({"u": ([[1.0], [1.0, 2.0]], [0, 1])}, r"mine.json: examples of user u have different shapes"),
        (
            {"u": ([[1.0]], [0]), "v": ([[1.0, 2.0]], [0])},
            r"examples of user v have shape \(2,\) and those of u \(1,\)",
        ),
        ({"u": ([[1.0]], [None])}, r"labels are not numbers or names of classes"),
        ({"u": ([[1.0], [2.0]], [[0], [0, 1]])}, r"labels are not numbers or names of classes"),
        ({"u": ([], [])}, r"has no user with examples"),
        ({"u": ([[float("nan")]], [0])}, r"mine.json: .*u.*"),
    ],
)
def test_leafs_json_that_cannot_be_is_refused_with_its_user(tmp_path, users, message):
    (tmp_path / "mine.json").write_text(leaf_json(users))
    with pytest.raises(ValueError, match=message):
        read_own(tmp_path / "mine.json")


def test_columns_are_not_given_to_leafs_json(leaf):
    with pytest.raises(ValueError, match=r"all.json is LEAF's JSON, but a column is given for label"):
        read_own(leaf / "data" / "test" / "all.json", Columns(("y",)))


def test_a_client_column_that_is_forgotten_is_thought_of(tmp_path):
    path = write_table(tmp_path, "site,age,sick\nnorth,61,no\nsouth,40,yes\n")
    with pytest.raises(
        ValueError,
        match=r"'site' is 'north', not a finite number.*; if it holds no numbers, name it by --client-column, ",
    ):
        read_own(path, Columns(("sick",)))
    with pytest.raises(ValueError, match=r"'site' is 'north', not a finite number") as error:
        read_own(path, Columns(("sick",), client="age"))
    assert "--client-column" not in str(error.value)


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        (
            [f"{i},5" for i in range(8)],
            "column 'cost' is '0,5', not a number, and 8 names in 8 rows are not .*; write numbers",
        ),
        (
            [*(f"{i}.5" for i in range(7)), "dear"],
            "'dear', not a number, and 8 names in 8 rows are not classes; correct it",
        ),
    ],
)
def test_numbers_that_are_written_wrong_are_no_names_of_classes(tmp_path, costs, message):
    table = "".join(f"h{i % 2};{i};{cost}\n" for i, cost in enumerate(costs))
    path = write_table(tmp_path, "hospital;age;cost\n" + table)
    with pytest.raises(ValueError, match=message):
        read_own(path, Columns(("cost",), "hospital"))


def test_codes_that_python_reads_as_numbers_are_words(tmp_path):
    """For Python 1_0 is 10; no table means that."""
    path = write_table(tmp_path, "code,age,ward\n1_0,50,1_0\n10,60,10\n1_1,61,1_0\n10,40,10\n")
    assert read_own(path, Columns(("ward",), features=("age",))).classes == ("10", "1_0")
    with pytest.raises(
        ValueError, match=r"line 2, column 'code' is '1_0', not a finite number .1 more in this column."
    ):
        read_own(path, Columns(("age",), features=("code",)), "regression")
    for dtype in ("U3", "S3"):
        with pytest.raises(ValueError, match="column 'code'"):
            numbers_of(np.array(["10", "1_0"], dtype), "code", Where(None, None))


def test_whole_numbers_beside_gaps_are_written_as_in_a_csv():
    assert text_of(np.array([1.0, np.nan, -10.0])).tolist() == ["1", "", "-10"]
    assert text_of(np.array([1.5, np.nan, 10.0])).tolist() == ["1.5", "", "10.0"]


def test_grey_images_get_a_channel_and_sequences_none():
    for dtype, shape in ((np.uint8, (4, 2, 3, 1)), (np.float32, (4, 2, 3))):
        frame = Frame({"image": np.zeros((4, 2, 3), dtype), "y": [0, 1, 0, 1]})
        assert from_frame(frame, Columns(("y",))).examples.x.shape == shape


def test_in_arrays_no_cells_are_filled():
    """Filled, the bytes of images became numbers from 0 to 255, which nothing scales."""
    frame = Frame({"image": np.zeros((4, 2, 2), np.uint8), "y": [0, 1, 0, 1]})
    with pytest.raises(ValueError, match="column 'image' holds arrays, whose cells cannot be filled; leave fill out"):
        fljax.from_frame(frame, fljax.Columns(("y",), fill="mean"))


def test_a_category_that_the_run_knew_has_its_feature_in_new_rows_without_it():
    x, names = features_of({"sex": np.array(["m", "m"])}, {"sex": ("m", "f")}, Where(None, None))
    assert names == ("sex=f", "sex=m")
    np.testing.assert_array_equal(x, [[0, 1], [0, 1]])


def test_a_hundred_whole_numbers_may_be_classes_and_more_are_asked_about():
    labels = labels_of([np.arange(100)], ["y"], "auto", Where(None, None))
    np.testing.assert_array_equal(labels, np.arange(100))
    with pytest.raises(ValueError, match="column 'y' has 101 different whole numbers"):
        labels_of([np.arange(101)], ["y"], "auto", Where(None, None))


def test_numbers_in_words_are_in_the_order_of_numbers():
    positions, names = numbered(np.array(["10", "2", "1", "3", "10", "-4"]), "client id")
    assert names == ("-4", "1", "2", "3", "10")
    np.testing.assert_array_equal(positions, [4, 2, 1, 3, 4, 0])


def test_a_seed_decides_which_examples_of_unowned_data_are_for_test():
    data = fljax.own_data(np.arange(40.0)[:, None], np.arange(40) % 2)
    test_examples = [data.halves(0.25, seed)[1].x.ravel().tolist() for seed in (0, 0, 1)]
    assert test_examples[0] == test_examples[1] != test_examples[2]
    assert [len(half.y) for half in fljax.own_data(np.zeros((2, 1)), [0, 1]).halves(0.9)] == [1, 1]
