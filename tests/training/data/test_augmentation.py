"""Normalisation and augmentation against plain numpy."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax._checks import registry
from calib_jax._system.errors import UserError
from calib_jax.training import data
from calib_jax.training.data import per_image

IMAGES = np.random.default_rng(0).integers(1, 256, (6, 5, 4, 3), dtype=np.uint8)
KEYS = jax.random.split(jax.random.key(0), 6)
crop_flip = jax.jit(data.crop_flip, static_argnames=("padding", "flip"))


def test_normalize():
  mean, std = np.array([0.1, 0.2, 0.3], np.float32), np.array([0.5, 1.0, 2.0], np.float32)
  expected = (IMAGES / 255.0 - mean) / std
  np.testing.assert_allclose(data.normalize(jnp.asarray(IMAGES), mean, std), expected, atol=1e-6)


def _all_crops(image, padding):
  padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
  for i in range(2 * padding + 1):
    for j in range(2 * padding + 1):
      crop = padded[i : i + image.shape[0], j : j + image.shape[1]]
      yield (i, j, 0), crop
      yield (i, j, 1), crop[:, ::-1]


def test_crop_flip_yields_every_crop_and_mirror_image():
  values = {}
  results = np.asarray(crop_flip(np.repeat(IMAGES[:1], 400, 0), jax.random.split(jax.random.key(1), 400), padding=1))
  for result in results:
    matches = [where for where, crop in _all_crops(IMAGES[0], 1) if np.array_equal(crop, result)]
    assert len(matches) == 1
    values[matches[0]] = values.get(matches[0], 0) + 1
  assert len(values) == 18  # 3 x 3 places, mirrored or not.
  assert min(values.values()) > 5


@pytest.mark.parametrize("padding", [1, 4])
def test_crops_of_a_tpu_have_the_same_bits(padding, monkeypatch):
  images = np.random.default_rng(1).integers(0, 256, (40, 9, 6, 3), dtype=np.uint8)
  keys = jax.random.split(jax.random.key(5), 40)
  expected = np.asarray(crop_flip(images, keys, padding=padding))
  monkeypatch.setattr(jax.lax, "platform_dependent", lambda *arguments, tpu, default: tpu(*arguments))
  np.testing.assert_array_equal(data.crop_flip(images, keys, padding=padding), expected)
  lowered = jax.jit(lambda: data.crop_flip(images, keys, padding=padding)).lower().as_text()
  assert "gather" not in lowered and "dynamic_slice" not in lowered


def test_each_image_depends_on_its_own_key_alone():
  np.testing.assert_array_equal(crop_flip(IMAGES, KEYS)[2:4], crop_flip(IMAGES[2:4], KEYS[2:4]))


LABELS, MASK = jnp.array([0, 1, 2, 1, 0, 2]), jnp.array([True] * 4 + [False] * 2)


def _drawn(name, number, of=lambda batch: batch[:3], **options):
  """What ``of`` takes of a batch that is augmented with so many keys."""
  augment = data.build_augmentation(name, num_classes=3, padding=0, flip=False, **options)
  batches = jax.jit(jax.vmap(lambda key: of(augment(jnp.asarray(IMAGES), LABELS, MASK, key, None))))(
    jax.random.split(jax.random.key(0), number))
  return zip(*map(np.asarray, jax.tree.leaves(batches)), strict=True)


@pytest.mark.parametrize("alpha", [0.2, pytest.param(1.0, marks=pytest.mark.slow)])
def test_mixup_mixes_images_and_labels_alike_and_never_with_padding(alpha):
  shares, partners = [], set()
  for images, soft, mask in _drawn("mixup", 60, alpha=alpha):
    np.testing.assert_array_equal(mask, MASK)
    np.testing.assert_allclose(soft.sum(1), 1, rtol=1e-6)
    candidates = []
    for i in range(4):
      if np.abs(images[i] - IMAGES[i]).max() < 0.01:  # Its own partner, or a share of 1.
        continue
      before = len(candidates)
      for j in range(4):
        difference = IMAGES[i].astype(float) - IMAGES[j]
        if i != j:
          share = np.sum((images[i] - IMAGES[j]) * difference) / np.sum(difference**2)
          if np.abs(share * difference + IMAGES[j] - images[i]).max() < 0.01 and 0 <= share <= 1.0001:
            candidates.append(share)
            partners.add((i, j))
            expected = share * np.eye(3)[LABELS[i]] + (1 - share) * np.eye(3)[LABELS[j]]
            np.testing.assert_allclose(soft[i], expected, atol=1e-3)
      assert len(candidates) > before  # Never padding.
    shares.extend(candidates[:1])
    np.testing.assert_allclose(candidates, candidates[:1] * len(candidates), atol=1e-3)
  assert len(partners) == 12 and len(shares) > 20
  extreme = np.mean([min(s, 1 - s) < 0.1 for s in shares])  # Beta(0.2, 0.2) is mostly near 0 or 1, Beta(1, 1) even.
  assert extreme > 0.4 if alpha < 1 else extreme < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixup", "cutmix", "mixup_inference"])
def test_images_go_through_randaugment_before_they_are_mixed(name):
  key, options = jax.random.key(3), {"padding": 1, "flip": True}
  build = functools.partial(data.build_augmentation, name, num_classes=3)
  augmented = data.build_augmentation("randaugment", num_classes=3, magnitude=9.0, **options)(
    jnp.asarray(IMAGES), LABELS, MASK, key, None).images
  expected = build(padding=0, flip=False)(augmented, LABELS, MASK, key, None)
  mixed = build(magnitude=9.0, **options)(jnp.asarray(IMAGES), LABELS, MASK, key, None)
  np.testing.assert_array_equal(mixed.images, expected.images)
  np.testing.assert_array_equal(mixed.labels, expected.labels)
  assert np.abs(np.float32(augmented) - IMAGES).max() > 1


def test_mixup_with_the_larger_share_keeps_the_label():
  for _, soft, _ in _drawn("mixup", 30, alpha=1.0, larger_share=True):
    assert (soft[np.arange(6), LABELS] >= 0.5).all()


@pytest.mark.slow
def test_mixup_inference_can_keep_its_shares_apart():
  ratios = []
  for images, *_ in _drawn("mixup_inference", 30, alpha=0.5, min_difference=0.5):
    more, less = np.float64(images[::2]), np.float64(images[1::2])
    for i in range(4):
      if np.abs(more[i] - less[i]).max() > 1:  # more - less = (λ₁ - λ₂) (a - b), more - a = -(1 - λ₁) (a - b).
        ratios.append(np.abs(more[i] - IMAGES[i]).sum() / np.abs(more[i] - less[i]).sum())  # (1 - λ₁) / (λ₁ - λ₂)
  assert len(ratios) > 60 and max(ratios) <= 1.001 and min(ratios) >= 0  # At most 1/2 over 1/2.
  with pytest.raises(ValueError, match=r"min_difference must be 0 or in \[0.5, 1\): got 0.2"):
    _drawn("mixup_inference", 1, min_difference=0.2)


@pytest.mark.slow
def test_mixup_inference_recovers_what_a_linear_model_says_of_each_image():
  weights = jnp.asarray(np.random.default_rng(1).normal(size=(IMAGES[0].size, 3)), jnp.float32)
  own = IMAGES.reshape(6, -1).astype(np.float32) @ np.asarray(weights)

  def predicted(batch):
    return batch.labels, batch.mask, batch.unmix(batch.images.reshape(12, -1) @ weights)

  for labels, mask, logits in _drawn("mixup_inference", 10, predicted, alpha=0.5, min_difference=0.5):
    np.testing.assert_allclose(logits[::2], own, rtol=1e-3, atol=0.2)
    np.testing.assert_array_equal(labels[::2], LABELS)
    np.testing.assert_array_equal(mask, np.repeat(MASK, 2))
    for row in (1, 3, 5, 7):  # After each image its partner, with its own label.
      partner = int(np.argmin(np.abs(own - logits[row]).sum(1)))
      np.testing.assert_allclose(logits[row], own[partner], rtol=1e-3, atol=0.2)
      assert labels[row] == LABELS[partner] and partner < 4


def test_cutmix_replaces_a_rectangle_and_mixes_labels_by_its_pixels():
  shares, places = [], set()
  for images, soft, mask in _drawn("cutmix", 60):
    np.testing.assert_array_equal(mask, MASK)
    for i in range(4):
      replaced = (images[i] != IMAGES[i]).any(-1)
      if not replaced.any():
        continue  # Its own partner, or a rectangle without pixels.
      rows, columns = np.flatnonzero(replaced.any(1)), np.flatnonzero(replaced.any(0))
      box = np.zeros_like(replaced)
      box[rows[0]:rows[-1] + 1, columns[0]:columns[-1] + 1] = True
      partners = [j for j in range(4) if np.array_equal(images[i], np.where(box[..., None], IMAGES[j], IMAGES[i]))]
      assert len(partners) == 1  # Never padding.
      kept = 1 - box.mean()
      expected = kept * np.eye(3)[LABELS[i]] + (1 - kept) * np.eye(3)[LABELS[partners[0]]]
      np.testing.assert_allclose(soft[i], expected, atol=1e-6)
      shares.append(kept)
      places.add((rows[0], columns[0]))
  assert len(places) > 8 and min(shares) < 0.7 and max(shares) > 0.7  # At most 4 x 2 of 5 x 4 pixels.


@pytest.mark.slow
def test_cutmix_leaves_lambda_of_the_pixels_on_average():
  """Away from the border the kept share is λ, up to whole pixels, whose distribution with alpha 1 is uniform."""
  images = np.zeros((2, 64, 64, 1), np.uint8)
  augment = data.build_augmentation("cutmix", num_classes=2, padding=0, flip=False)
  labels, mask = jnp.array([0, 1]), jnp.array([True, True])
  soft = jax.jit(jax.vmap(lambda key: augment(jnp.asarray(images), labels, mask, key, None).labels))(
    jax.random.split(jax.random.key(0), 1000))
  kept = np.asarray(soft[:, 0, 0])  # 1 where an image is its own partner.
  rng = np.random.default_rng(0)
  cut, centre = np.sqrt(1 - rng.uniform(size=40_000)), rng.integers(0, 64, (2, 40_000))
  half = (cut * 64).astype(int) // 2
  sides = np.minimum(centre + half, 64) - np.maximum(centre - half, 0)
  expected = 1 - sides.prod(0) / 64**2
  mixed = kept[kept < 1]
  assert abs(len(mixed) / 1000 - 0.5) < 0.08  # Every other permutation of two.
  # The standard error of a mean of 500 numbers in [0, 1] is at most 0.022.
  np.testing.assert_allclose(mixed.mean(), expected[expected < 1].mean(), atol=0.07)


@pytest.mark.parametrize("shape", [(1, 16), (16, 2)])
def test_cutmix_refuses_images_of_which_no_rectangle_is_a_part(shape):
  augment = data.build_augmentation("cutmix", num_classes=2, padding=0, flip=False)
  with pytest.raises(UserError, match=f"needs images of 3 pixels a side or more, .*: got {min(shape)}"):
    augment(jnp.zeros((2, *shape, 1), jnp.uint8), jnp.array([0, 1]), jnp.array([True, True]), jax.random.key(0), None)


@pytest.mark.slow
def test_random_erasing_fills_one_rectangle_of_the_image():
  image, keys = np.full((600, 32, 32, 3), 7, np.uint8), jax.random.split(jax.random.key(3), 600)
  erase = jax.jit(functools.partial(data.random_erasing, padding=0, flip=False))
  images = np.asarray(erase(image, keys))
  assert images.dtype == np.uint8
  erased, ratios = [], []
  for result in images:
    changed = (result != 7).any(-1)  # A pixel stays 7 by chance once in 16 million.
    if not changed.any():
      continue
    rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    assert changed[rows[0]:rows[-1] + 1, columns[0]:columns[-1] + 1].all()
    erased.append(changed.mean())
    ratios.append(len(rows) / len(columns))
    assert len(np.unique(result[changed])) > min(changed.sum(), 20)
  assert abs(len(erased) / 600 - 0.5) < 0.08  # Four standard errors.
  assert 0.01 < min(erased) < 0.04 and 0.29 < max(erased) <= 0.36 and abs(np.mean(erased) - 0.175) < 0.02
  assert min(ratios) < 0.4 and max(ratios) > 2.5
  never = jax.jit(functools.partial(data.random_erasing, probability=0.0, padding=0, flip=False))
  np.testing.assert_array_equal(never(image[:6], KEYS), image[:6])
  with pytest.raises(ValueError, match="probability must be in"):
    data.random_erasing(image[:6], KEYS, probability=1.5)


def test_an_augmentation_in_a_file_of_its_own_is_found(monkeypatch):
  asked = []
  monkeypatch.setattr(registry, "import_modules", asked.append)
  importlib.reload(data)  # All files of the package are imported with it.
  assert asked == ["calib_jax.training.data"]
  monkeypatch.setitem(per_image.PER_IMAGE, "brighter", lambda images, keys, *, by: images + by)
  assert "brighter" in data.AUGMENTATIONS
  augment = data.build_augmentation("brighter", num_classes=2, by=3.0)
  augmented = augment(jnp.zeros((2, 4, 4, 1)), jnp.zeros(2, jnp.int32), jnp.ones(2, bool), jax.random.key(0), None)
  np.testing.assert_array_equal(augmented.images, np.full((2, 4, 4, 1), 3))
