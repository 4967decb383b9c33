"""Static choices are checked by their annotations, and are plain data."""

import json
from typing import Literal

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fljax.choices import Natural, Positive, check_choices, plain
from fljax.rounds import krum


def factory(
    model,
    *,
    kind: Literal["one", "two"] = "one",
    count: Positive = 1,
    rest: Natural | None = None,
    free: int | Literal["all"] = 3,
    name: str = "",
): ...


@pytest.mark.parametrize(
    "given", [{"kind": "two"}, {"count": 3}, {"count": np.int64(2)}, {"rest": 0}, {"rest": None}, {"name": "any"}]
)
def test_what_is_allowed_passes(given):
    check_choices(factory, given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "three"}, "kind='three' is unknown; choose one of 'one', 'two'"),
        ({"kind": None}, "kind=None is unknown"),
        ({"count": 0}, "count=0 is not positive; choose count >= 1"),
        ({"count": 1.0}, "count=1.0 is not a whole number; choose count >= 1"),
        ({"count": True}, "count=True is not a whole number"),
        ({"rest": -1}, "rest=-1 is negative; choose rest >= 0, or None"),
        ({"rest": "x"}, "rest='x' is not a whole number; choose rest >= 0, or None"),
    ],
)
def test_what_is_not_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        check_choices(factory, given)


def test_choices_are_plain_data():
    values = (
        1,
        0.5,
        "a",
        None,
        True,
        (1, ("b", 2)),
        np.float32(2),
        np.dtype("float32"),
        jnp.arange(2),
        krum,
        optax.adam,
    )
    told = [plain(value) for value in values]
    assert json.loads(json.dumps(told)) == told
    assert told[5:] == [[1, ["b", 2]], 2.0, "float32", [0, 1], "krum", "adam"]
