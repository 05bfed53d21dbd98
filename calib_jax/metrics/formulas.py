"""The definition of every calibration error: what turns sums over examples into an error.

The metrics of this package sum over examples in JAX, ``CalibrationHistogram`` over cells of a stream, and
``resampled_errors`` over many resamples at a time in NumPy. They differ in how they sort and add, and all of them call
these functions, which take the arrays of either library and treat the last axis alone.
"""

from collections.abc import Callable
import math

import jax
import numpy as np

from calib_jax._numerics.binning import array_module, divisor
from calib_jax._numerics.harmonic import harmonic_difference
from calib_jax.losses.reductions import root

Array = jax.Array | np.ndarray
# A fall of an accuracy by less than this is taken for rounding. Two different accuracies of bins of up to 1,000
# examples differ by at least this.
TOLERANCE = 1e-6
GRID = 8192  # Cells of [0, 1] in which the smooth error is computed.
SMALLEST = 2.0**-31  # The smallest smooth error.
LOG_SMALLEST, START = math.log(SMALLEST), math.log(0.03)
STEPS, CLOSE = 12, 1e-6  # Most steps to the smooth error, and how close to it they end, as a part of it.
DAMPED = 9  # Frequencies times σ whose damping, exp(-81 / 2), is below the rounding of the rest.


def binned_error(size: Array | None, correct: Array | None, gap: Array, *, count: Array | int | None = None,
                 norm: float | str = 1, debias: bool = False, sign: str = "both", squares: Array | None = None
                 ) -> Array:
  r"""The calibration error of bins ``[..., M]``; bin b has :math:`n_b` of the N examples.

  .. math:: \Big(\sum_b \frac{n_b}{N} |g_b / n_b|^p\Big)^{1/p}, \qquad \text{which is }
            \frac{1}{N} \sum_b |g_b| \text{ for } p = 1.

  With norm 1 only the sum of ``size`` is used, and None will do if ``count`` is given; only ``debias`` uses
  ``correct`` and, for credits, the sums of their ``squares``. The ``gap`` is the sum of confidence - correct. Empty
  bins add 0.
  """
  xp = array_module(gap)
  gap = signed_size(gap, sign)
  count = divisor(xp.asarray(size.sum(-1) if count is None else count)).astype(gap.dtype)
  if norm == 1:
    return root(gap.sum(-1) / count, 1)
  size = size.astype(gap.dtype)
  gap = gap / divisor(size)
  if debias:
    accuracy = correct / divisor(size)
    variance = accuracy * (1 - accuracy) if squares is None else squares / divisor(size) - accuracy**2
    variance = xp.maximum(variance, 0) / xp.maximum(size - 1, 1)
    return root(xp.maximum(xp.where(size >= 2, size * (gap**2 - variance), 0).sum(-1) / count, 0), 2)
  return power_mean(gap, lambda x: (size * x).sum(-1) / count, norm)


def signed_size(excess: Array, sign: str) -> Array:
  """The size of confidence - accuracy where it has the ``sign``, and 0 where it has the other one."""
  if sign == "both":
    return abs(excess)
  return array_module(excess).maximum(excess if sign == "over" else -excess, 0)


def power_mean(values: Array, mean: Callable[[Array], Array], norm: float | str) -> Array:
  """``mean(values**norm) ** (1 / norm)`` of values ``[..., M]`` of at least 0; for ``"max"`` the largest of them."""
  xp = array_module(values)
  if norm == 1:
    return root(mean(values), 1)
  largest = xp.max(values, axis=-1, initial=0)
  if norm == "max":
    return root(largest, 1)
  # In units of the largest, a high power of small values does not underflow.
  unit = xp.where(largest > 0, largest, 1)
  unit = unit if xp is np else jax.lax.stop_gradient(unit)
  return unit * root(mean((values / unit[..., None]) ** norm), norm)


def accuracies_rise(size: Array, correct: Array, highest: Array) -> tuple[Array, Array]:
  """Whether no accuracy of the bins is below ``highest`` or a bin's before it; the new ``highest``."""
  xp = array_module(correct)
  cumulative_maximum = np.maximum.accumulate if xp is np else jax.lax.cummax
  accuracy = correct / divisor(size)  # 0 where a bin is empty, which is below no other accuracy.
  highest_before = cumulative_maximum(xp.concatenate([highest[..., None], accuracy], axis=-1), axis=correct.ndim - 1)
  return ((size == 0) | (accuracy >= highest_before[..., :-1] - TOLERANCE)).all(-1), highest_before[..., -1]


def ks_error(prefix_sums: Array, count: Array) -> Array:
  """The largest size of the sums ``[..., P]`` of confidence - correct up to each place, divided by ``count``."""
  xp = array_module(prefix_sums)
  return xp.max(abs(prefix_sums), axis=-1, initial=0) / divisor(xp.asarray(count)).astype(prefix_sums.dtype)


def grid_shares(confidence: Array) -> list[tuple[Array, Array]]:
  """The two cells of the smooth error's grid that share each residual, reflected at 0 and 1, and each one's share."""
  xp = array_module(confidence)
  position = xp.clip(confidence, 0, 1) * GRID - 0.5
  left = xp.floor(position)
  right_share, left = position - left, left.astype(xp.int32)
  return [(xp.clip(cell, 0, GRID - 1), share) for cell, share in ((left, 1 - right_share), (left + 1, right_share))]


def smooth_error(coefficients: Array, inverse: Callable[[Array], Array]) -> Array:
  r"""The σ for which the smoothed residuals, which ``inverse`` makes of ``[..., F]`` coefficients, have the size σ.

  The size m(σ) never rises with σ, so that :math:`g(x) = \log m(e^x) - x` falls at least as fast as x rises: the root
  is at most :math:`|g(x)|` away from x. It is found by secant steps within bounds. Frequencies are πk, k from 0.
  """
  xp = array_module(coefficients)
  frequency = xp.pi * xp.arange(coefficients.shape[-1], dtype=coefficients.real.dtype)

  def excess(x):
    width = xp.exp(x)[..., None]
    # Beyond these the damping is 0 in any precision; compiled programs have one shape.
    heard = 1 + int(DAMPED / (np.pi * width.min())) if xp is np else None
    damping = xp.exp(-((frequency[:heard] * width) ** 2) / 2).astype(coefficients.dtype)
    size = abs(inverse(coefficients[..., :heard] * damping)).sum(-1)
    return xp.maximum(xp.log(xp.maximum(size, SMALLEST)), LOG_SMALLEST) - x

  def step(_, carry):
    x, value, slope, low, high = carry
    low, high = xp.where(value >= 0, xp.maximum(low, x), low), xp.where(value <= 0, xp.minimum(high, x), high)
    new = x - value / slope
    new = xp.where((new >= low) & (new <= high), new, (low + high) / 2)
    new_value = excess(new)
    moved = xp.where(new == x, 1, new - x)
    slope = xp.where(new == x, slope, xp.minimum((new_value - value) / moved, -1))
    return new, new_value, slope, low, high

  x = xp.full_like(coefficients[..., 0].real, START)
  carry = x, excess(x), xp.full_like(x, -1.5), xp.full_like(x, LOG_SMALLEST), xp.zeros_like(x)
  if xp is np:
    for i in range(STEPS):
      carry = step(i, carry)
      if np.all(abs(carry[1]) < CLOSE):
        break
  else:
    carry = jax.lax.fori_loop(0, STEPS, step, carry)
  return xp.exp(carry[0])


def risk_area(risk_before: Array, risk: Array, before: Array, weight: Array) -> Array:
  r"""What a tie of weight w adds to N times the AURC: the sum of the mean risks of the k surest over its examples k.

  With B and S the weights and the risks (the sum of weights times risks) of all more confident examples and s the
  risks of the tie, the curve at the k-th example is :math:`(S + s (k - B) / w) / k`, and its sum over k from B + 1 to
  B + w is

  .. math:: s + (S - B s / w) (H_{B + w} - H_B)
  """
  return risk + (risk_before - before * (risk / divisor(weight))) * harmonic_difference(before, weight)


def fewest(total: Array, share: Array | float) -> Array:
  """The fewest of ``total`` examples ``[...]`` that are at least a ``share`` of them, int32."""
  # The product may round to above an integer that it is. A quotient of counts would not do: GPUs of NVIDIA round it to
  # a neighbour (XLA has them use div.full.f32), so that even n / n may be below 1.
  xp = array_module(total)
  total, share = xp.maximum(total, 1).astype(xp.float32), xp.asarray(share, xp.float32)
  rounding = xp.asarray(1 - 2 * np.finfo(np.float32).eps, xp.float32)
  return xp.ceil(share * total * rounding).astype(xp.int32)
