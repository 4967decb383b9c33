"""Examples that are not scaled, and that nothing scales, are spoken of; what has a scale of its own is not."""

import warnings

import numpy as np
import pytest

import fljax
from fljax.data.federation import on_host
from fljax.data.scale import ScaleWarning, warn_of_scale

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, size=(40, 6, 6, 1))
Y, CLIENT = np.arange(40) % 2, np.arange(40) % 4


@pytest.mark.parametrize(
    "x",
    [
        PIXELS.astype(np.float32),
        PIXELS,
        PIXELS.astype(np.uint16),
        PIXELS[..., 0],
        256 * PIXELS,
        -10.0 * PIXELS[..., 0],
    ],
    ids=["float32", "int64", "uint16", "grey", "16 bits", "below 0"],
)
def test_images_that_nobody_scales(x):
    dtype = "int32" if x.dtype == np.uint16 else x.dtype
    with pytest.warns(ScaleWarning, match=f"x goes from .* as {dtype} and is not scaled.* uint8.*normalized") as warned:
        fljax.federation_from_arrays(x, Y, CLIENT)
    assert len(warned) == 1
    part = np.where(np.arange(40) < 20, "train", "test")
    for make in (
        lambda: fljax.federation_from_arrays(x, Y, CLIENT, part=part),
        lambda: fljax.federation_from_clients([(x[i::4], Y[i::4]) for i in range(4)]),
        lambda: fljax.PARTITIONS["iid"](*fljax.own_data(x, Y).halves(), n_clients=4, public=False),
    ):
        with pytest.warns(ScaleWarning, match="is not scaled"):
            make()


@pytest.mark.parametrize(
    "x",
    [
        PIXELS.astype(np.uint8),
        PIXELS / 255,
        (PIXELS - 127.5) / 60,
        PIXELS.reshape(40, 36).astype(np.float32),
        PIXELS.reshape(40, 36),
        1000 * PIXELS[..., 0],
        PIXELS[..., 0] + 1,
        PIXELS[:, :0],
    ],
    ids=["uint8", "unit", "standard", "table", "tokens", "tokens of sentences", "tokens to 256", "empty"],
)
def test_what_has_the_scale_that_it_is_to_have(x):
    with warnings.catch_warnings(action="error"):
        warn_of_scale(on_host(x, Y).x)


def test_examples_from_everywhere_are_looked_at():
    x = np.zeros((20_000, 2, 2), np.float32)  # black ones first
    x[19_000:] = 255
    with pytest.warns(ScaleWarning, match="from 0 to 255"):
        warn_of_scale(x)


class Huge:
    """An array of which no more than a few thousand examples may be read."""

    dtype, ndim, size = np.dtype(np.float32), 4, 10**9

    def __len__(self):
        return 10**7

    def __getitem__(self, rows):
        n = len(range(*rows.indices(len(self))))
        assert n < 5000
        return np.full((n, 2, 2, 1), 99, np.float32)


def test_few_examples_are_looked_at():
    with pytest.warns(ScaleWarning, match="from 99 to 99"):
        warn_of_scale(Huge())
