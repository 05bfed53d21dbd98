r"""The focal calibration map: what turns a minimiser of the focal loss into the probabilities it stands for.

.. math::
  \hat p_k = \frac{w(q_k)}{\sum_j w(q_j)}, \qquad w(q) = \frac{q}{(1 - q)^\gamma (1 + \gamma r(q))}, \qquad
  r(q) = \frac{-q \log q}{1 - q}

(Komisarenko & Kull 2024, Eq. 1, with both sides of the fraction multiplied so that nothing divides by 0.) Everything
is computed from log q and log(1 - q), so that neither end of [0, 1] loses its digits.
"""

import jax
import jax.numpy as jnp

from calib_jax import checks
from calib_jax.rows import log_softmax, one_hot, pick, predicted, sum_rows

Array = jax.Array
MAX_ITERATIONS = 60


def focal_calibration_map(probs, gamma: float) -> Array:
  """The map of probabilities ``[..., K]`` for exponent ``gamma`` > -1; rows of the result sum to 1.

  γ = 0 changes nothing, γ > 0 raises the top probability (Proposition 5), γ < 0 lowers it where there are two classes;
  a one-hot row maps to itself, with finite gradients.
  Reference: Komisarenko & Kull 2024, Proposition 4, Eq. 1. O(NK).

  >>> focal_calibration_map(jnp.array([[0.6, 0.4]]), 2.0).round(2)
  Array([[0.75, 0.25]], dtype=float32)
  """
  checks.number("gamma", gamma, low=-1, open_low=True)
  return jnp.exp(log_focal_map(_logarithm(probs, "probs"), gamma))


def inverse_focal_calibration_map(probs, gamma: float) -> Array:
  """The probabilities ``[..., K]`` that ``focal_calibration_map`` takes to ``probs``, for ``gamma`` > -1.

  Solved by Newton's method in log-odds; gradients by implicit differentiation, finite also at the vertices. Mapping the
  result gives ``probs`` back to 1e-6, but below γ = -0.5 or so the inverse of small probabilities may underflow to 0.
  Reference: Komisarenko & Kull 2024, Propositions 2 and 4. O(NK) an iteration, about six iterations.

  >>> inverse_focal_calibration_map(jnp.array([[0.8, 0.2]]), 2.0).round(2)
  Array([[0.63, 0.37]], dtype=float32)
  """
  checks.number("gamma", gamma, low=-1, open_low=True)
  return jax.nn.softmax(-jax.nn.softplus(-inverse_log_odds(_logarithm(probs, "probs"), gamma)))


def binary_focal_calibration_map(q, gamma: float) -> Array:
  """The map of a binary event's probability ``q`` of any shape (Komisarenko & Kull 2024, Proposition 2).

  >>> binary_focal_calibration_map(jnp.array([0.5, 0.6]), 2.0).round(2)
  Array([0.5 , 0.75], dtype=float32)
  """
  q = checks.floating(q, "q")
  return focal_calibration_map(jnp.stack([q, 1 - q], axis=-1), gamma)[..., 0]


def _logarithm(probs, name: str) -> Array:
  """log p; zeros as a number so low that every power of it is 0, without a gradient."""
  probs = checks.floating(probs, name)
  if probs.ndim < 1 or probs.shape[-1] < 2:
    raise ValueError(f"{name} must have at least 2 classes on the last axis: got shape {probs.shape}.")
  positive = probs >= jnp.finfo(probs.dtype).tiny
  return jnp.where(positive, jnp.log(jnp.where(positive, probs, 1)), -1e5)


def log_focal_map(log_q: Array, gamma) -> Array:
  """The map from log-probabilities, or logits, to log-probabilities."""
  log_q, is_top = log_softmax(log_q)
  # log(1 - q): of the top class from the others, of the others (q <= 1/2) directly.
  log_others = jax.nn.logsumexp(log_q, axis=-1, where=~is_top, keepdims=True)
  log_not = jnp.where(is_top, log_others, jnp.log1p(-jnp.where(is_top, 0, jnp.exp(log_q))))
  return log_softmax(log_weight(log_q, log_not, gamma))[0]


def log_weight(log_q: Array, log_not: Array, gamma) -> Array:
  """log w(q), of log q and log(1 - q)."""
  return log_q - gamma * log_not - jnp.log1p(gamma * _ratio(log_q, log_not))


def _ratio(log_q: Array, log_not: Array) -> Array:
  """r(q), from 0 at q = 0 to 1 at q = 1; near 1 by its series in 1 - q."""
  rest = jnp.exp(log_not)
  near = rest < 0.05
  series = 1 - rest * (1 / 2 + rest * (1 / 6 + rest * (1 / 12 + rest * (1 / 20 + rest / 30))))
  return jnp.where(near, series, -jnp.exp(log_q) * log_q / jnp.where(near, 1, rest))


def _ratio_slope(log_q: Array, log_not: Array) -> Array:
  """The derivative of r in the log-odds of q: r - (1 - q) r / (-log q), which is q less than r."""
  rest = jnp.exp(log_not)
  near = rest < 0.05
  series = rest * (1 / 2 + rest * (1 / 3 + rest * (1 / 4 + rest * (1 / 5 + rest / 6))))
  return jnp.exp(log_q) * jnp.where(near, series, -log_q / jnp.where(near, 1, rest) - 1)


def inverse_log_odds(logits: Array, gamma) -> Array:
  """Log-odds ``[..., K]`` of the q that maps to ``softmax(logits)``."""
  return _inverse(logits, jnp.asarray(gamma, logits.dtype))


@jax.custom_jvp
def _inverse(logits: Array, gamma: Array) -> Array:
  log_p, is_top = log_softmax(logits)
  top = predicted(logits)
  start = log_softmax(log_p / (1 + jnp.maximum(gamma, 0)))[0]
  start_others = jax.nn.logsumexp(start, axis=-1, where=~is_top, keepdims=True)
  odds = jnp.where(is_top, start - start_others, start - jnp.log1p(-jnp.where(is_top, 0, jnp.exp(start))))

  def unfinished(carry):
    _, change, iteration = carry
    # Newton's error is of the order of the square of its step, and one more step follows.
    return (change > jnp.finfo(log_p.dtype).eps ** 0.5) & (iteration < MAX_ITERATIONS)

  def step(carry):
    odds, _, iteration = carry
    change = _newton(odds, log_p, top, gamma)
    # Far from the solution the knees of w mislead: no step longer than what is left of the way could be.
    change = jnp.clip(change, -4 - jnp.abs(odds), 4 + jnp.abs(odds))
    return odds + change, jnp.max(jnp.abs(change) / (1 + jnp.abs(odds))), iteration + 1

  odds, _, _ = jax.lax.while_loop(unfinished, step, (odds, jnp.asarray(jnp.inf, log_p.dtype), 0))
  return odds + _newton(odds, log_p, top, gamma)


@_inverse.defjvp
def _inverse_jvp(primals, tangents):
  odds = _inverse(*primals)
  # Newton's step from the solution is 0; its derivative, the odds held, is the implicit one. That of it, where a second
  # derivative is asked for, is taken with the odds moving.
  return odds, jax.jvp(lambda z, gamma: _newton(odds, log_softmax(z)[0], predicted(z), gamma), primals, tangents)[1]


def _newton(odds: Array, log_p: Array, top: Array, gamma) -> Array:
  """The Newton step for: log w(q_k) - log p_k equal for all k, and the other classes' q summing to 1 - q of the top.

  With F = log w as a function of log-odds s, the top class t and e_k = (F_t - log p_t) - (F_k - log p_k),
  ds_k = (e_k + F'_t ds_t) / F'_k, and the sum gives ds_t.
  """
  def weight_and_slope(odds):
    tail = jnp.log1p(jnp.exp(-jnp.abs(odds)))
    log_q, log_not = jnp.minimum(odds, 0) - tail, -jnp.maximum(odds, 0) - tail
    slope = _ratio_slope(log_q, log_not) / (1 + gamma * _ratio(log_q, log_not))
    return log_q, log_not, log_weight(log_q, log_not, gamma), jnp.exp(log_not) + gamma * (jnp.exp(log_q) - slope)

  of_top = pick(odds, top)
  log_q_top, log_not_top, weight_top, slope_top = weight_and_slope(of_top)
  log_q, log_not, weight, slope = weight_and_slope(odds)
  is_top = one_hot(top, odds)
  slope = jnp.where(is_top, 1, slope)
  error = (weight_top - pick(log_p, top))[..., None] - (weight - log_p)
  # Each other class's part of 1 - q_t as it ought to be, which their sum comes to.
  part = jnp.where(is_top, 0, jnp.exp(jnp.minimum(log_q - log_not_top[..., None], 80)))
  total = sum_rows(part)
  share = part * jnp.exp(log_not) / slope / total[..., None]
  residual = -jnp.log(total) - sum_rows(share * error)
  step = residual / (jnp.exp(log_q_top) + slope_top * sum_rows(share))
  return jnp.where(is_top, step[..., None], (error + (slope_top * step)[..., None]) / slope)
