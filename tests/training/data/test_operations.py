"""The operations of RandAugment and AugMix against Pillow."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax.training.data import operations

Image = pytest.importorskip("PIL.Image")
ImageEnhance, ImageOps = pytest.importorskip("PIL.ImageEnhance"), pytest.importorskip("PIL.ImageOps")
AMOUNTS = {"identity": (0,), "auto_contrast": (0,), "equalise": (0,), "posterise": (8, 4, 3, 1),
           "solarise": (256, 200, 100, 0), "rotate": (13.3, -30.0), "shear_x": (0.3, -0.17),
           "shear_y": (0.3, -0.17), "translate_x": (3, -4, 2.5), "translate_y": (3, -4, 2.5),
           **{name: (1.0, 0.1, 1.9) for name in ("brightness", "contrast", "colour", "sharpness")}}
_operate = jax.jit(operations.operate, static_argnames="blends")


def operate(image, name, amount, **options):
  return np.asarray(_operate(jnp.asarray(image), jnp.int32(operations.OPERATIONS.index(name)), jnp.float32(amount),
                             **options))


@functools.cache
def _images(channels):
  """Two smooth pictures with some noise, of which the second has a part of the levels, and one of one level alone."""
  rng, (y, x) = np.random.default_rng(channels), np.mgrid[:28, :23]  # Equalise needs more than 255 pixels.
  waves = [120 + 80 * np.sin(x / (3 + k)) + 40 * np.cos(y / (2 + k)) + rng.normal(0, 6, x.shape)
           for k in range(channels)]
  picture = np.clip(np.stack(waves, -1), 0, 255)
  return [picture.astype(np.uint8), (0.5 * picture + 30).astype(np.uint8), np.full((28, 23, channels), 90, np.uint8)]


def _pillow(image, name, amount):
  picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
  bilinear, size = Image.Resampling.BILINEAR, picture.size
  matrices = {"shear_x": (1, amount, 0, 0, 1, 0), "shear_y": (1, 0, 0, amount, 1, 0),
              "translate_x": (1, 0, amount, 0, 1, 0), "translate_y": (1, 0, 0, 0, 1, amount)}
  enhanced = {"brightness": ImageEnhance.Brightness, "contrast": ImageEnhance.Contrast, "colour": ImageEnhance.Color,
              "sharpness": ImageEnhance.Sharpness}
  if name in matrices:
    result = picture.transform(size, Image.Transform.AFFINE, matrices[name], resample=bilinear)
  elif name in enhanced:
    result = enhanced[name](picture).enhance(amount)
  else:
    result = {"identity": lambda: picture, "auto_contrast": lambda: ImageOps.autocontrast(picture),
              "equalise": lambda: ImageOps.equalize(picture), "rotate": lambda: picture.rotate(amount, bilinear),
              "posterise": lambda: ImageOps.posterize(picture, amount),
              "solarise": lambda: ImageOps.solarize(picture, amount)}[name]()
  return np.asarray(result).reshape(image.shape)


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("name", operations.OPERATIONS)
def test_it_is_that_of_pillow(name, channels):
  for image in _images(channels):
    for amount in AMOUNTS[name]:
      difference = operate(image, name, amount).astype(int) - _pillow(image, name, amount)
      if name == "auto_contrast":
        # Pillow multiplies by a rounded factor, and then truncates: whole quotients may lose a level.
        levels = image.reshape(-1, channels).astype(int)
        low, span = levels.min(0), np.maximum(np.ptp(levels, axis=0), 1)
        whole = ((image.astype(int) - low) * 255 % span) == 0
        assert ((difference == 0) | ((difference == 1) & whole)).all()
      elif name in ("rotate", "shear_x", "shear_y") or (name.startswith("translate") and amount % 1):
        # Pillow truncates what it interpolates, and here it is rounded.
        assert np.isin(difference, (0, 1)).all() and (image.std() == 0 or 0.1 < difference.mean() < 0.6)
      else:
        np.testing.assert_array_equal(difference, 0)


def test_without_blends_the_others_are_the_same():
  image = _images(3)[0]
  for name in operations.OPERATIONS[:-4]:
    amount = AMOUNTS[name][-1]
    np.testing.assert_array_equal(operate(image, name, amount, blends=False), operate(image, name, amount))


def test_amounts_at_level_0_change_nothing():
  for sign in (-1.0, 1.0):
    for i, name in enumerate(operations.OPERATIONS):
      amount = operations.amount(jnp.int32(i), 0.0, jnp.float32(sign), (28, 23, 3), bits=8, shift=1 / 3)
      changed = (operate(_images(3)[1], name, amount) != _images(3)[1]).any()
      assert changed == (name in ("auto_contrast", "equalise")), name


@pytest.mark.parametrize(("level", "bits", "expected"), [
  (0.3, 8, {"posterise": 7, "solarise": 180, "rotate": 9, "shear_x": 0.09, "shear_y": 0.09, "translate_x": 4,
            "translate_y": 8, "brightness": 1.27, "contrast": 1.27, "colour": 1.27, "sharpness": 1.27}),
  (1.0, 4, {"posterise": 0, "solarise": 0, "rotate": 30, "shear_x": 0.3, "shear_y": 0.3, "translate_x": 14,
            "translate_y": 29, "brightness": 1.9, "contrast": 1.9, "colour": 1.9, "sharpness": 1.9})])
def test_amounts_are_linear_and_some_are_whole(level, bits, expected):
  for name, amount in expected.items():
    for sign in (1, -1):
      result = operations.amount(jnp.int32(operations.OPERATIONS.index(name)), level, jnp.float32(sign), (64, 32, 3),
                                bits=bits, shift=150 / 331)
      signed = amount if name in ("posterise", "solarise") else sign * amount
      signed = 2 - amount if sign < 0 and name in operations.OPERATIONS[-4:] else signed
      np.testing.assert_allclose(result, signed, rtol=1e-6, atol=1e-6)


def test_levels_are_whole_and_within_255():
  np.testing.assert_array_equal(operations.levels(jnp.array([-1.0, 0.4, 99.6, 300.0])), np.array([0, 0, 100, 255]))
  assert operations.levels(jnp.zeros(3)).dtype == jnp.uint8


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 3), (3, 1, 4)])
def test_tiny_images_and_any_number_of_channels(shape):
  image = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
  for name in operations.OPERATIONS:
    assert operate(image, name, AMOUNTS[name][0]).shape == shape
