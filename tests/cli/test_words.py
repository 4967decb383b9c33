"""From words to values, and back."""

from collections.abc import Callable, Sequence
from typing import Literal

import jax.numpy as jnp
import pytest
from jax import Array
from jax.typing import DTypeLike

from fljax.catalogue.job import WORK, WorkSettings
from fljax.catalogue.parameters import REQUIRED, description, numbers, parameters
from fljax.catalogue.words import kind_of, metavar, nearest, read, words_of
from fljax.choices import Natural, Positive
from fljax.client.optimizer import OPTIMIZERS
from fljax.numbers import Scalar, hyper, number
from fljax.types import Work

WRITTEN = [
    (int, ["-4"], -4, "INT"),
    (float, ["1e-3"], 1e-3, "FLOAT"),
    (Array | float | None, ["None"], None, "FLOAT|None"),
    (bool, ["true"], True, "true|false"),
    (bool, [], True, "true|false"),
    (bool, ["False"], False, "true|false"),
    (tuple[int, ...], [], (), "INT ..."),
    (tuple[int, ...], ["[]"], (), "INT ..."),
    (tuple[float, float], ["0", "0.5"], (0.0, 0.5), "FLOAT FLOAT"),
    (Literal["low", "high"], ["high"], "high", "low|high"),
    (Literal["low"] | tuple[str, ...], ["a", "b"], ("a", "b"), "low|TEXT ..."),
    (str, ["MiXed"], "MiXed", "TEXT"),
    (str, ["--tyro-write-completion"], "--tyro-write-completion", "TEXT"),
    (Positive | None, ["3"], 3, "INT|None"),
    (DTypeLike, ["bfloat16"], "bfloat16", "TEXT"),
    (Sequence[Sequence[int]], ["0 1", "2"], ((0, 1), (2,)), "INT ... ..."),
]


@pytest.mark.parametrize(("annotation", "words", "value", "placeholder"), WRITTEN)
def test_values_have_their_type(annotation, words, value, placeholder):
    kind = kind_of(annotation)
    parsed = read("x", words, kind)
    assert parsed == value
    assert type(parsed) is type(value)
    assert metavar(kind) == placeholder
    assert read("x", words_of(value), kind) == value


@pytest.mark.parametrize("annotation", [Array, Callable | None, tuple[Array, int], None])
def test_what_cannot_be_written(annotation):
    assert kind_of(annotation) == ()


@pytest.mark.parametrize(
    ("annotation", "words", "message"),
    [
        (int, ["3.5"], "--n-x 3.5: give a whole number"),
        (int, ["1", "2"], "--n-x 1 2: give a whole number"),
        (int, [], "--n-x: give a whole number"),
        (int, ["9" * 5000], f"--n-x {'9' * 194}...: give a whole number"),
        (int, ["99999999999"], "--n-x 99999999999: choose at most 2147483647"),
        (tuple[int, ...], ["1", "99999999999"], "--n-x 99999999999: choose at most 2147483647"),
        (tuple[Positive, ...], ["0"], "n_x=0 is not positive; choose n_x >= 1"),
        (Natural, ["-1"], "n_x=-1 is negative; choose n_x >= 0"),
        (float, ["abc"], "--n-x abc: give a number"),
        (float | None, ["1", "2"], "--n-x 1 2: give a number or None"),
        (bool, ["maybe"], "--n-x maybe: give true or false"),
        (bool, ["[]"], "--n-x []: give true or false"),
        (tuple[int, ...], ["a"], "--n-x a: give several, each a whole number"),
        (tuple[float, float], ["1"], "--n-x 1: give a number and a number"),
        (Literal["low", "high"], ["hi"], "n_x='hi' is unknown; choose one of 'low', 'high'"),
        (str, ["a", "b"], "--n-x a b: give text"),
        (str, ["a\x1b[31m", "b"], "--n-x 'a\\x1b[31m' b: give text"),
    ],
)
def test_other_types_are_refused(annotation, words, message, capfd):
    with pytest.raises(ValueError, match=r"give|choose") as error:
        read("p.n_x", words, kind_of(annotation))
    assert str(error.value).replace("--p.n-x", "--n-x") == message.replace("9" * 194, "9" * 192)
    assert capfd.readouterr() == ("", "")


@hyper
class Numbers:
    """Numbers."""

    lr: Scalar = number(0.5, "learning rate", above=0)
    mu: Scalar | None = number(None, "weight; None: none")


def example(data: Array, n: int, *, band: Literal["low", "high"] = "low", dtype: DTypeLike = jnp.float32):
    """Does something. ``band`` is one
    of two. Then ends.

    Args:
        n: how many; the paper
            has 4.
    """


def test_parameters_of_functions_and_numbers_of_a_hyper():
    section = parameters(example, leave_out=("data",))
    assert list(section) == ["n", "band", "dtype"]
    assert section["n"].default == REQUIRED
    assert section["n"].help == "how many; the paper has 4"
    assert section["band"].help == "one of two"
    assert section["dtype"].default == "float32"
    assert description("", "n") == ""
    parameters_of_hyper = numbers(Numbers)
    assert parameters_of_hyper["lr"].help == "learning rate, > 0"
    assert parameters_of_hyper["mu"].read("m.mu", ["None"]) is None
    for word, message in (("0", "lr=0 is out of its range; choose lr > 0"), ("nan", "lr=nan is not a number")):
        with pytest.raises(ValueError, match=message):
            parameters_of_hyper["lr"].read("m.lr", [word])
    assert parameters(lambda x: None) == {}  # no annotation, no parameter
    with pytest.raises(ValueError, match="--x inf: give a finite number"):
        parameters_of_hyper["lr"]._replace(number=None).read("x", ["inf"])


def test_local_effort_is_that_of_the_library():
    assert {*WORK, "terms"} == set(Work._fields)
    assert WorkSettings().optimizer in OPTIMIZERS
    assert [part[1] for part in WORK["optimizer"].kind if part[0] == "option"] == list(OPTIMIZERS)


@pytest.mark.parametrize("name", ["fedavg,ditto", "fedavg, ditto"])
def test_names_with_commas_between_are_told_to_have_spaces(name):
    with pytest.raises(ValueError, match="separate several by spaces: fedavg ditto"):
        nearest(name, ["fedavg", "ditto"], "algorithm")
