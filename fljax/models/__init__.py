"""Networks as pure functions: `MODELS` maps a name to a function that returns a `Model`; `normalized` scales inputs."""

from collections.abc import Callable

from fljax.choices import Named
from fljax.models.adapters import lora, only_trained
from fljax.models.cnn import cnn, fedcr_cnn, femnist_cnn, mnist_cnn
from fljax.models.fasttext import fasttext
from fljax.models.functions import from_functions
from fljax.models.heterogeneous import heterogeneous
from fljax.models.lenet import lenet
from fljax.models.linen import from_linen
from fljax.models.lstm import lstm
from fljax.models.mlp import logistic_regression, mlp
from fljax.models.nnx import from_nnx
from fljax.models.own_network import own_copies, starting_models
from fljax.models.resnet import resnet18
from fljax.models.scaled import normalized
from fljax.models.scored import scored, validated
from fljax.models.task import multi_label, regression
from fljax.models.transformer import transformer
from fljax.models.variational import variational, variational_cnn
from fljax.models.vgg import celeba_cnn, fedbabu_cnn, vgg16
from fljax.types import Model

MODELS: dict[str, Callable[..., Model]] = Named(
    "model",
    {
        "celeba_cnn": celeba_cnn,
        "cnn": cnn,
        "fasttext": fasttext,
        "fedbabu_cnn": fedbabu_cnn,
        "fedcr_cnn": fedcr_cnn,
        "femnist_cnn": femnist_cnn,
        "heterogeneous": heterogeneous,
        "lenet": lenet,
        "logistic_regression": logistic_regression,
        "lstm": lstm,
        "mlp": mlp,
        "mnist_cnn": mnist_cnn,
        "resnet18": resnet18,
        "transformer": transformer,
        "variational_cnn": variational_cnn,
        "vgg16": vgg16,
    },
)
"""Models by name. Each takes ``input_shape``, ``n_classes``, ``dtype`` and ``init`` among its keyword arguments."""

__all__ = [
    "MODELS",
    "celeba_cnn",
    "cnn",
    "fasttext",
    "fedbabu_cnn",
    "fedcr_cnn",
    "femnist_cnn",
    "from_functions",
    "from_linen",
    "from_nnx",
    "heterogeneous",
    "lenet",
    "logistic_regression",
    "lora",
    "lstm",
    "mlp",
    "mnist_cnn",
    "multi_label",
    "normalized",
    "only_trained",
    "own_copies",
    "regression",
    "resnet18",
    "scored",
    "starting_models",
    "transformer",
    "validated",
    "variational",
    "variational_cnn",
    "vgg16",
]


def __dir__() -> list[str]:  # without the modules that the names come from
    return __all__
