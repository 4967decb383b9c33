"""Rotations against SciPy's Hadamard matrices, and what compression loses of a rotated update in closed form."""

import jax
import numpy as np
import pytest
from scipy.linalg import hadamard

from fljax.rounds.uplink import chained, clip_update, quantize, rotate, secure_sum, sign
from fljax.rounds.uplink.message import FLOAT_BITS
from fljax.rounds.uplink.rotation import _size_and_signs, rotated, rotated_back
from tests.rounds.test_uplink import D, N, transformed


@pytest.mark.parametrize("d", [1, 8, 13])
def test_a_rotation_is_scipys_and_its_inverse_undoes_it(d):
    values = np.random.default_rng(0).normal(size=(3, d)).astype(np.float32)
    keys = jax.random.split(jax.random.key(1), 3)
    spread, back, signs = jax.jit(
        lambda values: (
            rotated(keys, values),
            rotated_back(keys, rotated(keys, values)),
            _size_and_signs(keys, values)[1],
        )
    )(values)
    size = 2 ** int(np.log2(d))
    matrix = hadamard(size) / np.sqrt(size)
    expected = values.astype(np.float64)
    expected[:, :size] = (expected[:, :size] * np.asarray(signs)[:, 0]) @ matrix
    if d > size:
        expected[:, -size:] = (expected[:, -size:] * np.asarray(signs)[:, 1]) @ matrix
    np.testing.assert_allclose(spread, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(back, values, rtol=1e-5, atol=1e-6)
    assert d == 1 or (np.abs(np.asarray(spread)[0] - np.asarray(spread)[1]) > 1e-3).any()


def uneven():
    """Updates of a few large numbers, of which signs and coarse levels lose nearly all."""
    rng = np.random.default_rng(0)
    return (rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.02)).astype(np.float32)


def lost_share(transform, values, **numbers):
    """Mean over clients and seeds of the squared error, in units of the squared length."""
    arrived = [transformed(transform, values, seed, **numbers).values for seed in range(4)]
    return np.mean([np.square(rows - values).sum(axis=1) / np.square(values).sum(axis=1) for rows in arrived])


@pytest.mark.slow
def test_rotated_signs_lose_the_same_share_of_any_update_and_few_levels_less():
    """1 - 2/pi, of 620 numbers by a few percent; 2 bits, three levels: less than the mean square of a uniform error."""
    for values in (uneven(), np.random.default_rng(1).normal(size=(N, D)).astype(np.float32)):
        assert lost_share(chained([rotate, sign]), values) == pytest.approx(1 - 2 / np.pi, rel=0.1)
    without_rotation = 1 - np.abs(uneven()).sum(axis=1) ** 2 / (D * np.square(uneven()).sum(axis=1))
    assert (without_rotation > 0.9).all()
    assert lost_share(chained([rotate, quantize]), uneven(), bits=4.0) < 0.5 * lost_share(quantize, uneven(), bits=2.0)


def test_rotated_levels_preserve_the_mean():
    values = uneven()
    chain = chained([rotate, quantize])
    arrived = np.stack([transformed(chain, values, seed, bits=3.0).values for seed in range(200)])
    deviation = arrived.std(axis=0) / np.sqrt(200)
    assert (np.abs(arrived.mean(axis=0) - values) < 5.5 * deviation).all()


def test_what_is_sent_is_counted_with_the_seed():
    values = uneven()
    levels = transformed(chained([rotate, quantize]), values, bits=4.0).n_bits
    np.testing.assert_array_equal(levels, np.full(N, 4 * D + 2 * FLOAT_BITS + FLOAT_BITS))  # two buckets of 512
    signs = transformed(chained([rotate, sign]), values).n_bits
    np.testing.assert_array_equal(signs, np.full(N, D + 2 * FLOAT_BITS))


def test_a_sum_that_is_masked_is_rotated_back_as_one():
    """The server rotates the sum back: all clients have one rotation."""
    values = np.tile(uneven()[:1], (N, 1))
    arrived = transformed(chained([clip_update, rotate, secure_sum]), values, clip=np.inf, fraction_bits=8.0).values
    np.testing.assert_array_equal(arrived, np.tile(arrived[:1], (N, 1)))
    error = np.square(arrived - values, dtype=np.float64).sum(axis=1)
    assert (error < 0.5 * D * 2.0**-18).all()  # of a uniform error it is a third
    own = transformed(chained([rotate, sign]), values).values
    assert (own[0] != own[1]).any()
