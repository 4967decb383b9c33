"""Losses and sums over clients against plain NumPy."""

from functools import cache

import jax
import numpy as np
import pytest

from fljax import tree
from fljax.client import client_loss, client_sums, cross_loss, predictor
from fljax.devices.mesh import over_devices
from fljax.types import ModelTable
from tests import oracle
from tests.oracle import rows_of
from tests.slow import slow


def expected_loss(params, data, i):
    rows = rows_of(data, i)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    return oracle.training_loss(params, np.asarray(data.pool.x, np.float64)[rows], np.asarray(data.pool.y)[rows])


@cache
def _draw_models(model):
    return jax.jit(lambda key: jax.vmap(model.init)(jax.random.split(key, 5)))


@pytest.fixture
def personal_models(key, model):
    return jax.device_get(_draw_models(model)(key))


@pytest.fixture
def centers(personal_models):
    return rows(personal_models, [0, 1, 2])


def rows(params, index):
    return jax.tree.map(lambda leaf: leaf[index], params)


@pytest.mark.parametrize("n_devices", [2, *slow(1)])
def test_cross_loss_equals_numpy(model, ragged, centers, n_devices):
    with over_devices(jax.devices()[:n_devices]):
        loss = np.asarray(jax.jit(lambda c, d: cross_loss(model, c, d))(centers, ragged))
    expected = [[expected_loss(rows(centers, k), ragged, i) for k in range(3)] for i in range(5)]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize("n_devices", [1, 2])
@pytest.mark.parametrize("batch_size", [3, *slow(1, 100)])
def test_shared_cluster_and_personal_models_agree(model, ragged, centers, n_devices, batch_size):
    label = np.int32([2, 0, 0, 1, 2])

    def score(params, batch):
        return predictor(model)(params, batch.x)

    with over_devices(jax.devices()[:n_devices]):
        sums = jax.jit(lambda models: client_sums(score, models, ragged, batch_size))
        by_cluster, by_client = sums(ModelTable(centers, label)), sums(tree.own(rows(centers, label)))
    np.testing.assert_allclose(by_cluster, by_client, rtol=1e-5, atol=1e-5)


def test_personal_losses_equal_numpy(model, ragged, personal_models):
    expected = [expected_loss(rows(personal_models, i), ragged, i) for i in range(5)]
    actual = jax.jit(lambda models: client_loss(model, models, ragged))(personal_models)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_a_client_without_examples_has_loss_zero(model, ragged, centers):
    data = ragged._replace(size=np.zeros(5, np.int32))
    np.testing.assert_array_equal(jax.jit(lambda data: cross_loss(model, centers, data))(data), 0)


def test_a_leaf_of_one_row_belongs_to_all(model, ragged, personal_models):
    layer, *_ = model.layers
    all_clients, first_layer = np.arange(5, dtype=np.int32), rows(personal_models[layer], [0])
    shared = ModelTable(personal_models | {layer: first_layer}, all_clients)
    copied_models = personal_models | {layer: rows(personal_models[layer], [0] * 5)}
    losses = jax.jit(lambda models: client_loss(model, models, ragged))
    expected = losses(copied_models)
    np.testing.assert_allclose(losses(shared), expected, rtol=1e-6)
    one_model = ModelTable(rows(personal_models, [0]), all_clients)  # nothing but leaves of one row
    np.testing.assert_allclose(losses(one_model), losses(tree.everyone(rows(personal_models, 0), 5)), rtol=1e-6)
    three_models = ModelTable(rows(personal_models, slice(3)) | {layer: first_layer}, np.int32([2, 0, 1, 1, 2]))
    np.testing.assert_allclose(losses(three_models), losses(rows(copied_models, three_models.row)), rtol=1e-5)


def test_centers_are_stacked_and_data_is_a_split(model, ragged, centers):
    with pytest.raises(ValueError, match=r"centers have leaves of .* rows; give models \(clusters, ...\)"):
        cross_loss(model, rows(centers, 0), ragged)
    with pytest.raises(ValueError, match=r"data is .*, not a ClientData; give a split, such as federation.train"):
        cross_loss(model, centers, (ragged,))
    with pytest.raises(ValueError, match=r"data is .*, not a ClientData; give a split, such as federation.train"):
        client_loss(model, tree.everyone(rows(centers, 0), 5), (ragged,))


@pytest.mark.parametrize(
    ("scores", "returned"),
    [(lambda w: w, r"an array \(1,\)"), (lambda w: w[0], r"an array \(\)"), (lambda w: (w,), "a tuple")],
)
def test_a_score_has_a_row_for_each_example(ragged, centers, scores, returned):
    models = tree.everyone(rows(centers, 0), 5)
    with pytest.raises(
        ValueError, match=rf"^a score returned {returned} for one example; return \(batch, scores\), as losses"
    ):
        client_sums(lambda params, batch: scores(batch.weight), models, ragged)


def test_one_model_is_not_one_for_each_client(key, model, ragged):
    n_clients = ragged.size.shape[0]
    for models in (model.init(key), ModelTable(model.init(key), np.zeros(n_clients, np.int32))):
        with pytest.raises(
            ValueError, match=r"(for 5 clients; give a row for each|ModelTable with leaves of .* rows; give)"
        ):
            client_loss(model, models, ragged)


@pytest.mark.slow
def test_data_and_models_of_numpy_are_measured(model, ragged, personal_models, centers):
    data = jax.tree.map(np.asarray, ragged)
    np.testing.assert_allclose(
        client_loss(model, personal_models, data), client_loss(model, personal_models, ragged), rtol=1e-6
    )
    np.testing.assert_allclose(cross_loss(model, centers, data), cross_loss(model, centers, ragged), rtol=1e-6)


@pytest.mark.parametrize("n_models", [3, 5])
def test_a_client_that_holds_none_of_the_models_has_loss_zero(model, ragged, personal_models, n_models):
    """Whether the models are fewer than the clients or not: a lookup would take the last model, or the nearest."""
    models = rows(personal_models, slice(n_models))
    actual = client_loss(model, ModelTable(models, np.int32([-1, 2, n_models, 0, -1])), ragged)
    expected = [
        0,
        expected_loss(rows(personal_models, 2), ragged, 1),
        0,
        expected_loss(rows(personal_models, 0), ragged, 3),
        0,
    ]
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
