"""One test set for all clients, such as a data set's test images: how well models do beyond a client's own data."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from fljax.argument_kinds import checked_kinds
from fljax.data.federation import as_arrays
from fljax.data.split import client_data
from fljax.data.validation import validate
from fljax.types import ClientData, Examples, Federation


@checked_kinds
def with_common_test(federation: Federation, examples: Examples, clients: Sequence[int] | None = None) -> Federation:
    """``federation`` whose clients are tested on all of ``examples``, not on test examples of their own.

    `accuracy_macro` is then the mean over clients of the accuracy of the model that a client is tested with. A model
    that several clients hold is tested once, and the clients share one row of `ClientData.index`. Test examples of
    their own are no longer used, unless `fljax.data.common_tests.training_on_tests` adds them to their training before.

    Args:
        federation: the clients and their data; it does not change over the rounds.
        examples: the test set, of the same kind as the training examples; stored once.
        clients: ids of the clients that are tested; None: all.

    Raises:
        ValueError: the examples are of another kind than the training examples, there are none, a client is not one of
            the federation's, or the federation changes over the rounds.
    """
    if federation.stages is not None:
        raise ValueError("the clients of the federation change over the rounds; give one that stays as it is")
    pool, n_clients = as_arrays(examples), federation.train.n_clients
    ids = np.arange(n_clients) if clients is None else np.asarray(clients)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not ids.size or not ((ids >= 0) & (ids < n_clients)).all():
        raise ValueError(f"clients={clients!r} are not ids of clients; give some of 0 to {n_clients - 1}")
    size = np.zeros(n_clients, np.int32)
    size[ids] = len(pool.y)
    index = jnp.arange(len(pool.y), dtype=jnp.int32)[None]
    federation = federation._replace(test=ClientData(pool, index, jnp.asarray(size)))
    validate(federation)
    return federation


def training_on_tests(federation: Federation) -> Federation:
    """``federation`` whose clients train on their own test examples too, for when they are tested on others.

    Raises:
        ValueError: the clients share one test set already, the test examples are in another pool than the training
            examples, or the federation changes over the rounds.
    """
    train, test = federation.train, federation.test
    if federation.stages is not None:
        raise ValueError("the clients of the federation change over the rounds; give one that stays as it is")
    if test.is_common:
        raise ValueError("all clients share one test set; give the federation as it was before with_common_test")
    if train.pool is not test.pool:
        raise ValueError("the clients' test examples are in another pool than their training examples; give one pool")
    tables = [(np.asarray(split.index), np.asarray(split.size)) for split in (train, test)]
    by_client = [[index[i, : size[i]] for index, size in tables] for i in range(train.n_clients)]
    return federation._replace(train=client_data(train.pool, [np.concatenate(rows) for rows in by_client]))
