"""Bias-corrected intervals of calibration errors and of their differences, from random halves and fifths of the sample.

``bootstrap`` explains the model of the squared error on which they rest, ``paired_difference`` the differences.
"""

import statistics
from typing import Any

import jax
import numpy as np

from calib_jax._numerics.binning import array_module
from calib_jax.intervals.draws import FIFTH

Array = jax.Array
HALVINGS = 40  # Steps of the bisection of the ends of an interval.


def moments(half: Any, rest: Any, fifths: Any) -> Any:
  """What ``interval_of_moments`` needs of the errors of resamples ``[R, ...]``, in the order of its arguments."""
  half, rest = half**2, rest**2
  middle = (half + rest) / 2
  return (((half - rest) / 2) ** 2).mean(0), middle.var(0), middle.mean(0), (fifths**2).mean(0)


def interval_of_moments(value: Array, linear: Array, at_zero: Array, half: Array, fifth: Array, rate: Array,  # noqa: PLR0917
                        part: Array | float, level: float) -> tuple[Array, Array, Array]:
  """The estimate and interval of ``bootstrap`` from the value, its ``moments``, and fields of a ``BiasModel``."""
  xp = array_module(value)
  # In units of the value or of its noise nothing below overflows, also for a metric in percent whose bias is 0.
  unit = xp.maximum(xp.abs(value), at_zero**0.25)
  unit = xp.where(unit > 0, unit, 1)
  value, half, fifth = value / unit, half / unit**2, fifth / unit**2
  linear, at_zero = linear / unit**2 / unit**2, at_zero / unit**2 / unit**2
  square, tiny = value**2, xp.finfo(value.dtype).tiny
  at_zero = xp.maximum(at_zero, 0.02 * linear)
  slope = linear / xp.maximum(xp.maximum(square, xp.sqrt(at_zero)), tiny)  # A debiased error may be 0.
  grown = xp.maximum(fifth - square, 0)
  rate = xp.asarray(rate, square.dtype)
  far, near = grown / (FIFTH - 1), grown / (FIFTH**rate - 1)  # The bias far from 0, and at 0.
  most_bias = xp.maximum(near, (half - square) / (2**rate - 1))

  def bias(true_square, near_zero, far):
    return far + (near_zero - far) * xp.exp(-true_square / xp.maximum(near, tiny))

  def score(observed, true_square, bias):
    """The standard normal score of an observed square if the truth is this: it falls as the truth rises."""
    mean = true_square + bias
    # Wilson & Hilferty: the cube root of a gamma variable over its mean is nearly normal, with these moments.
    spread = (at_zero + true_square * slope) / xp.maximum(9 * mean**2, tiny)
    return (xp.cbrt(observed / xp.maximum(mean, tiny)) - (1 - spread)) / xp.sqrt(xp.maximum(spread, tiny))

  at_least = xp.maximum(square, near / 2)
  most = (xp.sqrt(at_least) + 10 * (xp.sqrt(slope) + at_zero**0.25)) ** 2
  z = square.dtype.type(statistics.NormalDist().inv_cdf((1 + level) / 2))

  def largest(is_below):
    """The largest square of a true error, at least 0, that ``is_below`` holds for, by bisection."""
    def halve(_, bounds):
      low, high = bounds
      middle = (low + high) / 2
      below = is_below(middle)
      return xp.where(below, middle, low), xp.where(below, high, middle)

    bounds = xp.zeros_like(square), most
    if xp is np:
      for i in range(HALVINGS):
        bounds = halve(i, bounds)
    else:
      bounds = jax.lax.fori_loop(0, HALVINGS, halve, bounds)
    low, high = bounds
    return xp.where(is_below(xp.zeros_like(square)), (low + high) / 2, 0)

  low = xp.sqrt(largest(lambda truth: score(square, truth, most_bias) > z))
  high = xp.sqrt(largest(lambda truth: score(at_least, truth, bias(truth, far, part * far)) > -z))
  estimate = xp.where(near == far, square - far, largest(lambda truth: truth + bias(truth, near, far) < square))
  return unit * xp.clip(xp.sqrt(xp.maximum(estimate, 0)), low, high), unit * low, unit * high


def correlation(halves: Array, others: Array) -> Array:
  """The correlation in [-1, 1] of two errors' noise far from 0, from their half-differences in the same halves."""
  xp = array_module(halves)
  product = (halves**2).mean(0) * (others**2).mean(0)
  cosine = (halves * others).mean(0) / xp.sqrt(xp.where(product > 0, product, 1))
  return xp.clip(xp.where(product > 0, cosine, 0), -1, 1)


def interval_of_difference(first: Any, second: Any, correlation: Any) -> Any:
  """``(difference, low, high)`` of two ``(estimate, low, high)`` with a ``correlation`` of their noise far from 0."""
  xp = array_module(correlation)
  (estimate, low, high), (other, other_low, other_high) = first, second
  # Near 0 an error is the size of its noise, whatever the sign: there the correlation says nothing of the dependence.
  together = xp.where((low > 0) & (other_low > 0), xp.minimum(correlation, 0), -1)
  # Two rows of the same predictions differ by nothing, also where float32 rounds their errors apart.
  is_same = xp.isclose(estimate, other, 1e-5, 0) & xp.isclose(low, other_low, 1e-5, 0) & xp.isclose(
    high, other_high, 1e-5, 0) & (correlation > 1 - 1e-5)

  def joined(arm, other_arm):
    return xp.where(is_same, 0, xp.sqrt(arm**2 + other_arm**2 - 2 * together * arm * other_arm))

  difference = estimate - other
  below, above = joined(estimate - low, other_high - other), joined(high - estimate, other - other_low)
  return difference, difference - below, difference + above
