"""Chunks of clients of one kind each, against a list of each kind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.client.chunks import by_kind
from fljax.client.map import map_clients
from fljax.types import ClientData, Examples


def lists(kind, size, at_once, n_kinds):
    """Of each kind its clients, the largest first, in rows of ``at_once``."""
    rows = []
    for number in range(n_kinds):
        clients = sorted(np.flatnonzero(kind == number), key=lambda i: (-size[i], i))
        rows += [clients[first : first + at_once] for first in range(0, len(clients), at_once)]
    return rows


@pytest.mark.parametrize(("n", "n_kinds", "at_once"), [(1, 2, 2), (7, 3, 2), (9, 2, 5), (12, 4, 3)])
def test_chunks_are_of_one_kind(n, n_kinds, at_once):
    rng, run = np.random.default_rng(n), jax.jit(by_kind, static_argnums=(2, 3))
    for _ in range(30):
        kind, size = (rng.integers(top, size=n, dtype=np.int32) for top in (n_kinds, 4))
        member, place = map(np.asarray, run(kind, size, at_once, n_kinds))
        expected = lists(kind, size, at_once, n_kinds)
        assert [row[row >= 0].tolist() for row in member if row[0] >= 0] == expected
        assert (member.reshape(-1)[place] == np.arange(n)).all()
        assert (member >= 0).sum() == n


@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_each_client_gets_the_branch_of_its_kind_and_one_chunk_computes_one(at_once):
    kind, size = np.array([2, 0, 1, 0, 2, 2, 0], np.int32), np.array([1, 3, 0, 2, 2, 1, 3], np.int32)
    pool = Examples(jnp.arange(21, dtype=jnp.float32)[:, None], jnp.zeros(21, jnp.int32))
    data = ClientData(pool, jnp.arange(21, dtype=jnp.int32).reshape(7, 3), jnp.asarray(size))
    branches = [lambda x: x, lambda x: -x, lambda x: x**2]

    def fn(pool, index, size, offset, kind):
        assert jnp.shape(kind) == ()
        total = jnp.where(jnp.arange(3) < size, pool.x[index, 0], 0.0).sum()
        return jax.lax.switch(kind, branches, total + offset)

    run = jax.jit(lambda *rows: map_clients(fn, data, *rows, at_once=at_once, n_kinds=3))
    offset = jnp.arange(7, dtype=jnp.float32)
    sums = [sum(range(3 * i, 3 * i + size[i])) + i for i in range(7)]
    expected = [[s, -s, s**2][kind[i]] for i, s in enumerate(sums)]
    np.testing.assert_array_equal(run(offset, kind), np.float32(expected))
    # A switch whose index is batched would have become a choice among the results of all branches.
    assert "cond" in str(jax.make_jaxpr(run)(offset, kind))
