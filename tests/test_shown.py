"""What an interactive session shows of fljax's values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.types import ClientData, Examples, Federation, ModelTable, State

ROWS = ModelTable({"fc": {"bias": jnp.zeros((4, 10))}}, np.zeros(20, np.int32))
ROWS_SHOWN = "ModelTable(params={'fc': {'bias': float32[4,10]}}, row=int32[20])"


def test_arrays_are_shown_by_dtype_and_shape_however_deep():
    assert repr(ROWS) == ROWS_SHOWN
    state = State([ROWS, 3, "text"], (jax.random.key(0), np.float32(2)))
    assert repr(state) == f"State(server=[{ROWS_SHOWN}, 3, 'text'], clients=(key<fry>[], float32[]))"


def test_traced_arrays_too():
    shown = []
    jax.eval_shape(jax.vmap(lambda row: shown.append(repr(ROWS._replace(row=row)))), jnp.zeros((3, 20), jnp.int32))
    assert shown == [ROWS_SHOWN]


def test_fields_that_are_none_are_left_out():
    rows = ClientData(Examples(np.zeros((8, 3)), np.zeros(8, int)), jnp.zeros((2, 4), jnp.int32), jnp.full(2, 4))
    split = "ClientData(pool=Examples(x=float64[8,3], y=int64[8]), index=int32[2,4], size=int32[2])"
    assert repr(Federation(rows, None, rows, None, None)) == f"Federation(train={split}, test={split})"


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        (
            fljax.MODELS["mlp"]((8, 8, 1), hidden=(64,)),
            "MLP(hidden=(64,), n_classes=10, dtype=float32, input_shape=(8, 8, 1), n_outputs=10, initial='lecun')",
        ),
        (fljax.MODELS["mlp"]((8, 8, 1), hidden=(64,))._replace(about=()), "Model(layers=('fc1', 'fc2'))"),
    ],
)
def test_a_network_is_shown_by_its_name_and_choices(model, shown):
    assert repr(model) == shown


def test_a_sampling_is_shown_by_its_name_and_choices():
    assert repr(fljax.rounds.least_recent(0.5, separation=2)) == "least_recent(participation=0.5, separation=2)"
    timed = fljax.rounds.clock.with_deadline(fljax.rounds.poisson(0.5), [1.5] * 100, 2.0)
    seconds = ", ".join(["1.5"] * 8)
    assert repr(timed) == f"poisson(participation=0.5, deadline=2.0, seconds=({seconds}, ...))"
    own = fljax.rounds.Sampling(lambda key, round, size, n: None, lambda n_clients: 1)
    assert repr(own) == "Sampling()"
