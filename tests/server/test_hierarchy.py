import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster
from scipy.cluster.hierarchy import linkage as scipy_linkage
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import adjusted_rand_score

from fljax.server import adjusted_rand, cut_k, linkage
from fljax.server.hierarchy import cut_at, next_split, threshold


@pytest.fixture
def points():
    return np.random.default_rng(3).normal(size=(14, 3))


@pytest.fixture
def dendrogram(points):
    return linkage(jnp.asarray(squareform(pdist(points)), jnp.float32), "average")


def test_whole_steps_reach_zero_exactly():
    levels = [float(threshold(jnp.int32(n), jnp.float32(0.2))) for n in range(7)]
    np.testing.assert_allclose(levels, [1, 0.8, 0.6, 0.4, 0.2, 0, 0], atol=1e-6)
    assert levels[5] == 0
    assert float(threshold(jnp.int32(10), jnp.float32(0.1))) == 0


@pytest.mark.parametrize("level", [1.0, 0.9, 0.7, 0.5, 0.31, 0.0])
def test_a_cut_at_a_level_equals_scipy(points, dendrogram, level):
    tree = scipy_linkage(pdist(points), "average")
    expected = fcluster(tree, level * tree[-1, 2], "distance")
    assert float(adjusted_rand(cut_at(dendrogram, level), jnp.asarray(expected))) == 1


def test_one_is_one_group_and_just_below_two(dendrogram):
    np.testing.assert_array_equal(cut_at(dendrogram, 1.0), 0)
    np.testing.assert_array_equal(cut_at(dendrogram, 0.999), cut_k(dendrogram, 2))
    np.testing.assert_array_equal(cut_at(dendrogram, 0.0), np.arange(14))


def test_next_split_passes_over_levels_that_change_nothing(dendrogram):
    label, steps, numbers_of_groups = jnp.zeros(14, jnp.int32), jnp.int32(0), []
    for _ in range(40):
        next_label, new_steps, differs = next_split(dendrogram, label, steps, jnp.float32(0.03))
        if not differs:
            break
        labels_between = [
            cut_at(dendrogram, threshold(jnp.int32(n), jnp.float32(0.03))) for n in range(steps + 1, new_steps)
        ]
        assert all((label_between == label).all() for label_between in labels_between)
        # Only refines: whoever is together now was together before.
        is_together = np.asarray(next_label)[:, None] == np.asarray(next_label)[None]
        assert (~is_together | (np.asarray(label)[:, None] == np.asarray(label)[None])).all()
        label, steps = next_label, new_steps
        numbers_of_groups.append(int(label.max()) + 1)
    np.testing.assert_array_equal(label, np.arange(14))
    assert numbers_of_groups == sorted(set(numbers_of_groups))


@jax.jit
def levels_and_groups(tree, steps, step):
    levels = jax.vmap(threshold, (0, None))(steps, step)
    return levels, jax.vmap(cut_at, (None, 0))(tree, levels)


@pytest.mark.parametrize("step", [0.7, 0.2, 0.1, 0.03, 1e-3, 1e-4])
@pytest.mark.parametrize("seed", range(4))
def test_the_next_split_is_that_of_going_step_by_step(step, seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(9, 2)) if seed else np.round(rng.normal(size=(9, 2)))  # some at one place, ties
    tree, step = linkage(jnp.asarray(squareform(pdist(points)), jnp.float32), "average"), jnp.float32(step)
    levels, groups = map(np.asarray, levels_and_groups(tree, jnp.arange(int(1 / step) + 3), step))
    label, steps = np.zeros(9, np.int32), 0
    while levels[steps] > 0:
        expected_steps = steps + 1
        while levels[expected_steps] > 0 and (groups[expected_steps] == label).all():
            expected_steps += 1
        next_label, steps, differs = next_split(tree, label, jnp.int32(steps), step)
        assert (int(steps), bool(differs)) == (expected_steps, bool((groups[expected_steps] != label).any()))
        np.testing.assert_array_equal(next_label, groups[expected_steps])
        label, steps = np.asarray(next_label), int(steps)


@pytest.mark.parametrize("step", [1e-7, 1e-9, 1e-30])
def test_a_tiny_step_is_as_soon_at_the_next_split(dendrogram, step):
    """Step by step these would take minutes or more; below 5e-10 int32 does not count to threshold 0."""
    label, steps, differs = next_split(dendrogram, jnp.zeros(14, jnp.int32), jnp.int32(0), jnp.float32(step))
    np.testing.assert_array_equal(label, cut_k(dendrogram, 2 if differs else 1))
    assert bool(differs) == (step > 1e-10)
    assert 0 < steps <= 2**31 - 1
    if step == 1e-7:
        label_apart, steps, differs = next_split(
            dendrogram, jnp.arange(14), jnp.int32(10_000_000 - 5), jnp.float32(step)
        )
        assert (int(steps), bool(differs)) == (10_000_000, False)
        np.testing.assert_array_equal(label_apart, np.arange(14))


def test_without_a_step_nothing_is_ever_split(dendrogram):
    one_group = jnp.zeros(14, jnp.int32)
    label, steps, differs = jax.jit(next_split)(dendrogram, one_group, jnp.int32(0), jnp.float32(0))
    np.testing.assert_array_equal(label, 0)
    assert (int(steps), bool(differs)) == (0, False)


def test_a_lone_client_has_nothing_to_split():
    label, _, differs = next_split(jnp.zeros((0, 4)), jnp.zeros(1, jnp.int32), jnp.int32(0), jnp.float32(0.2))
    assert label.tolist() == [0]
    assert not differs


def test_levels_beside_clients_that_do_not_count(points):
    """A merge at height inf is none of the hierarchy: levels are shares of the largest finite height."""
    is_counted, step = np.arange(16) < 14, jnp.float32(0.2)
    distance = jnp.asarray(np.pad(squareform(pdist(points)), (0, 2), constant_values=np.nan), jnp.float32)
    dendrogram, tree = linkage(distance, "average", jnp.asarray(is_counted)), scipy_linkage(pdist(points), "average")
    for level in (1.0, 0.7, 0.5, 0.31, 0.0):
        actual = np.asarray(cut_at(dendrogram, level, jnp.asarray(is_counted)))
        assert adjusted_rand_score(fcluster(tree, level * tree[-1, 2], "distance"), actual[is_counted]) == 1
        np.testing.assert_array_equal(actual[~is_counted], -1)
    one_group = jnp.where(jnp.asarray(is_counted), 0, -1)
    label, steps, differs = next_split(dendrogram, one_group, jnp.int32(0), step, jnp.asarray(is_counted))
    expected = fcluster(tree, (1 - 0.2 * int(steps)) * tree[-1, 2], "distance")
    assert differs
    assert adjusted_rand_score(expected, np.asarray(label)[is_counted]) == 1
    assert max(expected) > 1


def test_levels_of_clusters_that_are_kept_apart():
    position = jnp.array([0.0, 1.0, 5.0, 6.0])
    dendrogram = linkage(jnp.abs(position[:, None] - position[None]), "average", within=jnp.array([0, 0, 1, 1]))
    assert cut_at(dendrogram, 1.0).tolist() == [0, 0, 1, 1]
    assert cut_at(dendrogram, 0.5).tolist() == [0, 1, 2, 3]


def test_labels_and_steps_of_64_bits(points):
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        dendrogram = linkage(jnp.asarray(squareform(pdist(points))), "average")
        label, steps, _ = next_split(dendrogram, jnp.zeros(14, jnp.int64), jnp.int64(0), 0.2)
    assert int(label.max()) > 0
    assert label.dtype == steps.dtype == jnp.int32


def test_wrong_shapes_are_named(dendrogram):
    with pytest.raises(ValueError, match=r"dendrogram has shape \(13,\); expected \(n-1, 4\)"):
        cut_at(dendrogram[:, 2], 0.5)
    with pytest.raises(ValueError, match=r"label has shape \(13,\); expected \(14,\)"):
        next_split(dendrogram, jnp.zeros(13, jnp.int32), jnp.int32(0), 0.2)
