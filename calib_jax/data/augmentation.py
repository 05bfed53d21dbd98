"""Normalisation and augmentation on the device, inside the jitted step."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Array = jax.Array


def normalize(images: Array, mean: Array, std: Array) -> Array:
  """uint8 ``[N, H, W, C]`` to float32 with each channel's training mean 0 and deviation 1."""
  return (images.astype(jnp.float32) / 255 - mean.reshape(1, 1, 1, -1)) / std.reshape(1, 1, 1, -1)


def crop_flip(images: Array, keys: Array, *, padding: int = 4, flip: bool = True) -> Array:
  """A random crop of each image padded by ``padding`` zeros, mirrored with probability one half where ``flip``.

  ``keys`` ``[N]``: one PRNG key an image, so that the result does not depend on how a batch is spread over devices.
  """
  def one(image, key):
    crop_key, flip_key = jax.random.split(key)
    padded = jnp.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    row, column = jax.random.randint(crop_key, (2,), 0, 2 * padding + 1)
    image = jax.lax.dynamic_slice(padded, (row, column, 0), image.shape)
    return jnp.where(jax.random.bernoulli(flip_key), image[:, ::-1], image) if flip else image

  return jax.vmap(one)(images, keys)


def none(images: Array, keys: Array) -> Array:
  """The images as they are."""
  del keys
  return images


AUGMENTATIONS: dict[str, Callable[..., Array]] = {"none": none, "crop_flip": crop_flip}
