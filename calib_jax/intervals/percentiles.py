"""Percentile intervals that are corrected for bias, skewness and small samples, for JAX and NumPy alike."""

from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax._numerics.binning import array_module

Array = jax.Array | np.ndarray
MOST_BIAS = 1.0  # The largest size of z0: with the largest acceleration, the levels stay in order.
MOST_ACCELERATION = 1 / 6  # The mean of rare events has it, whose skewness in resamples is 1.


@np.errstate(invalid="ignore")  # Infinite values.
def ends(values: Array, estimate: Array, count: int, level: float) -> tuple[Array, Array]:
  """The ends of a bootstrap interval (BCa, Efron 1987) of ``count`` examples, from ``values`` ``[R, ...]``."""
  # They are quantiles of resamples that are not nan, at the levels Φ(z₀ + (z₀ ± z) / (1 - a (z₀ ± z))), z = √(n / (n -
  # 1)) t_{n-1}. Φ(z₀) is the share of resamples below the estimate, ties half, and a is a sixth of their skewness, as
  # it is for means. Student's quantile and the root make up for the spread of resamples, which is the sample's
  # with n in place of n - 1 (Hesterberg 2015). An end is moved outwards only, from its level Φ(±z): few examples show
  # too little of a heavy tail, such as the NLL's.
  from scipy import special  # Imported here, because the import takes 0.2 s and only these intervals need it.

  xp = array_module(values)
  functions = special if xp is np else jax.scipy.special
  if not jnp.issubdtype(values.dtype, jnp.floating):
    values = values.astype(np.float32)
  estimate, is_number = xp.asarray(estimate).astype(values.dtype), ~xp.isnan(values)
  number, smaller, equal = (
    x.sum(0).astype(values.dtype) for x in (is_number, values < estimate[None], values == estimate[None]))
  below = (smaller + equal / 2) / xp.maximum(number, 1)
  bias = xp.where(xp.isnan(estimate), 0, xp.clip(functions.ndtri(below), -MOST_BIAS, MOST_BIAS))
  acceleration = xp.clip(_skewness(xp, values, is_number, number) / 6, -MOST_ACCELERATION, MOST_ACCELERATION)
  z = float(special.stdtrit(max(count - 1, 1), (1 + level) / 2)) * (count / max(count - 1, 1)) ** 0.5
  ordered = xp.sort(values, axis=0)

  def quantile(z, outer):
    moved = functions.ndtr(bias + (bias + z) / (1 - acceleration * (bias + z)))
    tail = outer(moved, float(special.ndtr(z)))
    # The i-th of R ordered numbers is their i / (R + 1) quantile, so that few resamples cover as often as many.
    place = xp.clip(tail * (number + 1) - 1, 0, xp.maximum(number - 1, 0))
    share = place - xp.floor(place)
    left, right = (xp.take_along_axis(ordered, xp.minimum(x.astype(np.int32), len(values) - 1)[None], axis=0)[0]
                   for x in (xp.floor(place), xp.floor(place) + 1))
    return xp.where(share > 0, (1 - share) * left + share * right, left)

  return quantile(-z, xp.minimum), quantile(z, xp.maximum)


def _skewness(xp: ModuleType, values: Array, is_number: Array, number: Array) -> Array:
  """The skewness over the first axis of what is a number; 0 where it has none."""
  number = xp.maximum(number, 1)
  values = xp.where(is_number, values, 0)
  values = xp.where(is_number, values - (values.sum(0) / number)[None], 0)
  largest = abs(values).max(0)
  values = values / xp.where(largest > 0, largest, 1)[None]
  variance = (values**2).sum(0) / number
  skewness = (values**3).sum(0) / number / xp.where(variance > 0, variance, 1) ** 1.5
  return xp.where(xp.isfinite(skewness), skewness, 0)
