"""Proper scores, per example: cross entropy and the Brier score."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics.softmax import (
  LOWEST,
  expectation,
  infinite,
  label_odds,
  log_softmax,
  one_hot,
  pick,
  with_lowest,
)
from calib_jax.losses.catalogue import PER_EXAMPLE, register

Array = jax.Array


@register(PER_EXAMPLE)
def cross_entropy(logits: ArrayLike, labels: ArrayLike, *, label_smoothing: float | Array = 0.0,
                  where: ArrayLike | None = None) -> Array:
  r"""Cross entropy, in nats.

  It is the default: a proper loss, whose best prediction is the true probability; with smoothing it is not proper.

  .. math::
    \ell(z, y) = -\sum_k t_k \log p_k, \quad p = \mathrm{softmax}(z), \quad t = (1 - a)\,\mathrm{onehot}(y) + a/K

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats, distributions.
    label_smoothing: a, in [0, 1]. Above 0, every class has a part of the label, so that a masked class (a logit of
      -inf) has no meaning: ValueError, or inf if it is traced.
    where: optional ``[...]`` bools; rows that are False give 0 and may hold NaN.

  Returns:
    ``[...]`` values.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Szegedy et al. 2016, Section 7 (label smoothing).

  >>> cross_entropy(jnp.array([[2.0, 0.0, -1.0]]), jnp.array([0])).round(4)
  Array([0.1698], dtype=float32)
  """
  logits, labels = checks.examples(logits, labels, where, soft=True)
  checks.options(label_smoothing=(label_smoothing, "[0, 1]"))
  is_known = checks.is_readable(label_smoothing)
  if is_known and label_smoothing > 0:
    checks.masked_class(logits, "label_smoothing gives every class a part of the label")
  if labels.shape == logits.shape:
    targets = (1 - label_smoothing) * labels + label_smoothing / logits.shape[-1]
    values = infinite(expectation(targets, -log_softmax(logits)[0]))
    return checks.example_values(values, labels, where, logits.shape[-1])
  surprise = jax.nn.softplus(label_odds(logits, labels))
  if not is_known or label_smoothing > 0:
    # -log p_k = -log p_y + z_y - z_k, averaged over k for the smoothed part.
    finite = with_lowest(logits)
    smoothed = jnp.mean(pick(finite, labels)[..., None] - finite, axis=-1)
    is_masked = smoothed > -LOWEST / (2 * logits.shape[-1])
    surprise += label_smoothing * jnp.where(is_masked, jnp.where(label_smoothing > 0, jnp.inf, 0), smoothed)
  return checks.example_values(infinite(surprise), labels, where, logits.shape[-1])


@register(PER_EXAMPLE)
def brier_weighted_cross_entropy(logits: ArrayLike, labels: ArrayLike, *, gamma: float | Array = 1.0,
                                 norm: float | Array = 2.0, where: ArrayLike | None = None) -> Array:
  r"""Cross entropy whose examples weigh by the distance from the probabilities to the label, in nats.

  Use it to train mostly on examples that the model has wrong, whatever it is sure of.

  .. math:: \ell(z, y) = -\mathrm{sg}\big(\|\mathrm{onehot}(y) - p\|_q^\gamma\big) \log p_y,
    \quad p = \mathrm{softmax}(z)

  with sg the stop-gradient, and q the order of the norm. With q = 2 and γ = 2 the weight is the Brier score.

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``.
    gamma: exponent of the weight, at least 0; 0 gives cross entropy.
    norm: q, at least 1.
    where: optional ``[...]`` bools; rows that are False give 0 and may hold NaN.

  Returns:
    ``[...]`` values. O(NK).

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Lin et al. 2025 (BSCE-GRA).

  >>> brier_weighted_cross_entropy(jnp.array([[0.0, 0.0]]), jnp.array([0]), gamma=2.0).round(4)
  Array([0.3466], dtype=float32)
  """
  logits, labels = checks.examples(logits, labels, where)
  checks.options(gamma=(gamma, "[0, inf)"), norm=(norm, "[1, inf)"))
  odds, others = label_odds(logits, labels), ~one_hot(labels, logits)
  # The norm is (1 - p_y) (1 + Σ_{k≠y} r_k^q)^{1/q}, where the shares r_k = p_k / (1 - p_y) of the other classes are
  # numerically stable however small 1 - p_y is.
  shares = jax.nn.softmax(with_lowest(logits), axis=-1, where=others)
  length = jax.nn.sigmoid(odds) * (1 + jnp.sum(shares**norm, axis=-1, where=others)) ** (1 / norm)
  values = infinite(jax.lax.stop_gradient(length**gamma) * jax.nn.softplus(odds))
  return checks.example_values(values, labels, where, logits.shape[-1])


@register(PER_EXAMPLE)
def brier(logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Brier score: the squared distance from the probabilities to the label, in [0, 2].

  Use it for a proper loss that a single wrong label cannot make infinite.

  .. math:: \ell(z, y) = \sum_k (p_k - t_k)^2, \quad p = \mathrm{softmax}(z)

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats, distributions.
    where: optional ``[...]`` bools; rows that are False give 0 and may hold NaN.

  Returns:
    ``[...]`` values.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or shape.

  References:
    Zhou et al. 2025, Appendix A.2; the "MSE" primary loss of Karandikar et al. 2021.

  >>> brier(jnp.array([[0.0, 0.0]]), jnp.array([1]))
  Array([0.5], dtype=float32)
  """
  logits, labels = checks.examples(logits, labels, where, soft=True)
  probs = jax.nn.softmax(logits)
  if labels.shape == logits.shape:
    values = jnp.sum((probs - labels) ** 2, axis=-1)
  else:
    # (1 - p_y)² = σ(d)² is numerically stable near 0, with d = log((1 - p_y) / p_y).
    others = jnp.sum(probs**2, axis=-1, where=~one_hot(labels, logits))
    values = jax.nn.sigmoid(label_odds(logits, labels)) ** 2 + others
  return checks.example_values(values, labels, where, logits.shape[-1])
