"""Texts as tokens of words, for networks that predict the class of a text."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax.choices import check_kind
from fljax.ranges import said


class Words(NamedTuple):
    """How texts become tokens."""

    most: int = 5000  # number of words with their own token: the most frequent words
    length: int = 50  # words per example: longer texts are cut, shorter texts begin with padding


USUAL = Words()
PADDING, UNKNOWN = 0, 1
"""Tokens of padding, and of all words without their own token."""
SPECIAL = ("<padding>", "<unknown>")
"""Their places in the list of words."""


def as_words(texts: Sequence[str], words: Words) -> tuple[np.ndarray, tuple[str, ...]]:
    """Tokens of the first words of each text, at the end of its row.

    Words are runs of letters, digits and underscores, in lower case. The words that are most frequent in all texts
    together get a token; ties are broken arbitrarily.

    Args:
        texts: of all examples.
        words: how many words get a token, and how many words of each text are used.

    Returns:
        (examples, ``words.length``) int32, and the word of each token: `SPECIAL`, then the others, sorted.

    Raises:
        ValueError: a number below 1, or no text has a word.
    """
    check_kind("words", words, Words, "give fljax.Words(most=5000, length=50)")
    for name, value in words._asdict().items():
        if not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            raise ValueError(f"{said(f'words.{name}', value)}: choose a whole number of at least 1")
    vectorizer = _vectorizer(words.most)
    try:
        vectorizer.fit(texts)
    except ValueError:
        raise ValueError("no text has a word; give texts with letters or digits") from None
    vocabulary = sorted(vectorizer.vocabulary_, key=vectorizer.vocabulary_.__getitem__)
    return tokens_of(texts, (*SPECIAL, *vocabulary), words.length), (*SPECIAL, *vocabulary)


def tokens_of(texts: Sequence[str], words: Sequence[str], length: int) -> np.ndarray:
    """Tokens of the first words of each text, at the end of its row: (examples, length) int32.

    Args:
        texts: of the examples.
        words: the word of each token, as `as_words` returns them; all others are unknown.
        length: words per example.
    """
    analyze, token_of = _vectorizer().build_analyzer(), {word: i for i, word in enumerate(words)}
    tokens = np.full((len(texts), length), PADDING, np.int32)
    for row, text in zip(tokens, texts, strict=True):
        if first_words := analyze(text)[:length]:
            row[-len(first_words) :] = [token_of.get(word, UNKNOWN) for word in first_words]
    return tokens


def _vectorizer(most: int | None = None) -> Any:
    from sklearn.feature_extraction.text import CountVectorizer  # slow to import

    return CountVectorizer(max_features=most, token_pattern=r"(?u)\b\w+\b")
