r"""The focal calibration map, which turns a minimiser of the focal loss into the probabilities it stands for.

.. math::
  \hat p_k = \frac{w(q_k)}{\sum_j w(q_j)}, \qquad w(q) = \frac{q}{(1 - q)^\gamma (1 + \gamma r(q))}, \qquad
  r(q) = \frac{-q \log q}{1 - q}

(Komisarenko & Kull 2024, Eq. 1, with both sides of the fraction multiplied so that nothing divides by 0.) Everything
is computed from log q and log(1 - q), which is numerically stable near 0 and 1.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics.softmax import (
  LOWEST,
  log_one_minus,
  log_softmax,
  one_hot,
  pick,
  predicted,
  varying_as,
  with_lowest,
)

Array = jax.Array
MAX_ITERATIONS = 60


def focal_calibration_map(probs: ArrayLike, gamma: float) -> Array:
  """The focal calibration map.

  γ = 0 changes nothing. γ > 0 raises the top probability (Proposition 5); γ < 0 lowers it where there are two classes.
  A one-hot row maps to itself, with finite gradients.

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1.
    gamma: exponent, above -1.

  Returns:
    ``[..., K]`` probabilities. O(NK).

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Komisarenko & Kull 2024, Proposition 4, Eq. 1.

  >>> focal_calibration_map(jnp.array([[0.6, 0.4]]), 2.0).round(2)
  Array([[0.75, 0.25]], dtype=float32)
  """
  checks.options(gamma=(gamma, "(-1, inf)"))
  return jnp.exp(log_focal_map(_logarithm(probs), gamma))


def inverse_focal_calibration_map(probs: ArrayLike, gamma: float) -> Array:
  """The probabilities that ``focal_calibration_map`` maps to ``probs``.

  They are solved for by Newton's method in log-odds; gradients follow by implicit differentiation and are finite also
  where a row is one-hot. Mapping the result gives ``probs`` back to 1e-6 (2e-5 for γ < -0.9 and γ > 3). Below γ = -0.5
  or so, the inverse of a small probability may underflow to 0.

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1.
    gamma: exponent, above -1.

  Returns:
    ``[..., K]`` probabilities. O(NK) for each of about six iterations.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Komisarenko & Kull 2024, Propositions 2 and 4.

  >>> inverse_focal_calibration_map(jnp.array([[0.8, 0.2]]), 2.0).round(2)
  Array([[0.63, 0.37]], dtype=float32)
  """
  checks.options(gamma=(gamma, "(-1, inf)"))
  return jax.nn.softmax(-jax.nn.softplus(-inverse_log_odds(_logarithm(probs), gamma)))


def binary_focal_calibration_map(q: ArrayLike, gamma: float) -> Array:
  """The focal calibration map of the probability of a binary event.

  Args:
    q: floats in [0, 1], of any shape.
    gamma: exponent, above -1.

  Returns:
    Probabilities of the shape of ``q``.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or range.

  References:
    Komisarenko & Kull 2024, Proposition 2.

  >>> binary_focal_calibration_map(jnp.array([0.5, 0.6]), 2.0).round(2)
  Array([0.5 , 0.75], dtype=float32)
  """
  q = checks.floating(q, "q")
  return focal_calibration_map(jnp.stack([q, 1 - q], axis=-1), gamma)[..., 0]


def _logarithm(probs: ArrayLike) -> Array:
  """The logarithm of p; -1e5, without a gradient, where p is 0: every power of its exponential is 0."""
  probs = checks.over_classes(probs, "probs")
  positive = probs >= jnp.finfo(probs.dtype).tiny
  return jnp.where(positive, jnp.log(jnp.where(positive, probs, 1)), -1e5)


def log_focal_map(log_q: Array, gamma: ArrayLike) -> Array:
  """The focal calibration map from log-probabilities, or logits, to log-probabilities."""
  log_q, is_top = log_softmax(log_q)
  finite = with_lowest(log_q)
  mapped = log_softmax(log_weight(finite, log_one_minus(finite, is_top), gamma))[0]
  return jnp.where(log_q <= LOWEST, -jnp.inf, mapped)


def log_weight(log_q: Array, log_not: Array, gamma: ArrayLike) -> Array:
  """The logarithm of w(q), from log q and log(1 - q)."""
  return log_q - gamma * log_not - jnp.log1p(gamma * _ratio(log_q, log_not))


def _ratio(log_q: Array, log_not: Array) -> Array:
  """r(q), from 0 at q = 0 to 1 at q = 1; where q > 0.95, by its series in 1 - q."""
  rest = jnp.exp(log_not)
  near = rest < 0.05
  series = 1 - rest * (1 / 2 + rest * (1 / 6 + rest * (1 / 12 + rest * (1 / 20 + rest / 30))))
  return jnp.where(near, series, -jnp.exp(log_q) * log_q / jnp.where(near, 1, rest))


def _ratio_slope(log_q: Array, log_not: Array) -> Array:
  """The derivative of r in the log-odds s of q: as dq/ds = q (1 - q), it is r - q = q (-log q / (1 - q) - 1)."""
  rest = jnp.exp(log_not)
  near = rest < 0.05
  series = rest * (1 / 2 + rest * (1 / 3 + rest * (1 / 4 + rest * (1 / 5 + rest / 6))))
  return jnp.exp(log_q) * jnp.where(near, series, -log_q / jnp.where(near, 1, rest) - 1)


def inverse_log_odds(logits: Array, gamma: ArrayLike) -> Array:
  """Log-odds ``[..., K]`` of the q that maps to ``softmax(logits)``."""
  return _inverse(logits, jnp.asarray(gamma, logits.dtype))


@jax.custom_jvp
def _inverse(logits: Array, gamma: Array) -> Array:
  """Newton's method, started from the map's limit for large odds: temperature scaling with T = 1 + γ."""
  log_p, is_top = log_softmax(logits)
  log_p, top = with_lowest(log_p), predicted(logits)
  start = log_softmax(log_p / (1 + jnp.maximum(gamma, 0)))[0]
  odds = start - log_one_minus(start, is_top)

  def unfinished(carry):
    _, change, iteration = carry
    # After a step, Newton's error is of the order of the square of that step; and one more step follows.
    return (change > jnp.finfo(log_p.dtype).eps ** 0.5) & (iteration < MAX_ITERATIONS)

  def step(carry):
    odds, _, iteration = carry
    change = _newton(odds, log_p, top, gamma)
    # Far from the solution, where the slope of w changes fast, a step may be far too long: it is limited.
    change = jnp.clip(change, -4 - jnp.abs(odds), 4 + jnp.abs(odds))
    # A row of NaN does not end the iterations of the others.
    return odds + change, jnp.max(jnp.nan_to_num(jnp.abs(change) / (1 + jnp.abs(odds)))), iteration + 1

  first = (odds, varying_as(jnp.asarray(jnp.inf, log_p.dtype), odds), 0)
  odds, _, _ = jax.lax.while_loop(unfinished, step, first)
  return odds + _newton(odds, log_p, top, gamma)


@_inverse.defjvp
def _inverse_jvp(primals, tangents):
  odds = _inverse(*primals)
  # Newton's step from the solution is 0, and its derivative in the logits and γ, with the odds held, is that of the
  # solution: implicit differentiation. Second derivatives differentiate this line, in which the odds then move.
  def step(logits, gamma):
    return _newton(odds, with_lowest(log_softmax(logits)[0]), predicted(logits), gamma)

  return odds, jax.jvp(step, primals, tangents)[1]


def _newton(odds: Array, log_p: Array, top: Array, gamma) -> Array:
  """The Newton step ds ``[..., K]`` in the log-odds s of q."""
  # Two conditions are solved: log w(q_k) - log p_k is the same for all k, and Σ_{k≠t} q_k = 1 - q_t of the top class t.
  # With F = log w as a function of s, and e_k = (F_t - log p_t) - (F_k - log p_k) what is left of the first condition,
  # its linearisation gives ds_k = (e_k + F'_t ds_t) / F'_k. With a_k = q_k / (1 - q_t), the second condition is
  # log Σ_{k≠t} a_k = 0, whose linearisation log Σ a + (Σ a_k (1 - q_k) ds_k) / Σ a + q_t ds_t = 0 then gives ds_t.
  def weight_and_slope(odds):
    log_q, log_not = -jax.nn.softplus(-odds), -jax.nn.softplus(odds)
    slope = _ratio_slope(log_q, log_not) / (1 + gamma * _ratio(log_q, log_not))
    return log_q, log_not, log_weight(log_q, log_not, gamma), jnp.exp(log_not) + gamma * (jnp.exp(log_q) - slope)

  log_q_top, log_not_top, weight_top, slope_top = weight_and_slope(pick(odds, top))
  log_q, log_not, weight, slope = weight_and_slope(odds)
  is_top = one_hot(top, odds)
  slope = jnp.where(is_top, 1, slope)
  error = (weight_top - pick(log_p, top))[..., None] - (weight - log_p)
  # a_k, whose sum is 1 at the solution; the limit of 80 keeps it finite before.
  part = jnp.where(is_top, 0, jnp.exp(jnp.minimum(log_q - log_not_top[..., None], 80)))
  total = jnp.sum(part, axis=-1)
  share = part * jnp.exp(log_not) / slope / total[..., None]
  residual = -jnp.log(total) - jnp.sum(share * error, axis=-1)
  step = residual / (jnp.exp(log_q_top) + slope_top * jnp.sum(share, axis=-1))
  return jnp.where(is_top, step[..., None], (error + (slope_top * step)[..., None]) / slope)
