"""The bias-corrected interval of a calibration error, from its values on random halves and fifths of the sample.

``bootstrap`` explains the model of the squared error on which it rests.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jax.typing import ArrayLike
import numpy as np

from calib_jax.metrics.draws import FIFTH

Array = jax.Array


def growth_of(bias_rate: ArrayLike) -> np.ndarray:
  """By how many times its own size the bias of a squared metric grows from the sample to a fifth of it."""
  rate = np.asarray(bias_rate, np.float64)
  if not np.all((rate > 0) & (rate <= 1)):
    raise ValueError(f"bias_rate must be in (0, 1]: got {bias_rate}.")
  return (FIFTH**rate - 1).astype(np.float32)


def bias_corrected(value: Array, halves: Array, fifths: Array, growth: Array, level: float
                    ) -> tuple[Array, Array, Array]:
  """The estimate and interval of ``bootstrap`` from the value, halves ``[R, 2, ...]`` and fifths ``[R, ...]``."""
  return interval_of_moments(value, *moments(halves[:, 0], halves[:, 1], fifths), growth, level)


def moments(half, rest, fifths):
  """What ``interval_of_moments`` needs of resamples ``[R, ...]``, as JAX or NumPy arrays of their elements' shape.

  Returns:
    The mean square of half the difference of a half's Q and its rest's, the variance of the mean of the two, and the
    mean Q of fifths; Q is the metric's square.
  """
  half, rest = half**2, rest**2
  return (((half - rest) / 2) ** 2).mean(0), ((half + rest) / 2).var(0), (fifths**2).mean(0)


def interval_of_moments(value: Array, linear: Array, at_zero: Array, fifth: Array, growth: Array, level: float
                        ) -> tuple[Array, Array, Array]:
  """The estimate and interval of ``bootstrap`` from the value and ``moments``, arrays of one shape."""
  # In units of the value or of its noise nothing below overflows, also for a metric in percent whose bias is 0.
  unit = jnp.maximum(jnp.abs(value), at_zero**0.25)
  unit = jnp.where(unit > 0, unit, 1)
  value, fifth = value / unit, fifth / unit**2
  linear, at_zero = linear / unit**2 / unit**2, at_zero / unit**2 / unit**2
  square, tiny = value**2, jnp.finfo(value.dtype).tiny
  at_zero = jnp.maximum(at_zero, 0.02 * linear)
  slope = linear / jnp.maximum(jnp.maximum(square, jnp.sqrt(at_zero)), tiny)  # A debiased error may be 0.
  grown = jnp.maximum(fifth - square, 0)
  far, near = grown / (FIFTH - 1), grown / growth.astype(square.dtype)  # The bias far from 0, and at 0.

  def bias(true_square):
    return far + (near - far) * jnp.exp(-true_square / jnp.maximum(near, tiny))

  def score(observed, true_square):
    """The standard normal score of an observed square if the truth is this: it falls as the truth rises."""
    mean = true_square + bias(true_square)
    # Wilson & Hilferty: the cube root of a gamma variable over its mean is nearly normal, with these moments.
    spread = (at_zero + true_square * slope) / jnp.maximum(9 * mean**2, tiny)
    return (jnp.cbrt(observed / jnp.maximum(mean, tiny)) - (1 - spread)) / jnp.sqrt(jnp.maximum(spread, tiny))

  at_least = jnp.maximum(square, near / 2)
  most = (jnp.sqrt(at_least) + 10 * (jnp.sqrt(slope) + at_zero**0.25)) ** 2
  z = ndtri(jnp.asarray((1 + level) / 2, square.dtype))

  def largest(is_below):
    """The largest square of a true error, at least 0, that ``is_below`` holds for, by bisection."""
    def halve(_, bounds):
      low, high = bounds
      middle = (low + high) / 2
      below = is_below(middle)
      return jnp.where(below, middle, low), jnp.where(below, high, middle)

    low, high = jax.lax.fori_loop(0, 40, halve, (jnp.zeros_like(square), most))
    return jnp.where(is_below(jnp.zeros_like(square)), (low + high) / 2, 0)

  low = jnp.sqrt(largest(lambda truth: score(square, truth) > z))
  high = jnp.sqrt(largest(lambda truth: score(at_least, truth) > -z))
  estimate = jnp.where(near == far, square - far, largest(lambda truth: truth + bias(truth) < square))
  return unit * jnp.clip(jnp.sqrt(jnp.maximum(estimate, 0)), low, high), unit * low, unit * high
