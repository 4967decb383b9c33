"""Several inputs in one array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import fljax

RNG = np.random.default_rng(0)
INPUTS = {
    "image": RNG.integers(0, 256, (24, 3, 3, 1), np.uint8),
    "age": RNG.normal(size=24),
    "words": RNG.integers(0, 50_000, (24, 4)),
}


def test_what_is_packed_comes_out_again():
    x, layout = fljax.pack(INPUTS)
    assert x.shape == (24, 9 + 1 + 4)
    assert x.dtype == np.float32
    parts = layout.unpack(x)
    assert {name: (part.shape, part.dtype.name) for name, part in parts.items()} == {
        "image": ((24, 3, 3, 1), "float32"),
        "age": ((24,), "float32"),
        "words": ((24, 4), "int32"),
    }
    np.testing.assert_array_equal(parts["words"], INPUTS["words"])
    np.testing.assert_allclose(parts["image"] * 255, INPUTS["image"], rtol=1e-6)
    np.testing.assert_allclose(parts["age"], INPUTS["age"], rtol=1e-6)
    assert hash(layout) == hash(fljax.pack(INPUTS)[1])


@pytest.mark.slow
def test_a_network_of_several_inputs_learns_from_each(key):
    """The label follows from both inputs; from either alone it is a coin."""
    side, rows = RNG.integers(0, 2, 160), RNG.normal(size=(160, 2, 2)).astype(np.float32)
    rows += np.where(RNG.integers(0, 2, 160), 3, -3)[:, None, None].astype(np.float32)
    y = side ^ (rows.mean(axis=(1, 2)) > 0)
    x, layout = fljax.pack({"rows": rows, "side": side})

    class TwoInputs(nn.Module):
        @nn.compact
        def __call__(self, x):
            parts = layout.unpack(x)
            flat = parts["rows"].reshape(len(x), -1)
            features = jnp.concatenate([flat, jax.nn.one_hot(parts["side"], 2)], axis=1)
            return nn.Dense(2)(nn.relu(nn.Dense(16)(features)))

    federation = fljax.federation_from_arrays(x, y.astype(int), np.arange(160) % 4)
    algorithm = fljax.fedavg(fljax.from_linen(TwoInputs(), x.shape[1:]), fljax.Work(4, 8))
    _, metrics = fljax.simulate(algorithm, fljax.fedavg.Hyper(lr=0.1), federation, key, 6, evaluate_every=6)
    assert float(metrics["accuracy_macro"][-1]) > 0.9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"age": np.zeros(23)}, "give each the same number"),
        ({"age": np.float64(3)}, "give each the same number"),
        ({"age": np.array(["x"] * 24)}, "'age' is of type <U1"),
        ({"words": np.full((24, 1), 1 << 25)}, "give whole numbers up to 16777216"),
        ({"words": np.full((24, 1), -(1 << 63))}, f"'words' has {1 << 63}; give whole numbers up to 16777216"),
        ({"age": np.full(24, 1e39)}, r"^input 'age': 1e\+39 is too large for float32"),
        ({"words": [[1], [1, 2]]}, "^input 'words': examples have different shapes"),
    ],
)
def test_what_cannot_be_packed_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        fljax.pack(INPUTS | changes)


def test_what_was_packed_otherwise_is_refused():
    _, layout = fljax.pack(INPUTS)
    with pytest.raises(ValueError, match=r"x has shape \(2, 13\); give packed examples, \(batch, 14\)"):
        layout.unpack(jnp.zeros((2, 13)))
    with pytest.raises(ValueError, match="empty"):
        fljax.pack({})
    with pytest.raises(ValueError, match=r"^inputs=None is not a dict; give one array for each name$"):
        fljax.pack(None)


def test_no_examples_are_packed_too():
    x, layout = fljax.pack({name: rows[:0] for name, rows in INPUTS.items()})
    assert x.shape == (0, 14)
    assert layout == fljax.pack(INPUTS)[1]
