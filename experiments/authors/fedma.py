"""FedMA by its authors' matching, in the limit in which it opens no new units (Wang et al., ICLR 2020).

Theirs scores a unit by a Beta-Bernoulli process, which may open a new global one; ours matches units one to one, by
their distance. As gamma goes to 0, theirs opens none, all global units are as popular as each other, and the score is
the inner product of a unit with the sum of those that it joins: that is ours, and with a flat prior so are the means.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import jax
import numpy as np
from same_steps import N_CLASSES, N_INPUTS, Outputs, clients, examples, load_dense, torch_outputs

import fljax
from authors.case import Case, modules_of
from fljax.models import mlp
from fljax.rounds.averaging import shared_part
from fljax.server.matching import permute_units
from fljax.types import Algorithm, Federation, Key, Model, Params, State

EPOCHS, RETRAIN_EPOCHS, LR, MOMENTUM, WIDTHS = 20, 2, 0.1, 0.9, (12, 8)
GAMMA, PRIOR_VARIANCE = 1e-30, 1e12
# with "features" in the first name, the second layer is one after a dense layer to theirs, not after an image
LAYER_TYPES = [f"{name}.{part}" for name in ("features.fc", "fc", "fc") for part in ("weight", "bias")]
DATA = ("torchvision", "torchvision.transforms", "datasets")


def theirs(clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """Trains networks whose hidden units are shuffled, and runs `BBP_MAP`, the first round, on them."""
    theta, n_clients, rng = shared_part(first_state.server), federation.train.n_clients, np.random.default_rng(0)
    with modules_of(clone, *DATA, "lapsolver") as module, unlogged():
        main = prepared(module, federation)
        args = mock.Mock(dataset="given", epochs=EPOCHS, lr=LR)
        networks = [network_of(shuffled(theta, rng)) for _ in range(n_clients)]
        for i, network in enumerate(networks):
            main.train_net(i, network, *loaders(federation, i), EPOCHS, LR, args)
        who = {i: i for i in range(n_clients)}
        weights, _ = main.BBP_MAP(networks, [], LAYER_TYPES, who, class_shares(federation), args)
    return [torch_outputs([with_weights(weights)] * n_clients, federation)]


def prepared(module: Any, federation: Federation) -> ModuleType:
    """Their script, on given examples and for networks of dense layers, with gamma near 0 and a flat prior."""
    from scipy.optimize import linear_sum_assignment

    vars(module("lapsolver"))["solve_dense"] = linear_sum_assignment  # theirs before they found a faster one
    main = module("main")

    def accuracy(*_: Any, get_confusion_matrix: bool = False, **__: Any) -> Any:
        return (0.0, None) if get_confusion_matrix else 0.0

    def retrain(loaders: Any, weights: Sequence[Any], args: Any, freezing_index: int, device: str) -> Any:
        network = with_weights(weights)
        for parameter in list(network.parameters())[:freezing_index]:
            parameter.requires_grad_(False)
        main.train_net(0, network, *loaders, RETRAIN_EPOCHS, LR, args)
        return network

    match = main.layer_wise_group_descent
    limit = {"gamma_layers": GAMMA, "sigma0_layers": PRIOR_VARIANCE}  # BBP_MAP has 7 and 1 in its lines
    vars(main).update(
        layer_wise_group_descent=lambda **given: match(**given | limit),
        compute_accuracy=accuracy,
        local_retrain=retrain,
        get_dataloader=lambda dataset, folder, batch, test_batch, client: loaders(federation, client),
        pdm_prepare_full_weights_cnn=lambda networks, device: [weights_of(network) for network in networks],
        pdm_prepare_freq=lambda counts, n_classes: [np.ones(n_classes)],
        traindata_cls_counts=None,
        args_net_config=[N_CLASSES],
        open=mock.mock_open(),
    )
    return main


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Inside it nothing is logged, and afterwards what is logged, and where, is as before."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        root.setLevel(level)
        root.handlers[:] = handlers


def loaders(federation: Federation, client: int) -> tuple[Any, Any]:
    """All training examples of a client as one batch, and nothing to test on."""
    import torch

    x, y = examples(federation, client, is_train=True)
    return [(torch.tensor(x), torch.tensor(y))], []


def class_shares(federation: Federation) -> np.ndarray:
    """(clients, classes) which share of a class's examples is whose, as their script has it."""
    labels = [examples(federation, i, is_train=True)[1] for i in range(federation.train.n_clients)]
    counts = np.array([np.bincount(y, minlength=N_CLASSES) for y in labels], np.float32)
    return counts / counts.sum(axis=0)


def shuffled(theta: Params, rng: np.random.Generator) -> Params:
    """The same function with hidden units in another order."""
    return permute_units(theta, tuple(jax.numpy.asarray(rng.permutation(width)) for width in WIDTHS), tuple(theta))


def network_of(theta: Params) -> Any:
    """The same network in PyTorch."""
    import torch

    sizes = (N_INPUTS, *WIDTHS, N_CLASSES)
    layers = [torch.nn.Linear(*size_pair) for size_pair in pairwise(sizes)]
    for layer, parameters in zip(layers, theta.values(), strict=True):
        load_dense(layer, parameters)
    relu = torch.nn.ReLU()
    return torch.nn.Sequential(layers[0], relu, layers[1], relu, layers[2])


def weights_of(network: Any) -> list[np.ndarray]:
    """Its parameters as their matching takes them: the first kernel as (out, in), others as (in, out)."""
    parts = [parameter.detach().numpy() for parameter in network.parameters()]
    return [parts[0], parts[1], *(part.T for part in parts[2:])]


def with_weights(weights: Sequence[Any]) -> Any:
    """The network that has these `weights_of`."""
    kernels = [np.asarray(weights[0]).T, *weights[2::2]]
    pairs = zip(kernels, weights[1::2], strict=True)
    return network_of({str(i): {"kernel": kernel, "bias": bias} for i, (kernel, bias) in enumerate(pairs)})


def make(_: Model) -> Algorithm:
    """Ours, whose clients begin with one network, each with its hidden units in an order of its own."""
    model = mlp((N_INPUTS,), WIDTHS, N_CLASSES, init="pytorch")
    first = model.init(jax.random.key(0))

    def init(key: Key) -> Params:
        keys = jax.random.split(key, len(WIDTHS))
        orders = tuple(jax.random.permutation(key, width) for key, width in zip(keys, WIDTHS, strict=True))
        return permute_units(first, orders, model.layers)

    choices = {"retrain_epochs": RETRAIN_EPOCHS, "weighting": "uniform"}
    return fljax.fedma(model._replace(init=init), fljax.Work(EPOCHS, 1000), **choices)  # pyrefly: ignore[bad-argument-type]


CASES = {
    "FedMA": Case(
        "IBM/FedMA@4b586a5",
        "main.py",
        make,
        fljax.fedma.Hyper(lr=LR, momentum=MOMENTUM),
        theirs,
        lambda: clients(5, n_groups=2),
        1,
        "no new units and a flat prior there (gamma near 0, sigma0 large); clients begin with one network whose hidden "
        "units are shuffled; its retraining, for networks of images, by its own `train_net`; the first round",
    )
}
