import numpy as np
import pytest
from PIL import Image

import fljax
from fljax.data import partition
from fljax.data.divergence import symmetric_kld
from fljax.data.draw import counts_of, draw


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iid", "rotated_groups"])
def test_draws_a_picture_with_and_without_groups(name, make_examples, tmp_path):
    federation = partition.PARTITIONS[name](*make_examples(200, 60), 6, val_fraction=0.1)
    file = draw(federation, tmp_path / "plots" / "data.png", "made up")
    with Image.open(file) as image:
        assert image.size == (1800, 576)
        assert np.asarray(image.convert("L")).std() > 10  # not blank


def test_targets_of_a_regression_are_drawn_by_tenths_and_several_labels_each(tmp_path):
    rng, client = np.random.default_rng(0), np.repeat([0, 1, 2], [60, 40, 20])
    x, y = rng.normal(size=(120, 3)).astype(np.float32), rng.normal(size=120).astype(np.float32)
    federation = fljax.federation_from_arrays(x, y, client)
    counts, kind = counts_of(federation)
    assert (counts.shape, kind) == ((3, 10), "tenth of targets")
    np.testing.assert_array_equal(counts.sum(axis=1), federation.train.size)
    assert np.ptp(counts.sum(axis=0)) <= 1
    two_targets = counts_of(fljax.federation_from_arrays(x, np.stack([y, rng.normal(size=120)], axis=1), client))
    np.testing.assert_array_equal(two_targets[0], counts)  # of several targets the first is drawn
    assert draw(federation, tmp_path / "data.png").exists()
    labels = (rng.uniform(size=(120, 4)) < 0.3).astype(np.float32)
    federation = fljax.federation_from_arrays(x, labels, client)
    counts, kind = counts_of(federation)
    rows = np.asarray(federation.train.index)[1, : int(federation.train.size[1])]
    assert kind == "label"
    np.testing.assert_array_equal(counts[1], np.asarray(federation.train.pool.y)[rows].sum(axis=0))


@pytest.mark.parametrize("label", [0, 1])
def test_clients_without_any_of_several_labels_are_drawn(label, tmp_path):
    """Such a client is alike to one that has all labels equally often."""
    y = np.zeros((40, 3), np.float32)
    y[20:] = label
    federation = fljax.build(fljax.Examples(np.zeros((40, 2), np.float32), y), [np.arange(20), np.arange(20, 40)])
    with np.errstate(all="raise"):
        assert draw(federation, tmp_path / "drawn.png").exists()
        np.testing.assert_allclose(symmetric_kld(counts_of(federation)[0]), 0, atol=1e-12)
