"""The same networks in PyTorch, channels_last: what a researcher would write for a loop over clients."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn


def network(name: str, channels: int = 1, side: int = 28, n_classes: int = 10) -> nn.Module:
    """The PyTorch twin of ``fljax.models.MODELS[name]`` with its default widths; "dropout_cnn" is ``cnn`` with fc128.

    ``n_classes`` is of the first four.
    """
    flat = side * side * channels
    layers = {
        "logistic_regression": lambda: [nn.Flatten(), nn.Linear(flat, n_classes)],
        "mlp": lambda: [nn.Flatten(), nn.Linear(flat, 200), nn.ReLU(), nn.Linear(200, n_classes)],
        "mnist_cnn": lambda: _two_convolutions(channels, side, (32, 64), (128,), n_classes),
        "dropout_cnn": lambda: _dropout_cnn(channels, side, n_classes),
        "femnist_cnn": lambda: _two_convolutions(channels, side, (32, 64), (2048,), 62),
        "lenet": lambda: _two_convolutions(channels, side, (16, 32), (120, 84)),
        "vgg16": lambda: _vgg16(channels),
        "resnet18": lambda: [_ResNet18(channels)],
    }
    return nn.Sequential(*layers[name]()).to(memory_format=torch.channels_last)


def images(x: np.ndarray) -> torch.Tensor:
    """(n, height, width, channels) as PyTorch's (n, channels, height, width), channels last in memory."""
    return torch.from_numpy(x.transpose(0, 3, 1, 2).copy()).to(memory_format=torch.channels_last)


def _two_convolutions(channels, side, widths, hidden, n_classes=10) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Conv2d(channels, width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    flat = channels * (side // 4) ** 2
    layers.append(nn.Flatten())
    for width in hidden:
        layers += [nn.Linear(flat, width), nn.ReLU()]
        flat = width
    return [*layers, nn.Linear(flat, n_classes)]


def _dropout_cnn(channels: int, side: int, n_classes: int) -> list[nn.Module]:
    return [
        *(nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Flatten(), nn.Linear(64 * ((side - 4) // 2) ** 2, 128), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(128, n_classes),
    ]


def _vgg16(channels: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
        channels = width or channels
    head = [nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return [*layers, nn.Flatten(), *head]


class _BasicBlock(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.GroupNorm(32, width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.GroupNorm(32, width)),
        )
        shortcut = [nn.Conv2d(channels, width, 1, stride, bias=False), nn.GroupNorm(32, width)]
        self.shortcut = nn.Sequential(*shortcut if channels != width else [])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class _ResNet18(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, 64, 3, 1, 1, bias=False), nn.GroupNorm(32, 64), nn.ReLU()]
        n_channels = 64
        for width in (64, 64, 128, 128, 256, 256, 512, 512):
            layers.append(_BasicBlock(n_channels, width, 1 if width == n_channels else 2))
            n_channels = width
        self.body, self.fc = nn.Sequential(*layers), nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x).mean((2, 3)))


def copy_parameters(model: nn.Module, params: Any, layers: Iterable[str]) -> None:
    """fljax's parameters of a plain chain of layers into PyTorch's, ``layers`` in forward order.

    HWIO becomes OIHW; the rows of the first dense layer after the convolutions go from HWC to CHW order.
    """
    weighted = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    n_channels = 0
    for layer, name in zip(weighted, layers, strict=True):
        kernel = np.asarray(params[name]["kernel"])
        if isinstance(layer, nn.Conv2d):
            kernel, n_channels = kernel.transpose(3, 2, 0, 1), kernel.shape[-1]
        else:
            if n_channels:
                kernel = kernel.reshape(-1, n_channels, kernel.shape[-1]).swapaxes(0, 1).reshape(kernel.shape)
                n_channels = 0
            kernel = kernel.T
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(kernel.copy()))
            layer.bias.copy_(torch.from_numpy(np.array(params[name]["bias"])))
