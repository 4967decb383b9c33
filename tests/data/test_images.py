import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from fljax.data.images import affine, gamma_curve, resize, rotate, thicken

X = np.random.default_rng(0).integers(256, size=(3, 9, 9, 2), dtype=np.uint8)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5])
def test_quarter_turns_are_exact(turns):
    np.testing.assert_array_equal(rotate(X, 90.0 * turns), np.rot90(X, turns, axes=(1, 2)))


def test_other_angles_turn_the_same_way_as_quarter_turns_and_scipy():
    smooth = ndimage.gaussian_filter(X.astype(np.float32), (0, 2, 2, 0))
    np.testing.assert_allclose(rotate(smooth, 89.9999)[:, 1:-1, 1:-1], rotate(smooth, 90)[:, 1:-1, 1:-1], atol=0.01)
    expected = ndimage.rotate(smooth, 30, axes=(2, 1), reshape=False, order=1)
    np.testing.assert_allclose(rotate(smooth, 30), expected, atol=1e-3)  # float32 inside against float64


def test_quarter_turn_needs_squares():
    with pytest.raises(ValueError, match="square"):
        rotate(np.zeros((1, 4, 5, 1), np.uint8), 90)
    assert rotate(np.zeros((1, 4, 5, 1), np.uint8), 180).shape == (1, 4, 5, 1)


def test_identity_map_changes_nothing():
    np.testing.assert_array_equal(affine(X, np.eye(2)), X)


def test_enlarging_agrees_with_pillow():
    expected = np.asarray(Image.fromarray(X[0, :, :, 0]).resize((13, 13), Image.Resampling.BILINEAR), np.float32)
    assert np.abs(resize(X, 13)[0, :, :, 0] - expected).max() <= 1  # both round to bytes
    assert resize(X, 9) is X
    with pytest.raises(ValueError, match="side=0"):
        resize(X, 0)


def test_strokes_become_thicker_and_thinner():
    cross = np.zeros((1, 9, 9, 1), np.uint8)
    cross[:, 4], cross[:, :, 4] = 200, 200
    assert thicken(cross, 0.5).sum() > cross.sum() > thicken(cross, -0.5).sum()
    np.testing.assert_array_equal(thicken(cross, 0.0), cross)


def test_contrast_curve_keeps_black_and_white():
    np.testing.assert_array_equal(gamma_curve(np.array([0, 64, 255], np.uint8), 0.5), [0, 128, 255])  # 255 sqrt(64/255)


def test_only_images_turn():
    with pytest.raises(ValueError, match=r"^examples have shape \(6,\); only images"):
        rotate(np.zeros((4, 6), np.float32), 90)
    with pytest.raises(ValueError, match=r"^examples have shape \(6, 6\); give images \(height, width, channels\)"):
        rotate(np.zeros((4, 6, 6), np.uint8), 45)
