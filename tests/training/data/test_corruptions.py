"""Corruptions: published formulas where there is one, and laws for all of them."""

import io

import numpy as np
from PIL import Image
import pytest
from scipy import ndimage

from calib_jax._system.errors import UserError
from calib_jax.training import data

RNG = np.random.default_rng(0)
SMOOTH = ndimage.gaussian_filter(RNG.normal(size=(40, 32, 32, 3)), (0, 3, 3, 0), mode="wrap")
IMAGES = (255 * (0.5 + 0.12 * SMOOTH / SMOOTH.std())).clip(0, 255).astype(np.uint8)
GREY = np.full((60, 32, 32, 3), 128, np.uint8)


@pytest.mark.parametrize("name", data.CORRUPTIONS)
def test_all_keep_shape_and_dtype_and_depend_on_the_seed_alone(name):
  for images in (IMAGES[:3], IMAGES[:2, :, :24, :1], IMAGES[:1, :8, :8, :1], IMAGES[:1] * 0, IMAGES[:1] * 0 + 255):
    for severity in (1, 5):
      result = data.corrupt(images, name, severity, seed=1)
      assert result.shape == images.shape and result.dtype == np.uint8
      np.testing.assert_array_equal(result, data.corrupt(images, name, severity, seed=1))
  assert data.corrupt(IMAGES[:0], name, 1).shape == (0, 32, 32, 3)


@pytest.mark.parametrize("name", ["gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "fog", "snow",
                                  "frost", "motion_blur", "glass_blur", "spatter", "elastic_transform"])
def test_random_ones_differ_by_seed_and_by_image(name):
  twice = np.repeat(IMAGES[:1], 2, axis=0)
  one, other = data.corrupt(twice, name, 5, seed=1), data.corrupt(twice, name, 5, seed=2)
  assert (one != other).any() and (one[0] != one[1]).any()


@pytest.mark.parametrize("name", sorted(set(data.CORRUPTIONS) - {"elastic_transform", "frost", "glass_blur", "saturate",
                                                                 "spatter"}))
def test_severities_are_in_order(name):
  # The others are not by their published parameters: saturation falls first, spatter turns from water to mud, ….
  change = [np.abs(data.corrupt(IMAGES, name, s).astype(float) - IMAGES).mean() for s in range(1, 6)]
  assert all(np.diff(change) > -0.05 * change[-1]) and change[4] > 1.3 * change[0] > 0


@pytest.mark.parametrize(("name", "levels"), [
  ("gaussian_noise", [0.04, 0.06, 0.08, 0.09, 0.10]), ("speckle_noise", [0.06 * 0.502, 0.1 * 0.502, 0.12 * 0.502,
                                                                        0.16 * 0.502, 0.2 * 0.502]),
  ("shot_noise", np.sqrt(0.502 / np.array([500, 250, 100, 75, 50])))])
def test_noise_has_the_published_deviation(name, levels):
  for severity, level in enumerate(levels, start=1):
    noise = data.corrupt(GREY, name, severity).astype(float) / 255 - GREY / 255
    np.testing.assert_allclose(noise.std(), level, rtol=0.02, atol=0.002)


def test_impulses_are_black_or_white_in_the_published_share():
  for severity, share in enumerate([0.01, 0.02, 0.03, 0.05, 0.07], start=1):
    result = data.corrupt(GREY, "impulse_noise", severity)
    changed = result[result != 128]
    np.testing.assert_allclose(len(changed) / result.size, share, rtol=0.05)
    assert set(np.unique(changed)) == {0, 255} and abs((changed == 0).mean() - 0.5) < 0.03


def test_what_is_a_formula_equals_it():
  x = IMAGES / 255
  for severity in range(1, 6):
    def close(name, expected, within=1.01, severity=severity):
      result = data.corrupt(IMAGES, name, severity).astype(float)
      assert np.abs(result - np.clip(expected, 0, 1) * 255).max() <= within, (name, severity)

    factor = [0.75, 0.5, 0.4, 0.3, 0.15][severity - 1]
    mean = x.mean((1, 2), keepdims=True)
    close("contrast", (x - mean) * factor + mean)
    sigma = [0.4, 0.6, 0.7, 0.8, 1][severity - 1]
    close("gaussian_blur", np.stack([np.stack([ndimage.gaussian_filter(c, sigma, mode="nearest")
                                               for c in image.transpose(2, 0, 1)], -1) for image in x]))


@pytest.mark.parametrize(("name", "change"), [
  ("brightness", lambda s, hsv: (hsv[0], hsv[1], min(hsv[2] + [0.05, 0.1, 0.15, 0.2, 0.3][s - 1], 1))),
  ("saturate", lambda s, hsv: (hsv[0], min(max(hsv[1] * [0.3, 0.1, 1.5, 2, 2.5][s - 1] + [0, 0, 0, 0.1, 0.2][s - 1], 0),
                                           1), hsv[2])),
])
def test_colours_change_as_in_hsv(name, change):
  import colorsys

  images = RNG.integers(0, 256, (2, 5, 5, 3), dtype=np.uint8)
  images[0, 0] = [[0, 0, 0]] * 2 + [[70, 70, 70]] * 2 + [[255, 0, 0]]
  for severity in range(1, 6):
    result = data.corrupt(images, name, severity)
    for pixel, got in zip(images.reshape(-1, 3), result.reshape(-1, 3), strict=True):
      expected = colorsys.hsv_to_rgb(*change(severity, colorsys.rgb_to_hsv(*(pixel / 255))))
      assert np.abs(np.array(expected) * 255 - got).max() <= 1.01, (severity, pixel, got)


def test_jpeg_and_pixels_are_those_of_pillow():
  for severity, (quality, share) in enumerate(zip([80, 65, 58, 50, 40], [0.95, 0.9, 0.85, 0.75, 0.65], strict=True), 1):
    picture, file = Image.fromarray(IMAGES[0]), io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    result = data.corrupt(IMAGES[:1], "jpeg_compression", severity)[0]
    np.testing.assert_array_equal(result, np.asarray(Image.open(file)))
    small = picture.resize((int(32 * share),) * 2, Image.Resampling.BOX)
    np.testing.assert_array_equal(data.corrupt(IMAGES[:1], "pixelate", severity)[0],
                                  np.asarray(small.resize((32, 32), Image.Resampling.BOX)))


def test_blurs_keep_what_is_even_and_the_mean_of_what_is_far_from_edges():
  for name in ("gaussian_blur", "defocus_blur", "motion_blur", "zoom_blur", "glass_blur", "elastic_transform"):
    assert np.abs(data.corrupt(GREY[:2], name, 5).astype(int) - 128).max() <= 1, name
  point = np.zeros((6, 33, 33, 1), np.uint8)
  point[:, 16, 16] = 255
  for name in ("gaussian_blur", "defocus_blur", "motion_blur"):
    np.testing.assert_allclose(data.corrupt(point, name, 5).sum((1, 2, 3)), 255, atol=25, err_msg=name)  # Truncated.


def test_motion_is_along_a_line_of_the_published_length():
  point = np.zeros((30, 41, 41, 1), np.uint8)
  point[:, 20, 20] = 255
  result = data.corrupt(point, "motion_blur", 5)[..., 0]
  for picture in result:
    rows, columns = np.nonzero(picture)
    assert np.ptp(columns) <= 18 and np.ptp(columns) >= np.ptp(rows) and len(rows) <= 19
    if len(rows) > 2:
      off_line = np.linalg.svd(np.column_stack([rows - rows.mean(), columns - columns.mean()]), compute_uv=False)[1]
      assert off_line < 0.5 * np.sqrt(len(rows))


@pytest.mark.parametrize(("arguments", "message"), [
  ((IMAGES, "rain", 1), "corruption must be one of gaussian_noise, shot_noise.*got 'rain'"),
  ((IMAGES, "fog", 0), "severity of a corruption must be 1, 2, 3, 4 or 5: got 0"),
  ((IMAGES, "fog", 2.5), "severity"),
  ((IMAGES.astype(float), "fog", 1), "need images uint8 .*got float64"),
  ((IMAGES[..., :2], "fog", 1), r"got uint8 of shape \(40, 32, 32, 2\)"),
])
def test_what_cannot_be_is_said(arguments, message):
  with pytest.raises(UserError, match=message):
    data.corrupt(*arguments)
