"""What is run alone to explain a round: the machine's own limits, and the parts of a round. All on every core."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array, lax
from needs import Layer, layers_of, n_losses, n_parameters
from peers.fljax_peer import model_of
from peers.work import Workload
from timing import Run

from fljax.client import cross_loss
from fljax.client.local import _is_narrow
from fljax.devices.mesh import over_devices
from fljax.models.blocks import Conv, ConvReluPool
from fljax.types import ClientData, Federation

SIDE = 2048  # of the square matrices
LARGE = 2**25  # floats of an array that no cache holds
SMALL = 2**16  # floats of the smallest array that is copied: below it the loop around costs as much


class Alone(NamedTuple):
    """Something that is run alone."""

    run: Run
    times: float  # that one call does it, on all devices together
    work: float = 0.0  # in it each time: FLOPs that are needed, or bytes read and written


def products() -> dict[str, Alone]:
    """A product of two large matrices on all cores, in three ways."""
    square = np.random.default_rng(0).standard_normal((SIDE, SIDE), np.float32)
    product, on_one, flops = jax.jit(jnp.dot), jnp.asarray(square), 2.0 * SIDE**3
    return {
        "numpy": Alone(lambda: square @ square, 1, flops),
        "xla": Alone(lambda: product(on_one, on_one), 1, flops),
        "devices": Alone(_on_all(product, square, square), jax.device_count(), flops),
    }


@cache
def copies() -> dict[str, Alone]:
    """A copy of an array that no cache holds, in two ways."""
    source, n_bytes = np.ones(LARGE, np.float32), 8.0 * LARGE
    target = np.empty_like(source)
    numpy = Alone(lambda: np.copyto(target, source), 1, n_bytes)
    return {"numpy copy": numpy, "devices copy": Alone(_passes(LARGE, 1), jax.device_count(), n_bytes)}


def cached_copies(workload: Workload) -> dict[str, Alone]:
    """An array as large as the model, read and written on each core."""
    n = max(n_parameters(workload), SMALL)
    return {"cached copy": Alone(_passes(n, _times(n)), jax.device_count() * _times(n), 8.0 * n)}


def parts_of(workload: Workload, federation: Federation) -> dict[str, Alone]:
    """One step's layers and update, and one round's losses where the method takes any."""
    n, n_devices = n_parameters(workload), jax.device_count()
    update = _pulled_updates(n, _times(n) // 2) if workload.method == "ditto" else _updates(n, _times(n))
    parts = {"update": Alone(update, n_devices * _times(n))}
    for place, layer in enumerate(layers_of(workload), start=1):
        flops = layer.training * workload.batch
        times = int(np.clip(2e9 / flops, 4, 1000))
        parts[f"layer {place} ({layer.name})"] = Alone(_layer(layer, workload.batch, times), n_devices * times, flops)
    if n_losses(workload):
        forward = sum(layer.forward for layer in layers_of(workload)) * workload.cohort * workload.samples
        parts["losses"] = Alone(_losses(workload, federation), 1, n_losses(workload) * forward)
    return parts


def _times(n_floats: int) -> int:
    """Passes over so many floats that take some tens of milliseconds."""
    return max(10**8 // n_floats, 4)


def _on_all(fn: Callable, *operands: Any) -> Run:
    """``fn`` of the same operands on every device at once."""
    placed = [jax.device_put(operands, device) for device in jax.devices()]
    return lambda: [fn(*arguments) for arguments in placed]


@cache
def _passes(n_floats: int, times: int) -> Run:
    """Reads and writes an array of so many floats in place, so many times."""
    add = jax.jit(lambda p: lax.fori_loop(0, times, lambda _, p: p + 1.0, p), donate_argnums=0)
    arrays = [jax.device_put(jnp.zeros(n_floats), device) for device in jax.devices()]

    def run() -> list[Array]:
        arrays[:] = [add(p) for p in arrays]
        return arrays

    return run


@cache
def _updates(n_floats: int, times: int) -> Run:
    update = jax.jit(lambda p, g: lax.fori_loop(0, times, lambda _, p: p - 1e-3 * g, p))
    return _on_all(update, jnp.ones(n_floats), jnp.ones(n_floats))


@cache
def _pulled_updates(n_floats: int, times: int) -> Run:
    """Of Ditto's two models: one as ever, one towards a third, with the distance to it."""

    @jax.jit
    def updates(p: Array, v: Array, g: Array, anchor: Array) -> Any:
        def both(_: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            p, v, distance = carry
            away = v - anchor
            return p - 1e-3 * g, v - 1e-3 * (g + away), distance + (away**2).sum()

        return lax.fori_loop(0, times, both, (p, v, jnp.float32(0)))

    return _on_all(updates, *jnp.ones((4, n_floats)))


@cache
def _layer(layer: Layer, batch: int, times: int) -> Run:
    """A layer with its pool and dropout, and back."""
    keys, channels = jax.random.split(jax.random.key(0), 2), layer.kernel[-2]
    shape = (layer.side, layer.side, channels) if len(layer.kernel) == 4 else (channels,)
    xs = jax.random.normal(keys[0], (2, batch, *shape))
    forward, params = _as_trained(layer, xs[0])

    def apply(params: Any, x: Array, i: Array | int = 0) -> Array:
        if not layer.dropout:
            return forward(params, x)
        rngs = {"dropout": jax.random.fold_in(keys[0], i)}
        dropout = nn.Dropout(layer.dropout, deterministic=False)
        return cast(Array, dropout.apply({}, forward(params, x), rngs=rngs))

    gs = jax.random.normal(keys[1], (2, *jax.eval_shape(apply, params, xs[0]).shape))

    def there_and_back(params: Any, x: Array, g: Array, i: Array | int = 0) -> Any:
        if layer.first:
            out, back = jax.vjp(lambda params: apply(params, x, i), params)
        else:
            out, back = jax.vjp(lambda params, x: apply(params, x, i), params, x)
        return out, back(g)

    @jax.jit
    def passes(params: Any, xs: Array, gs: Array) -> Any:
        shapes = jax.eval_shape(there_and_back, params, xs[0], gs[0])
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)
        # Two batches in turn, or the compiler would see that nothing has to be done again.
        return lax.fori_loop(0, times, lambda i, _: there_and_back(params, xs[i % 2], gs[i % 2], i), nothing)

    return _on_all(passes, params, xs, gs)


def _as_trained(layer: Layer, x: Array) -> tuple[Callable[[Any, Array], Array], Any]:
    """(``apply(params, x)``, params) of a layer as local training has it: a narrow kernel is turned."""
    if len(layer.kernel) == 2:
        kernel, bias = jnp.ones(layer.kernel) / layer.kernel[0], jnp.zeros(layer.kernel[1])
        if _is_narrow(kernel):
            return lambda p, x: x @ p[0].T + p[1], (kernel.T, bias)
        return lambda p, x: x @ p[0] + p[1], (kernel, bias)
    make, size = (ConvReluPool if layer.pool else Conv), (layer.kernel[0], layer.kernel[1])
    module = make(layer.kernel[3], size, padding=layer.padding)
    after = (lambda y: y) if layer.pool else nn.relu
    return lambda p, x: after(cast(Array, module.apply(p, x))), module.init(jax.random.key(0), x)


def _losses(workload: Workload, federation: Federation) -> Run:
    """IFCA's, of the first clients as a cohort."""
    model, data = model_of(workload), federation.train
    cohort = ClientData(data.pool, data.index[: workload.cohort], data.size[: workload.cohort])
    centers = jax.vmap(model.init)(jax.random.split(jax.random.key(0), workload.n_models))
    losses = jax.jit(partial(cross_loss, model))

    def run() -> Array:
        with over_devices():
            return losses(centers, cohort)

    return run


def bare_loop(workload: Workload, federation: Federation, n_rounds: int) -> Run:
    """Rounds of logistic regression of nothing but gather, products and update, each core with its share of a cohort.

    Whose batches are drawn when, the bias, the loss and the mean are left out.
    """
    w, data = workload, federation.train
    share = -(-w.cohort // jax.device_count())

    def step(kernel: Array, x: Array, y: Array) -> Array:
        images = x.reshape(w.batch, -1)
        error = jax.nn.softmax(images @ kernel.T) - jax.nn.one_hot(y, w.n_classes)
        return kernel - w.lr / w.batch * (error.T @ images)

    @jax.jit
    def rounds(x: Array, y: Array, rows: Array) -> Array:
        def client(start: Array, rows: Array) -> Array:
            return lax.fori_loop(0, rows.shape[0], lambda i, kernel: step(kernel, x[rows[i]], y[rows[i]]), start)

        def one_round(_: Array, start: Array) -> Array:
            return lax.map(partial(client, start), rows)[-1]

        return lax.fori_loop(0, n_rounds, one_round, jnp.zeros((w.n_classes, x[0].size)))

    rows = data.index[:share].reshape(share, -1, w.batch)
    return _on_all(rounds, *jax.device_get((data.pool.x, data.pool.y, rows)))
