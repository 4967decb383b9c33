"""Who takes part in a round, and who drops out of it."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax.client.map import AtHome, n_client_devices, whole
from fljax.data.federation import select
from fljax.types import Cohort, Federation, Key


def cohort_size(participation: float, n_clients: int) -> int:
    """``max(1, round(participation * n_clients))`` participants a round.

    Raises:
        ValueError: ``participation`` is not in (0, 1].
    """
    if not 0 < participation <= 1:
        raise ValueError(f"participation={participation} is not a share of the clients; choose 0 < participation <= 1")
    return max(1, round(participation * n_clients))


def sample_cohort(key: Key, round: Array, federation: Federation, size: int, dropout: Array | float | None) -> Cohort:
    """``size`` clients, uniform without replacement; each drops out with probability ``dropout``.

    The draw depends on the key and the round alone, so every method sees the same cohorts. At least one participant
    stays active: if all drop out, the first drawn stays. Over several devices the participants are dealt so that each
    device's share is of like size; the order changes no result.
    """
    data = federation.train
    n_clients = data.size.shape[0]
    key_ids, key_dropout, key_clients = jax.random.split(jax.random.fold_in(key, round), 3)
    ids = jnp.arange(n_clients, dtype=jnp.int32)
    if size < n_clients:
        # The least of n uniform numbers, found without sorting them all: a round must not grow with the federation.
        ids = jnp.sort(lax.top_k(-whole(jax.random.uniform(key_ids, ids.shape)), size)[1]).astype(jnp.int32)
    if size < n_clients or not isinstance(data.pool, AtHome):  # else each trains where its examples are
        ids = dealt(ids, data.size[ids], n_client_devices())
    ids = whole(ids)
    keys = jax.vmap(lambda i: jax.random.fold_in(key_clients, i))(ids)
    active = jnp.ones(size, bool)
    if dropout is not None:
        stays = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key_dropout, i)))(ids) >= dropout
        active = stays | (~stays.any() & (ids == ids.min()))
    val = None if federation.val is None else select(federation.val, ids)
    return Cohort(round, ids, select(data, ids), active, federation.public, keys, val)


def dealt(ids: Array, size: Array, n_devices: int) -> Array:
    """``ids`` reordered so that ``n_devices`` equal consecutive shares hold about as many examples each.

    The clients are dealt out by decreasing size, as cards are; the order within a share does not matter.
    """
    if n_devices == 1 or ids.shape[0] % n_devices:
        return ids
    return ids[jnp.argsort(-size, stable=True)].reshape(-1, n_devices).T.reshape(-1)
