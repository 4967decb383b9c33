"""Plain NumPy federated learning in float64: one client, one batch, one layer at a time. Shares no code with fljax.

Only the order of the examples is taken from the library, so that both see the same batches.
"""

from typing import Any

import jax
import numpy as np
from numpy.typing import DTypeLike


def as_float64(params: Any) -> Any:
    """A pytree's leaves as NumPy arrays in float64."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


def rows_of(data: Any, i: int) -> np.ndarray:
    """Rows of the pool that are client ``i``'s in a split of a federation."""
    return np.asarray(data.index)[i, : int(np.asarray(data.size)[i])]


def examples_of(data: Any, i: int, dtype: DTypeLike = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, of type ``dtype``, and labels of client ``i`` in a split of a federation."""
    rows = rows_of(data, i)
    return np.asarray(data.pool.x, dtype)[rows], np.asarray(data.pool.y)[rows]


def forward(params: dict, x: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits of an MLP with ReLU, and every layer's input."""
    inputs, h = [], x.reshape(len(x), -1)
    names = sorted(params)
    for name in names:
        inputs.append(h)
        h = h @ params[name]["kernel"] + params[name]["bias"]
        if name != names[-1]:
            h = np.maximum(h, 0)
    return h, inputs


def training_loss(params: dict, x: np.ndarray, y: np.ndarray) -> float:
    """Mean cross-entropy."""
    return float(losses(params, x, y).mean())


def losses(params: dict, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Cross-entropy of each example."""
    z, _ = forward(params, x)
    z = z - z.max(axis=1, keepdims=True)
    return np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y]


def gradient(params: dict, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None) -> dict:
    """Gradient of the mean cross-entropy, weighted where ``weight`` is given, by hand."""
    z, inputs = forward(params, x)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    delta = p / p.sum(axis=1, keepdims=True)
    delta[np.arange(len(y)), y] -= 1
    delta /= len(y) if weight is None else weight.sum() / weight[:, None]
    result = {}
    for name, h in zip(sorted(params, reverse=True), reversed(inputs), strict=True):
        result[name] = {"kernel": h.T @ delta, "bias": delta.sum(axis=0)}
        delta = (delta @ params[name]["kernel"].T) * (h > 0)
    return result


def combine(f, *trees: dict) -> dict:
    """``f`` leaf by leaf."""
    return {n: {k: f(*(t[n][k] for t in trees)) for k in trees[0][n]} for n in trees[0]}


def local_sgd(
    params: dict, batches: list, lr: float, momentum: float = 0.0, mu: float = 0.0, anchor=None, moving=None
) -> dict:
    """SGD over ``batches`` of (x, y), heavy-ball momentum from 0, with ``mu (w - anchor)`` added to the gradient.

    Only the layers ``moving`` take steps; None: all of them.
    """
    anchor = params if anchor is None else anchor
    buffer = combine(np.zeros_like, params)
    for x, y in batches:
        g = gradient(params, x, y)
        if mu:
            g = combine(lambda a, w, t: a + mu * (w - t), g, params, anchor)
        buffer = combine(lambda b, a: momentum * b + a, buffer, g)
        stepped = combine(lambda w, b: w - lr * b, params, buffer)
        params = {name: stepped[name] if moving is None or name in moving else params[name] for name in params}
    return params


def average(models: list[dict], weights: list[float]) -> dict:
    """Weighted mean of models."""
    total = sum(weights)
    return combine(lambda *leaves: sum(w / total * leaf for w, leaf in zip(weights, leaves, strict=True)), *models)
