"""Data of your own in LEAF's JSON: numbers, texts of characters, texts of words."""

from pathlib import Path

import numpy as np

from fljax.data.numbered import are_whole
from fljax.data.own import OwnData, own_data
from fljax.data.own_checks import VALIDATION
from fljax.data.readers.leaf import OfUser, find_shards, users_of
from fljax.data.text import as_tokens
from fljax.data.words import USUAL, Words, as_words
from fljax.files import naming


def read_leaf(path: Path, words: Words = USUAL) -> OwnData:
    """The users of a file of LEAF's, or of a folder with ``train/*.json``, ``test/*.json`` (and perhaps ``val``), which
    are the splits then.

    JSON does not tell whole numbers from others: labels that are all whole are classes, and inputs that are all whole
    stay so, as the tokens of a text. Texts of one length with a character each for a label, as LEAF's Shakespeare has
    them, become tokens of characters, the label that of the next one (`fljax.data.text.as_tokens`). Other texts become
    tokens of words (`fljax.data.words.as_words`); of examples that are lists of texts, as LEAF's Sent140 has them (id,
    date, query, user, text, ...), the fifth is read.

    Raises:
        ValueError: a file is not whole, or examples are neither numbers nor such texts, or not of one shape.
    """
    root = find_shards(path) or path
    files = {name: sorted((root / name).glob("*.json")) for name in ("train", "val", *VALIDATION, "test")}
    files = {"": [path]} if path.is_file() else files
    rows = [(part, file, user) for part, there in files.items() for file in there for user in users_of(file) if user.y]
    if not rows:
        raise ValueError(f"{path} has no examples of any user")
    inputs = [_numbers(user, file) for _, file, user in rows]
    for x, (_, file, user) in zip(inputs, rows, strict=True):
        if x.shape[1:] != inputs[0].shape[1:]:
            shapes = f"{x.shape[1:]} and those of {rows[0][2].user} {inputs[0].shape[1:]}"
            raise ValueError(f"{file}: examples of user {user.user} have shape {shapes}; bring them to one")
        if (x.dtype.kind == "U") != (inputs[0].dtype.kind == "U"):
            raise ValueError(f"{file}: of users {rows[0][2].user} and {user.user} one has texts and one numbers")
    x = np.concatenate(inputs)
    try:
        y = np.asarray([label for *_, user in rows for label in user.y])
    except ValueError:
        y = np.zeros(0, object)
    letters: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    if x.dtype.kind == "U":
        x, y, letters, known = _tokens(path, x, y, words)
    if y.dtype.kind not in "iufbU" or y.ndim > 2:
        raise ValueError(f"{path}: labels are no numbers or names of classes; give one, or as many, for each example")
    if y.dtype.kind == "f" and are_whole(y):
        y = y.astype(np.int64)
    client = np.repeat([user.user for *_, user in rows], [len(user.y) for *_, user in rows])
    part = np.repeat([part for part, *_ in rows], [len(user.y) for *_, user in rows])
    with naming(path):
        made = own_data(x, y, client, part=None if "" in files else part)
        return made._replace(classes=letters or made.classes, words=known)


def _tokens(
    path: Path, x: np.ndarray, y: np.ndarray, words: Words
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """The texts of all users as tokens, the labels, and the letters or the words that tokens stand for.

    Raises:
        ValueError: examples are lists of texts and none of Sent140's, or as `as_tokens` and `as_words`.
    """
    with naming(path):
        if x.ndim > 2 or (x.ndim == 2 and x.shape[1] <= _TEXT):
            raise ValueError("examples are lists of texts; give one text for each, or LEAF's Sent140 as it is")
        if x.ndim == 1 and y.dtype.kind == "U" and y.ndim == 1 and (np.char.str_len(y) == 1).all():
            return (*as_tokens(x, y), ())
        tokens, known = as_words((x if x.ndim == 1 else x[:, _TEXT]).tolist(), words)
        return tokens, y, (), known


_TEXT = 4
"""Place of the text among what LEAF's Sent140 has of an example."""


def _numbers(of: OfUser, file: Path) -> np.ndarray:
    """(examples, ...) the inputs of a user.

    Raises:
        ValueError: they are no numbers, or of different shapes.
    """
    try:
        x = np.asarray(of.x)
    except ValueError:
        raise ValueError(f"{file}: examples of user {of.user} have different shapes; bring them to one") from None
    known = x.dtype.kind in "iufb"
    if x.dtype.kind == "U" and x.ndim < 3:  # which NumPy makes of numbers among texts too
        known = all(isinstance(word, str) for one in of.x for word in (one if x.ndim == 2 else (one,)))
    if not known:
        raise ValueError(f"{file}: x of user {of.user} are neither numbers nor texts")
    return x.astype(np.float32) if x.dtype.kind == "f" else x
