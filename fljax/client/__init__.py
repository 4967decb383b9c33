"""The client's primitives: local training, its objectives, and losses on the client's data."""

from fljax.client.given_gradients import with_gradient, without_gradient
from fljax.client.local import train_clients
from fljax.client.map import map_clients
from fljax.client.measure import client_loss, client_sums, cross_loss
from fljax.client.objectives import batch_mean, predictor, proximal, training_loss
from fljax.client.optimizer import Elementwise, local_optimizer

__all__ = [
    "Elementwise",
    "batch_mean",
    "client_loss",
    "client_sums",
    "cross_loss",
    "local_optimizer",
    "map_clients",
    "predictor",
    "proximal",
    "train_clients",
    "training_loss",
    "with_gradient",
    "without_gradient",
]


def __dir__() -> list[str]:  # without the modules that the names come from
    return __all__
