"""FLIS: who predicts alike is averaged, against NumPy, and its limit laws."""

import chex
import jax
import numpy as np
import pytest

import fljax
from fljax.models import mlp, regression
from fljax.rounds.inference import agreement
from fljax.run.one_round import split_key
from tests import oracle
from tests.algorithms.round_by_round import jitted, one_round, simulate
from tests.algorithms.test_oracles import LR, MOMENTUM, WORK, Reference, assert_models, rounds_of, run

flis = fljax.flis


def test_agreement_is_the_cosine_of_one_hot_predictions():
    classes = np.random.default_rng(0).integers(0, 3, (5, 40))
    matrices = np.eye(3)[classes].reshape(5, -1)
    norm = np.linalg.norm(matrices, axis=1)
    expected = matrices @ matrices.T / np.outer(norm, norm)
    answers = np.pad(classes + 1.0, ((0, 1), (0, 7))).astype(np.float32)  # seven examples missing, and a silent client
    actual = np.asarray(jax.jit(agreement)(answers))
    np.testing.assert_allclose(actual[:5, :5], expected, rtol=1e-6)
    np.testing.assert_array_equal(actual[5], 0)


def test_flis_of_numpy(key, model, federation):
    """Participants choose among the last round's models; the means of those who predict alike overlap."""
    reference, threshold = Reference(key, model, federation), 0.625
    public = np.asarray(federation.public.x, np.float64)

    def chosen(models, i):
        rows = reference.index[i, : reference.size[i]]
        x, y = reference.x[rows], reference.y[rows]
        return min(models, key=lambda k: oracle.training_loss(models[k], x, y))

    models, downlink, labels, overlap = {0: reference.start}, [], [], False
    for cohort in reference.rounds():
        downlink.append(130 * len(models))
        choice = {i: chosen(models, i) for i, *_ in cohort}
        labels.append(choice)
        sent = {i: reference.train(models[choice[i]], i, k) for i, k, _ in cohort}
        answers = {i: oracle.forward(w, public)[0].argmax(1) for i, w in sent.items()}
        near = {i: [j for j in sent if (answers[i] == answers[j]).mean() >= threshold] for i in sent}
        overlap |= any(set(near[i]) & set(near[j]) and near[i] != near[j] for i in sent for j in sent)
        models = {
            i: oracle.average([sent[j] for j in near[i]], [float(reference.size[j]) for j in near[i]]) for i in sent
        }
    assert overlap
    algorithm, hyper = flis(model, WORK), flis.Hyper(lr=LR, momentum=MOMENTUM, threshold=threshold)
    deployed, state = run(algorithm, hyper, federation, key)
    assert set(np.flatnonzero(state.server.kept.there)) == set(models)
    assert_models(deployed, [models[chosen(models, i)] for i in range(8)])
    metrics = rounds_of(algorithm, hyper, federation, key)[1]
    for r, (expected, choice) in enumerate(zip(downlink, labels, strict=True)):
        ids, there = np.asarray(metrics["ids"][r]).tolist(), np.asarray(metrics["active"][r])
        np.testing.assert_array_equal(metrics["label"][r], [choice.get(i, -1) for i in ids])
        assert {int(floats) for floats in np.broadcast_to(metrics["downlink"][r], there.shape)[there]} == {expected}


@pytest.mark.slow
def test_flis_of_clients_that_need_not_agree_is_fedavg(key, model, work, federation):
    algorithm, hyper = flis(model, work), flis.Hyper(lr=0.1, threshold=0.0)
    state, _ = simulate(algorithm, hyper, federation, key, 2, participation=0.5)
    expected, _ = simulate(fljax.fedavg(model, work), fljax.fedavg.Hyper(lr=0.1), federation, key, 2, participation=0.5)
    for i in np.flatnonzero(state.server.kept.there):
        actual = jax.tree.map(lambda leaf, i=i: leaf[i], state.server.centers)
        chex.assert_trees_all_close(actual, expected.server, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_client_that_fails_is_in_no_mean_of_flis_and_offers_no_model(key, model, federation):
    data = federation.train
    x, rows = np.array(data.pool.x), np.asarray(data.index)[3, : int(data.size[3])]
    x[rows] = np.nan
    broken = federation._replace(train=data._replace(pool=data.pool._replace(x=x)))
    algorithm, hyper = flis(model, WORK), flis.Hyper(lr=LR, threshold=0.0)
    begun = jitted(algorithm.init)(split_key(key).init, hyper, federation.train)
    whole, part = (one_round(algorithm, hyper, some, key, begun, 0)[0].server for some in (federation, broken))
    np.testing.assert_array_equal(part.kept.there, np.arange(8) != 3)
    initial_kernel, *kernels = (np.asarray(server.centers["fc2"]["kernel"]) for server in (begun.server, whole, part))
    assert np.isfinite(kernels[1]).all()
    assert not np.allclose(kernels[0][0], kernels[1][0], atol=1e-4)
    np.testing.assert_array_equal(kernels[1][3], initial_kernel[3])
    all_broken = federation._replace(train=data._replace(pool=data.pool._replace(x=np.full_like(x, np.nan))))
    unchanged = one_round(algorithm, hyper, all_broken, key, begun._replace(server=part), 1)[0].server
    chex.assert_trees_all_equal((unchanged.centers, unchanged.kept.there), (part.centers, part.kept.there))


def test_models_of_earlier_rounds_are_offered_no_more(key, model, federation):
    algorithm, hyper = flis(model, WORK), flis.Hyper(lr=LR, momentum=MOMENTUM, threshold=1.0)
    state, _ = rounds_of(algorithm, hyper, federation, key)
    chosen = np.flatnonzero(state.server.kept.there)[:2]
    there = np.isin(np.arange(8), chosen)
    server = state.server._replace(kept=state.server.kept._replace(there=there))
    free, bound = (
        jitted(algorithm.deploy)(key, hyper, some, federation.train).row
        for some in (state, state._replace(server=server))
    )
    assert len(set(free.tolist())) > 2
    assert set(bound.tolist()) <= set(chosen.tolist())


@pytest.mark.parametrize(("method", "choices"), [(flis, {}), (fljax.flhc, {"distance": "predictions"})])
def test_what_predicts_no_classes_for_the_servers_examples_is_refused(key, model, work, federation, method, choices):
    with pytest.raises(ValueError, match=r"^(flis|distance='predictions'): the model's loss is of regression; give a"):
        method(regression(mlp((4, 4, 1), (6,), 1)), work, **choices)
    algorithm, without = method(model, work, **choices), federation._replace(public=None)
    with pytest.raises(ValueError, match=r"^public is None but (flis|distance='predictions') compares clients on"):
        jax.eval_shape(lambda key: fljax.simulate(algorithm, method.Hyper(lr=0.1), without, key, 1), key)
