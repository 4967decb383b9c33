"""Reads words of a command line or a TOML file as values of a type; nothing here depends on their meaning."""

import re
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from fljax.choices import MOST, Least, Most, refusal, unknown

Kind = tuple[tuple, ...]
"""A type whose values can be written as words, as plain data: alternatives in order, () if there are none.

Each is ("int", least, most), ("float",), ("bool",), ("str",), ("none",), ("option", value), ("many", kind) or
("row", kind, ...); ``least`` may be None.
"""

EMPTY = "[]"
"""The word for an empty row."""


def kind_of(annotation: Any) -> Kind:
    """The alternatives of a type that can be written as words: of ``Array | float`` it is float."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        least = next((mark.value for mark in args[1:] if isinstance(mark, Least)), None)
        most = next((mark.value for mark in args[1:] if isinstance(mark, Most)), MOST)
        return tuple(("int", least, most) if part[0] == "int" else part for part in kind_of(args[0]))
    if origin is Literal:
        return tuple(("option", option) for option in args)
    if origin in (Union, types.UnionType):
        parts = tuple(dict.fromkeys(part for arg in args for part in kind_of(arg)))
        return () if parts == (("none",),) else parts
    if origin in (tuple, Sequence):
        inner = tuple(kind_of(arg) for arg in args if arg is not Ellipsis)
        row_kind = (("many", *inner),) if origin is Sequence or Ellipsis in args else (("row", *inner),)
        return row_kind if all(inner) else ()
    simple: dict[Any, tuple] = {int: ("int", None, MOST), float: ("float",), bool: ("bool",), str: ("str",)}
    return (simple[annotation],) if annotation in simple else (("none",),) if annotation is types.NoneType else ()


class _OutOfRangeError(ValueError):
    """The words are of the type, but the value is not allowed."""


def read(name: str, words: Sequence[str], kind: Kind) -> Any:
    """The value of type ``kind`` of ``words``; a bool without words is True.

    Raises:
        ValueError: the words are not of that type, or a whole number is out of its range; the message has ``name``.
    """
    try:
        return _value(name, list(words), kind)
    except _OutOfRangeError as error:
        raise ValueError(*error.args) from None
    except ValueError:
        pass
    if len(words) == 1 and all(part[0] in ("option", "none") for part in kind):
        options = tuple(None if part[0] == "none" else part[1] for part in kind)
        raise ValueError(refusal(name.rpartition(".")[2], words[0], options, None))
    dashed = [word for word in words if re.match("-[A-Za-z]", word)]  # such as -a, which is the rest of another setting
    hint = f"; {dashed[0]} is read as a value, because names of settings begin with --" if dashed else ""
    raise ValueError(f"{shown(name, words)}: give {text(kind)}{hint}")


def _value(name: str, words: list[str], kind: Kind) -> Any:
    for alternative in sorted(kind, key=lambda part: part[0] != "none"):
        try:
            return _READERS[alternative[0]](name, words, *alternative[1:])
        except _OutOfRangeError:
            raise
        except ValueError:
            continue
    raise ValueError


def _int(name: str, words: list[str], least: int | None, most: int) -> int:
    (word,) = words
    if least is not None and int(word) < least:
        raise _OutOfRangeError(refusal(name.rpartition(".")[2], int(word), (), least))
    if abs(int(word)) > most:
        raise _OutOfRangeError(f"{shown(name, words)}: choose at most {most}")
    return int(word)


def _one_of(name: str, words: list[str], *options: Any) -> Any:
    """The option that equals the one word; ValueError if there is none."""
    (word,) = words
    return options[[str(option) for option in options].index(word)]


def _part(name: str, word: str, kind: Kind) -> Any:
    """One entry of a row: one word, or in a row of rows several words in one."""
    return _value(name, word.split() if takes_several(kind) else [word], kind)


def _text(words: list[str]) -> str:
    """The one word, which may be a file name."""
    (word,) = words
    if not word or "\0" in word:
        raise ValueError
    return word


def _many(name: str, words: list[str], kind: Kind) -> tuple:
    return () if words == [EMPTY] else tuple(_part(name, word, kind) for word in words)


def _row(name: str, words: list[str], *kinds: Kind) -> tuple:
    return tuple(_part(name, word, kind) for word, kind in zip(words, kinds, strict=True))


_READERS: dict[str, Callable[..., Any]] = {
    "int": _int,
    "float": lambda name, words: float(_one_of(name, words, *words)),
    "str": lambda name, words: _text(words),
    "bool": lambda name, words: _one_of(name, [word.capitalize() for word in words or ["True"]], False, True),
    "none": lambda name, words: _one_of(name, words, None),
    "option": _one_of,
    "many": _many,
    "row": _row,
}
_NAMES = {
    "int": ("a whole number", "INT"),
    "float": ("a number", "FLOAT"),
    "str": ("text", "TEXT"),
    "bool": ("true or false", "true|false"),
    "none": ("None", "None"),
}


def text(kind: Kind) -> str:
    """A type in words: "a number or None", "'low' or 'high'"."""
    return _in_text(kind, 0, " or ", " and ", "several, each ")


def metavar(kind: Kind) -> str:
    """A type as help shows it: "FLOAT|None", "low|high", "INT ..."."""
    return _in_text(kind, 1, "|", " ", "")


def _in_text(kind: Kind, column: int, or_text: str, and_text: str, several_text: str) -> str:
    def one(name: str, *rest: Any) -> str:
        if name == "option":
            return str(rest[0]) if column else repr(rest[0])
        if name in ("many", "row"):
            inner = and_text.join(_in_text(part, column, or_text, and_text, several_text) for part in rest)
            return f"{several_text}{inner}{' ...' * column}" if name == "many" else inner
        return _NAMES[name][column]

    return or_text.join(one(*part) for part in kind)


def takes_several(kind: Kind) -> bool:
    """Whether one value of this type is written in several words."""
    return any(part[0] in ("many", "row") for part in kind)


def words_of(value: Any) -> list[str]:
    """The words of a value, from which it can be read again."""
    if isinstance(value, list | tuple):
        return [" ".join(words_of(part)) for part in value] or [EMPTY]
    return [str(value).lower() if isinstance(value, bool) else str(value)]


def in_words(value: Any) -> str:
    """A value as one text, ``128 64``, as in tables."""
    return " ".join(words_of(value))


def written(name: str) -> str:
    """A setting's name on the command line."""
    return name.replace("_", "-")


def shown(name: str, words: Iterable[str]) -> str:
    """A setting with its words, shortened if they are long."""
    line = " ".join([f"--{written(name)}", *(word if word and word.isprintable() else repr(word) for word in words)])
    return line if len(line) <= 200 else f"{line[:200]}..."


def nearest(name: str, known_names: Iterable[str], kind: str) -> str:
    """Returns ``name`` if it is one of ``known_names``.

    Raises:
        ValueError: it is not; the message has the nearest one, or all of a short list.
    """
    known_names = list(known_names)
    if name in known_names:
        return name
    separate_names = [part.strip() for part in name.split(",") if part.strip()]
    if "," in name and set(separate_names) <= set(known_names):
        raise ValueError(f"no {kind} {name[:100]!r}; separate several by spaces: {' '.join(separate_names)}")
    text = unknown(kind, name, known_names)
    raise ValueError(text if ";" in text else f"{text}; fljax list has the names")
