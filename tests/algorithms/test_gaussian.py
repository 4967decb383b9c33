"""FedSR and FedCR: Gaussian representations, their divergences and products, and what the methods are without them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.integrate import quad
from scipy.special import log_softmax
from scipy.stats import norm

from fljax import tree
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedcr import aligned, fedcr, product_of_experts
from fljax.algorithms.fedper import fedper
from fljax.algorithms.fedsr import REFERENCES, fedsr, first_references, simple
from fljax.algorithms.fedsr_ft import fedsr_ft
from fljax.client.gaussian import Evidence, Gaussian, class_evidence, divergence, draws
from fljax.data.synthetic import linear_groups
from fljax.models import multi_label, variational
from fljax.types import Batch, Work
from tests.algorithms.round_by_round import jitted, simulate
from tests.algorithms.table import PROBABILISTIC
from tests.oracle import rows_of

ROUNDS = 3
CROSS_ENTROPY = optax.softmax_cross_entropy_with_integer_labels
CERTAIN = variational((4, 4, 1), 4, latent=3, hidden=(6,), channels=(), shift=1e4)
"""The same network whose sigma is exactly 0."""


def final(algorithm, hyper, federation, key):
    return simulate(algorithm, hyper, federation, key, ROUNDS, participation=0.5)[0]


def gaussians(rng, *shape):
    mu, sigma = rng.normal(size=shape), rng.uniform(0.2, 2.0, size=shape)
    return Gaussian(jnp.asarray(mu, jnp.float32), jnp.asarray(sigma, jnp.float32))


@pytest.mark.slow
def test_the_divergence_equals_quadrature():
    rng = np.random.default_rng(0)
    p, q = gaussians(rng, 20, 5), gaussians(rng, 20, 5)

    def by_quadrature(mu, sigma, other_mu, other_sigma):
        p_dimension, q_dimension = norm(mu, sigma), norm(other_mu, other_sigma)
        integrand = lambda t: p_dimension.pdf(t) * (p_dimension.logpdf(t) - q_dimension.logpdf(t))  # noqa: E731
        return quad(integrand, mu - 12 * sigma, mu + 12 * sigma)[0]

    divergences = np.vectorize(by_quadrature)(*(np.asarray(leaf, np.float64) for leaf in (*p, *q)))
    np.testing.assert_allclose(divergence(p, q), divergences.sum(axis=1), rtol=1e-5)
    assert (divergence(p, q) > 0).all()
    np.testing.assert_allclose(divergence(p, p), 0, atol=1e-6)


def test_fedsr_without_terms_and_noise_is_fedavg(key, work, federation):
    actual = final(fedsr(CERTAIN, work), fedsr.Hyper(lr=0.1, l2r=0.0, cmi=0.0), federation, key).server
    expected = final(fedavg(CERTAIN, work), fedavg.Hyper(lr=0.1), federation, key).server
    chex.assert_trees_all_close(tree.select(actual, CERTAIN.layers), expected, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(actual[REFERENCES], first_references(CERTAIN), rtol=1e-6)


@pytest.mark.slow
def test_fedsr_learns_by_the_models_own_loss(key, work, federation):
    with_own_loss = CERTAIN._replace(loss=lambda logits, y: 3 * CROSS_ENTROPY(logits, y))
    actual = final(fedsr(with_own_loss, work), fedsr.Hyper(lr=0.1, l2r=0.0, cmi=0.0), federation, key).server
    expected = final(fedavg(with_own_loss, work), fedavg.Hyper(lr=0.1), federation, key).server
    chex.assert_trees_all_close(tree.select(actual, with_own_loss.layers), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", [fedsr, fedsr_ft, fedcr])
def test_gaussians_of_classes_need_classes(work, method):
    with pytest.raises(ValueError, match=f"^{method.name} needs a model with a Gaussian representation"):
        method(CERTAIN._replace(halves=None), work)
    with pytest.raises(ValueError, match=f"^{method.name} has a Gaussian for each class, but the model's loss is of"):
        method(multi_label(CERTAIN), work)


def numpy_fedsr(w, x, labels, eps, l2r, cmi):
    """``CE + l2r mean |z| + cmi mean KL(scaled representation | the class's reference)`` in float64."""
    softplus = lambda t: np.logaddexp(0, t)  # noqa: E731
    h = np.maximum(x.reshape(len(x), -1) @ w["fc1"]["kernel"] + w["fc1"]["bias"], 0)
    mu, rho = np.split(h @ w["fc2"]["kernel"] + w["fc2"]["bias"], 2, axis=1)
    references, sigma = w[REFERENCES], softplus(rho)
    z = mu + sigma * eps
    log_p = log_softmax(z @ w["fc3"]["kernel"] + w["fc3"]["bias"], axis=1)
    mean, spread = references["scale"] * mu, np.abs(references["scale"]) * sigma
    reference, reference_sigma = references["mu"][labels], softplus(references["rho"])[labels]
    kl = np.log(reference_sigma / spread) + (spread**2 + (mean - reference) ** 2) / (2 * reference_sigma**2) - 0.5
    cross_entropy = -log_p[np.arange(len(x)), labels].mean()
    return cross_entropy + l2r * np.linalg.norm(z, axis=1).mean() + cmi * kl.sum(axis=1).mean()


@pytest.mark.slow
def test_a_scale_below_0_is_that_above_it_of_references_on_the_other_side(key):
    x, y, ones = jax.random.normal(key, (9, 4, 4, 1)), jnp.arange(9) % 4, jnp.ones(9)
    references = first_references(PROBABILISTIC) | {"mu": jax.random.normal(key, (4, 3)), "scale": jnp.float32(0.7)}
    negated = references | {"mu": -references["mu"], "scale": -references["scale"]}
    loss = jax.jit(
        lambda params: simple(PROBABILISTIC, fedsr.Hyper(l2r=0.3, cmi=0.7))(params, Batch(x, y, ones), key)[0]
    )
    params = PROBABILISTIC.init(key)
    value, value_of_negated = (
        loss(params | {REFERENCES: some_references}) for some_references in (references, negated)
    )
    np.testing.assert_allclose(value, value_of_negated, rtol=1e-6)
    assert value != loss(params | {REFERENCES: references | {"scale": negated["scale"]}})


@pytest.mark.slow
def test_the_objective_of_fedsr_equals_numpy_and_its_differences(key):
    model, hyper = PROBABILISTIC, fedsr.Hyper(lr=0.1, l2r=0.3, cmi=0.7)
    rng = np.random.default_rng(1)
    params = model.init(key) | {REFERENCES: first_references(model)}
    params = jax.tree.map(lambda leaf: leaf + jnp.asarray(0.3 * rng.normal(size=leaf.shape), jnp.float32), params)
    x, y = rng.normal(size=(9, 4, 4, 1)).astype(np.float32), rng.integers(0, 4, 9).astype(np.int32)
    weight = np.array([1] * 7 + [0] * 2, np.float32)
    loss = jax.value_and_grad(lambda p: simple(model, hyper)(p, Batch(*map(jnp.asarray, (x, y, weight))), key)[0])
    value, gradient = jax.jit(loss)(params)

    eps = np.asarray(draws(key, Gaussian(jnp.zeros((9, 3)), jnp.ones((9, 3))), 1)[0], np.float64)[:7]
    leaves, structure = jax.tree.flatten(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params))
    numbers, ends = np.concatenate([leaf.ravel() for leaf in leaves]), np.cumsum([leaf.size for leaf in leaves])[:-1]

    def objective(numbers):
        flat_leaves = zip(np.split(numbers, ends), leaves, strict=True)
        w = structure.unflatten([flat_leaf.reshape(leaf.shape) for flat_leaf, leaf in flat_leaves])
        return numpy_fedsr(w, x[:7].astype(np.float64), y[:7], eps, 0.3, 0.7)

    np.testing.assert_allclose(value, objective(numbers), rtol=1e-5)
    steps = 1e-5 * np.eye(len(numbers))
    expected = [(objective(numbers + step) - objective(numbers - step)) / 2e-5 for step in steps]
    actual = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient)])
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_fedsr_ft_moves_the_layers_it_is_told_to(key, work, federation):
    averaged = fedsr(PROBABILISTIC, work, weighting="size")
    assert fedsr_ft(PROBABILISTIC, work, ft_epochs=0)._replace(about=averaged.about) == averaged
    algorithm, hyper = fedsr_ft(PROBABILISTIC, work, ft_epochs=2, n_tuned=2), fedsr_ft.Hyper(lr=0.1)
    state = jitted(algorithm.init)(key, hyper, federation.train)
    deployed = jitted(algorithm.deploy)(key, hyper, state, federation.train).params
    changed_layers = {n for n in deployed if not np.array_equal(deployed[n]["kernel"][0], state.server[n]["kernel"])}
    assert (set(deployed), changed_layers) == ({"fc1", "fc2", "fc3"}, {"fc2", "fc3"})


def test_the_objective_of_fedcr_equals_numpy(key):
    """Cross-entropy over draws, and how far the representation is from its class's Gaussian, in this direction."""
    rng, params, beta = np.random.default_rng(2), PROBABILISTIC.init(key), 0.7
    x, y = rng.normal(size=(9, 4, 4, 1)).astype(np.float32), rng.integers(0, 4, 9).astype(np.int32)
    class_gaussians, weight = gaussians(rng, 4, 3), np.array([1] * 7 + [0] * 2, np.float32)
    loss, batch = aligned(PROBABILISTIC, beta, 5), Batch(*map(jnp.asarray, (x, y, weight)))
    value, _ = jax.jit(loss)(params, batch, key, class_gaussians)

    representation = Gaussian(*jax.jit(PROBABILISTIC.halves.encode)(params, x))
    mu, sigma = (np.asarray(leaf, np.float64) for leaf in representation)
    z = np.asarray(jax.jit(draws, static_argnums=2)(key, representation, 5), np.float64)
    head = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["fc3"])
    cross_entropy = -log_softmax(z @ head["kernel"] + head["bias"], axis=-1)[:, np.arange(9), y].mean(axis=0)
    center, class_sigma = (np.asarray(leaf, np.float64)[y] for leaf in class_gaussians)
    kl = np.log(sigma / class_sigma) + (class_sigma**2 + (center - mu) ** 2) / (2 * sigma**2) - 0.5
    np.testing.assert_allclose(value, (cross_entropy + beta * kl.sum(axis=1))[:7].mean(), rtol=1e-5)


@pytest.mark.slow
def test_fedcr_without_divergence_and_noise_is_fedper(key, work, federation):
    hyper = fedcr.Hyper(lr=0.1, beta=0.0, max_norm=None)
    actual = final(fedcr(CERTAIN, work, n_draws=1), hyper, federation, key)
    expected = final(fedper(CERTAIN, work, weighting="uniform"), fedper.Hyper(lr=0.1), federation, key)
    chex.assert_trees_all_close(
        (actual.server.base, actual.clients), (expected.server, expected.clients), rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
def test_evidence_equals_a_loop_over_examples(key, federation):
    models = jax.vmap(PROBABILISTIC.init)(jax.random.split(key, 8))
    evidence = class_evidence(PROBABILISTIC, models, federation.train, 4)
    data = federation.train
    for i in (0, 5):
        rows = rows_of(data, i)
        z = PROBABILISTIC.halves.encode(tree.take(models, i), data.pool.x[rows])
        mu, precision = (np.asarray(v, np.float64) for v in (z[0], 1 / np.square(z[1])))
        for c in range(4):
            is_of_class = np.asarray(data.pool.y)[rows] == c
            np.testing.assert_allclose(evidence.precision[i, c], precision[is_of_class].sum(axis=0), rtol=1e-5)
            weighted_mean = (mu * precision)[is_of_class].sum(axis=0)
            np.testing.assert_allclose(
                evidence.weighted[i, c], weighted_mean, rtol=1e-4, atol=1e-5
            )  # sums of both signs


def test_products_of_experts_by_hand():
    # One client has N(3, 1/2^2) for class 0, another N(1, 1) for classes 0 and 1, the third does not count.
    precision = jnp.array([[4.0, 0.0, 0.0], [1.0, 1.0, 0.0], [jnp.nan, 1.0, 1.0]])[..., None]
    mean = jnp.array([[3.0, 0.0, 0.0], [1.0, 1.0, 0.0], [jnp.nan, 5.0, 5.0]])[..., None]
    old, is_counted = Gaussian(jnp.full((3, 1), 7.0), jnp.full((3, 1), 0.5)), jnp.array([True, True, False])
    full_step = product_of_experts(Evidence(precision, precision * mean), is_counted, old, 1.0)
    # Class 0: 1 + 4 + 1 = 6 and (12 + 1) / 6; class 1: 1 + 1 = 2 and 1 / 2; class 2 stays.
    np.testing.assert_allclose(full_step.mu[:, 0], [13 / 6, 0.5, 7.0], rtol=1e-6)
    np.testing.assert_allclose(full_step.sigma[:, 0], [6**-0.5, 2**-0.5, 0.5], rtol=1e-6)
    half_step = product_of_experts(Evidence(precision, precision * mean), is_counted, old, 0.5)
    np.testing.assert_allclose(half_step.mu[:, 0], [(13 / 6 + 7) / 2, 3.75, 7.0], rtol=1e-6)


@pytest.mark.slow
def test_a_client_of_fedcr_sends_the_classes_that_it_has(key, work):
    federation = linear_groups(6, 2, examples=24)
    is_kept = np.asarray(federation.train.pool.y)[np.asarray(federation.train.index[0])] < 2
    rows = np.asarray(federation.train.index[0])[is_kept]
    index = federation.train.index.at[0, : len(rows)].set(rows)
    two_classes_at_first = federation._replace(
        train=federation.train._replace(index=index, size=federation.train.size.at[0].set(len(rows)))
    )
    metrics = simulate(fedcr(PROBABILISTIC, work), fedcr.Hyper(lr=0.1), two_classes_at_first, key, 1)[1]
    base = 102 + 42
    uplink = {int(i): float(floats) for i, floats in zip(metrics["ids"][0], metrics["uplink"][0], strict=True)}
    assert uplink == {0: base + 2 * 3 * 2} | {i: base + 2 * 3 * 4 for i in range(1, 6)}


@pytest.mark.slow
def test_personal_heads_on_common_representations_beat_one_model(key):
    federation, work = linear_groups(8, 2, examples=60), Work(2, 8)
    personal = simulate(fedcr(PROBABILISTIC, work, n_draws=4), fedcr.Hyper(lr=0.2), federation, key, 10)[1]
    common = simulate(fedsr(PROBABILISTIC, work), fedsr.Hyper(lr=0.2), federation, key, 10)[1]
    assert personal["accuracy_macro"][-1] > common["accuracy_macro"][-1] + 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, w: fedsr(m, w), "fedsr needs a model with a Gaussian representation"),
        (lambda m, w: fedcr(m, w), "fedcr needs a model with a Gaussian representation"),
        (lambda m, w: fedcr(PROBABILISTIC, w, n_draws=0), "n_draws=0"),
        (lambda m, w: fedsr_ft(PROBABILISTIC, w, n_tuned=4), "n_tuned=4"),
    ],
)
def test_what_cannot_be_is_refused(model, work, make, message):
    with pytest.raises(ValueError, match=message):
        make(model, work)
