"""Images are augmented and normalised on the device, inside the jitted step."""

import collections
from collections.abc import Callable, Mapping
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from calib_jax import _checks as checks
from calib_jax import losses
from calib_jax._checks.registry import register
from calib_jax._numerics.example_keys import example_keys, places
from calib_jax._system.errors import UserError
from calib_jax.training.data.operations import levels
from calib_jax.training.data.per_image import PER_IMAGE, crop_flip, mixed_chains, randaugment

Array = jax.Array
# Numbers to fold into a step's key; no example folds in the same ones, because examples fold in their positions.
_PARTNERS, _SHARES = 2**32 - 1, 2**32 - 2


def normalize(images: Array, mean: Array, std: Array) -> Array:
  """Normalises images by the mean and deviation of each channel.

  Args:
    images: ``[N, H, W, C]`` grey levels from 0 to 255.
    mean: ``[C]``, the means of training images / 255.
    std: ``[C]``, the standard deviations of training images / 255.

  Returns:
    ``[N, H, W, C]`` float32.
  """
  return (images.astype(jnp.float32) / 255 - mean.reshape(1, 1, 1, -1)) / std.reshape(1, 1, 1, -1)


class Batch(NamedTuple):
  """A device's share of a batch."""

  images: Array  # ``[n, H, W, C]``.
  labels: Array  # ``[n]`` integers.
  mask: Array  # ``[n]`` bools, False for padding, which is never a partner.
  key: Array  # The step's PRNG key.
  axis_name: str | None  # The mapped axis of the devices, over which partners are drawn; None for one device.
  num_classes: int


class Augmented(NamedTuple):
  """What a step trains on."""

  images: Array  # ``[n V, H, W, C]``, the V views of each example one after another; V is 1 for most augmentations.
  labels: Array  # ``[n]`` integers, or ``[n, K]`` floats where they are mixed.
  mask: Array  # ``[n]`` bools, False for padding.
  # Maps the head's output for ``images`` to that which ``labels`` belong to.
  unmix: Callable[[Array], Array] = lambda output: output
  # Maps the logits of ``images`` to further losses per example ``[n]``, by name, which are added to the loss.
  penalties: Callable[[Array], dict[str, Array]] = lambda logits: {}


# Augmentations of a batch by name: functions ``(batch, **options) -> Augmented``.
PER_BATCH: dict[str, Callable[..., Augmented]] = {}


@register(PER_BATCH)
def mixup(batch: Batch, *, alpha: float = 1.0, larger_share: bool = False, magnitude: float = 0.0, padding: int = 4,
          flip: bool = True) -> Augmented:
  """Mixup (Zhang et al. 2018): λ times each image plus 1 - λ times another image of the batch.

  Images are cropped and mirrored first. One λ ~ Beta(alpha, alpha) is drawn a step. Labels are mixed in the same way:
  they are distributions, which all losses per batch take, and ``cross_entropy``, ``focal`` and ``brier``.

  Args:
    batch: this device's share.
    alpha: the parameter of the Beta distribution.
    larger_share: whether λ is replaced by max(λ, 1 - λ), so that each image keeps the larger share of its mix.
    magnitude: above 0, images go through ``randaugment`` of this magnitude before they are mixed.
    padding: the padding of ``crop_flip``.
    flip: whether ``crop_flip`` mirrors images.

  Returns:
    The mixed images, labels ``[n, num_classes]``, and ``mask``.
  """
  images, other, other_labels = _pairs(batch, magnitude, padding, flip)
  share = jax.random.beta(jax.random.fold_in(batch.key, _SHARES), alpha, alpha)
  if larger_share:
    share = jnp.maximum(share, 1 - share)
  return Augmented(share * images + (1 - share) * other, _mixed_labels(batch, other_labels, share), batch.mask)


@register(PER_BATCH)
def cutmix(batch: Batch, *, alpha: float = 1.0, magnitude: float = 0.0, padding: int = 4, flip: bool = True
           ) -> Augmented:
  """CutMix (Yun et al. 2019): a rectangle of each image is replaced by the same one of another image of the batch.

  Images are cropped and mirrored first. One λ ~ Beta(alpha, alpha) and one centre are drawn a step; the rectangle has
  the sides ``sqrt(1 - λ)`` of the image's and is cut off at its border. The label of an image is its own by the share
  of pixels that it keeps, and the other's by the rest, as with ``mixup``.

  Args:
    batch: this device's share.
    alpha: the parameter of the Beta distribution.
    magnitude: above 0, images go through ``randaugment`` of this magnitude before they are mixed.
    padding: the padding of ``crop_flip``.
    flip: whether ``crop_flip`` mirrors images.

  Returns:
    The mixed images, labels ``[n, num_classes]``, and ``mask``.

  Raises:
    UserError: if a side of the images has less than 3 pixels.
  """
  if (side := min(batch.images.shape[1:3])) < 3:  # Half of the rectangle's side is rounded down, to 0 for these.
    raise UserError("config key augmentation.name 'cutmix' needs images of 3 pixels a side or more, of which a "
                    f"rectangle can be a part: got {side}.")
  images, other, other_labels = _pairs(batch, magnitude, padding, flip)
  share_key, *centre_keys = jax.random.split(jax.random.fold_in(batch.key, _SHARES), 3)
  cut = jnp.sqrt(1 - jax.random.beta(share_key, alpha, alpha))
  inside = []
  for centre_key, side in zip(centre_keys, images.shape[1:3], strict=True):
    half, centre = (cut * side).astype(jnp.int32) // 2, jax.random.randint(centre_key, (), 0, side)
    inside.append((jnp.arange(side) >= centre - half) & (jnp.arange(side) < centre + half))
  inside = inside[0][:, None] & inside[1][None, :]
  share = 1 - jnp.mean(inside, dtype=jnp.float32)
  return Augmented(jnp.where(inside[..., None], other, images), _mixed_labels(batch, other_labels, share), batch.mask)


@register(PER_BATCH)
def mixup_inference(batch: Batch, *, alpha: float = 1.0, min_difference: float = 0.0, magnitude: float = 0.0,
                    padding: int = 4, flip: bool = True) -> Augmented:
  """MIT-L, mixup inference in training: it mixes each pair of images twice and solves for the logits of the pair.

  With λ₁ ≥ 1/2 ≥ λ₂ and f₁, f₂ the logits of λ₁ a + (1 - λ₁) b and λ₂ a + (1 - λ₂) b, the logits of a and b are
  ``((1 - λ₂) f₁ - (1 - λ₁) f₂) / (λ₁ - λ₂)`` and ``(λ₁ f₂ - λ₂ f₁) / (λ₁ - λ₂)``. The loss is the mean over both.
  Two draws of Beta(alpha, alpha) a step give the distances of λ₁ and λ₂ from 1/2; these are at least 0.05, because at
  1/2 the two mixes would be the same. With ``min_difference`` above 0, as in the released code of MIT, λ₁ and λ₂ are
  two draws that are drawn again until they differ by at least that.

  Args:
    batch: this device's share.
    alpha: the parameter of the Beta distribution.
    min_difference: the least difference of λ₁ and λ₂, at least 1/2; 0 for the distances from 1/2.
    magnitude: above 0, images go through ``randaugment`` of this magnitude before they are mixed.
    padding: the padding of ``crop_flip``.
    flip: whether ``crop_flip`` mirrors images.

  Returns:
    The ``2 n`` mixed images, the labels and mask of the ``2 n`` original ones, each image before its partner, and the
    function ``unmix``.

  Raises:
    ValueError: if ``min_difference`` is neither 0 nor in [1/2, 1).
  """
  if min_difference and not 0.5 <= min_difference < 1:
    raise ValueError(f"min_difference must be 0 or in [0.5, 1): got {min_difference:g}.")
  images, other, other_labels = _pairs(batch, magnitude, padding, flip)
  share_key = jax.random.fold_in(batch.key, _SHARES)
  if min_difference > 0:
    more, less = _distant_draws(share_key, alpha, min_difference)
  else:
    distance = jnp.maximum(jnp.abs(jax.random.beta(share_key, alpha, alpha, (2,)) - 0.5), 0.05)
    more, less = 0.5 + distance[0], 0.5 - distance[1]

  def unmix(logits):
    more_logits, less_logits = logits[::2], logits[1::2]
    own, others = (1 - less) * more_logits - (1 - more) * less_logits, more * less_logits - less * more_logits
    return _in_turn(own, others) / (more - less)

  mixes = _in_turn(more * images + (1 - more) * other, less * images + (1 - less) * other)
  return Augmented(mixes, _in_turn(batch.labels, other_labels), _in_turn(batch.mask, batch.mask), unmix)


@register(PER_BATCH)
def augmix(batch: Batch, *, width: int = 3, depth: int = -1, severity: float = 3.0, alpha: float = 1.0,
           consistency: float = 12.0, padding: int = 4, flip: bool = True) -> Augmented:
  """AugMix (Hendrycks et al. 2020): images are mixed with chains of operations on them, and predictions agree on both.

  Images are cropped and mirrored first. A mix is ``(1 - m) x + m Σ wᵢ chainᵢ(x)``, with w ~ Dirichlet(alpha, …) and
  m ~ Beta(alpha, alpha) for each image. Each chain has its own length and operations, at levels that are uniform in
  [0.1, ``severity``] of 10. They are auto-contrast, equalise, posterise, solarise, rotation, shears and translations:
  brightness, contrast, colour and sharpness are left out, because they are like corruptions of the benchmarks that
  robustness is measured by. As in the released code, posterise keeps 4 bits at level 0, and grey levels, bits and
  pixels are whole; degrees are not rounded here.

  With ``consistency`` above 0, the model sees each clean image and two mixes of it in one batch of three times the
  size, whose statistics batch normalisation takes. The loss is the loss of the clean images, plus ``consistency`` times
  ``losses.jensen_shannon_consistency`` of the three predictions. With 0 it is the loss of one mix of each image.

  Args:
    batch: this device's share.
    width: the number of chains, at least 1.
    depth: the number of operations in a chain; -1 for 1, 2 or 3 at random.
    severity: the largest level of the operations, in [0.1, 10].
    alpha: the parameter of both distributions.
    consistency: λ, the factor of the consistency, at least 0.
    padding: the padding of ``crop_flip``.
    flip: whether ``crop_flip`` mirrors images.

  Returns:
    The images, labels and mask, and the functions ``unmix`` and ``penalties``.
  """
  crop_keys, *view_keys = jnp.moveaxis(jax.vmap(lambda key: jax.random.split(key, 3))(_keys(batch)), 1, 0)
  images = crop_flip(batch.images, crop_keys, padding=padding, flip=flip)
  views = 2 if consistency else 1
  mixes = mixed_chains(jnp.concatenate([levels(images)] * views), jnp.concatenate(view_keys[:views]), width=width,
                       depth=depth, severity=severity, alpha=alpha)
  if not consistency:
    return Augmented(mixes, batch.labels, batch.mask)

  def penalties(logits):
    of_views = jnp.stack([logits[view::3] for view in range(3)])
    return {"consistency": consistency * losses.jensen_shannon_consistency(of_views)}

  return Augmented(_in_turn(images.astype(jnp.float32), *jnp.split(mixes, 2)), batch.labels, batch.mask,
                   lambda output: output[::3], penalties)


def _in_turn(*views: Array) -> Array:
  """Returns the V views of examples one after another, ``[n V, ...]``: their places do not depend on the devices."""
  return jnp.stack(views, axis=1).reshape(-1, *views[0].shape[1:])


def _distant_draws(key: Array, alpha: float, min_difference: float) -> tuple[Array, Array]:
  """Returns the larger and the smaller of two draws of Beta(alpha, alpha), drawn until they are so far apart."""
  def draw(carry):
    key, own = jax.random.split(carry[0])
    return key, jax.random.beta(own, alpha, alpha, (2,))

  _, draws = jax.lax.while_loop(lambda carry: jnp.abs(carry[1][0] - carry[1][1]) < min_difference, draw,
                                draw((key, None)))
  return jnp.max(draws), jnp.min(draws)


def _keys(batch: Batch) -> Array:
  return example_keys(batch.key, len(batch.labels), batch.axis_name)


def _pairs(batch: Batch, magnitude: float, padding: int, flip: bool) -> tuple[Array, Array, Array]:
  """Returns augmented float32 images, of each a random unmasked partner in the global batch, and partners' labels."""
  per_image = functools.partial(randaugment, magnitude=magnitude) if magnitude else crop_flip
  images = per_image(batch.images, _keys(batch), padding=padding, flip=flip)
  everything = (images, batch.labels, batch.mask)
  if batch.axis_name is not None:
    everything = jax.lax.all_gather(everything, batch.axis_name, tiled=True)
  place = places(len(batch.labels), batch.axis_name)
  partner = jax.random.permutation(jax.random.fold_in(batch.key, _PARTNERS), len(everything[1]))[place]
  partner = jnp.where(everything[2][partner], partner, place)
  return images.astype(jnp.float32), everything[0][partner].astype(jnp.float32), everything[1][partner]


def _mixed_labels(batch: Batch, other_labels: Array, share: Array) -> Array:
  """Returns the distributions ``[n, K]`` that have ``share`` of the own class and the rest of the partner's."""
  own, other = (jax.nn.one_hot(labels, batch.num_classes) for labels in (batch.labels, other_labels))
  return share * own + (1 - share) * other


MIXED_LABELS = ("mixup", "cutmix")  # Those whose labels are distributions.
# Augmentations by name.
AUGMENTATIONS: Mapping[str, Callable[..., Any]] = collections.ChainMap(PER_BATCH, PER_IMAGE)
# What some options may be.
_LIMITS = {"padding": "integer [0, inf)", "alpha": "(0, inf)", "probability": "[0, 1]", "largest": "[0.02, 1]",
           "num_ops": "integer [1, inf)", "magnitude": "[0, 30]", "width": "integer [1, inf)",
           "depth": "integer [1, inf) or -1", "severity": "[0.1, 10]", "consistency": "[0, inf)"}


def build_augmentation(name: str, *, num_classes: int, **options: Any) -> Callable[..., Augmented]:
  """Returns an augmentation by name.

  Args:
    name: one of ``AUGMENTATIONS``.
    num_classes: the number of classes.
    **options: the options of the augmentation.

  Returns:
    A function ``(images, labels, mask, key, axis_name) -> Augmented`` of one device's share of a batch.

  Raises:
    TypeError, ValueError: if an option is of the wrong kind or out of range.
  """
  checks.options(**{option: (value, _LIMITS[option]) for option, value in options.items() if option in _LIMITS})

  def augment(images, labels, mask, key, axis_name):
    batch = Batch(images, labels, mask, key, axis_name, num_classes)
    if name in PER_BATCH:
      return PER_BATCH[name](batch, **options)
    return Augmented(PER_IMAGE[name](images, _keys(batch), **options), labels, mask)

  return augment
