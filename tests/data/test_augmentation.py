"""Normalisation and augmentation against plain numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


LABELS, MASK = jnp.array([0, 1, 2, 1, 0, 2]), jnp.array([True] * 4 + [False] * 2)


def _augmented(name, key=0, **options):
  augment = data.build_augmentation(name, num_classes=3, padding=0, flip=False, **options)
  return augment(jnp.asarray(IMAGES), LABELS, MASK, jax.random.key(key), None)


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_mixup_mixes_images_and_labels_alike_and_never_with_padding(alpha):
  shares, partners = [], set()
  for key in range(30):
    images, soft, mask = map(np.asarray, _augmented("mixup", key, alpha=alpha)[:3])
    np.testing.assert_array_equal(mask, MASK)
    np.testing.assert_allclose(soft.sum(1), 1, rtol=1e-6)
    candidates = []
    for i in range(4):
      if np.abs(images[i] - IMAGES[i]).max() < 0.01:  # Its own partner, or a share of 1.
        continue
      for j in range(4):
        difference = IMAGES[i].astype(float) - IMAGES[j]
        if i != j:
          share = np.sum((images[i] - IMAGES[j]) * difference) / np.sum(difference**2)
          if np.abs(share * difference + IMAGES[j] - images[i]).max() < 0.01 and 0 <= share <= 1.0001:
            candidates.append(share)
            partners.add((i, j))
            expected = share * np.eye(3)[LABELS[i]] + (1 - share) * np.eye(3)[LABELS[j]]
            np.testing.assert_allclose(soft[i], expected, atol=1e-3)
    shares.extend(candidates[:1])
    np.testing.assert_allclose(candidates, candidates[:1] * len(candidates), atol=1e-3)
  assert len(partners) == 12 and len(shares) > 20
  extreme = np.mean([min(s, 1 - s) < 0.1 for s in shares])  # Beta(0.2, 0.2) is mostly near 0 or 1, Beta(1, 1) even.
  assert extreme > 0.4 if alpha < 1 else extreme < 0.5


def test_mixup_with_the_larger_share_keeps_the_label():
  for key in range(30):
    soft = np.asarray(_augmented("mixup", key, alpha=1.0, larger_share=True).labels)
    assert (soft[np.arange(6), LABELS] >= 0.5).all()


@pytest.mark.slow
def test_mixup_inference_can_keep_its_shares_apart():
  seen = []
  for key in range(30):
    images, *_ = _augmented("mixup_inference", key, alpha=0.5, min_difference=0.5)
    more, less = np.asarray(images[:6], np.float64), np.asarray(images[6:], np.float64)
    for i in range(4):
      if np.abs(more[i] - less[i]).max() > 1:  # more - less = (λ₁ - λ₂) (a - b), more - a = -(1 - λ₁) (a - b).
        ratio = np.abs(more[i] - IMAGES[i]).sum() / np.abs(more[i] - less[i]).sum()  # (1 - λ₁) / (λ₁ - λ₂)
        seen.append(ratio)
  assert len(seen) > 60 and max(seen) <= 1.001 and min(seen) >= 0  # At most 1/2 over 1/2.
  with pytest.raises(ValueError, match=r"min_difference must be 0 or in \[0.5, 1\): got 0.2"):
    _augmented("mixup_inference", 0, min_difference=0.2)


@pytest.mark.parametrize("options", [{}, pytest.param({"alpha": 0.5, "min_difference": 0.5}, marks=pytest.mark.slow)])
def test_mixup_inference_recovers_what_a_linear_model_says_of_each_image(options):
  weights = jnp.asarray(np.random.default_rng(1).normal(size=(IMAGES[0].size, 3)), jnp.float32)
  for key in range(10):
    images, labels, mask, unmix = _augmented("mixup_inference", key, **options)
    logits = unmix(images.reshape(12, -1) @ weights)
    own = IMAGES.reshape(6, -1).astype(np.float32) @ weights
    np.testing.assert_allclose(logits[:6], own, rtol=1e-3, atol=0.2)
    np.testing.assert_array_equal(labels[:6], LABELS)
    np.testing.assert_array_equal(mask, jnp.concatenate([MASK, MASK]))
    for row in range(4):  # The second half are the partners, with their own labels.
      partner = int(np.argmin(np.abs(np.asarray(own) - np.asarray(logits[6 + row])).sum(1)))
      np.testing.assert_allclose(logits[6 + row], own[partner], rtol=1e-3, atol=0.2)
      assert labels[6 + row] == LABELS[partner] and partner < 4
