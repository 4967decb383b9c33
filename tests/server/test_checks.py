"""Bad input of every kind is one line with the argument's name, wherever it is given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import server

X, KEY = jnp.arange(6.0).reshape(3, 2), jax.random.key(0)
W, LABEL, DISTANCE = jnp.ones(3), jnp.zeros(3, jnp.int32), jnp.ones((3, 3))
TREE = server.linkage(DISTANCE, "average")

OF_MODELS = {
    "weighted_mean": lambda x: server.weighted_mean(x, W),
    "cluster_mean": lambda x: server.cluster_mean(x, W, LABEL, x),
    "mix": lambda x: server.mix(jnp.ones((1, 3)), x),
    "coordinate_median": server.coordinate_median,
    "trimmed_mean": lambda x: server.trimmed_mean(x, 0.1),
    "krum": lambda x: server.krum(x, 1),
    "geometric_median": server.geometric_median,
    "clip_norm": lambda x: server.clip_norm(x, 1.0),
    "robust_cluster_mean": lambda x: server.robust_cluster_mean(x, LABEL, x),
    "pairwise_l2": server.pairwise_l2,
    "kmeans": lambda x: server.kmeans(KEY, x, 2),
    "robust_kmeans": lambda x: server.robust_kmeans(KEY, x, 2),
    "hopkins": lambda x: server.hopkins(KEY, x, 2),
}


@pytest.mark.parametrize("name", OF_MODELS)
def test_models_of_no_common_axis_are_refused(name):
    with pytest.raises(ValueError, match=r"\['b'\] has shape \(2, 2\); expected 3 rows, as many as (stacked|x)\['a'\]"):
        OF_MODELS[name]({"a": X, "b": X[:2]})
    with pytest.raises(ValueError, match=r"\['b'\] is one number, without an axis of rows; expected \(rows, ...\)"):
        OF_MODELS[name]({"a": X, "b": jnp.float32(1)})
    with pytest.raises(ValueError, match=r"has no leaves; give at least one array|nothing to compare"):
        OF_MODELS[name]({})


@pytest.mark.parametrize("where", [jnp.ones(2, bool), jnp.ones((3, 1), bool)])
@pytest.mark.parametrize(
    "call",
    [
        lambda where: server.js_divergence(X, where),
        lambda where: server.label_kld(X, where=where),
        lambda where: server.pairwise_l2(X, where),
        lambda where: server.coordinate_median(X, where),
        lambda where: server.kmeans(KEY, X, 2, where=where),
        lambda where: server.cut_at(TREE, 0.5, where),
    ],
)
def test_a_mask_of_another_shape_is_refused(call, where):
    with pytest.raises(ValueError, match=r"where has shape .*; expected \(3,\), one entry per row of"):
        call(where)


SHAPES = {
    "weight has shape (2,); expected (3,)": lambda: server.geometric_median(X, jnp.ones(2)),
    "max_norm has shape (2,); expected (3,)": lambda: server.clip_norm(X, jnp.ones(2)),
    "size has shape (2,); expected (3,)": lambda: server.soft_weights(X, jnp.ones(2)),
    "mixture has shape (2, 3); expected (2, 2)": lambda: server.responsibilities(jnp.ones((2, 3, 2)), jnp.ones((2, 3))),
    "empty has shape (3,); expected (2, 2)": lambda: server.mixture_weights(jnp.ones((2, 3, 2)), jnp.ones((2, 3)), W),
    "new has shape (3,); expected (2,)": lambda: server.inherit(X, LABEL[:2], LABEL),
    "basis has shape (3, 2); expected (n, d, p)": lambda: server.principal_angles(X),
    "probabilities has shape (3,); expected (n, batch, classes)": lambda: server.js_divergence(W),
    "histogram has shape (3,); expected (n, classes)": lambda: server.label_kld(W),
    "mask has shape (2,); expected (3, 1)": lambda: server.where_layers(("a",), W[:2] > 0, {"a": X}, {"a": X}),
    "taken has shape (3,); expected (3, 2)": lambda: server.gaussian_rewards(X, W > 0, DISTANCE > 0),
    "label has shape (3, 2); expected (n,)": lambda: server.canonical(X),
    "the first labelling is of type list": lambda: server.adjusted_rand([0, 0, 1], [0, 0, 1]),
    "distance is of type list": lambda: server.dbscan([[0.0, 1.0], [1.0, 0.0]], 1.0, 2),
    "weight is of type list": lambda: server.weighted_mean(X, [1.0, 1.0, 1.0]),
    "empty has shape (3, 2); expected (2,)": lambda: server.coordinate_median(X, empty=X),
}


@pytest.mark.parametrize("message", SHAPES)
def test_shapes_that_do_not_fit_are_refused(message):
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the message is looked at below
        SHAPES[message]()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value).partition("\n---")[0]  # what JAX adds about its frames is not of the message


NUMBERS = {
    "n_clusters=2.0 is not a whole number": lambda: server.kmeans(KEY, X, 2.0),
    "n_probes=2.0 is not a whole number": lambda: server.hopkins(KEY, X, 2.0),
    "window=2.5 is not a whole number": lambda: server.new_curve(2.5, 1),  # pyright: ignore[reportArgumentType]
    "n_clusters=0 is not positive": lambda: server.davies_bouldin(X, LABEL, 0),
    "key has dtype int32 and shape (); give one random key": lambda: server.kmeans(0, X, 2),
    "key has dtype key<fry> and shape (3,)": lambda: server.robust_kmeans(jax.random.split(jax.random.key(0), 3), X, 2),
    "key has dtype float32": lambda: server.hopkins(jnp.float32(1), X, 2),
    "center='mean' is unknown": lambda: server.robust_cluster_mean(X, LABEL, X[:1], "mean"),  # pyright: ignore[reportArgumentType]
    "linkage='average' is unknown": lambda: server.bipartition(DISTANCE, LABEL, "average"),  # pyright: ignore[reportArgumentType]
    "rule='mean' is unknown": lambda: server.period_ended(server.new_curve(), "mean"),  # pyright: ignore[reportArgumentType]
    "label has dtype float32": lambda: server.robust_cluster_mean(X, W, X),
    "old has dtype float32": lambda: server.inherit(X, W, LABEL),
    "new has dtype bool": lambda: server.inherit(X, LABEL, LABEL > 0),
    "fraction=-1 is out of its range": lambda: server.trimmed_mean(X, -1),
    "fraction=5 is out of its range": lambda: server.robust_kmeans(KEY, X, 2, fraction=5),
    "n_attackers=-1 is out of its range": lambda: server.krum(X, -1),
    "n_selected=0 is out of its range": lambda: server.multi_krum(X, 0, 0),
    "weight=-1 is out of its range": lambda: server.geometric_median(X, jnp.array([1.0, -1.0, 1.0])),
    "max_norm=-1 is out of its range": lambda: server.clip_norm(X, -1.0),
    "smoothing=0 is out of its range": lambda: server.label_kld(X, 0.0),
    "k=0 is out of its range": lambda: server.cut_k(TREE, 0),
    "k=2.5 is not a whole number; choose k >= 1 (number of clusters)": lambda: server.cut_k(TREE, 2.5),
    "n_attackers=1.5 is not a whole number": lambda: server.krum(X, 1.5),
    "n_selected=1.5 is not a whole number": lambda: server.multi_krum(X, 0, jnp.float32(1.5)),
    "weight=nan is not a number": lambda: server.weighted_mean(X, jnp.array([1.0, jnp.nan, 1.0])),
    "weight=-3 is out of its range": lambda: server.cluster_mean(X, jnp.array([1.0, 1.0, -3.0]), LABEL, X),
    "eps=nan is not a number": lambda: server.dbscan(DISTANCE, jnp.nan, 2),
    "eps=-1 is out of its range": lambda: server.dbscan(DISTANCE, -1.0, 2),
    "eps has shape (3,); expected ()": lambda: server.dbscan(DISTANCE, W, 2),
    "min_samples=0 is out of its range": lambda: server.dbscan(DISTANCE, 1.0, 0),
}


@pytest.mark.parametrize("message", NUMBERS)
def test_numbers_out_of_their_range_are_refused(message):
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the message is looked at below
        NUMBERS[message]()
    assert str(error.value).startswith(message)


OF_MATRICES = {
    "davies_bouldin": lambda: server.davies_bouldin(X, LABEL, 2),
    "gaussian_rewards": lambda: server.gaussian_rewards(X, X > 0, DISTANCE > 0),
    "gram": lambda: server.pairwise_cosine(X),
    "kmeans": lambda: server.kmeans(KEY, X, 2),
    "mix": lambda: server.mix(DISTANCE, X),
    "principal_angles": lambda: server.principal_angles(X[..., None]),
    "spectral_labels": lambda: server.spectral_labels(DISTANCE, 2),
}


@pytest.mark.parametrize("name", OF_MATRICES)
def test_products_of_matrices_keep_all_digits_on_an_accelerator(name):
    """Which takes ten bits of each number (TF32) where a product does not say otherwise."""
    text = jax.jit(OF_MATRICES[name]).lower().as_text()
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    assert products
    assert all("HIGHEST" in line for line in products), products


def test_whole_numbers_and_short_floats_are_taken_as_they_are():
    x = jnp.array([[30, 40], [3, 4]])
    assert server.clip_norm(x, 49.0).tolist() == [[29, 39], [3, 4]]
    assert server.clip_norm(x, [5.0, 5.0]).tolist() == [[3, 4], [3, 4]]
    affinity = jnp.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]], jnp.bfloat16)
    a, b, c = server.spectral_labels(affinity, 2).tolist()
    assert a == b != c
    with jax.enable_x64(True):
        int64_x = jnp.array([[-3], [-1], [2]])
        assert int64_x.dtype == jnp.int64
        assert server.coordinate_median(int64_x).tolist() == [-1]
        assert server.trimmed_mean(int64_x, 0.34).tolist() == [-1]


def test_traced_numbers_and_masks_for_weights_pass():
    assert jax.jit(lambda max_norm: server.clip_norm(X, max_norm))(-1.0).shape == X.shape
    assert server.geometric_median(X, jnp.array([True, False, False])).tolist() == X[0].tolist()


def test_whole_numbers_beyond_int32_are_refused():
    dendrogram = np.array([[0, 1, 1.0, 2]])
    for call, message in (
        (lambda: server.cut_k(dendrogram, 2**31), r"^k=2147483648 is beyond int32; choose \|k\| <= 2147483647$"),
        (lambda: server.kmeans(KEY, X, 2**31), "^n_clusters=2147483648 is too large; choose n_clusters <= 2147483647$"),
        (lambda: server.kmeans(KEY, X, 2, n_steps=2**40), "^n_steps=1099511627776 is beyond int32"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_what_is_static_is_a_whole_number_that_is_known():
    message = r"^n_clusters of type .* is not a whole number; choose n_clusters >= 1$"
    with pytest.raises(ValueError, match=message):
        server.spectral_labels(KEY, jnp.ones((30, 30)), 2)
    for call in (server.kmeans, server.robust_kmeans):
        with pytest.raises(ValueError, match=r"^n_clusters=.*Tracer.* is not a whole number; choose n_clusters >= 1"):
            jax.jit(lambda n, call=call: call(KEY, X, n).label)(2)


@pytest.mark.parametrize("measure", [server.adjusted_rand, server.normalized_mutual_info, server.purity, server.churn])
def test_labels_are_no_text(measure):
    names = np.array(["a", "b", "b"])
    with pytest.raises(
        ValueError, match=r"^\w+ has dtype <U1; give numbers, of names np.unique\(..., return_inverse=True"
    ):
        measure(names, names)
    assert measure(*[np.unique(names, return_inverse=True)[1]] * 2) in (0, 1)


OF_LABELS = {
    "separation_gap": lambda names: server.separation_gap(DISTANCE, names),
    "distance_gap": lambda names: server.distance_gap(DISTANCE, names),
    "silhouette": lambda names: server.silhouette(DISTANCE, names),
    "canonical": server.canonical,
    "noise_to_singletons": server.noise_to_singletons,
    "best_bipartition": lambda names: server.best_bipartition(DISTANCE, names),
    "bipartition": lambda names: server.bipartition(DISTANCE, names),
    "split": lambda names: server.split(names, LABEL > 0, True),
    "linkage": lambda names: server.linkage(DISTANCE, "average", within=names),
    "inherit": lambda names: server.inherit(X, names, LABEL),
    "robust_cluster_mean": lambda names: server.robust_cluster_mean(X, names, X),
}


@pytest.mark.parametrize("name", OF_LABELS)
def test_groups_and_clusters_are_no_text(name):
    with pytest.raises(ValueError, match=r"^\w+ has dtype <U1; give numbers, of names np.unique"):
        OF_LABELS[name](np.array(["a", "b", "b"]))


def test_plain_numbers_and_lists_are_taken():
    assert float(server.threshold(2, 0.25)) == 0.5
    assert server.due_layers(4, [1, 3, 2]).tolist() == [True, False, True]


def test_shares_of_numpy_are_taken_without_a_warning():
    share = np.array([[0.5, 0.5], [1.0, 0.0]])  # float64, which JAX would warn of
    np.testing.assert_allclose(server.soft_weights(share, np.array([10, 20])), [[0.2, 0.8], [1, 0]], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_labels_of_fewer_numbers_than_there_are_clusters(dtype):
    x, label, empty = {"fc": {"kernel": X[:, None]}}, np.array([0, 1, 0]), np.zeros((300, 1, 2), np.float32)
    empty = {"fc": {"kernel": empty}}
    narrow = [
        server.layer_discrepancy(x, empty, label.astype(dtype), ("fc",)),
        server.matched_members(x, W, label.astype(dtype), empty, ("fc",))["fc"]["kernel"],
    ]
    np.testing.assert_array_equal(narrow[0], server.layer_discrepancy(x, empty, label, ("fc",)))
    np.testing.assert_array_equal(narrow[1], x["fc"]["kernel"])  # of one layer nothing is hidden


ONE_NUMBER = {
    "fraction": [
        lambda two: server.trimmed_mean(X, two / 10),
        lambda two: server.robust_kmeans(KEY, X, 2, fraction=two / 10),
        lambda two: server.robust_cluster_mean(X, LABEL, X[:1], fraction=two / 10),
    ],
    "n_attackers": [
        lambda two: server.krum(X, two),
        lambda two: server.krum_scores(X, two),
        lambda two: server.bulyan(X, two),
    ],
    "n_selected": [lambda two: server.multi_krum(X, 1, two)],
    "smoothing": [lambda two: server.label_kld(X, two)],
    "floor": [lambda two: server.example_shares(X[:, None], W[:, None], two)],
    "beta": [lambda two: server.row_affinity(DISTANCE, LABEL == 0, two)],
    "n_steps": [
        lambda two: server.geometric_median(X, n_steps=two),
        lambda two: server.kmeans(KEY, X, 2, n_steps=two),
        lambda two: server.robust_kmeans(KEY, X, 2, n_steps=two),
    ],
    "tolerance": [lambda two: server.geometric_median(X, tolerance=two)],
    "height": [lambda two: server.cut(TREE, two)],
    "k": [lambda two: server.cut_k(TREE, two)],
    "level": [lambda two: server.cut_at(TREE, two)],
    "step": [lambda two: server.next_split(TREE, LABEL, 0, two)],
    "shared": [lambda two: server.shared_mask(("a",), two, {"a": X})],
}


@pytest.mark.parametrize("name", ONE_NUMBER)
def test_two_numbers_in_place_of_one_are_refused(name):
    """Of as many numbers as there are columns each column would have its own, without a word."""
    for call in ONE_NUMBER[name]:
        for function in (call, jax.jit(call)):
            with pytest.raises(ValueError, match=rf"^{name} has shape \(2,\); expected \(\), one number for all"):
                function(jnp.array([1.0, 2.0]))


OF_LAYERS = {
    "select_layers": lambda x: server.select_layers(("a",), 1.0, x, x),
    "shared_mask": lambda x: server.shared_mask(("a",), 1.0, x),
    "where_layers": lambda x: server.where_layers(("a",), jnp.ones((3, 1), bool), x, x),
    "mix_layers": lambda x: server.mix_layers({"a": DISTANCE}, x),
    "match": lambda x: server.match(x, x, ("a",)),
    "matrices": lambda x: server.mix_layers([DISTANCE], {"a": x}),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("name", OF_LAYERS)
def test_what_has_no_layers_is_refused(name):
    with pytest.raises(ValueError, match=r"^(a model|stacked|matrices) is .*, not a Mapping; give a dict \{layer: "):
        OF_LAYERS[name](X)
