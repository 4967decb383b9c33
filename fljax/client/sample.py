"""Random samples of clients' own examples."""

import jax
import jax.numpy as jnp

from fljax.argument_kinds import checked_kinds
from fljax.choices import Positive
from fljax.client.minibatches import shuffled
from fljax.types import ClientData, Key


@checked_kinds
def fresh_examples(key: Key, data: ClientData, n_examples: Positive) -> ClientData:
    """``n_examples`` of each client's examples, drawn without replacement; all of them if a client has fewer.

    Args:
        key: (clients,) keys; a client's sample depends only on its own key.
        data: the clients' rows; the pool is shared, not copied.
        n_examples: >= 1, static.

    Raises:
        ValueError: ``n_examples`` is not positive.
    """
    index = jax.vmap(shuffled)(key, data.index, data.size)
    return ClientData(data.pool, index[:, :n_examples], jnp.minimum(data.size, n_examples))
