"""Texts as tokens of words: tables with a column of texts, and LEAF's Sent140 as it is."""

import csv
import json
import re
from collections import Counter

import numpy as np
import pytest

from fljax import federation_from_arrays
from fljax.data.own.files import read_own
from fljax.data.own.tables import Columns, from_frame
from fljax.data.own.words import PADDING, SPECIAL, UNKNOWN, Words, as_words

TEXTS = ["The ward was full, the nurse said.", "Full of hope!", "the nurse", "Ärztin: 3 drops; the_end", "..."]


@pytest.mark.parametrize("n_words", [2, 4, 100])
def test_the_most_frequent_words_have_tokens(n_words):
    tokens, words = as_words(TEXTS, Words(n_words, 6))
    split = [re.findall(r"\w+", text.lower()) for text in TEXTS]
    count = Counter(word for text in split for word in text)
    known = words[len(SPECIAL) :]
    assert words[: len(SPECIAL)] == SPECIAL
    assert len(known) == min(n_words, len(count))
    assert min(count[word] for word in known) >= max([0, *(n for word, n in count.items() if word not in known)])
    for row, text in zip(tokens, split, strict=True):
        expected = [words.index(word) if word in known else UNKNOWN for word in text[:6]]
        assert row.tolist() == [PADDING] * (6 - len(expected)) + expected
    assert tokens.dtype == np.int32


@pytest.mark.parametrize(
    ("texts", "words", "message"),
    [
        (["!", " "], Words(), "no text has a word"),
        (["a"], (5000, 50), r"words is \(5000, 50\), not a Words; give fljax.Words"),
        (["a"], Words(0), "words.most=0: choose a whole number of at least 1"),
        (["a"], Words(5, 2.5), "words.length=2.5: choose a whole number"),
        (["a"], Words(5, True), "words.length=True: choose a whole number"),
    ],
)
def test_what_gives_no_tokens_is_refused(texts, words, message):
    with pytest.raises(ValueError, match=message):
        as_words(texts, words)


class Frame(dict):
    """What pandas and polars frames have in common."""

    columns = property(lambda self: list(self))


FRAME = {
    "site": np.array(["n", "n", "s", "s"], object),
    "note": np.array([*TEXTS[:3], "nurse"], object),
    "sick": np.array([0, 1, 1, 0]),
    "age": np.arange(4.0),
}
COLUMNS = Columns(("sick",), "site", text="note")


def test_a_column_of_texts_is_all_that_the_network_sees(tmp_path):
    data = from_frame(Frame(FRAME), COLUMNS, words=Words(3, 4))
    expected, words = as_words(FRAME["note"].tolist(), Words(3, 4))
    np.testing.assert_array_equal(data.examples.x, expected)
    assert (data.words, data.inputs, data.clients) == (words, (), ("n", "s"))
    rows = "".join(f'{s},"{n}",{y},{a}\n' for s, n, y, a in zip(*FRAME.values(), strict=True))
    (tmp_path / "notes.csv").write_text("site,note,sick,age\n" + rows)
    data_of_file = read_own(tmp_path / "notes.csv", COLUMNS, words=Words(3, 4))
    np.testing.assert_array_equal(data_of_file.examples.x, expected)
    assert data_of_file.words == words


def test_a_text_may_be_as_long_as_a_book(tmp_path):
    limit = csv.field_size_limit()
    (tmp_path / "notes.csv").write_text("site,note,sick\nn,full,0\nn," + "nurse " * 30_000 + ",1\ns,full,0\ns,ward,1\n")
    data = read_own(tmp_path / "notes.csv", COLUMNS, words=Words(3, 4))
    assert data.examples.x[1].tolist() == [data.words.index("nurse")] * 4
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("note", "columns", "message"),
    [
        ("", COLUMNS, r"row 3 .client 's'., column 'note' is empty; give a text, or leave the row out"),
        (None, COLUMNS, r"row 3 .client 's'., column 'note' is empty"),
        (3.5, COLUMNS, r"row 3 .client 's'., column 'note' is '?3.5'?; give a text"),
        ("x", COLUMNS._replace(features=("age",)), "column 'note' has the texts, the only input of the network"),
        ("x", COLUMNS._replace(categories=("age",)), "column 'note' has the texts, the only input of the network"),
        ("x", COLUMNS._replace(ignored=("age",)), "column 'note' has the texts, the only input of the network"),
        ("x", COLUMNS._replace(text="nte"), "there is no column 'nte'; the columns are site, note, sick, age"),
        ("x", COLUMNS._replace(text="site"), "a column is named twice: site"),
    ],
)
def test_tables_without_texts_are_refused(note, columns, message):
    with pytest.raises(ValueError, match=message):
        from_frame(Frame(FRAME | {"note": np.array([*TEXTS[:3], note], object)}), columns)


def test_arrays_and_json_have_no_text_column(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((4, 2)), y=np.zeros(4, int))
    with pytest.raises(ValueError, match="texts must be columns of a table"):
        read_own(tmp_path / "a.npz", Columns((), text="x"))
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(ValueError, match="is LEAF's JSON, but a column is given for text"):
        read_own(tmp_path / "a.json", Columns((), text="x"))


def tweets(users):
    user_data = {
        user: {"x": [["7", "Mon Apr 06", "NO_QUERY", user, text, "training"] for text in x], "y": y}
        for user, (x, y) in users.items()
    }
    return json.dumps(
        {
            "users": [*user_data],
            "num_samples": [len(entry["y"]) for entry in user_data.values()],
            "user_data": user_data,
        }
    )


def test_leafs_sent140_is_the_words_of_its_texts(tmp_path):
    users = {"ann": (TEXTS[:2], [0, 1]), "bob": (TEXTS[2:], [1, 1, 0])}
    (tmp_path / "s.json").write_text(tweets(users))
    data = read_own(tmp_path / "s.json", words=Words(50, 5))
    expected, words = as_words(TEXTS, Words(50, 5))
    np.testing.assert_array_equal(data.examples.x, expected)
    assert (data.words, data.clients, data.classes) == (words, ("ann", "bob"), ())
    assert np.asarray(data.examples.y).tolist() == [0, 1, 1, 1, 0]
    user_data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    (tmp_path / "p.json").write_text(json.dumps({"users": [*users], "num_samples": [2, 3], "user_data": user_data}))
    np.testing.assert_array_equal(read_own(tmp_path / "p.json", words=Words(50, 5)).examples.x, expected)


def test_texts_as_an_array_are_told_where_tokens_are_made():
    with pytest.raises(ValueError, match=r"x has dtype <U\d+; give .*fljax.from_frame makes .*Columns\(text=...\)"):
        federation_from_arrays(np.array(TEXTS), np.arange(len(TEXTS)) % 2, np.zeros(len(TEXTS), int))
