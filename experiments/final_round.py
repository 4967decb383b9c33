"""The last round of FedCR's code, in which every client takes part before it is tested, for methods that have none.

In that code (github.com/haozzh/FedCR, ``main_fed.py``) all clients receive the shared layers once more and train their
own ones for ten epochs while the shared ones stand still; FedAvg's clients so train the last layer, which is its "FT"
line. Ditto (``main_fed_ditto.py``) has one more whole round of everyone instead. Gradients are clipped to the norm 10.
"""

from functools import cache

import jax.numpy as jnp
import optax

from fljax import tree
from fljax.client import proximal, train_clients, training_loss
from fljax.client.finetune import client_keys, fine_tune
from fljax.client.freeze import frozen_loss
from fljax.types import Algorithm, Model, ModelTable, Work

EPOCHS = 10
MAX_NORM = 10.0


@cache
def with_own_layers_trained(algorithm: Algorithm, model: Model, work: Work, lr: float, own: tuple[str, ...]):
    """The method, whose deployed models are trained in the layers ``own`` for `EPOCHS` epochs before a test.

    Args:
        algorithm: deploys plain models of ``model``.
        model: the network.
        work: its batch size and optimiser are used.
        lr: learning rate.
        own: layers that a client does not share.

    Raises:
        ValueError: a layer that the model does not have.
    """
    if unknown := set(own) - set(model.layers):
        raise ValueError(f"own={own}: the model has no {min(unknown)}; its layers are {', '.join(model.layers)}")
    shared = tuple(name for name in model.layers if name not in own)
    loss = frozen_loss(training_loss(model), shared)

    def deploy(key, hyper, state, data) -> ModelTable:
        start = algorithm.deploy(key, hyper, state, data)
        return fine_tune(key, start, data, loss, _clipped(lr), work._replace(epochs=EPOCHS))

    return algorithm._replace(deploy=deploy)


@cache
def with_everyone_once_more(algorithm: Algorithm, model: Model, work: Work, lr: float, lam: float) -> Algorithm:
    """Ditto, whose clients all train their personal models for one more round before a test.

    Args:
        algorithm: Ditto: its state is (theta, a personal model for each client).
        model: the network.
        work: of the round.
        lr: learning rate of the personal models.
        lam: weight of the distance to theta.
    """
    loss = proximal(training_loss(model), lam)

    def deploy(key, hyper, state, data) -> ModelTable:
        theta = tree.everyone(state.server, data.n_clients)
        keys = client_keys(key, data)
        return tree.own(train_clients(keys, state.clients, data, loss, _clipped(lr), work, theta).params)

    return algorithm._replace(deploy=deploy)


def _clipped(lr: float) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.sgd(jnp.float32(lr)))
