"""Losses that act on the logits themselves: squares, margins and pairs."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics.softmax import one_hot, pick, predicted, varying_as
from calib_jax.losses.catalogue import PER_EXAMPLE, register
from calib_jax.losses.proper import cross_entropy

Array = jax.Array


@register(PER_EXAMPLE)
def square(logits: ArrayLike, labels: ArrayLike, *, true_class_weight: float | Array = 1.0,
           true_class_target: float | Array = 1.0, where: ArrayLike | None = None) -> Array:
  r"""Square loss on raw logits.

  Use it as the baseline without a softmax.

  .. math:: \ell(z, y) = \frac{1}{K} \Big[w (z_y - M)^2 + \sum_{k \ne y} z_k^2\Big]

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``.
    true_class_weight: w, at least 0.
    true_class_target: M.
    where: optional ``[...]`` bools; rows that are False give 0 and may hold NaN.

  Returns:
    ``[...]`` values. O(NK).

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range, or a logit is -inf: a masked class would
      be infinitely far from its target of 0. Where that is traced, it gives inf.

  References:
    Hui & Belkin 2021.

  >>> square(jnp.array([[2.0, 1.0]]), jnp.array([0]))
  Array([1.], dtype=float32)
  """
  logits, labels = checks.examples(logits, labels, where)
  checks.options(true_class_weight=(true_class_weight, "[0, inf)"),
                 true_class_target=(true_class_target, "(-inf, inf)"))
  checks.masked_class(logits, "square depends on the logit of every class")
  true_class = true_class_weight * (logits - true_class_target) ** 2
  values = jnp.mean(jnp.where(one_hot(labels, logits), true_class, logits**2), axis=-1)
  return checks.example_values(values, labels, where, logits.shape[-1])


@register(PER_EXAMPLE)
def margin_label_smoothing(logits: ArrayLike, labels: ArrayLike, *, margin: float | Array = 10.0,
                           weight: float | Array = 0.1, where: ArrayLike | None = None) -> Array:
  r"""Margin-based label smoothing (MbLS): cross entropy in nats, and a penalty in units of logits.

  Use it for label smoothing that leaves logits alone until they are a margin apart.

  .. math:: L = -\log p_y + \frac{w}{K} \sum_k \max(0, \max_j z_j - z_k - m)

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``.
    margin: m, at least 0.
    weight: w, at least 0.
    where: optional ``[...]`` bools; rows that are False give 0 and may hold NaN.

  Returns:
    ``[...]`` values. O(NK).

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range, or a logit is -inf: the penalty of a
      masked class would be infinite. Where that is traced, it gives inf.

  References:
    Liu et al. 2022 (MbLS).

  >>> margin_label_smoothing(jnp.array([[3.0, 0.0]]), jnp.array([0]), margin=1.0, weight=1.0).round(3)
  Array([1.049], dtype=float32)
  """
  logits, labels = checks.examples(logits, labels, where)
  checks.options(margin=(margin, "[0, inf)"), weight=(weight, "[0, inf)"))
  checks.masked_class(logits, "margin_label_smoothing depends on the logit of every class")
  top = pick(logits, predicted(logits))
  excess = jax.nn.relu(top[..., None] - logits - margin)
  values = cross_entropy(logits, labels) + weight * jnp.mean(excess, axis=-1)
  return checks.example_values(values, labels, where, logits.shape[-1])


@register(PER_EXAMPLE)
def adaptive_conditional_label_smoothing(logits: ArrayLike, labels: ArrayLike, *, margin: float | Array = 10.0,
                                         weight: float | Array = 0.1, positive_weight: float | Array = 1.0,
                                         negative_weight: float | Array = 0.1, where: ArrayLike | None = None) -> Array:
  r"""Adaptive and conditional label smoothing (ACLS).

  Use it for label smoothing that acts on the label alone where it is predicted, and on others where they are.

  .. math::
    L = -\log p_y + w \lambda^+ \max(0, z_{\hat y} - m)^2
    \quad + \frac{w \lambda^-}{K - 1} \sum_{k \ne \hat y} \max(0, \mathrm{sg}(z_{\hat y}) - z_k - m)^2

  with ŷ the top class and sg the stop-gradient.

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``.
    margin: m, at least 0.
    weight: w, at least 0.
    positive_weight: λ⁺, at least 0.
    negative_weight: λ⁻, at least 0.
    where: optional ``[...]`` bools; rows that are False give 0 and may hold NaN.

  Returns:
    ``[...]`` values. O(NK).

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range, or a logit is -inf: the penalty of a
      masked class would be infinite. Where that is traced, it gives inf.

  References:
    Park et al. 2023 (ACLS).

  >>> adaptive_conditional_label_smoothing(jnp.array([[3.0, 0.0]]), jnp.array([0]), margin=1.0, weight=1.0).round(1)
  Array([4.4], dtype=float32)
  """
  logits, labels = checks.examples(logits, labels, where)
  checks.options(margin=(margin, "[0, inf)"), weight=(weight, "[0, inf)"),
                 positive_weight=(positive_weight, "[0, inf)"), negative_weight=(negative_weight, "[0, inf)"))
  checks.masked_class(logits, "adaptive_conditional_label_smoothing depends on the logit of every class")
  top = pick(logits, predicted(logits))
  # The term of k = ŷ is max(0, -m)² = 0, so that the sum may run over all classes.
  below = jax.nn.relu(jax.lax.stop_gradient(top)[..., None] - logits - margin) ** 2
  negative = jnp.sum(below, axis=-1) / (logits.shape[-1] - 1)
  penalty = positive_weight * jax.nn.relu(top - margin) ** 2 + negative_weight * negative
  values = cross_entropy(logits, labels) + weight * penalty
  return checks.example_values(values, labels, where, logits.shape[-1])


@register(PER_EXAMPLE)
def pairwise_constraints(logits: ArrayLike, labels: ArrayLike, *, discrimination_weight: float | Array = 1.0,
                         exclusion_weight: float | Array = 1.0, where: ArrayLike | None = None) -> Array:
  r"""Calibration by pairwise constraints (CPC), in nats.

  Use it to calibrate the order of every pair of classes beside the label.

  .. math::
    L = -\log p_y + w_d \operatorname{mean}_{k \ne y} -\log \sigma(z_y - z_k)
    \quad + w_e \operatorname{mean}_{i \ne j;\; i, j \ne y} -\tfrac12 \log \sigma(z_i - z_j)

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``.
    discrimination_weight: w_d, at least 0.
    exclusion_weight: w_e, at least 0. For K = 2 there is no pair of other classes and the last term is 0.
    where: optional ``[...]`` bools; rows that are False give 0 and may hold NaN.

  Returns:
    ``[...]`` values. O(NK²) time, O(NK) memory.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range, or a logit is -inf: the pairs of a masked
      class would be infinite. Where that is traced, it gives inf or NaN.

  References:
    Cheng & Vasconcelos 2022 (CPC).

  >>> pairwise_constraints(jnp.array([[0.0, 0.0, 0.0]]), jnp.array([0])).round(3)
  Array([2.138], dtype=float32)
  """
  logits, labels = checks.examples(logits, labels, where)
  checks.options(discrimination_weight=(discrimination_weight, "[0, inf)"),
                 exclusion_weight=(exclusion_weight, "[0, inf)"))
  checks.masked_class(logits, "pairwise_constraints depends on the logit of every class")
  logits = checks.gathered(logits, -1)
  num_classes, other = logits.shape[-1], ~one_hot(labels, logits)
  label_logit = pick(logits, labels)[..., None]
  discrimination = jnp.sum(jax.nn.softplus(logits - label_logit), axis=-1, where=other) / (num_classes - 1)

  # Class i against all other classes j, one i at a time and computed again for the gradient, so that memory is never
  # [..., K, K]. A pair of a class with itself, log 2, and pairs with the label are left out.
  @jax.checkpoint
  def add_pairs(total, class_and_logit):
    i, logit = class_and_logit
    is_pair = other & ~one_hot(jnp.full(labels.shape, i), logits)
    pairs = jnp.sum(jax.nn.softplus(logits - logit[..., None]), axis=-1, where=is_pair)
    return total + jnp.where(i == labels, 0, pairs), None

  zeros = varying_as(varying_as(jnp.zeros_like(discrimination), logits), labels)
  # The logits of one class are a row of the transpose: JAX 0.12 cannot differentiate a dynamic slice on Explicit axes.
  classes = jnp.arange(num_classes, dtype=jnp.int32), jnp.moveaxis(logits, -1, 0)
  total, _ = jax.lax.scan(add_pairs, zeros, classes)
  exclusion = total / 2 / max((num_classes - 1) * (num_classes - 2), 1)
  values = cross_entropy(logits, labels) + discrimination_weight * discrimination + exclusion_weight * exclusion
  return checks.example_values(values, labels, where, logits.shape[-1])
