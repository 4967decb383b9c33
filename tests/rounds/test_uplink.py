"""What happens to updates on their way: each transform against NumPy in float64, and by hand what it costs."""

from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fljax
from fljax.rounds.uplink import (
    Memory,
    Message,
    Transform,
    Trip,
    chained,
    clip_l1,
    clip_update,
    error_feedback,
    gaussian_noise,
    laplace_noise,
    low_rank,
    quantize,
    random_k,
    secure_sum,
    sign,
    top_k,
)
from fljax.rounds.uplink import chain as chains
from fljax.rounds.uplink.compression import _matrix_shape, _uniform
from fljax.rounds.uplink.largest import largest
from fljax.types import Cohort

SHAPES = ((5, 40), (40, 10), (20,))
ONE_MATRIX = ((30, 20), (20,))  # as many numbers, whose factors take half of the program
N, D = 4, 5 * 40 + 40 * 10 + 20


@pytest.fixture
def values():
    return np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)


def message(values, weight=None):
    n, d = values.shape
    weight = np.ones(n, np.float32) if weight is None else jnp.asarray(weight, jnp.float32)
    n_values, no_bits = np.full(n, float(d), np.float32), np.zeros(n, np.float32)
    return Message(jnp.asarray(values), weight, n_values, n_values, np.float32(32), no_bits, no_bits)


def trip_of(seed=0, n=N, shapes=SHAPES):
    keys = jax.random.split(jax.random.key(seed), n)
    return Trip(keys, jax.random.key(seed), np.arange(n, dtype=np.int32), jnp.int32(seed), shapes, float(n))


@partial(jax.jit, static_argnums=0)
def _sent(transform, numbers, memory, values, weight, seed, expected):
    trip = trip_of(seed, len(values))._replace(expected=expected)
    memory, result = transform.apply(SimpleNamespace(**numbers), memory, message(values, weight), trip)
    return memory, result.values, result.weight, result.n_bits()


@partial(jax.jit, static_argnums=0)
def _bits(transform, numbers, memory, values):
    trip = trip_of(n=len(values), shapes=ONE_MATRIX)
    return transform.apply(SimpleNamespace(**numbers), memory, message(values), trip)[1].n_bits()


def bits(*links, values, memory=None, **numbers):
    """The bits of messages, by a program that returns them alone: the compiler leaves out all that they do not need."""
    chain, hyper = chained(links), SimpleNamespace(**numbers)
    memory = chain.init(hyper, len(values), ONE_MATRIX) if memory is None else memory
    return np.asarray(_bits(chain, numbers, memory, values))


class Sent(NamedTuple):
    """What a transform makes of messages, by one program for all numbers, weights and seeds."""

    memory: Memory
    values: np.ndarray
    weight: np.ndarray
    n_bits: np.ndarray


def transformed(transform, values, seed=0, memory=None, weight=None, expected=None, **numbers):
    n = len(values)
    weight, expected = np.ones(n) if weight is None else weight, n if expected is None else expected
    memory = transform.init(SimpleNamespace(**numbers), n, SHAPES) if memory is None else memory
    arguments = (np.asarray(values, np.float32), np.asarray(weight, np.float32), np.int32(seed), np.float32(expected))
    return Sent(*jax.device_get(_sent(transform, numbers, memory, *arguments)))


def top_k_of(row, k):
    row_of_largest = np.zeros_like(row)
    largest = np.argsort(-np.abs(row), kind="stable")[:k]
    row_of_largest[largest] = row[largest]
    return row_of_largest


def test_top_k_keeps_the_largest_numbers_and_counts_their_places(values):
    of_tenth = transformed(top_k, values, top_share=0.1)
    np.testing.assert_array_equal(of_tenth.values, [top_k_of(row, 62) for row in values])
    np.testing.assert_array_equal(of_tenth.n_bits, np.full(N, 62 * 32 + 62 * 10))  # 620 places: 10 bits each
    of_half = transformed(top_k, values, top_share=0.5)
    np.testing.assert_array_equal(of_half.n_bits, np.full(N, 310 * 32 + D))  # a bit map is shorter than 310 indices
    of_all = transformed(top_k, values, top_share=1.0)
    np.testing.assert_array_equal(of_all.values, values)
    np.testing.assert_array_equal(of_all.n_bits, np.full(N, D * 32))


DRAWS = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "with ties": lambda rng, shape: rng.integers(-3, 4, shape),
    "mostly zero": lambda rng, shape: rng.normal(size=shape) * (rng.random(shape) < 0.05),
    "of many sizes": lambda rng, shape: np.exp(rng.normal(size=shape) * 15),
    "ones and infinities": lambda rng, shape: np.where(rng.random(shape) < 0.5, np.inf, 1.0),
    "zero": lambda rng, shape: np.zeros(shape),
}


def test_the_largest_of_bfloat16_are_those_of_the_same_numbers_in_float32():
    rows = np.random.default_rng(0).normal(size=(3, 40)).astype(jnp.bfloat16)
    for of_bfloat16, of_float32 in zip(
        _largest(rows, np.int32(9)), _largest(rows.astype(np.float32), np.int32(9)), strict=True
    ):
        np.testing.assert_array_equal(of_bfloat16, of_float32)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("d", [1, 7, 9000])
def test_the_largest_are_those_of_a_sort(d, draw):
    rows = DRAWS[draw](np.random.default_rng(0), (3, d)).astype(np.float32)
    size = np.abs(rows)
    for k in {1, max(1, d // 10), max(1, d - 1), d}:
        is_largest, n_kept = _largest(rows, np.int32(k))
        threshold = np.sort(size, axis=1)[:, d - k][:, None]
        np.testing.assert_array_equal(is_largest, size >= threshold)
        if k < d:
            np.testing.assert_array_equal(n_kept, ((size >= threshold) & (size > 0)).sum(axis=1))


_largest = jax.jit(largest)


def test_top_k_with_error_feedback_equals_numpy_and_sums_to_what_was_wanted(values):
    chain, memory, errors = chained([error_feedback, top_k]), None, np.zeros((N, D))
    total_arrived = total_wanted = np.zeros((N, D))
    for r in range(6):
        updates = np.random.default_rng(r).normal(size=(N, D)).astype(np.float32)
        weight = np.ones(N) if r != 3 else np.asarray([1, 0, 1, 1])  # one message is lost: its client keeps everything
        result = transformed(chain, updates, r, memory, weight, top_share=0.05)
        memory = result.memory
        is_present = weight[:, None] > 0
        corrected = errors + updates
        expected = np.stack([top_k_of(row, 31) for row in corrected])
        np.testing.assert_allclose(
            np.where(is_present, result.values, 0), np.where(is_present, expected, 0), rtol=1e-5, atol=1e-6
        )
        errors = np.where(is_present, corrected - expected, errors)
        total_arrived, total_wanted = (
            total_arrived + np.where(is_present, result.values, 0),
            total_wanted + np.where(is_present, updates, 0),
        )
    np.testing.assert_allclose(total_arrived + np.asarray(memory.clients[0]), total_wanted, rtol=1e-5, atol=1e-5)


def test_an_update_whose_compression_is_not_finite_leaves_no_trace(values):
    """The server leaves it out; the client's later updates count again."""
    chain = chained([error_feedback, sign])
    values[1] = 1e38  # the sum of its absolute values overflows
    broken = transformed(chain, values)
    np.testing.assert_array_equal(np.isfinite(broken.values).all(axis=1), [True, False, True, True])
    np.testing.assert_array_equal(broken.memory.clients[0][1], np.zeros(D))
    assert broken.memory.clients[0][[0, 2, 3]].any(axis=1).all()


def test_what_comes_after_error_feedback_keeps_its_own_memory(values):
    def counted(hyper, memory, message, trip):
        return Memory(memory.server + 1, memory.clients + 2), message

    counts = Transform(counted, lambda hyper, n, shapes: Memory(jnp.zeros(()), jnp.zeros(n)), name="counts")
    memory = transformed(chained([error_feedback, counts]), values).memory
    assert memory.server == 1
    np.testing.assert_array_equal(memory.clients[1], np.full(N, 2))


@pytest.mark.parametrize(("transform", "number", "order"), [(clip_update, "clip", 2), (clip_l1, "l1_clip", 1)])
def test_clipping_equals_numpy_and_leaves_short_updates_bit_for_bit(transform, number, order, values):
    values[0] /= 1000
    norms = np.linalg.norm(values.astype(np.float64), order, axis=1, keepdims=True)
    assert (norms > 2).sum() == N - 1
    actual = transformed(transform, values, **{number: 2.0}).values
    np.testing.assert_allclose(actual, values * np.minimum(1, 2 / norms), rtol=1e-5)
    np.testing.assert_array_equal(actual[0], values[0])
    np.testing.assert_array_equal(transformed(transform, values, **{number: np.inf}).values, values)


def test_quantised_numbers_are_levels_of_their_bucket_with_the_same_mean(values):
    many_values = np.concatenate([values, np.repeat(values[:1], 300, axis=0)])
    result = transformed(quantize, many_values, bits=4.0)
    buckets = np.split(values, [512], axis=1)
    for bucket, actual in zip(buckets, np.split(result.values[:N], [512], axis=1), strict=True):
        unit = np.abs(bucket).max(axis=1, keepdims=True) / 7
        np.testing.assert_allclose(actual / unit, np.round(actual / unit), atol=1e-4)
        assert (np.abs(actual - bucket) <= unit * 1.0001).all()
    np.testing.assert_array_equal(result.n_bits, np.full(N + 300, D * 4 + 2 * 32))
    copies = np.asarray(result.values[N:], np.float64)
    error = (copies.mean(axis=0) - values[0]) / (copies.std(axis=0) / np.sqrt(300) + 1e-6)
    assert stats.kstest(error[np.abs(error) > 1e-3], "norm").pvalue > 1e-3
    of_fraction = transformed(
        quantize, many_values, bits=4.4
    )  # as a search over a range gives it: the next whole number of bits
    np.testing.assert_array_equal(of_fraction.values, result.values)
    np.testing.assert_array_equal(of_fraction.n_bits, result.n_bits)
    of_one_bucket = transformed(quantize, np.where(np.arange(D) < 512, many_values, 0), bits=4.0)
    assert not of_one_bucket.values[:, 512:].any()
    np.testing.assert_array_equal(of_one_bucket.n_bits, np.full(N + 300, D * 4 + 32))  # a bucket of zeros has no scale
    unquantised = transformed(quantize, many_values, bits=32.0)
    np.testing.assert_array_equal(unquantised.values, many_values)
    np.testing.assert_array_equal(unquantised.n_bits, np.full(N + 300, D * 32))


@pytest.mark.parametrize("d", [1, 511, 512])
def test_an_update_of_one_bucket_is_quantised_as_the_first_bucket_of_a_longer_one(values, d):
    values[:, 0] = 10  # the largest of the first bucket, whatever else is in it
    of_longer = transformed(quantize, values, bits=4.0)
    result = transformed(quantize, values[:, :d], bits=4.0)
    np.testing.assert_array_equal(result.values, of_longer.values[:, :d])
    np.testing.assert_array_equal(result.n_bits, np.full(N, d * 4 + 32))


def test_random_numbers_of_a_bucket_are_uniform_and_hardly_depend_on_each_other():
    numbers = np.asarray(jax.jit(_uniform, static_argnums=1)(jax.random.key(3), (4000, 16)), np.float64)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert stats.kstest(numbers[:, 0], "uniform").pvalue > 1e-3
    assert stats.kstest(numbers[:, 1:].ravel()[::7], "uniform").pvalue > 1e-3
    assert stats.kstest(numbers[:, 0] * 256 % 1, "uniform").pvalue > 1e-3  # the shared bits
    correlation = np.corrcoef(numbers.T) - np.eye(16)
    assert np.abs(correlation).max() < 4.5 / np.sqrt(4000)
    assert len(np.unique(numbers)) > 60_000  # not 256 values: a share of a level is drawn too


def test_random_numbers_are_scaled_so_that_the_mean_stays(values):
    row = np.repeat(values[:1], 300, axis=0)
    result = transformed(random_k, row, random_share=0.25)
    actual = np.asarray(result.values, np.float64)
    is_kept = actual != 0
    np.testing.assert_allclose(actual[is_kept], (row * 4)[is_kept], rtol=1e-6)
    assert stats.binomtest(int(is_kept.sum()), is_kept.size, 0.25).pvalue > 1e-3
    np.testing.assert_array_equal(result.n_bits, is_kept.sum(axis=1) * 32 + 32)  # and the seed
    np.testing.assert_array_equal(transformed(random_k, row, random_share=1.0).values, row)


def test_signs_have_one_size_and_one_bit_each(values):
    result = transformed(sign, values)
    scale = np.abs(values.astype(np.float64)).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(result.values, np.sign(values) * scale, rtol=1e-5)
    np.testing.assert_array_equal(result.n_bits, np.full(N, D + 32))
    with_zeros = np.where(np.arange(D) % 7 == 0, np.float32(0), values)
    result = transformed(sign, with_zeros)
    scale = np.abs(with_zeros.astype(np.float64)).sum(axis=1, keepdims=True) / (with_zeros != 0).sum(
        axis=1, keepdims=True
    )
    np.testing.assert_allclose(result.values, np.sign(with_zeros) * scale, rtol=1e-5)
    np.testing.assert_allclose(result.n_bits, np.full(N, D * np.log2(3) + 32), rtol=1e-6)


def test_low_rank_recovers_matrices_of_that_rank_and_is_near_the_best_for_others():
    rng = np.random.default_rng(1)
    rank_2 = rng.normal(size=(N, 5, 2)) @ rng.normal(size=(N, 2, 40))
    full_rank = rng.normal(size=(N, 40, 10)) * 0.5 ** np.arange(10)
    vector = rng.normal(size=(N, 20))
    updates = np.concatenate([rank_2.reshape(N, -1), full_rank.reshape(N, -1), vector], axis=1).astype(np.float32)
    result = transformed(low_rank, updates, rank=2.0)
    parts = np.split(np.asarray(result.values), [200, 600], axis=1)
    np.testing.assert_allclose(parts[0], rank_2.reshape(N, -1), rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(parts[2], vector.astype(np.float32))
    for matrix, approximation in zip(full_rank, parts[1].reshape(N, 40, 10), strict=True):
        spectrum = np.linalg.svd(matrix, compute_uv=False)
        least_error = np.sqrt((spectrum[2:] ** 2).sum())
        assert least_error * 0.999 <= np.linalg.norm(matrix - approximation) <= least_error * 1.05
    np.testing.assert_array_equal(result.n_bits, np.full(N, 32 * (2 * 45 + 2 * 50 + 20)))
    np.testing.assert_array_equal(
        transformed(low_rank, updates, rank=8.0).values, updates
    )  # the matrices themselves are smaller


def test_a_kernel_is_a_matrix_with_a_column_for_each_output():
    shapes = {(3, 3, 8, 16): (72, 16), (40, 10): (40, 10), (20,): (1, 20), (): (1, 1)}
    assert {shape: _matrix_shape(shape) for shape in shapes} == shapes


def test_low_rank_draws_for_each_matrix():
    equal_matrices = np.tile(np.random.default_rng(2).normal(size=(1, 600)), 2).astype(np.float32)
    shapes = ((30, 20), (30, 20))

    @jax.jit
    def of_rank_one(values):
        return low_rank.apply(SimpleNamespace(rank=1.0), Memory(), message(values), trip_of(0, 1, shapes))[1].values

    approximation_1, approximation_2 = np.split(np.asarray(of_rank_one(equal_matrices)), 2, axis=1)
    assert np.abs(approximation_1 - approximation_2).max() > 1e-3


@pytest.mark.slow
def test_a_chain_of_compressions_counts_what_its_last_message_takes(values):
    bits = lambda *links, updates=values, **numbers: transformed(chained(links), updates, **numbers).n_bits  # noqa: E731
    count_kept = lambda *links, **numbers: (transformed(chained(links), values, **numbers).values != 0).sum(axis=1)  # noqa: E731
    numbers = {"top_share": 0.1, "random_share": 0.25, "bits": 8.0, "rank": 1.0}
    scales = 2 * 32  # 620 numbers are two buckets
    n_drawn = count_kept(random_k, gaussian_noise, noise_std=0.0, **numbers)  # as the first of two
    # The seed tells which are drawn, and 62 places among them (129 to 256 of them: 8 bits each) or a bit map the rest.
    assert np.all((n_drawn > 128) & (n_drawn <= 256))
    np.testing.assert_array_equal(bits(random_k, top_k, **numbers), 62 * 32 + np.minimum(n_drawn, 62 * 8) + 32)
    n_left = count_kept(top_k, random_k, **numbers)
    is_fewer = (n_left < 62) & (n_left > 0)
    assert is_fewer.all()
    assert np.all(bits(top_k, random_k, **numbers) <= n_left * 32 + n_left * 8 + 32)
    assert np.all(bits(top_k, random_k, **numbers) > n_left * 32 + 32)
    np.testing.assert_array_equal(bits(top_k, quantize, **numbers), np.full(N, 62 * 8 + min(D, 62 * 10) + scales))
    np.testing.assert_array_equal(bits(random_k, quantize, **numbers), n_drawn * 8 + 32 + scales)
    # Numbers that are zero are drawn and sent as any other, because the server does not know that they are.
    half_zero = np.where(np.arange(D) % 2, values, 0).astype(np.float32)
    n_drawn_of_one = count_kept(random_k, **numbers)
    np.testing.assert_array_equal(bits(random_k, updates=half_zero, **numbers), n_drawn_of_one * 32 + 32)
    # What a client kept back fills the places that top_k left empty: all are sent.
    memory = Memory((), ((), (np.ones((N, D), np.float32), ())))
    result = transformed(
        chained([top_k, error_feedback, quantize]), values, memory=Memory(((), ()), memory.clients), **numbers
    )
    np.testing.assert_array_equal(result.n_bits, np.full(N, D * 8 + scales))


def test_numbers_that_are_whole_no_longer_are_counted_as_floats(values):
    numbers = {"bits": 8.0, "noise_std": 0.1, "clip": 0.5, "random_share": 0.25}
    bits_of = partial(bits, values=values, **numbers)
    for first in (quantize, sign):
        np.testing.assert_array_equal(bits_of(first, gaussian_noise), np.full(N, D * 32))
    np.testing.assert_array_equal(bits_of(sign, quantize), np.full(N, D + 2 * 32))  # signs are one bit each
    drawn = bits_of(random_k, sign) - 2 * 32  # also where some are not drawn: the seed tells which
    np.testing.assert_array_equal(drawn, np.round(drawn))
    assert ((drawn > 0.15 * D) & (drawn < 0.35 * D)).all()
    # The scales of buckets are not sent; some levels are 0.
    np.testing.assert_allclose(bits_of(quantize, sign), np.full(N, D * np.log2(3) + 32), rtol=1e-6)
    memory = Memory(((), ()), ((), (np.ones((N, D), np.float32), ())))
    n_bits = bits_of(quantize, error_feedback, clip_update, memory=memory)
    np.testing.assert_array_equal(n_bits, np.full(N, D * 32))


@pytest.mark.slow
def test_factors_that_are_changed_afterwards_save_nothing(values):
    numbers = {"top_share": 0.1, "bits": 8.0, "rank": 1.0, "clip": 0.5, "noise_std": 0.0}
    bits_of = partial(bits, values=values, **numbers)
    factors = 32 * (30 + 20 + 20)
    for links in ((low_rank,), (low_rank, clip_update), (low_rank, gaussian_noise), (top_k, low_rank)):
        np.testing.assert_array_equal(bits_of(*links), np.full(N, factors))
    np.testing.assert_array_equal(bits_of(quantize, low_rank), np.full(N, factors))  # of whole numbers they are none
    np.testing.assert_array_equal(bits_of(low_rank, quantize), np.full(N, D * 8 + 64))
    np.testing.assert_array_equal(bits_of(low_rank, sign), np.full(N, D + 32))
    np.testing.assert_array_equal(bits_of(low_rank, top_k), np.full(N, 62 * 32 + 62 * 10))
    np.testing.assert_array_equal(bits_of(low_rank, top_k, quantize), np.full(N, 62 * 8 + min(D, 62 * 10) + 64))


@pytest.mark.parametrize("d", [2, 3, 4, 5, 1024, 1025])
def test_a_place_takes_as_many_bits_as_count_the_places(d):
    one_value = message(np.ones((1, d)))._replace(n_values=np.ones(1, np.float32))
    index = int(np.ceil(np.log2(d)))
    np.testing.assert_array_equal(one_value.n_bits(), [min(32 * d, 32 + min(d, index))])


@pytest.mark.parametrize("transform", [gaussian_noise, laplace_noise])
def test_noise_has_the_stated_law_and_none_is_nothing(values, transform):
    name = "noise_std" if transform is gaussian_noise else "noise_scale"
    law = stats.norm(scale=0.3) if transform is gaussian_noise else stats.laplace(scale=0.3)
    noise = np.concatenate([transformed(transform, values, seed, **{name: 0.3}).values - values for seed in range(5)])
    assert stats.kstest(noise.ravel(), law.cdf).pvalue > 1e-3
    if transform is gaussian_noise:
        squares = (noise.astype(np.float64) ** 2).sum() / 0.3**2
        assert 1e-3 < stats.chi2(noise.size).cdf(squares) < 1 - 1e-3
    np.testing.assert_array_equal(transformed(transform, values, **{name: 0.0}).values, values)


def test_a_secure_sum_rounds_to_its_unit_and_sends_every_number(values):
    result = transformed(chained([top_k, secure_sum]), values, top_share=0.1, fraction_bits=8.0)
    expected = np.stack([top_k_of(row, 62) for row in values])
    np.testing.assert_allclose(result.values, np.round(expected.astype(np.float64) * 256) / 256, atol=1e-7)
    np.testing.assert_array_equal(result.n_bits, np.full(N, D * 32))
    largest_values = transformed(secure_sum, np.full((N, D), 1e9, np.float32), fraction_bits=8.0).values
    np.testing.assert_allclose(largest_values, 2**31 / 256 / N)


def test_what_a_method_sends_beside_its_updates_is_sent_in_full():
    """By hand: of 20 numbers in half of the bits, and 7 others; of a method that sends a part only, the same share."""
    bits = np.float32([20 * 16, 20 * 16, 20 * 32])
    np.testing.assert_array_equal(chains.sent_floats(np.float32([27, 5, 27]), 20, bits), [17, 2.5, 27])


def test_clients_draw_for_their_updates_and_not_as_for_their_training():
    keys = jax.random.split(jax.random.key(0), N)
    data = SimpleNamespace()
    cohort = Cohort(jnp.int32(0), np.arange(N), data, np.ones(N, bool), None, keys)
    trip = chains.trip_of(jax.random.key(0), cohort, SHAPES)
    words = [jax.random.key_data(key) for key in (keys, trip.key, trip.part(0).key, trip.part(1).key)]
    assert len(np.unique(np.concatenate(words), axis=0)) == 4 * N
    of_server = [jax.random.key_data(key) for key in (jax.random.key(0), trip.server_key, trip.part(0).server_key)]
    assert len(np.unique(of_server, axis=0)) == 3
    assert trip.expected == N
    assert chains.trip_of(jax.random.key(0), cohort._replace(expected=2.5), SHAPES).expected == 2.5


def test_every_transform_of_a_chain_draws_for_itself(values):
    result = transformed(chained([gaussian_noise, gaussian_noise]), 0 * values, noise_std=1.0)
    assert 1.9 < np.var(result.values, dtype=np.float64) < 2.1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fedavg+error_feedback", "no brick comes after it"),
        ("fedavg+top_k+error_feedback", "no brick comes after it"),
        ("fedavg+error_feedback+gaussian_noise", "would remove the noise"),
        ("fedavg+error_feedback+top_k+random_k", "divides"),
        ("fedavg+error_feedback+top_k+client_dp", "reveal the noise"),
        ("fedavg+error_feedback+adaptive_client_dp", "reveal the noise"),
        ("fedavg+error_feedback+banded_client_dp", "reveal the noise"),
        ("fedavg+error_feedback+top_k+error_feedback+quantize", "the same error twice"),
        ("clusterfl+clip_update+error_feedback+top_k", "would add it twice"),
        ("fedavg+rotate", "rotate changes what the bricks after it lose, but no brick comes after it"),
        (
            "fedavg+rotate+error_feedback+sign",
            "error_feedback, which remembers updates, .*; write error_feedback before",
        ),
        ("fedavg+rotate+quantize+fools_gold", "rotate comes before quantize, which remembers updates"),
        ("fedavg+secure_sum+rotate+quantize", "secure_sum comes before rotate, which would change what it has masked"),
        ("fedavg+dp_sgd+sam", "write sam before dp_sgd"),
        ("feddane+dp_sgd", "whole gradients"),
        ("fedproto+dp_sgd", "FedProto send only means of their features, which get no noise"),
        ("fedgc+dp_sgd", "FedGC send which classes they have, which gets no noise"),
        ("fedtgp+dp_sgd", "FedTGP send only means of their features, which get no noise"),
        ("fedgh+dp_sgd", "FedGH send only means of their features, which get no noise"),
        ("feddistill+dp_sgd", "FedDistill send only means of their outputs, which get no noise"),
        ("fedma+dp_sgd", "with output='classes' the last layer is weighted by label counts"),
        ("pacfl+dp_sgd", "PACFL send directions of their data, which get no noise"),
        ("perfedavg+dp_sgd", "Per-FedAvg use gradients of parts of a batch, not of single examples"),
        ("fedfomo+dp_sgd", "mix models by losses on their own examples"),
        ("fedrod+dp_sgd", "FedRoD shift their logits by their label counts, which get no noise"),
        ("gpfl+dp_sgd", "GPFL mix embeddings by their label counts"),
        ("fedlc+dp_sgd", "FedLC shift their logits by their label counts"),
        ("fedrs+dp_sgd", "FedRS scale their logits by the classes that they have"),
        ("fedgen+dp_sgd", "FedGen send their label counts"),
        ("group_pfl+dp_sgd", "grouped by their label counts"),
        ("group_pfl_dynamic+dp_sgd", "grouped by their label counts"),
        ("fedgwc+dp_sgd", "send losses of batches, which get no noise"),
        ("afl+dp_sgd", "clients of AFL send their losses, which get no noise"),
        ("qffl+dp_sgd", "q-FFL are weighted by their losses, which get no noise"),
        ("fedas+dp_sgd", "FedAS align the body and compute their weights from examples, without noise"),
        ("fedpac+dp_sgd", "FedPAC send means of their features, which get no noise"),
        ("fedala+dp_sgd", "FedALA fit their initial models to their examples, without noise; leave it out"),
        ("robust_cfl+dp_sgd", "also train before the first round, and epsilon counts rounds only"),
        ("fesem+dp_sgd", "also train before the first round"),
        ("fesem_ma+dp_sgd", "also train before the first round"),
        ("flexcfl+dp_sgd", "also train before the first round"),
        ("fedclust+dp_sgd", "clients of FedClust also train before the first round"),
        ("stocfl+dp_sgd", "train the anchor and then two models"),
        ("dcpfl+dp_sgd", "train twice in a trial round"),
        ("fedcps+dp_sgd", "lambda_mode='adaptive' lambda depends"),
        ("fedavg+secure_sum+top_k", "would change what it has masked; put it last"),
        ("fedavg+secure_sum+sign", "would change what it has masked"),
        ("fedavg+secure_sum+top_k+client_dp", "would change what it has masked"),
        ("fedavg+secure_sum+krum", "single updates"),
        ("fesem+secure_sum", "single updates"),
        ("flis+secure_sum", "single updates"),
    ],
)
def test_chains_that_make_no_sense_are_refused(name, reason):
    model = fljax.MODELS["logistic_regression"](input_shape=(4, 4, 1), n_classes=3)
    with pytest.raises(ValueError, match=reason):
        fljax.compose(name)(model, fljax.Work(1, 8), *([2] if name.startswith(("fesem", "robust")) else []))


def test_scaffold_that_sends_whole_gradients_is_not_private():
    model = fljax.MODELS["logistic_regression"](input_shape=(4, 4, 1), n_classes=3)
    with pytest.raises(ValueError, match="control='gradient' clients send whole gradients, which get no noise"):
        fljax.compose("scaffold+dp_sgd")(model, fljax.Work(1, 8), control="gradient")


def test_what_makes_the_last_message_is_last():
    with pytest.raises(ValueError, match="put it last"):
        chained([Transform(top_k.apply, is_last=True, name="released"), top_k])


OWN = Transform(top_k.apply, name="own")
MEAN = OWN._replace(needs="mean")


@pytest.mark.parametrize(
    ("links", "why"),
    [
        ([[clip_update, secure_sum], top_k], "change what it has masked"),
        ([[error_feedback, secure_sum], top_k], "change what it has masked"),
        ([secure_sum, [OWN._replace(follows_mask=True), top_k]], "change what it has masked"),
        ([[top_k, OWN._replace(is_last=True)], sign], "change its result"),
        ([OWN._replace(needs="sum"), [top_k, OWN._replace(sees_each=True)]], "hides all but their sum"),
    ],
)
def test_a_chain_in_a_chain_has_the_rules_of_its_parts(links, why):
    flat = [part for link in links for part in (link if isinstance(link, list) else [link])]
    for parts in ([chained(link) if isinstance(link, list) else link for link in links], flat):
        with pytest.raises(ValueError, match=why):
            chained(parts)


@pytest.mark.parametrize("links", [[MEAN, secure_sum], [secure_sum, MEAN._replace(follows_mask=True)], [top_k, MEAN]])
def test_a_chain_needs_what_the_most_demanding_part_needs(links):
    assert chained(links).needs == "mean"


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (lambda hyper, memory, message, trip: message, r"returned Message; return \(memory, message\)"),
        (
            lambda hyper, memory, message, trip: (message, memory),
            r"returned Message and Memory; return \(memory, message\)",
        ),
        (
            lambda hyper, memory, message, trip: (Memory(1.0), message),
            r"returned a memory with \.server; return the structure that it received",
        ),
        (
            lambda hyper, memory, message, trip: (memory, message._replace(values=message.values[:, :1])),
            r"returned an array of updates that has shape \(4, 1\); return \(4, 51\)",
        ),
        (
            lambda hyper, memory, message, trip: (memory, message._replace(weight=message.weight[:0])),
            r"returned an array of weights that has shape \(0,\); return \(4,\)",
        ),
    ],
)
@pytest.mark.parametrize("with_transform", [fljax.rounds.uplink.with_uplink, fljax.rounds.uplink.with_downlink])
def test_what_a_transform_of_ones_own_returns_is_checked(key, with_transform, apply, message):
    clients = [(np.zeros((8, 4, 4, 1), np.float32), np.arange(8) % 3)] * 4
    model = fljax.MODELS["logistic_regression"](input_shape=(4, 4, 1), n_classes=3)
    algorithm = with_transform(fljax.fedavg(model, fljax.Work(1, 8)), Transform(apply, name="mine"))
    if with_transform is fljax.rounds.uplink.with_downlink:  # one message to everybody
        message = message.replace("(4, 1", "(1, 1").replace("(4, 51", "(1, 51").replace("(4,", "(1,")
    with pytest.raises(ValueError, match=f"transform mine {message}"):
        fljax.simulate(algorithm, fljax.fedavg.Hyper(), fljax.federation_from_clients(clients), key, 1)


def test_methods_where_nothing_travels_have_no_slot():
    with pytest.raises(ValueError, match="no slot 'uplink'"):
        fljax.compose("standalone+top_k")
