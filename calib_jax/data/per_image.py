"""Augmentations of each image on its own, by a key of its own, so that it does not matter where the image is."""

from collections.abc import Callable
import math

import jax
import jax.numpy as jnp

from calib_jax._system.errors import UserError

Array = jax.Array


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
    row, column = jax.random.randint(crop_key, (2,), 0, 2 * padding + 1)
    image = jax.lax.dynamic_slice(padded, (row, column, 0), image.shape)
    return jnp.where(jax.random.bernoulli(flip_key), image[:, ::-1], image) if flip else image

  return jax.vmap(crop)(images, keys)


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


def random_erasing(images: Array, keys: Array, *, probability: float = 0.5, largest: float = 0.33, padding: int = 4,
                   flip: bool = True) -> Array:
  """Crops and mirrors each image, and then fills a random rectangle with random grey levels (Zhong et al. 2020).

  The share of the image that the rectangle covers is uniform in [0.02, ``largest``], and the logarithm of its height
  over its width is uniform between those of 0.3 and 1 / 0.3. The paper draws again until the rectangle fits; here its
  sides are at most those of the image.

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
  if not 0 <= probability <= 1 or not 0.02 <= largest <= 1:
    raise UserError("config key augmentation: probability must be in [0, 1] and largest in [0.02, 1]: got "
                    f"{probability:g} and {largest:g}.")

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


def _rectangle(key: Array, shape: tuple[int, int], height: Array, width: Array) -> Array:
  """Returns which pixels lie in a rectangle of about this height and width at a random place within the image."""
  inside = []
  for own_key, side, length in zip(jax.random.split(key), shape, (height, width), strict=True):
    length = jnp.clip(jnp.round(length).astype(jnp.int32), 1, side)
    start = jax.random.randint(own_key, (), 0, side - length + 1)
    inside.append((jnp.arange(side) >= start) & (jnp.arange(side) < start + length))
  return inside[0][:, None] & inside[1][None, :]


PER_IMAGE: dict[str, Callable[..., Array]] = {"none": none, "crop_flip": crop_flip, "random_erasing": random_erasing}
