"""Data augmentation against brute force: every version of an image that there may be, and how often it comes."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

import fljax
from fljax.client.augment import augmented, crop, cutout, flip
from fljax.data.synthetic import linear_groups
from fljax.models import logistic_regression, mlp, normalized
from fljax.types import Batch, Work
from tests.algorithms.round_by_round import simulate
from tests.slow import slow

WORK = Work(epochs=1, batch_size=8)
N_DRAWN = 3000


@pytest.fixture(scope="module")
def image():
    return np.random.default_rng(0).uniform(0.1, 1, (4, 5, 2)).astype(np.float32)


def versions(augment, image, **numbers):
    """Many versions of an image by one jitted program, whose numbers are traced."""

    def draw(keys, numbers):
        hyper = SimpleNamespace(**numbers)
        return jax.vmap(lambda key: augment(key, jnp.asarray(image), hyper))(keys)

    return np.asarray(jax.jit(draw)(jax.random.split(jax.random.key(1), N_DRAWN), numbers))


def counts_of_images(images, expected):
    """How many of ``images`` equal each of ``expected``; each must equal one."""
    is_equal = (images[:, None] == np.stack(expected)).all(axis=(2, 3, 4))
    assert (is_equal.sum(axis=1) >= 1).all()
    return is_equal.sum(axis=0)


def test_a_flip_mirrors_left_to_right(image):
    n_kept, n_mirrored = counts_of_images(versions(flip, image, flip_rate=0.3), [image, np.fliplr(image)])
    assert n_kept + n_mirrored == N_DRAWN
    assert chisquare([n_kept, n_mirrored], [0.7 * N_DRAWN, 0.3 * N_DRAWN]).pvalue > 1e-3
    np.testing.assert_array_equal(versions(flip, image, flip_rate=0.0), np.broadcast_to(image, (N_DRAWN, 4, 5, 2)))


@pytest.mark.parametrize("padding", [0, 1, 2])
def test_a_crop_is_any_window_of_the_padded_image(image, padding):
    padded_image = np.pad(image, [(padding, padding)] * 2 + [(0, 0)])
    windows = [
        padded_image[row : row + 4, column : column + 5]
        for row in range(2 * padding + 1)
        for column in range(2 * padding + 1)
    ]
    n_found = counts_of_images(versions(crop, image, crop_padding=abs(padding - 0.4)), windows)  # it is rounded
    assert n_found.sum() == N_DRAWN
    assert len(n_found) == 1 or chisquare(n_found).pvalue > 1e-3


@pytest.mark.parametrize(("size", "width"), [(0, 5), (1, 5), (2, 5), (3, 5), (20, 5), (1, 4)])
def test_a_cutout_is_a_square_around_any_pixel(image, size, width):
    image, images_with_holes = image[:, :width], []
    for row in range(4):
        for column in range(width):
            first_corner = [max(row - size // 2, 0), max(column - size // 2, 0)]
            last_corner = [max(row - size // 2 + size, 0), max(column - size // 2 + size, 0)]
            images_with_holes.append(image.copy())
            images_with_holes[-1][first_corner[0] : last_corner[0], first_corner[1] : last_corner[1]] = 0
    cut_images = versions(cutout, image, cutout_size=float(size))
    different_images = np.unique(
        np.stack(images_with_holes), axis=0
    )  # near the border of a small image two holes may be the same
    n_equal = [
        (np.stack(images_with_holes) == different_image).all(axis=(1, 2, 3)).sum()
        for different_image in different_images
    ]
    n_found = counts_of_images(cut_images, list(different_images))
    assert (
        len(different_images) == 1
        or chisquare(n_found, N_DRAWN * np.array(n_equal) / len(images_with_holes)).pvalue > 1e-3
    )


def test_an_image_of_whole_numbers_stays_one(image):
    uint8_image = (255 * image).astype(np.uint8)
    for augment, numbers in (
        (flip, {"flip_rate": 0.5}),
        (crop, {"crop_padding": 1}),
        (cutout, {"cutout_size": 2}),
    ):
        assert versions(augment, uint8_image, **numbers).dtype == np.uint8


def test_each_example_of_a_batch_has_a_version_of_its_own_and_a_loss_sees_one(key, image):
    calls = []

    def loss(params, batch, key, *state):
        calls.append((batch.x, key, state))
        return jnp.float32(0), params

    batch = Batch(jnp.stack([jnp.asarray(image)] * 64), jnp.zeros(64, jnp.int32), jnp.ones(64))
    term = augmented(flip)(loss, SimpleNamespace(flip_rate=0.5))
    for step in range(2):
        term({}, batch, jax.random.fold_in(key, step), "start", "teacher")
    (x_first, key_first, state), (x_second, key_second, _) = calls
    assert state == ("teacher",)
    is_mirrored = np.stack([(np.asarray(x) == np.fliplr(image)).all(axis=(1, 2, 3)) for x in (x_first, x_second)])
    assert 10 < is_mirrored[0].sum() < 54
    assert (is_mirrored[0] != is_mirrored[1]).any()
    assert (jax.random.key_data(key_first) != jax.random.key_data(key_second)).any()
    assert (jax.random.key_data(key_first) != jax.random.key_data(jax.random.fold_in(key, 0))).any()


@pytest.fixture(scope="module")
def model_and_federation():
    return logistic_regression((4, 4, 1), 4), linear_groups(4, 2, examples=10)


def run(name_or_method, model_and_federation, numbers, simulate=fljax.simulate):
    method = fljax.compose(name_or_method) if isinstance(name_or_method, str) else name_or_method
    hyper = method.Hyper(lr=0.1, **numbers)
    return simulate(method(model_and_federation[0], WORK), hyper, model_and_federation[1], jax.random.key(0), 2)


def train(*arguments):
    """The state of a run and what its rounds tell; nobody is tested."""
    state, metrics = run(*arguments, simulate)
    return state, dict(metrics)


@pytest.mark.slow
def test_augmentation_without_effect_is_the_method_itself(model_and_federation):
    """The network draws nothing, so that a flip with probability 0 and a crop without a border leave training alone."""
    without_augmentation = train("fedavg", model_and_federation, {})
    without_effect = train(
        "fedavg+flip+crop+cutout", model_and_federation, {"flip_rate": 0.0, "crop_padding": 0, "cutout_size": 0}
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), without_augmentation, without_effect)
    with_flips = train("fedavg+flip", model_and_federation, {"flip_rate": 1.0})
    assert not np.allclose(
        jax.tree.leaves(without_augmentation[0].server)[0], jax.tree.leaves(with_flips[0].server)[0], atol=1e-3
    )


def test_a_flip_rate_of_one_trains_on_mirrored_images_and_tests_on_the_originals(model_and_federation):
    _, federation = model_and_federation
    pool = federation.train.pool
    mirrored_federation = federation._replace(train=federation.train._replace(pool=pool._replace(x=pool.x[:, :, ::-1])))
    actual = run("fedavg+flip", model_and_federation, {"flip_rate": 1.0})
    expected = run("fedavg", (model_and_federation[0], mirrored_federation), {})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), actual, expected)


@pytest.mark.slow
def test_all_that_a_loss_makes_of_an_example_is_made_of_one_version(model_and_federation):
    """FedNTD's teacher answers to the image that its student sees."""
    _, federation = model_and_federation
    pool = federation.train.pool
    mirrored_federation = federation._replace(train=federation.train._replace(pool=pool._replace(x=pool.x[:, :, ::-1])))
    actual = train("fedntd+flip", model_and_federation, {"flip_rate": 1.0})
    expected = train("fedntd", (model_and_federation[0], mirrored_federation), {})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), actual, expected)


@pytest.mark.parametrize("order", slow("fedavg+sam+flip", "fedavg+dp_sgd+flip", "fedavg+flip+dp_sgd", "ifca+flip+prox"))
def test_other_terms_see_changed_examples_whatever_the_order(model_and_federation, order):
    _, federation = model_and_federation
    pool = federation.train.pool
    mirrored_federation = federation._replace(train=federation.train._replace(pool=pool._replace(x=pool.x[:, :, ::-1])))
    numbers = {"example_noise": 0.0} if "dp_sgd" in order else {}
    method, other_bricks = order.split("+")[0], [brick for brick in order.split("+")[1:] if brick != "flip"]
    actual = train(order, model_and_federation, {"flip_rate": 1.0, **numbers})
    if method == "ifca":  # which chooses clusters by the examples as they are
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(actual[1]) if leaf.dtype == jnp.float32)
    else:
        expected = train("+".join([method, *other_bricks]), (model_and_federation[0], mirrored_federation), numbers)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), actual, expected)


@pytest.mark.slow
def test_black_is_added_before_pixels_are_scaled(key, image):
    inputs = []
    model = mlp((4, 5, 2), (), 2)
    recording_model = model._replace(apply=lambda params, x, key: (inputs.append(x), model.apply(params, x, key))[1])
    loss = fljax.client.training_loss(normalized(recording_model, "centred"))
    batch = Batch(jnp.asarray(image)[None], jnp.zeros(1, jnp.int32), jnp.ones(1))
    augmented(cutout)(loss, SimpleNamespace(cutout_size=20))(model.init(key), batch, key, None)
    np.testing.assert_array_equal(inputs[0], np.full((1, 4, 5, 2), -1, np.float32))


@pytest.mark.slow
def test_a_change_of_ones_own(model_and_federation):
    def brighter(key, x, hyper):
        return x * jax.random.uniform(key, (), minval=0.5, maxval=1.5)

    method = fljax.fedavg + fljax.rounds.Brick("brighter", "augment", brighter, "images are brighter or darker")
    without_change, with_change = train("fedavg", model_and_federation, {}), train(method, model_and_federation, {})
    assert not np.allclose(
        jax.tree.leaves(without_change[0].server)[0], jax.tree.leaves(with_change[0].server)[0], atol=1e-4
    )
    for wrong_augment, message in (
        (lambda key, x, hyper: x[1:], r"returned an example of shape \(3, 4, 1\) and type float32; return \(4, 4, 1\)"),
        (lambda key, x, hyper: x > 0, r"and type bool; return \(4, 4, 1\) and float32, those of its input"),
    ):
        with pytest.raises(ValueError, match=message):
            run(fljax.fedavg + fljax.rounds.Brick("wrong", "augment", wrong_augment, "-"), model_and_federation, {})


def test_what_has_no_rows_of_pixels_or_no_training_is_refused(model_and_federation):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 6)).astype(np.float32), rng.integers(4, size=40)
    table = fljax.federation_from_arrays(x, y, np.repeat(np.arange(4), 10))
    for brick in ("flip", "crop", "cutout"):
        with pytest.raises(ValueError, match=rf"^{brick} needs images.* but the examples are \(6,\)"):
            run(f"fedavg+{brick}", (mlp((6,), (), 4), table), {})
    with pytest.raises(ValueError, match="has no slot 'augment' for flip"):
        fljax.compose("fedsgd+flip")
    with pytest.raises(ValueError, match=r"flip_rate=1.5 is out of its range; choose flip_rate in \[0, 1\]"):
        run("fedavg+flip", model_and_federation, {"flip_rate": 1.5})
