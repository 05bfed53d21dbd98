"""Augmentations of each image on its own, by a key of its own, so that it does not matter where the image is."""

from collections.abc import Callable
import functools
import math

import jax
import jax.numpy as jnp

from calib_jax import _checks as checks
from calib_jax._checks.registry import register
from calib_jax._system.errors import UserError
from calib_jax.training.data.operations import OPERATIONS, amount, levels, operate

Array = jax.Array
# Augmentations of single images by name: functions ``(images, keys, **options) -> images``.
PER_IMAGE: dict[str, Callable[..., Array]] = {}


@register(PER_IMAGE)
def none(images: Array, keys: Array) -> Array:
  """Returns the images unchanged.

  Args:
    images: ``[N, H, W, C]``.
    keys: ``[N]`` PRNG keys, which are not used.

  Returns:
    ``images``.
  """
  del keys
  return images


@register(PER_IMAGE)
def crop_flip(images: Array, keys: Array, *, padding: int = 4, flip: bool = True) -> Array:
  """Pads each image with zeros and crops it back to its size at a random position.

  Args:
    images: ``[N, H, W, C]``.
    keys: ``[N]`` PRNG keys, one an image, so that the result does not depend on how a batch is spread over devices.
    padding: the number of zeros on each side.
    flip: whether to mirror each image with probability one half.

  Returns:
    ``[N, H, W, C]``.
  """
  if padding > (side := min(images.shape[1:3])):
    raise UserError(f"config key augmentation.padding must be at most the side of the images, {side}: got {padding}.")

  def crop(image, key):
    crop_key, flip_key = jax.random.split(key)
    padded = jnp.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    start = jax.random.randint(crop_key, (2,), 0, 2 * padding + 1)
    image = jax.lax.platform_dependent(padded, start, tpu=functools.partial(_crop_by_shifts, padding=padding),
                                       default=lambda padded, start: jax.lax.dynamic_slice(
                                         padded, (*start, 0), image.shape))
    return jnp.where(jax.random.bernoulli(flip_key), image[:, ::-1], image) if flip else image

  return jax.vmap(crop)(images, keys)


def _crop_by_shifts(padded: Array, start: Array, padding: int) -> Array:
  """Returns ``padded`` less ``padding`` at each side, from a random row and column on: the same for TPUs.

  There each image's slice is a turn of a loop, 128 of which are a sixth of a PreResNet-56's step; choices among all
  rows, then all columns, are two fusions.
  """
  for axis in (0, 1):
    size = padded.shape[axis] - 2 * padding
    shifts = [jax.lax.slice_in_dim(padded, i, i + size, axis=axis) for i in range(2 * padding + 1)]
    padded = functools.reduce(
      lambda chosen, i: jnp.where(start[axis] == i, shifts[i], chosen), range(1, len(shifts)), shifts[0])
  return padded


@register(PER_IMAGE)
def random_erasing(images: Array, keys: Array, *, probability: float = 0.5, largest: float = 0.33, padding: int = 4,
                   flip: bool = True) -> Array:
  """Crops and mirrors each image, and then fills a random rectangle with random grey levels (Zhong et al. 2020).

  The share of the image that the rectangle covers is uniform in [0.02, ``largest``], and the logarithm of its height
  over its width is uniform between 0.3's and 1 / 0.3's. The paper draws again until the rectangle fits; here its
  sides are at most the image's.

  Args:
    images: ``[N, H, W, C]``.
    keys: ``[N]`` PRNG keys, one an image.
    probability: how often an image has a rectangle, in [0, 1].
    largest: the largest share of the image, in [0.02, 1].
    padding: the padding of ``crop_flip``.
    flip: whether ``crop_flip`` mirrors images.

  Returns:
    ``[N, H, W, C]``.
  """
  checks.options(probability=(probability, "[0, 1]"), largest=(largest, "[0.02, 1]"))

  def erase(image, key):
    keys = jax.random.split(key, 5)
    share = jax.random.uniform(keys[0], minval=0.02, maxval=largest)
    ratio = jnp.exp(jax.random.uniform(keys[1], minval=math.log(0.3), maxval=-math.log(0.3)))
    height, width = image.shape[:2]
    area = share * height * width
    inside = _rectangle(keys[2], (height, width), jnp.sqrt(area * ratio), jnp.sqrt(area / ratio))
    noise = jax.random.randint(keys[3], image.shape, 0, 256).astype(image.dtype)
    return jnp.where(inside[..., None] & jax.random.bernoulli(keys[4], probability), noise, image)

  crop_keys, erase_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
  return jax.vmap(erase)(crop_flip(images, crop_keys, padding=padding, flip=flip), erase_keys)


@register(PER_IMAGE)
def randaugment(images: Array, keys: Array, *, num_ops: int = 2, magnitude: float = 9.0, padding: int = 4,
                flip: bool = True) -> Array:
  """RandAugment (Cubuk et al. 2020): after crops and flips, each image goes through a few random operations.

  Each operation is drawn, with replacement, from the fourteen of the paper's Section 3 (``operations.OPERATIONS``). All
  have the same magnitude, of 30; at 30 an image is rotated by 30 degrees, sheared by 0.3, moved by 150 of 331 parts of
  its side, keeps 4 bits, is inverted from grey level 0, or has 0.1 or 1.9 times its brightness, contrast, colour or
  sharpness, and smaller magnitudes are linear. Directions are random. At magnitude 0 only ``auto_contrast`` and
  ``equalise`` change an image.

  Args:
    images: ``[N, H, W, C]``, grey levels from 0 to 255; those that are not whole are rounded.
    keys: ``[N]`` PRNG keys, one an image.
    num_ops: the number of operations, at least 1.
    magnitude: M, in [0, 30].
    padding: the padding of ``crop_flip``.
    flip: whether ``crop_flip`` mirrors images.

  Returns:
    ``[N, H, W, C]``, of the dtype of ``images``.
  """
  def augment(image, key):
    for own_key in jax.random.split(key, num_ops):
      index_key, sign_key = jax.random.split(own_key)
      index = jax.random.randint(index_key, (), 0, len(OPERATIONS))
      sign = jax.random.rademacher(sign_key, (), jnp.float32)
      image = operate(image, index, amount(index, magnitude / 30, sign, image.shape, bits=8, shift=150 / 331))
    return image

  crop_keys, own_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
  cropped = crop_flip(images, crop_keys, padding=padding, flip=flip)
  return jax.vmap(augment)(levels(cropped), own_keys).astype(images.dtype)


def mixed_chains(images: Array, keys: Array, *, width: int, depth: int, severity: float, alpha: float) -> Array:
  """Mixes each of the images uint8 ``[N, H, W, C]`` with chains of operations on it, float32, as ``augmix`` does."""
  longest = 3 if depth == -1 else depth

  def chain(image, key):
    depth_key, key = jax.random.split(key)
    length = jax.random.randint(depth_key, (), 1, longest + 1) if depth == -1 else depth

    def step(image, i):
      index_key, sign_key, level_key = jax.random.split(jax.random.fold_in(key, i), 3)
      index = jax.random.randint(index_key, (), 1, OPERATIONS.index("translate_y") + 1)
      index = jnp.where(i < length, index, OPERATIONS.index("identity"))
      sign = jax.random.rademacher(sign_key, (), jnp.float32)
      level = jax.random.uniform(level_key, minval=0.1, maxval=severity) / 10
      return operate(image, index, amount(index, level, sign, image.shape, bits=4, shift=1 / 3), blends=False), None

    return jax.lax.scan(step, image, jnp.arange(longest, dtype=jnp.int32))[0]

  def mix(image, key):
    shares_key, *chain_keys = jax.random.split(key, 1 + width)
    # Gamma variables, divided by their sum, are Dirichlet and Beta; one sampler for both compiles in half the time.
    log_gamma = jax.random.loggamma(shares_key, alpha, (width + 2,), jnp.float32)
    weights, share = jax.nn.softmax(log_gamma[:width]), jax.nn.sigmoid(log_gamma[-1] - log_gamma[-2])
    chains = jax.vmap(chain, (None, 0))(image, jnp.stack(chain_keys)).astype(jnp.float32)
    mixed = jnp.sum(weights[:, None, None, None] * chains, axis=0)
    return (1 - share) * image.astype(jnp.float32) + share * mixed

  return jax.vmap(mix)(images, keys)


def _rectangle(key: Array, shape: tuple[int, int], height: Array, width: Array) -> Array:
  """Returns which pixels lie in a rectangle of about this height and width at a random place within the image."""
  inside = []
  for own_key, side, length in zip(jax.random.split(key), shape, (height, width), strict=True):
    length = jnp.clip(jnp.round(length).astype(jnp.int32), 1, side)
    start = jax.random.randint(own_key, (), 0, side - length + 1)
    inside.append((jnp.arange(side) >= start) & (jnp.arange(side) < start + length))
  return inside[0][:, None] & inside[1][None, :]
