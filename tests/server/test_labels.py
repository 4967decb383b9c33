import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.server.labels import MOST_BY_PAIRS, canonical, noise_to_singletons, rank

LABELS = st.lists(st.integers(-3, 5), min_size=8, max_size=8)
MASKS = st.lists(st.booleans(), min_size=8, max_size=8)


def array(values, dtype=jnp.int32):
    return jnp.asarray(values, dtype)


@pytest.mark.parametrize("n", [1, 2, 9, 40])
def test_canonical_numbers_by_first_appearance(n, renumber):
    label = np.random.default_rng(n).integers(-2, 6, (300, n))
    actual = jax.vmap(canonical)(array(label))
    assert actual.tolist() == [renumber(row) for row in label]


@pytest.mark.parametrize("n", [0, 1, 7, MOST_BY_PAIRS, MOST_BY_PAIRS + 1, 2 * MOST_BY_PAIRS])
@pytest.mark.parametrize("n_labels", [1, 6, 10_000])
def test_rank_of_any_number_is_that_of_the_rest_by_plain_python(n, n_labels, renumber):
    rng = np.random.default_rng(n + n_labels)
    label, where = rng.integers(-n_labels, n_labels, n), rng.random(n) < 0.7
    actual = np.asarray(jax.jit(rank)(array(label), array(where, bool)))
    assert actual[where].tolist() == renumber(label[where] + n_labels)
    assert (actual[~where] == n).all()


@given(LABELS, MASKS)
def test_canonical_of_a_mask_is_that_of_the_rest(label, where):
    actual = np.asarray(canonical(array(label), array(where, bool)))
    counted_label = [x for x, w in zip(label, where, strict=True) if w]
    number: dict[int, int] = {}
    expected = [number.setdefault(x, len(number)) if x >= 0 else -1 for x in counted_label]
    assert actual[np.array(where)].tolist() == expected
    assert (actual[~np.array(where)] == -1).all()


@given(LABELS, st.permutations(range(6)))
def test_canonical_ignores_names_and_is_idempotent(label, names):
    canonical_label = canonical(array(label))
    renamed_label = [names[x] if x >= 0 else x for x in label]
    assert canonical(array(renamed_label)).tolist() == canonical_label.tolist() == canonical(canonical_label).tolist()


@given(LABELS, MASKS)
def test_noise_to_singletons(label, where):
    actual = noise_to_singletons(array(label), array(where, bool)).tolist()
    for i in range(8):
        assert (actual[i] >= 0) == where[i]
        for j in range(i):
            is_together = label[i] == label[j] and label[i] >= 0
            assert not (where[i] and where[j]) or (actual[i] == actual[j]) == is_together


def test_errors_name_the_field():
    with pytest.raises(ValueError, match=r"where has shape \(3,\); expected \(2,\)"):
        canonical(jnp.array([0, 1]), jnp.ones(3, bool))
