"""Text for networks that predict the next character; each client has its own text."""

from collections.abc import Mapping

import numpy as np

from fljax.data.own.arrays import OwnData, own_data

LEAF_LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The 80 characters of LEAF's Shakespeare, in the order of LEAF's tokens."""


def as_tokens(texts: np.ndarray, nexts: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Tokens of the characters of texts of one length, and of the character after each text.

    Args:
        texts: (examples,) of dtype str.
        nexts: (examples,) of dtype str, one character each.

    Returns:
        (examples, length) int32 and (examples,) int32 tokens, and the character of each token: `LEAF_LETTERS` if no
        other character occurs, otherwise all that occur, sorted.

    Raises:
        ValueError: texts of different lengths, or without characters.
    """
    lengths = np.char.str_len(texts)
    if (short := int(lengths.min())) != (long := int(lengths.max())) or not long:
        raise ValueError(f"texts have {short} to {long} characters; bring them to one length, at least 1")
    codes = np.ascontiguousarray(texts, f"U{long}").view(np.uint32).reshape(len(texts), long)
    next_codes = np.ascontiguousarray(nexts, "U1").view(np.uint32)
    codes_used = np.unique(np.concatenate([np.unique(codes), next_codes]))
    letters = "".join(map(chr, codes_used))
    alphabet = LEAF_LETTERS if set(letters) <= set(LEAF_LETTERS) else letters
    token_of = np.zeros(int(codes_used.max()) + 1, np.int32)
    token_of[[ord(letter) for letter in alphabet if ord(letter) < len(token_of)]] = [
        i for i, letter in enumerate(alphabet) if ord(letter) < len(token_of)
    ]
    return token_of[codes], token_of[next_codes], tuple(alphabet)


def next_characters(texts: Mapping[str, str], length: int = 32, step: int = 4) -> OwnData:
    """Windows of each client's text, and the character after each window.

    Args:
        texts: client -> its text.
        length: characters of a window, the network's input.
        step: characters between the starts of two windows.

    Returns:
        Examples ``x`` (examples, length) int32 tokens and ``y`` the token of the next character. Tokens are numbered in
        the order of `OwnData.classes`, all characters that occur in the texts.

    Raises:
        ValueError: no texts, or a text that is too short for a window.
    """
    if not texts:
        raise ValueError("no texts; give {client: text}")
    if length < 1 or step < 1:
        raise ValueError(f"length={length}, step={step}: choose both at least 1")
    for client, text in texts.items():
        if len(text) <= length:
            raise ValueError(f"the text of {client!r} has {len(text)} characters; give more than length={length}")
    alphabet = sorted(set().union(*texts.values()))
    token_of = {character: i for i, character in enumerate(alphabet)}
    windows, nexts, clients = [], [], []
    for client, text in texts.items():
        tokens = np.array([token_of[character] for character in text], np.int32)
        begins = np.arange(0, len(tokens) - length, step)
        windows.append(tokens[begins[:, None] + np.arange(length)])
        nexts.append(tokens[begins + length])
        clients += [client] * len(begins)
    data = own_data(np.concatenate(windows), np.concatenate(nexts), np.array(clients))
    return data._replace(classes=tuple(alphabet))


def descriptions() -> dict[str, str]:
    """Text that needs no download: scikit-learn's descriptions of its data sets, one per client.

    English, 1 to 10 thousand characters each, each about its own subject; in plain lower-case ASCII.
    """
    from importlib.resources import files

    texts = {}
    for file in sorted(files("sklearn.datasets.descr").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".rst"):
            text = file.read_text(encoding="utf-8").lower()
            plain = (letter for letter in text if 32 <= ord(letter) < 127 or letter == "\n")
            texts[file.name.removesuffix(".rst")] = "".join(plain)
    return texts
