import numpy as np
import pytest
from PIL import Image

from fljax.data import partition
from fljax.data.draw import draw


@pytest.mark.parametrize("name", ["iid", "rotated_groups"])
def test_draws_a_picture_with_and_without_groups(name, labelled, tmp_path):
    f = partition.PARTITIONS[name](*labelled(200, 60), 6, val_fraction=0.1)
    file = draw(f, tmp_path / "plots" / "data.png", "made up")
    with Image.open(file) as image:
        assert image.size == (1800, 576)
        assert np.asarray(image.convert("L")).std() > 10  # not blank
