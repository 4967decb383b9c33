"""Gradients that a local step is given: they stand in for those of its loss, and outer derivatives pass through."""

import jax
import jax.numpy as jnp
import numpy as np

from fljax.client.discrepancy import RELATIVE_WIDTHS, discrepancy
from fljax.client.freeze import frozen_loss
from fljax.client.given_gradients import with_gradient, without_gradient
from fljax.client.objectives import proximal
from fljax.types import Batch

W, A = jnp.array([1.0, -2.0, 0.5]), jnp.float32(3)


def in_direction(f, at):
    """The derivative of ``f`` () -> array at ``at`` (), in forward mode."""
    return jax.jit(lambda a: jax.jvp(f, (a,), (jnp.ones_like(a),))[1])(at)


def of_step(a, w):
    """A value, something beside it, and a gradient that is not the value's."""
    return with_gradient(lambda w: (a * w.sum(), {"beside": 2 * a}, a**2 * w), w)


def test_a_given_gradient_takes_the_place_of_the_values():
    (value, rest), gradient = jax.jit(jax.value_and_grad(lambda w: of_step(A, w), has_aux=True))(W)
    np.testing.assert_allclose(value, A * W.sum())
    assert rest == {"beside": 6}
    np.testing.assert_allclose(gradient, A**2 * W)
    doubled = jax.jit(jax.grad(lambda w: 2 * of_step(A, w)[0] + w[0]))(W)
    np.testing.assert_allclose(doubled, 2 * A**2 * W + jnp.array([1.0, 0, 0]))


def test_a_given_gradient_gets_the_dtypes_of_the_parameters():
    half = W.astype(jnp.bfloat16)
    gradient = jax.jit(jax.grad(lambda w: with_gradient(lambda w: (jnp.float32(0), None, A / 3 * W), w)[0]))(half)
    assert gradient.dtype == jnp.bfloat16
    np.testing.assert_array_equal(gradient, half)


def test_a_derivative_of_the_step_sees_how_its_gradient_depends_on_a_number():
    step = lambda a: W - 0.1 * jax.grad(lambda w: of_step(a, w)[0])(W)  # noqa: E731
    np.testing.assert_allclose(in_direction(step, A), -0.1 * 2 * A * W, rtol=1e-6)


def test_values_without_gradient_still_depend_on_numbers():
    gradient = lambda a: jax.grad(lambda w: jnp.vdot(without_gradient({"w": a * w})["w"], w))(W)  # noqa: E731
    np.testing.assert_allclose(jax.jit(gradient)(A), A * W)  # of the second factor alone
    np.testing.assert_allclose(in_direction(gradient, A), W)


def test_a_frozen_layer_has_no_gradient_and_outer_derivatives_see_it():
    square = lambda params, batch, key: (jnp.vdot(params["body"], params["head"]) ** 2 / 2, params)  # noqa: E731
    loss = frozen_loss(square, ("body",))

    def gradient(a):
        return jax.grad(lambda params: loss(params, None, None)[0])({"body": a * W, "head": W})

    product = A * W @ W
    found, slope = jax.jit(lambda a: (gradient(a), jax.jvp(gradient, (a,), (jnp.ones_like(a),))[1]))(A)
    np.testing.assert_array_equal(found["body"], 0)
    np.testing.assert_allclose(found["head"], product * A * W, rtol=1e-6)
    np.testing.assert_allclose(slope["head"], 2 * product * W, rtol=1e-6)  # of a^2 (w w) w


def test_relative_widths_have_no_gradient():
    """So the gradient is that with the widths as they are."""
    x, y, weight = np.array([[0.0], [2.0]], np.float32), np.array([[1.0], [4.0]], np.float32), np.ones(2, np.float32)
    found = jax.jit(jax.grad(lambda x: discrepancy(x, y, weight, True)))(x)
    z = np.concatenate([x, y])[:, 0].astype(float)
    widths = np.square(z[:, None] - z).sum() / 12 * np.array(RELATIVE_WIDTHS)

    def of_first(value):
        d = np.square(np.subtract.outer(*[np.r_[value, z[1:]]] * 2))
        return (
            np.array([1, 1, -1, -1])
            / 2
            @ np.exp(-d[None] / widths[:, None, None]).sum(0)
            @ np.array([1, 1, -1, -1])
            / 2
        )

    np.testing.assert_allclose(found[0, 0], (of_first(1e-4) - of_first(-1e-4)) / 2e-4, rtol=1e-4)


def test_the_pull_to_an_anchor_sees_where_the_anchor_moves():
    loss = proximal(lambda params, batch, key, *own: (jnp.square(params["w"]).sum(), params), 0.5)
    batch = Batch(jnp.zeros((1, 1)), jnp.zeros(1, jnp.int32), jnp.ones(1))

    def gradient(a):
        return jax.grad(lambda w: loss({"w": w}, batch, jax.random.key(0), {"w": a * W})[0])(W)

    np.testing.assert_allclose(jax.jit(gradient)(A), 2 * W + 0.5 * (W - A * W))
    np.testing.assert_allclose(in_direction(gradient, A), -0.5 * W)
