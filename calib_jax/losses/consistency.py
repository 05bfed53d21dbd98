"""How far several predictions for one example are from each other."""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics.softmax import log_softmax, with_lowest

Array = jax.Array


def jensen_shannon_consistency(logits: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Jensen-Shannon divergence of V predictions for each example, in nats; it needs no labels.

  It asks for equal predictions of several augmented views, for models that stay calibrated on shifted images.

  .. math::
    \mathrm{JS}(p_1, \ldots, p_V) = \frac{1}{V} \sum_v \sum_k p_{v,k} \log \frac{p_{v,k}}{m_k},
    \quad p_v = \mathrm{softmax}(z_v), \quad m = \frac{1}{V} \sum_v p_v

  It is 0 where all predictions are equal, up to rounding, and at most log V. AugMix adds 12 times its mean over a clean
  image and two augmentations of it (V = 3) to the loss of the clean image; ``augmentation.name="augmix"`` does that.

  Args:
    logits: ``[V, ..., K]`` floats, the predictions of V views one after another. A class of logit -inf has probability
      0, and may have it in some views only.
    where: optional ``[...]`` bools; examples that are False give 0 and may hold NaN.

  Returns:
    ``[...]`` values.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or shape.

  References:
    Hendrycks et al. 2020, Section 3.

  >>> views = jnp.array([[[2.0, 0.0]], [[2.0, 0.0]], [[-2.0, 0.0]]])  # One example.
  >>> jensen_shannon_consistency(views).round(4)
  Array([0.2952], dtype=float32)
  """
  logits = checks.over_classes(logits, "logits")
  if logits.ndim < 2 or not len(logits):
    raise ValueError(f"logits must be [V, ..., K], with at least one view on the first axis: got shape {logits.shape}.")
  if where is not None:
    where = checks.mask(where, logits.shape[1:-1])
    logits = jnp.where(where[None, ..., None], logits, 0)
  log_p = log_softmax(with_lowest(logits))[0]
  log_mean = jax.nn.logsumexp(log_p, axis=0, keepdims=True) - math.log(len(log_p))
  values = jnp.mean(jnp.sum(jnp.exp(log_p) * (log_p - log_mean), axis=-1), axis=0)
  return values if where is None else jnp.where(where, values, 0)
