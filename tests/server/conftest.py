"""Random problems with the awkward cases in them, and labels in canonical form by plain Python."""

from collections.abc import Callable

import chex
import jax
import numpy as np
import pytest
from hypothesis import settings

# The first example of a property pays for a compilation, and each for calls of many programs.
settings.register_profile("compiled", deadline=None, max_examples=30)
settings.load_profile("compiled")


def _points(rng: np.random.Generator, cases: int, n: int) -> np.ndarray:
    centers = 4 * rng.normal(size=(cases, 3, 2))
    return centers[np.arange(cases)[:, None], rng.integers(0, 3, (cases, n))] + rng.normal(size=(cases, n, 2))


def _distance(points: np.ndarray) -> np.ndarray:
    squared_distance = ((points[:, :, None] - points[:, None]) ** 2).sum(-1)
    return np.sqrt(squared_distance).astype(np.float32)


@pytest.fixture
def distances() -> Callable[..., np.ndarray]:
    """``distances(kind, cases, n, seed=0)``: (cases, n, n) float32, symmetric, zero diagonal."""

    def make(kind: str, cases: int, n: int, seed: int = 0) -> np.ndarray:
        rng = np.random.default_rng(seed)
        if kind == "blobs":
            return _distance(_points(rng, cases, n))
        if kind == "ties":  # points of a small grid: duplicates, and few distinct distances
            return _distance(rng.integers(0, 4, (cases, n, 2)).astype(float))
        if kind == "integers":  # no triangle inequality, exact in float32
            upper = np.triu(rng.integers(0, 5, (cases, n, n)), 1)
            return (upper + upper.transpose(0, 2, 1)).astype(np.float32)
        if kind == "equal":
            return np.broadcast_to(1 - np.eye(n, dtype=np.float32), (cases, n, n)).copy()
        raise ValueError(kind)

    return make


@pytest.fixture
def renumber() -> Callable[..., list[int]]:
    """Labels renumbered by first appearance; negative ones stay -1."""

    def make(label) -> list[int]:
        number: dict[int, int] = {}
        return [number.setdefault(int(x), len(number)) if x >= 0 else -1 for x in label]

    return make


@pytest.fixture
def traced_once() -> Callable[[Callable], Callable]:
    """``traced_once(f)``: f under jit, and an AssertionError the second time that it is traced."""
    chex.clear_trace_counter()  # chex knows a function by its place in the file, so by its first parametrisation
    return lambda f: jax.jit(chex.assert_max_traces(f, n=1))
