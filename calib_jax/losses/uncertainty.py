"""Accuracy versus uncertainty (Karandikar et al. 2021, Section 4.2)."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics.softmax import entropy_and_divergence, label_odds, predicted, target
from calib_jax.losses.catalogue import PER_BATCH, register
from calib_jax.losses.reductions import global_sum

Array = jax.Array


@register(PER_BATCH)
def avuc(logits: ArrayLike, labels: ArrayLike, *, threshold: float | Array, stop_gradient: bool = False,
         where: ArrayLike | None = None, weights: ArrayLike | None = None, axis_name: str | None = None) -> Array:
  r"""Accuracy-versus-uncertainty calibration loss (AvUC), and AvUC-GS with ``stop_gradient``.

  Use it beside another loss so that right answers become certain and wrong ones uncertain.

  An example has the confidence :math:`c_i` and the entropy :math:`h_i` in nats. It is certain (C) where :math:`h_i` <
  ``threshold``, and uncertain (U) otherwise; it is accurate (A) where the top class is the label, and inaccurate (I)
  otherwise. With a distribution as its label, it is accurate to the part that is the probability of the top class, and
  counts in both sums by its parts:

  .. math:: n_{AU} = \sum_{AU} c_i \tanh h_i, \quad n_{IC} = \sum_{IC} (1 - c_i)(1 - \tanh h_i)

  .. math:: n_{AC} = \sum_{AC} c_i (1 - \tanh h_i), \quad n_{IU} = \sum_{IU} (1 - c_i) \tanh h_i

  .. math:: L = \log\Big(1 + \frac{n_{AU} + n_{IC}}{\max(n_{AC} + n_{IU}, 10^{-5})}\Big)

  Args:
    logits: ``[..., K]`` floats, whose leading axes are one batch of N rows.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats, distributions.
    threshold: κ, an entropy in nats, at least 0. The κ of ``soft_avuc`` is a fraction of log K instead.
    stop_gradient: whether the factors :math:`c_i` and :math:`1 - c_i` carry no gradient (AvUC-GS, Appendix F).
    where: optional ``[...]`` bools; rows that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.
    axis_name: optional mapped axis, for the value of the global batch across it.

  Returns:
    A scalar; 0 if nothing counts. O(NK); devices exchange two numbers.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Karandikar et al. 2021, Eqs. 13-14. The lower bound of the denominator is not in the paper.

  >>> avuc(jnp.array([[4.0, 0.0], [0.2, 0.0]]), jnp.array([0, 0]), threshold=0.5).round(2)
  Array(0.31, dtype=float32)
  """
  logits, labels, weights = checks.batch(logits, labels, where, weights, axis_name=axis_name, soft=True)
  top = predicted(logits)
  entropy, _ = entropy_and_divergence(logits, top)
  return hard_loss(label_odds(logits, top), target(labels, top, logits), entropy, weights, axis_name,
                   threshold=threshold, stop_gradient=stop_gradient)


def hard_loss(odds: Array, accurate: Array, entropy: Array, weights: Array, axis_name: str | None, *, threshold: float,
              stop_gradient: bool) -> Array:
  """``avuc`` from the log-odds of the top classes, their accuracy, floats ``[N]``, and the entropies in nats."""
  checks.options(threshold=(threshold, "[0, inf)"), stop_gradient=(stop_gradient, bool))
  odds = jax.lax.stop_gradient(odds) if stop_gradient else odds
  confidence, rest = jax.nn.sigmoid(-odds), jax.nn.sigmoid(odds)
  certain = entropy < threshold
  factor = jnp.where(certain, _one_minus_tanh(entropy), jnp.tanh(entropy))
  right, wrong = accurate * confidence * factor, (1 - accurate) * rest * factor
  return _log_ratio(jnp.where(certain, wrong, right), jnp.where(certain, right, wrong), weights, axis_name)


@register(PER_BATCH)
def soft_avuc(logits: ArrayLike, labels: ArrayLike, *, threshold: float | Array = 0.5, temperature: float | Array = 1.0,
              where: ArrayLike | None = None, weights: ArrayLike | None = None, axis_name: str | None = None) -> Array:
  r"""Soft accuracy-versus-uncertainty calibration loss (S-AvUC).

  Use it beside another loss so that right answers become certain and wrong ones uncertain, without hard thresholds.

  With entropy :math:`h_i` in nats, :math:`h^*_i = h_i / \log K`, soft uncertainty
  :math:`t_i = \sigma((\mathrm{logit}\, h^*_i - \mathrm{logit}\, \kappa) / T)`, and :math:`a_i` 1 where the top class
  is the label, 0 otherwise, or its probability in a distribution,

  .. math:: n_{AU} = \sum_i a_i t_i \tanh h_i, \quad n_{IC} = \sum_i (1 - a_i) (1 - t_i)(1 - \tanh h_i)

  .. math:: n_{AC} = \sum_i a_i (1 - t_i)(1 - \tanh h_i), \quad n_{IU} = \sum_i (1 - a_i) t_i \tanh h_i

  .. math:: L = \log\Big(1 + \frac{n_{AU} + n_{IC}}{\max(n_{AC} + n_{IU}, 10^{-5})}\Big)

  Args:
    logits: ``[..., K]`` floats, whose leading axes are one batch of N rows.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats, distributions.
    threshold: κ, a fraction of the largest entropy log K, in (0, 1). The κ of ``avuc`` is in nats instead.
    temperature: T > 0; as it tends to 0, t becomes 0 or 1.
    where: optional ``[...]`` bools; rows that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.
    axis_name: optional mapped axis, for the value of the global batch across it.

  Returns:
    A scalar; 0 if nothing counts. t is 0 where h* is 0 and 1 where it is 1, with gradient 0 there. O(NK); devices
    exchange two numbers.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Karandikar et al. 2021, Eqs. 15-16. The lower bound of the denominator is not in the paper.

  >>> soft_avuc(jnp.array([[4.0, 0.0], [0.2, 0.0]]), jnp.array([0, 0])).round(3)
  Array(0.565, dtype=float32)
  """
  logits, labels, weights = checks.batch(logits, labels, where, weights, axis_name=axis_name, soft=True)
  top = predicted(logits)
  entropy, divergence = entropy_and_divergence(logits, top)
  return soft_loss(target(labels, top, logits), entropy, divergence, weights, axis_name, threshold=threshold,
                   temperature=temperature)


def soft_loss(accurate: Array, entropy: Array, divergence: Array, weights: Array, axis_name: str | None, *,
              threshold: float, temperature: float) -> Array:
  """``soft_avuc`` from the accuracy of the top classes, floats ``[N]``, the entropies, and their divergences."""
  checks.options(threshold=(threshold, "(0, 1)"), temperature=(temperature, "(0, inf)"))
  # h* / (1 - h*) = H / (log K - H): logit h* is the logarithm of entropy over divergence.
  inside = (entropy > 0) & (divergence > 0)
  logit = jnp.log(jnp.where(inside, entropy, 1)) - jnp.log(jnp.where(inside, divergence, 1))
  scaled = (logit - jax.scipy.special.logit(threshold)) / temperature
  # At the ends logit h* is infinite: 1e4 stands for infinity, and has no gradient.
  scaled = jnp.where(inside, scaled, jnp.where(entropy > 0, 1e4, -1e4))
  uncertain = jax.nn.sigmoid(scaled) * jnp.tanh(entropy)
  certain = jax.nn.sigmoid(-scaled) * _one_minus_tanh(entropy)
  wrong = 1 - accurate
  return _log_ratio(accurate * uncertain + wrong * certain, accurate * certain + wrong * uncertain, weights, axis_name)


def _one_minus_tanh(entropy: Array) -> Array:
  """1 - tanh h = 2 σ(-2h), which is numerically stable where tanh h is near 1."""
  return 2 * jax.nn.sigmoid(-2 * entropy)


def _log_ratio(misplaced: Array, placed: Array, weights: Array, axis_name: str | None) -> Array:
  """log(1 + (n_AU + n_IC) / (n_AC + n_IU)) from each example's part of either sum, over the global batch."""
  parts = weights[:, None].astype(placed.dtype) * jnp.stack([misplaced, placed], axis=-1)
  total_misplaced, total_placed = global_sum(parts, axis_name)
  return jnp.log1p(total_misplaced / jnp.maximum(total_placed, 1e-5))
