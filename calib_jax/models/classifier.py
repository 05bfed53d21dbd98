"""A classifier is a backbone, which maps images to features, and a head, which maps features to logits."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from calib_jax.models.layers import Features, example_keys, random_key

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
  """

  backbone: nn.Module
  head: nn.Module
  image_size: int = 0
  dropout: float = 0.0
  axis_name: str | None = None

  @nn.compact
  def __call__(self, images: Array, *, train: bool = False, mask: Array | None = None,
               freeze_batch_stats: bool = False, return_features: bool = False) -> Array | tuple[Array, Array]:
    """Returns the logits of images.

    Args:
      images: ``[N, H, W, C]`` floats; or features ``[N, D]`` that the backbone computed before, for the head alone.
      train: whether to use and update batch statistics, and to draw random numbers from the key ``dropout``.
      mask: ``[N]``, False for examples that batch statistics leave out.
      freeze_batch_stats: whether the backbone computes what it computes in predictions even if ``train`` is true, so
        that ``train`` concerns the head alone.
      return_features: whether to return the features too.

    Returns:
      float32 logits ``[N, num_classes]``, or ``(logits, features)`` with features ``[N, D]``.
    """
    nn.share_scope(self, self.backbone)
    if images.ndim == 2:
      features = Features(images)
    else:
      features = self.backbone(_resized(images, self.image_size), train=train and not freeze_batch_stats, mask=mask)
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


def _resized(images: Array, side: int) -> Array:
  """Returns images resized to ``side``, bilinearly; 0 leaves them as they are."""
  if not side or images.shape[1:3] == (side, side):
    return images
  return jax.image.resize(images.astype(jnp.float32), (len(images), side, side, images.shape[-1]), "bilinear")
