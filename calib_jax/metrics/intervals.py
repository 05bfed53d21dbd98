"""Bootstrap intervals for any metric."""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp

from calib_jax import checks

Array = jax.Array


def bootstrap(metric: Callable, *arrays, key: Array, num_resamples: int = 1000, level: float = 0.95):
  """The metric with its percentile bootstrap interval: ``(estimate, low, high)``.

  Args:
    metric: a function of ``arrays`` to a scalar or an array, traceable by ``jit``; it is compiled once for each
      function object.
    arrays: arrays whose first axes are the N examples, resampled together with replacement.
    key: PRNG key; the same key gives the same interval.
    num_resamples: how often.
    level: of the interval, in (0, 1).
  Returns: the metric of the arrays as they are, and the ``(1 - level) / 2`` and ``(1 + level) / 2`` quantiles of the
    metric over resamples.

  Binned calibration errors are biased upwards in a sample and once more in its resamples, the more the fewer examples a
  bin has: their interval leans upwards, and may even begin above the estimate. ``calibration_error(norm=2,
  debias=True)`` subtracts the bias; the smooth error has less of it, with no bins to choose. Of 3,000 overconfident
  predictions (an error of 5.5%) the 95% intervals of all of them cover the truth in 92 to 95% of 200 simulations; but
  no error of 0 or more is ever estimated below 0, so that of a perfectly calibrated model only the debiased one's
  reaches down to 0, in 88%: read the others' as bounds from above.

  >>> estimate, low, high = bootstrap(jnp.mean, jnp.arange(100.0), key=jax.random.key(0))
  >>> bool(low < estimate < high)
  True
  """
  checks.number("num_resamples", num_resamples, low=1, integer=True)
  checks.number("level", level, low=0, high=1, open_low=True, open_high=True)
  arrays = tuple(jnp.asarray(x) for x in arrays)
  if not arrays or any(x.ndim == 0 or len(x) != len(arrays[0]) or len(x) == 0 for x in arrays):
    raise ValueError("arrays must share their first axis, of at least one example: got shapes "
                     f"{[x.shape for x in arrays]}.")
  return _bootstrap(metric, arrays, key, num_resamples, level)


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def _bootstrap(metric: Callable, arrays: tuple[Array, ...], key: Array, num_resamples: int, level: float):
  size = len(arrays[0])

  def resampled(key):
    index = jax.random.randint(key, (size,), 0, size)
    return metric(*(x[index] for x in arrays))

  # A few resamples at a time: enough to fill the machine, few enough to fit in memory.
  batch = max(1, min(num_resamples, 1_000_000 // sum(x.size for x in arrays)))
  values = jax.lax.map(resampled, jax.random.split(key, num_resamples), batch_size=batch)
  tail = (1 - level) / 2
  low, high = (jnp.quantile(values, q, axis=0) for q in (tail, 1 - tail))
  return metric(*arrays), low, high
