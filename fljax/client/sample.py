"""Fresh samples of clients' own examples."""

import jax
import jax.numpy as jnp

from fljax.client.local import shuffled
from fljax.types import ClientData, Key


def fresh_examples(key: Key, data: ClientData, n_examples: int) -> ClientData:
    """``n_examples`` of each client's examples, drawn without replacement; all of them where it has no more.

    Args:
        key: (clients,) a client's draw depends on its own key only.
        data: the clients' rows; the pool is shared, not copied.
        n_examples: >= 1, static.
    """
    index = jax.vmap(shuffled)(key, data.index, data.size)
    return ClientData(data.pool, index[:, :n_examples], jnp.minimum(data.size, n_examples))
