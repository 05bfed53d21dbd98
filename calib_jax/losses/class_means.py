"""Losses that compare the mean probability of each class over a batch with how often the class occurs."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics.softmax import expectation, log_softmax, pick, targets
from calib_jax.losses.catalogue import PER_BATCH, register
from calib_jax.losses.reductions import global_sum, shares, weighted

Array = jax.Array


@register(PER_BATCH)
def mdca(logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None, weights: ArrayLike | None = None,
         axis_name: str | None = None) -> Array:
  r"""Multi-class difference in confidence and accuracy (MDCA), a secondary loss.

  Use it beside another loss to calibrate the mean probability of every class.

  .. math:: \frac{1}{K} \sum_k \left|\frac{1}{N} \sum_i p_{ik} - \frac{1}{N} \sum_i [y_i = k]\right|

  It is 0 for a model that predicts the frequencies of the batch's classes for every example: it says nothing of single
  predictions, and needs a primary loss.

  Args:
    logits: ``[..., K]`` floats, whose leading axes are one batch of N rows.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats, distributions.
    where: optional ``[...]`` bools; rows that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.
    axis_name: optional mapped axis, for the value of the global batch across it.

  Returns:
    A scalar; 0 if nothing counts. O(NK); devices exchange K numbers.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Hebbalaguppe et al. 2022, and the code released with it.

  >>> mdca(jnp.array([[0.0, 0.0], [0.0, 0.0]]), jnp.array([0, 0]))
  Array(0.5, dtype=float32)
  """
  logits, labels, weights = checks.batch(logits, labels, where, weights, axis_name=axis_name, soft=True)
  difference = jax.nn.softmax(logits) - targets(labels, logits)
  share = shares(weights, logits.dtype, axis_name)
  return jnp.mean(jnp.abs(global_sum(share[:, None] * difference, axis_name)))


@register(PER_BATCH)
def generative_cross_entropy(logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None,
                             weights: ArrayLike | None = None, axis_name: str | None = None) -> Array:
  r"""Generative cross entropy (GenCE): the likelihood of the image given its class, rather than of the class.

  Use it in place of cross entropy to compare the images of a batch with each other, class by class.

  By Bayes' rule p(x|y) is p(y|x) p(x) / p(y), whose p(x) does not depend on the model, and p(y) is its mean prediction
  over the batch:

  .. math:: L = -\frac{1}{N} \sum_i \log \frac{p_{i y_i}}{\frac{1}{N} \sum_j p_{j y_i}}

  This is cross entropy plus the mean log of the mean probability of the label's class. It is at least -log N, and 0
  for a model that predicts the same for every example; it learns nothing of a batch of one example. It depends on the
  size of the batch: of a batch with one image of each class the mean is little more than that image's own share, so
  that small batches reward a probability less than large ones. Generalised cross entropy, which others call GCE, is
  another loss.

  Args:
    logits: ``[..., K]`` floats, whose leading axes are one batch of N rows.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats, distributions.
    where: optional ``[...]`` bools; rows that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.
    axis_name: optional mapped axis, for the value of the global batch across it.

  Returns:
    A scalar in nats; 0 if nothing counts. O(NK); devices exchange 2K numbers.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Zhan et al. 2026 (arXiv 2604.06689). The abstracts give the formula in words: "maximizes p(x|y)", "cross-entropy
    augmented with a class-level confidence regularizer", and "normalizing each sample's softmax score against the
    model's predictions on the batch". The mean, where a sum over the batch would add log N, is ours.

  >>> generative_cross_entropy(jnp.array([[2.0, 0.0], [0.0, 2.0]]), jnp.array([0, 1])).round(2)
  Array(-0.57, dtype=float32)
  """
  logits, labels, weights = checks.batch(logits, labels, where, weights, axis_name=axis_name, soft=True)
  log_p, _ = log_softmax(logits)
  share = shares(weights, logits.dtype, axis_name)
  counted = jnp.where(share[:, None] > 0, log_p, -jnp.inf)
  # The mean of probabilities in logarithms, because all of a class may round to 0. Devices agree on the largest.
  largest = jax.lax.stop_gradient(jnp.max(counted, 0))
  largest = largest if axis_name is None else jax.lax.pmax(largest, axis_name)
  largest = jnp.where(jnp.isfinite(largest), largest, 0)
  # Rows of weight 0 may be above the largest: the limit of 80 keeps their exponentials finite.
  total = global_sum(share[:, None] * jnp.exp(jnp.minimum(log_p - largest[None, :], 80)), axis_name)
  log_mean = jnp.log(jnp.where(total == 0, 1, total)) + largest
  if labels.ndim == 2:
    values = expectation(labels, -log_p) + jnp.sum(labels * log_mean[None, :], axis=-1)
  else:
    own = pick(log_p, labels)
    values = jnp.where(own == -jnp.inf, jnp.inf, log_mean[labels] - jnp.where(own == -jnp.inf, 0, own))
  return global_sum(weighted(share, values), axis_name)
