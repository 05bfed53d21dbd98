"""Normalisation and augmentation on the device, inside the jitted step."""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array
_PARTNERS, _SHARES = 2**32 - 1, 2**32 - 2  # Folded into a step's key where examples fold in their places.


def normalize(images: Array, mean: Array, std: Array) -> Array:
  """Grey levels ``[N, H, W, C]`` to float32 with each channel's training mean 0 and deviation 1."""
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


class Augmented(NamedTuple):
  """What a step trains on: ``unmix`` takes the model's logits of ``images`` to those of ``labels`` and ``mask``."""

  images: Array
  labels: Array
  mask: Array
  unmix: Callable[[Array], Array] = lambda logits: logits


def mixup(images: Array, labels: Array, mask: Array, key: Array, axis_name: str | None, num_classes: int, *,
          alpha: float = 1.0, padding: int = 4, flip: bool = True) -> Augmented:
  """Mixup (Zhang et al. 2018) of randomly cropped and mirrored images: λ of each and 1 - λ of another of the batch.

  One λ ~ Beta(alpha, alpha) a step; labels ``[n, num_classes]`` are mixed alike, so the primary loss must take soft
  ones.
  """
  images, other, labels, other_labels = _pairs(images, labels, mask, key, axis_name, padding, flip)
  share = jax.random.beta(jax.random.fold_in(key, _SHARES), alpha, alpha)
  soft = share * jax.nn.one_hot(labels, num_classes) + (1 - share) * jax.nn.one_hot(other_labels, num_classes)
  return Augmented(share * images + (1 - share) * other, soft, mask)


def mixup_inference(images: Array, labels: Array, mask: Array, key: Array, axis_name: str | None, num_classes: int, *,
                    alpha: float = 1.0, padding: int = 4, flip: bool = True) -> Augmented:
  """MIT-L, mixup inference in training: two mixes of each pair, their logits taken apart into those of the pair.

  With λ₁ ≥ 1/2 ≥ λ₂ and f₁, f₂ the logits of λ₁ a + (1 - λ₁) b and λ₂ a + (1 - λ₂) b, the pair's are
  ``((1 - λ₂) f₁ - (1 - λ₁) f₂) / (λ₁ - λ₂)`` and ``(λ₁ f₂ - λ₂ f₁) / (λ₁ - λ₂)``; the loss is the mean over both. The
  λs are halves of two draws of Beta(alpha, alpha) a step, kept 0.05 from 1/2, where the two mixes would be one.
  """
  del num_classes
  images, other, labels, other_labels = _pairs(images, labels, mask, key, axis_name, padding, flip)
  draws = jax.random.beta(jax.random.fold_in(key, _SHARES), alpha, alpha, (2,))
  distance = jnp.maximum(jnp.abs(draws - 0.5), 0.05)
  more, less = 0.5 + distance[0], 0.5 - distance[1]

  def unmix(logits):
    first, second = jnp.split(logits, 2)
    return jnp.concatenate([(1 - less) * first - (1 - more) * second, more * second - less * first]) / (more - less)

  mixes = jnp.concatenate([more * images + (1 - more) * other, less * images + (1 - less) * other])
  return Augmented(mixes, jnp.concatenate([labels, other_labels]), jnp.concatenate([mask, mask]), unmix)


def _pairs(images: Array, labels: Array, mask: Array, key: Array, axis_name: str | None, padding: int, flip: bool):
  """Cropped float32 images and, of each, another of the global batch that counts; then the labels of both."""
  images = crop_flip(images, example_keys(key, len(labels), axis_name), padding=padding, flip=flip)
  everything = (images, labels, mask)
  if axis_name is not None:
    everything = jax.lax.all_gather(everything, axis_name, tiled=True)
  place = _places(len(labels), axis_name)
  partner = jax.random.permutation(jax.random.fold_in(key, _PARTNERS), len(everything[1]))[place]
  partner = jnp.where(everything[2][partner], partner, place)
  other, other_labels = everything[0][partner], everything[1][partner]
  return images.astype(jnp.float32), other.astype(jnp.float32), labels, other_labels


def _places(number: int, axis_name: str | None) -> Array:
  """Where this device's examples are in the global batch."""
  return jnp.arange(number) + (0 if axis_name is None else jax.lax.axis_index(axis_name) * number)


def example_keys(key: Array, number: int, axis_name: str | None) -> Array:
  """A key an example, by its place in the global batch: the same however many devices share it."""
  return jax.vmap(jax.random.fold_in, (None, 0))(key, _places(number, axis_name))


PER_IMAGE: dict[str, Callable[..., Array]] = {"none": none, "crop_flip": crop_flip}
PAIRED: dict[str, Callable[..., Augmented]] = {"mixup": mixup, "mixup_inference": mixup_inference}
AUGMENTATIONS = {**PER_IMAGE, **PAIRED}


def build_augmentation(name: str, *, num_classes: int, **options) -> Callable[..., Augmented]:
  """The augmentation by name as a function ``(images, labels, mask, key, axis_name)`` of one device's share."""
  if name in PAIRED:
    return functools.partial(PAIRED[name], num_classes=num_classes, **options)

  def each(images, labels, mask, key, axis_name):
    return Augmented(PER_IMAGE[name](images, example_keys(key, len(labels), axis_name), **options), labels, mask)

  return each
