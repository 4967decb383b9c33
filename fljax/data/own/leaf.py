"""Your own data in LEAF's JSON: numbers, texts as characters, texts as words."""

from pathlib import Path

import numpy as np

from fljax.data.own.arrays import OwnData, own_data
from fljax.data.own.checks import VALIDATION
from fljax.data.own.numbered import are_whole
from fljax.data.own.text import as_tokens
from fljax.data.own.words import USUAL, Words, as_words
from fljax.data.readers.leaf import LeafUser, find_shards, users_of
from fljax.files import naming


def read_leaf(path: Path, words: Words = USUAL) -> OwnData:
    """The examples of a LEAF file, or of a folder with ``train/*.json``, ``test/*.json`` (and perhaps ``val``), which
    are then the splits.

    JSON does not distinguish whole numbers from others: labels that are all whole are classes, and inputs that are all
    whole stay whole, as tokens of a text. Texts of equal length with one character as label, as in LEAF's Shakespeare,
    become tokens of characters; the label is the next character (`fljax.data.own.text.as_tokens`). Other texts become
    tokens of words (`fljax.data.own.words.as_words`). If examples are lists of texts, as in LEAF's Sent140 (id, date,
    query, user, text, ...), the fifth text is used.

    Raises:
        ValueError: a file is incomplete, or examples are neither numbers nor such texts, or differ in shape.
    """
    root = find_shards(path) or path
    files = {name: sorted((root / name).glob("*.json")) for name in ("train", "val", *VALIDATION, "test")}
    files = {"": [path]} if path.is_file() else files
    entries = [
        (part, file, user) for part, shards in files.items() for file in shards for user in users_of(file) if user.y
    ]
    if not entries:
        raise ValueError(f"{path} has no user with examples; give a file of LEAF that has some")
    inputs = [_inputs(user, file) for _, file, user in entries]
    for x, (_, file, user) in zip(inputs, entries, strict=True):
        if x.shape[1:] != inputs[0].shape[1:]:
            shapes = f"{x.shape[1:]} and those of {entries[0][2].user} {inputs[0].shape[1:]}"
            raise ValueError(f"{file}: examples of user {user.user} have shape {shapes}; bring them to one")
        if (x.dtype.kind == "U") != (inputs[0].dtype.kind == "U"):
            users = f"{entries[0][2].user} and {user.user}"
            raise ValueError(f"{file}: one of the users {users} has texts, the other numbers; use one")
    x = np.concatenate(inputs)
    try:
        y = np.asarray([label for *_, user in entries for label in user.y])
    except ValueError:
        y = np.zeros(0, object)
    letters: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()
    if x.dtype.kind == "U":
        x, y, letters, vocabulary = _tokens(path, x, y, words)
    if y.dtype.kind not in "iufbU" or y.ndim > 2:
        raise ValueError(
            f"{path}: labels are not numbers or names of classes, equally many for each example; correct them"
        )
    if y.dtype.kind == "f" and are_whole(y):
        y = y.astype(np.int64)
    client = np.repeat([user.user for *_, user in entries], [len(user.y) for *_, user in entries])
    part = np.repeat([part for part, *_ in entries], [len(user.y) for *_, user in entries])
    with naming(path):
        data = own_data(x, y, client, part=None if "" in files else part)
        return data._replace(classes=letters or data.classes, words=vocabulary)


def _tokens(
    path: Path, x: np.ndarray, y: np.ndarray, words: Words
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """The texts of all users as tokens, the labels, and the letters or words of the tokens.

    Raises:
        ValueError: examples are lists of texts, but not Sent140's; or as `as_tokens` and `as_words`.
    """
    with naming(path):
        if x.ndim > 2 or (x.ndim == 2 and x.shape[1] <= _TEXT):
            raise ValueError("examples are lists of texts; give one text per example, or LEAF's Sent140 unchanged")
        if x.ndim == 1 and y.dtype.kind == "U" and y.ndim == 1 and (np.char.str_len(y) == 1).all():
            return (*as_tokens(x, y), ())
        tokens, vocabulary = as_words((x if x.ndim == 1 else x[:, _TEXT]).tolist(), words)
        return tokens, y, (), vocabulary


_TEXT = 4
"""Index of the text in an example of LEAF's Sent140."""


def _inputs(examples: LeafUser, file: Path) -> np.ndarray:
    """(examples, ...) the inputs of a user.

    Raises:
        ValueError: they are neither numbers nor texts, or differ in shape.
    """
    try:
        x = np.asarray(examples.x)
    except ValueError:
        raise ValueError(f"{file}: examples of user {examples.user} have different shapes; bring them to one") from None
    is_known = x.dtype.kind in "iufb"
    if x.dtype.kind == "U" and x.ndim < 3:  # NumPy also converts numbers among texts to text
        is_known = all(isinstance(text, str) for row in examples.x for text in (row if x.ndim == 2 else (row,)))
    if not is_known:
        raise ValueError(f"{file}: x of user {examples.user} is neither numbers nor texts; give one of them")
    return x.astype(np.float32) if x.dtype.kind == "f" else x
