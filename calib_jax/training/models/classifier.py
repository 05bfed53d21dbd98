"""A classifier is a backbone, which maps images to features, and a head, which maps features to logits."""

import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp

from calib_jax._numerics.example_keys import example_keys
from calib_jax.training.models.layers import Features, random_key

Array = jax.Array


class Classifier(nn.Module):
  """Computes ``head(backbone(images))``.

  The backbone's parameters are at the top level of ``params``, with names that start with their group (``stem_conv``,
  ``group1_block0``, …). The head's parameters are under ``head``.

  Dropout is before the head: each feature that the head gets is 0 with that probability, and is else divided by its
  complement. In training every image has a draw of its own. A sampled prediction (``evaluation.samples``) has one draw
  for all images, so that it does not depend on which others are predicted beside it. Any other prediction has no
  dropout. A map that a head reads beside the features stays whole.

  Attributes:
    backbone: maps images to ``Features``.
    head: maps ``Features`` to logits.
    image_size: images are resized to this side before the backbone, bilinearly; 0 to leave them as they are.
    dropout: the probability that a feature is dropped between backbone and head, in [0, 1).
    axis_name: the mapped axis over which a batch is spread, if any.
    from_features: whether it is given features ``[N, D]`` that the backbone computed before, for the head alone.
  """

  backbone: nn.Module
  head: nn.Module
  image_size: int = 0
  dropout: float = 0.0
  axis_name: str | None = None
  from_features: bool = False

  @nn.compact
  def __call__(self, images: Array, *, train: bool = False, mask: Array | None = None,
               freeze_batch_stats: bool = False, return_features: bool = False) -> Array | tuple[Array, Array]:
    """Returns the logits of images.

    Args:
      images: ``[N, H, W, C]`` floats, or other arrays ``[N, ...]`` that the backbone takes.
      train: whether to use and update batch statistics, and to draw random numbers from the key ``dropout``.
      mask: ``[N]``, False for examples that batch statistics leave out.
      freeze_batch_stats: whether the backbone computes what it computes in predictions even if ``train`` is true, so
        that ``train`` concerns the head alone.
      return_features: whether to return the features too.

    Returns:
      float32 logits ``[N, num_classes]``, or ``(logits, features)`` with features ``[N, D]``.
    """
    nn.share_scope(self, self.backbone)
    if self.from_features:
      features = Features(images)
    else:
      _check_call(self.backbone, "x", _BACKBONE)
      features = self.backbone(_resized(images, self.image_size), train=train and not freeze_batch_stats, mask=mask)
      _check_features(self.backbone, features, len(images))
    _check_call(self.head, "features", _HEAD)
    logits = self.head(self._dropped(features, train), train=train, mask=mask)
    return (logits, features.vector) if return_features else logits

  def _dropped(self, features: Features, train: bool) -> Features:
    """Returns the features that the head gets."""
    key = random_key(self, train) if self.dropout else None
    if key is None:
      return features
    number, size = features.vector.shape
    keys = example_keys(key, number, self.axis_name) if train else key[None]
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - self.dropout, (size,)))(keys)
    return features._replace(vector=jnp.where(kept, features.vector / (1 - self.dropout), 0))


_BACKBONE = ("train says whether batch statistics are computed and dropout is on, and mask [N] is False for rows that "
             "only fill up a batch, which batch statistics must leave out, as models.BatchNorm does")
_HEAD = "train is True in training steps, and mask [N] is False for rows that only fill up a batch"


def _check_call(module: nn.Module, first: str, meaning: str) -> None:
  """Raises a TypeError if a user's own module does not take what the classifier gives it."""
  parameters = inspect.signature(module).parameters
  missing = [name for name in ("train", "mask") if name not in parameters]
  if missing and not any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
    raise TypeError(f"{type(module).__name__} must be called as (self, {first}, *, train=False, mask=None), and takes "
                    f"no {' and '.join(missing)}: {meaning}.")


def _check_features(backbone: nn.Module, features: Features, number: int) -> None:
  """Raises a TypeError if a user's own backbone does not return features."""
  if not isinstance(features, Features) or features.vector.ndim != 2 or len(features.vector) != number:
    is_features = isinstance(features, Features)
    array = features.vector if is_features else features
    what = f"{'a vector' if is_features else type(features).__name__} of shape {getattr(array, 'shape', 'unknown')}"
    raise TypeError(f"{type(backbone).__name__} must return calib_jax.training.models.Features(vector) with a vector "
                    f"[N, D] of what the last layer reads, which is the head's own: got {what}.")


def _resized(images: Array, side: int) -> Array:
  """Returns images resized to ``side``, bilinearly; 0 leaves them as they are."""
  if not side or images.shape[1:3] == (side, side):
    return images
  if images.ndim != 4:
    raise ValueError(f"image_size is for images [N, H, W, C]: got arrays of shape {images.shape}.")
  return jax.image.resize(images.astype(jnp.float32), (len(images), side, side, images.shape[-1]), "bilinear")
