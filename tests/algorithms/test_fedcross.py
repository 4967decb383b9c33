"""FedCross: in NumPy, in the limit, and how its models are dealt out and paired."""

from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.algorithms.fedcross import DISPATCH, collaborators, dispatched, fedcross
from tests import oracle
from tests.algorithms.test_oracles import LR, WORK, assert_models, reference, run  # noqa: F401
from tests.algorithms.test_personal import fedavg_server, final
from tests.slow import slow

N_MODELS, ALPHA = 3, 0.7


def flat(model):
    return np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(model)])


def partner(models, k, collaborator, number):
    others = [j for j in range(len(models)) if j != k]
    if collaborator == "in_order":
        return (k + 1 + number % len(others)) % len(models)
    unit = [flat(model) / np.linalg.norm(flat(model)) for model in models]
    return (max if collaborator == "highest" else min)(others, key=lambda j: unit[k] @ unit[j])


@pytest.mark.parametrize("collaborator", ["lowest", *slow("in_order", "highest")])
def test_fedcross_in_numpy(key, model, federation, reference, collaborator):  # noqa: F811
    models = [reference.start] * N_MODELS
    for number, cohort in enumerate(reference.rounds()):
        places = [float(jax.random.uniform(jax.random.fold_in(k, DISPATCH), (), jnp.float32)) for _, k, _ in cohort]
        trained = [[] for _ in models]
        for turn, position in enumerate(np.argsort(places)):
            i, k, size = cohort[position]
            row = turn % N_MODELS
            trained[row].append((oracle.local_sgd(models[row], reference.batches(i, k), LR), size))
        v = [
            oracle.average(*zip(*of_model, strict=True)) if of_model else model
            for of_model, model in zip(trained, models, strict=True)
        ]
        pairs = [(v[k], v[partner(v, k, collaborator, number)]) for k in range(N_MODELS)]
        models = [oracle.combine(lambda a, b: ALPHA * a + (1 - ALPHA) * b, *pair) for pair in pairs]
    algorithm = fedcross(model, WORK, n_models=N_MODELS, collaborator=collaborator)
    deployed, state = run(algorithm, fedcross.Hyper(lr=LR, alpha=ALPHA), federation, key)
    assert_models(state.server, models)
    assert_models(deployed, [oracle.average(models, [1.0] * N_MODELS)] * 8)


@pytest.mark.slow
def test_fedcross_with_one_model_is_fedavg(key, model, work, federation):
    state = final(fedcross(model, work, n_models=1), fedcross.Hyper(lr=0.1, alpha=0.6), federation, key)
    theta = fedavg_server(model, work, federation, key)
    chex.assert_trees_all_close(jax.tree.map(lambda leaf: leaf[0], state.server), theta, rtol=1e-6, atol=1e-7)


def test_every_model_is_dealt_out_before_any_is_again():
    """Whatever the order of the cohort; those that dropped out take no turn."""
    ids, active = np.array([7, 2, 5, 1, 4]), np.array([True, True, False, True, True])

    @jax.jit
    def rows(ids, active):
        key = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(0), i))(ids)
        return dispatched(SimpleNamespace(key=key, active=active), 3)

    first = np.asarray(rows(ids, active))
    assert sorted(first[active]) == [0, 0, 1, 2]
    turned = np.asarray(rows(ids[::-1], active[::-1]))[::-1]
    np.testing.assert_array_equal(turned[active], first[active])


def test_in_order_a_model_meets_all_others_in_turn():
    models = {"w": jnp.zeros((4, 2))}
    met = np.array([collaborators(models, "in_order", jnp.int32(t)) for t in range(6)])
    assert all(set(met[:3, k]) == set(range(4)) - {k} for k in range(4))
    np.testing.assert_array_equal(met[3:], met[:3])


def test_the_least_similar_model_is_the_opposite_one():
    models = {"w": jnp.array([[1.0, 0.0], [2.0, 0.2], [-1.0, 0.1]])}
    assert collaborators(models, "lowest", jnp.int32(0)).tolist() == [2, 2, 0]
    assert collaborators(models, "highest", jnp.int32(0)).tolist() == [1, 0, 1]


def test_a_number_of_models_below_one_is_refused(model, work):
    with pytest.raises(ValueError, match="n_models=0"):
        fljax.fedcross(model, work, n_models=0)
