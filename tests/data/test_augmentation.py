"""Normalisation and augmentation against plain numpy."""

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import data

IMAGES = np.random.default_rng(0).integers(1, 256, (6, 5, 4, 3), dtype=np.uint8)
KEYS = jax.random.split(jax.random.key(0), 6)


def test_normalize():
  mean, std = np.array([0.1, 0.2, 0.3], np.float32), np.array([0.5, 1.0, 2.0], np.float32)
  expected = (IMAGES / 255.0 - mean) / std
  np.testing.assert_allclose(data.normalize(jnp.asarray(IMAGES), mean, std), expected, atol=1e-6)


def test_none_changes_nothing():
  np.testing.assert_array_equal(data.none(jnp.asarray(IMAGES), KEYS), IMAGES)


def _all_crops(image, padding):
  padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
  for i in range(2 * padding + 1):
    for j in range(2 * padding + 1):
      crop = padded[i : i + image.shape[0], j : j + image.shape[1]]
      yield (i, j, 0), crop
      yield (i, j, 1), crop[:, ::-1]


def test_crop_flip_yields_every_crop_and_mirror_image():
  image = jnp.asarray(IMAGES[:1])
  found = {}
  results = np.asarray(data.crop_flip(jnp.repeat(image, 400, 0), jax.random.split(jax.random.key(1), 400), padding=1))
  for result in results:
    matches = [where for where, crop in _all_crops(IMAGES[0], 1) if np.array_equal(crop, result)]
    assert len(matches) == 1
    found[matches[0]] = found.get(matches[0], 0) + 1
  assert len(found) == 18  # 3 x 3 places, mirrored or not.
  assert min(found.values()) > 5


def test_crop_without_flip_never_mirrors():
  results = np.asarray(data.crop_flip(jnp.asarray(IMAGES), KEYS, padding=0, flip=False))
  np.testing.assert_array_equal(results, IMAGES)


def test_each_image_depends_on_its_own_key_alone():
  whole = data.crop_flip(jnp.asarray(IMAGES), KEYS)
  part = data.crop_flip(jnp.asarray(IMAGES[2:4]), KEYS[2:4])
  np.testing.assert_array_equal(whole[2:4], part)
