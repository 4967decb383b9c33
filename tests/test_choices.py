"""Static choices are checked by their annotations, and are plain data."""

import json
from dataclasses import dataclass
from functools import partial, wraps
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fljax.choices import UNTOLD, Natural, Positive, Seed, check_choices, is_told, plain, there_are, unknown
from fljax.rounds import krum


def factory(
    model,
    *,
    kind: Literal["one", "two"] = "one",
    count: Positive = 1,
    rest: Natural | None = None,
    seed: Seed = 0,
    free: int | Literal["all"] = 3,
    name: str = "",
): ...


@pytest.mark.parametrize(
    "choices",
    [
        {"kind": "two"},
        {"count": 3},
        {"count": np.int64(2)},
        {"rest": 0},
        {"rest": None},
        {"name": "any"},
        {"seed": 2**31},
    ],
)
def test_what_is_allowed_passes(choices):
    check_choices(factory, choices)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"kind": "three"}, "kind='three' is unknown; choose one of 'one', 'two'"),
        ({"kind": None}, "kind=None is unknown"),
        ({"count": 0}, "count=0 is not positive; choose count >= 1"),
        ({"count": 1.0}, "count=1.0 is not a whole number; choose count >= 1"),
        ({"count": True}, "count=True is not a whole number"),
        ({"count": 2**31}, "count=2147483648 is too large; choose count <= 2147483647$"),
        ({"rest": 2**63}, "rest=9223372036854775808 is too large; choose rest <= 2147483647, or None"),
        ({"seed": 2**63}, "seed=9223372036854775808 is too large; choose seed <= 9223372036854775807"),
        ({"rest": -1}, "rest=-1 is negative; choose rest >= 0, or None"),
        ({"rest": "x"}, "rest='x' is not a whole number; choose rest >= 0, or None"),
    ],
)
def test_what_is_not_is_named(choices, message):
    with pytest.raises(ValueError, match=message):
        check_choices(factory, choices)


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
    plain_values = [plain(value) for value in values]
    assert json.loads(json.dumps(plain_values)) == plain_values
    assert plain_values[5:] == [[1, ["b", 2]], 2.0, "float32", [0, 1], "krum", "adam"]


def test_a_partial_function_is_its_name_and_its_arguments_in_any_order():
    assert plain(partial(optax.sgd, momentum=0.9)) == "sgd(momentum=0.9)"
    assert plain(partial(optax.adam, b2=0.99, b1=0.8)) == plain(partial(optax.adam, b1=0.8, b2=0.99))
    nested = partial(partial(optax.sgd, np.float32(0.5)), nesterov=True, accumulator_dtype=np.dtype("float32"))
    assert plain(nested) == "sgd(0.5, accumulator_dtype='float32', nesterov=True)"


def test_no_choice_holds_an_address():
    class Ours:
        def __call__(self, lr): ...

    assert "0x" not in plain(Ours())
    assert "0x" not in plain(partial(Ours(), Ours()))


@dataclass(frozen=True)
class OfAUser:
    factor: float

    def scaled(self, x):
        return self.factor * x


def test_what_is_told_by_a_name():
    def local(): ...

    borrowed = wraps(optax.sgd)(lambda lr: optax.sgd(lr / 2))
    named = (1, None, "a", (1, ("b", 2.0)), np.dtype("float32"), jnp.float32, jnp.arange(2), jax.nn.relu, np.tanh)
    assert all(map(is_told, (*named, krum, optax.adam, partial(optax.sgd, momentum=0.9))))
    unnamed = (
        local,
        factory,
        lambda: 0,
        optax.linear_schedule(1.0, 0.1, 9),
        optax.inject_hyperparams(optax.sgd),
        borrowed,
        OfAUser(1.0).scaled,
        OfAUser(1.0),
    )
    for value in (*unnamed, partial(local), partial(optax.sgd, unnamed[3]), (1, (local,)), UNTOLD, object()):
        assert not is_told(value), value


def test_of_names_that_are_many_the_nearest_is_said():
    names = [f"h{i}" for i in range(100)]
    assert there_are("clients", names[:3], "h9") == "clients are h0, h1, h2"
    assert there_are("clients", names, "H42") == "the nearest of 100 is 'h42'"
    assert there_are("clients", names).endswith("h18, h19 and 80 more")


def test_of_a_short_list_all_is_said_where_nothing_is_near():
    names = ["lenet", "lstm", "mlp"]
    assert unknown("model", "lenett", names) == "no model 'lenett'; the nearest is 'lenet'"
    assert unknown("model", "MLP", ["vgg16", *names]) == "no model 'MLP'; the nearest is 'mlp'"
    assert unknown("model", "quux", names) == "no model 'quux'; choose one of lenet, lstm, mlp"
    assert unknown("model", "quux", [f"m{i}" for i in range(30)]) == "no model 'quux'"
