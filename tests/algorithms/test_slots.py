"""Bricks in the methods whose rounds are written out: those of no effect change nothing, the others something."""

import chex
import jax
import numpy as np
import pytest

from fljax.algorithms import ALGORITHMS, compose
from fljax.numbers import numbers_of
from tests.algorithms.round_by_round import simulate
from tests.algorithms.table import CASES, PROBABILISTIC

OPTIONS = {
    "clusterfl": {"n_clusters": 2},
    "fedcps": {"deployed": "own"},
    "fedcr": {"n_draws": 1, "ft_epochs": 0},
    "fedem": {"n_learners": 2},
    "fedma": {"output": "clients"},
    "fedtsdp": {"public_batch": 8, "n_draws": 2},
}
NUMBERS = {"fedtsdp": {"threshold": -1.0, "eps_weights": 0.4}, "clusterfl": {"alpha": 0.1, "beta": 0.1}}


def final(name, model, work, federation, key, **numbers):
    base = name.partition("+")[0]
    method = compose(name)
    algorithm = method(PROBABILISTIC if base == "fedcr" else model, work, **OPTIONS.get(base, {}))
    hyper = method.Hyper(lr=0.1, **NUMBERS.get(base, {}), **numbers)
    return simulate(algorithm, hyper, federation, key, 2, participation=0.75)[0]


def first_leaves(method_state, state):
    """The leaves of ``state`` that ``method_state`` has too: what a brick remembers is further inside.

    Without Mime's moments, which are the state of the clients' optimiser: `clip_gradient` makes it a chain of two.
    """
    leaves_with_path = jax.tree_util.tree_leaves_with_path(method_state)
    paths = {path: leaf for path, leaf in leaves_with_path if ".moments" not in jax.tree_util.keystr(path)}
    leaves_by_name = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    names = {jax.tree_util.keystr(path): leaf for path, leaf in paths.items()}
    shared = {
        name: leaves_by_name.get(name, leaves_by_name.get(name.replace(".server", ".server.shared", 1)))
        for name in names
    }
    assert all(leaf is not None for leaf in shared.values())
    return names, shared


def of(quick_names, names):
    """A test for each name; slow for those that are not in ``quick_names``."""
    marks = {name: [pytest.mark.slow] * (name not in quick_names) for name in names}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks[name]) for name in names])


@pytest.mark.slow
@of(("clusterfl",), [*OPTIONS, "fedsoft", "dcpfl"])
def test_a_proximal_term_of_zero_and_a_full_server_step_without_momentum_change_nothing(
    key, model, work, federation, name
):
    bricks, numbers = ("+prox+momentum", {"server_lr": 1.0, "beta1": 0.0}) if name in OPTIONS else ("+prox", {})
    method_state = final(name, model, work, federation, key)
    unchanged_state, pulled_state = (
        final(name + bricks, model, work, federation, key, mu=mu, **numbers) for mu in (0.0, 0.1)
    )
    chex.assert_trees_all_close(*first_leaves(method_state, unchanged_state), rtol=1e-4, atol=1e-5)
    method_leaves, pulled_leaves = first_leaves(method_state, pulled_state)
    server = [name for name in method_leaves if name.startswith(".server")]
    assert any(not np.allclose(method_leaves[name], pulled_leaves[name], atol=1e-4) for name in server)


@pytest.mark.slow
@of(("clusterfl",), OPTIONS)
def test_a_median_is_somewhere_else_than_the_mean_and_finite(key, model, work, federation, name):
    mean_server, median_server = (
        final(f"{name}{brick}", model, work, federation, key).server for brick in ("", "+median")
    )
    is_different = jax.tree.map(lambda a, b: not np.allclose(a, b, atol=1e-5), mean_server, median_server)
    assert any(jax.tree.leaves(is_different))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(median_server))


@pytest.mark.parametrize("name", ["fedsoft+median", "dcpfl+adam"])
def test_methods_whose_averages_are_their_own_say_that_they_have_no_slot(name):
    with pytest.raises(ValueError, match="no slot"):
        compose(name)


def test_a_brick_that_is_no_name_is_refused_in_a_line():
    assert compose("fedavg+median") is compose("fedavg+median")
    for brick in (["median"], {"median": 1}, jax.numpy.median):
        with pytest.raises(ValueError, match=r"^brick is .*, not a str; give its name, such as 'median', or a fl"):
            compose("fedavg", brick)
    with pytest.raises(ValueError, match=r"^method is \['fedavg'\], not a str; give a name, such as 'fedprox\+median'"):
        compose(["fedavg"])
    with pytest.raises(ValueError, match=r"^krum is a brick; name a method first, such as 'fedavg\+krum'"):
        compose("krum")
    with pytest.raises(ValueError, match=r"^\./mine\.py:pale names an object of a file; import the brick, and give it"):
        compose("fedavg+./mine.py:pale")
    assert compose("fedavg + median") is compose("fedavg+median")


TRAINED = sorted(name for name, method in ALGORITHMS.items() if "loss" in method.slots)


@pytest.mark.slow
@of(("fedavg",), TRAINED)
def test_clipped_gradients_and_mirrored_images_reach_the_clients_of_every_method(key, model, work, federation, name):
    case = CASES.get(name) or next(some_case for some_case in CASES.values() if some_case.name == name)

    def run(method, **numbers):
        composed_case = case._replace(name=method, numbers=case.numbers | numbers)
        return simulate(composed_case.make(model, work), composed_case.hyper, federation, key, 2)[0]

    method_state, numbers_of_bricks = run(name), {"flip": {"flip_rate": 1.0}, "clip_gradient": {"max_norm": 1e-9}}
    if "max_norm" in numbers_of(ALGORITHMS[name].Hyper):  # it clips already
        del numbers_of_bricks["clip_gradient"]
    for brick, numbers in numbers_of_bricks.items():
        method_leaves, composed_leaves = first_leaves(method_state, run(f"{name}+{brick}", **numbers))
        floats = [leaf_name for leaf_name in method_leaves if method_leaves[leaf_name].dtype == np.float32]
        assert any(
            not np.allclose(method_leaves[leaf_name], composed_leaves[leaf_name], atol=1e-4, equal_nan=True)
            for leaf_name in floats
        ), brick
