"""What a calibration error would be if the model were calibrated: noise floors and p-values."""

from collections.abc import Callable, Sequence
import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax._numerics.softmax import map_chunks
from calib_jax.intervals import draws
from calib_jax.intervals.draws import Metric

Array = jax.Array
SAME = 1e-5  # Values that differ by less than this part are equal: the order of their sums differs.


def consistency_interval(metric: Metric, confidence: ArrayLike, *, key: Array, num_resamples: int = 1000,
                         level: float = 0.95, groups: ArrayLike | None = None) -> tuple[Array, Array, Array]:
  """What a calibration error would be if the model were perfectly calibrated and had these confidences.

  The outcome of each example is redrawn as 1 with the probability ``confidence`` and 0 otherwise, many times, and the
  metric is computed for each redraw.

  Args:
    metric: a function of ``(confidence, correct)`` to a scalar or an array, traceable by ``jit``.
    confidence: ``[N, ...]`` floats in [0, 1]. The entries of a row, such as the seeds of an example, are redrawn by one
      number, so that they depend on each other as much as can be.
    key: PRNG key; the same key gives the same result.
    num_resamples: number of redraws.
    level: the share of redraws that the interval holds, in (0, 1).
    groups: optional ``[N]`` integers, not traced; without outcomes nothing is known of how much the examples of a group
      depend on each other, so they are redrawn by one number too.

  Returns:
    ``(mean, low, high)`` of the metric over redraws.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    Bröcker & Smith 2007; Vaicenavicius et al. 2019.

  >>> from calib_jax.metrics import calibration_error
  >>> mean, low, high = consistency_interval(calibration_error, jnp.full(100, 0.8), key=jax.random.key(0))
  >>> bool(low < mean < high)
  True
  """
  checks.options(num_resamples=(num_resamples, "integer [1, inf)"), level=(level, "(0, 1)"))
  confidence = checks.gathered(checks.floating(confidence, "confidence"))
  values = _observed_and_redrawn(metric, confidence, jnp.zeros(confidence.shape, bool), key, num_resamples,
                                 *_grouped(groups, confidence), 1.0)[1:]
  return jnp.mean(values, axis=0), *(jnp.nanquantile(values, (1 + side * level) / 2, axis=0) for side in (-1, 1))


def calibration_test(metric: Metric, confidence: ArrayLike, correct: ArrayLike, *, key: Array,
                     num_resamples: int = 1000, groups: ArrayLike | None = None) -> Array:
  """The p-value of a calibration error under the hypothesis that the model is perfectly calibrated.

  Args:
    metric: a function of ``(confidence, correct)`` to a scalar or an array, traceable by ``jit``.
    confidence: ``[N, ...]`` floats in [0, 1]. The entries of a row, such as the seeds of an example, are redrawn by one
      number, so that the test holds however they depend on each other.
    correct: bools, or zeros and ones, of that shape: whether the event happened.
    key: PRNG key; the same key gives the same result.
    num_resamples: number R of redraws of the outcomes, as in ``consistency_interval``.
    groups: optional ``[N]`` integers, not traced; examples with the same integer are redrawn with the dependence that
      their outcomes have, as far as their covariance shows it.

  Returns:
    (1 + the number of redraws whose metric is at least the observed one) / (1 + R), of the metric's shape. The
    probability that it is at most α, if the model is calibrated, is at most α without groups. With groups it is about
    α: docs/coverage.md has what was simulated.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    Bröcker & Smith 2007; Vaicenavicius et al. 2019.

  >>> from calib_jax.metrics import calibration_error
  >>> always_wrong = jnp.zeros(100, bool)
  >>> calibration_test(calibration_error, jnp.full(100, 0.8), always_wrong, key=jax.random.key(0)).round(3)
  Array(0.001, dtype=float32)
  """
  checks.options(num_resamples=(num_resamples, "integer [1, inf)"))
  confidence, correct = gathered_pair(confidence, correct)
  rho = 0.0 if groups is None else draws.dependence(confidence, correct, draws.members(groups, len(confidence)))
  values = _observed_and_redrawn(metric, confidence, correct, key, num_resamples, *_grouped(groups, confidence), rho)
  return p_value_of(values[0], values[1:])


def p_value_of(observed: Array, redrawn: Array) -> Array:
  """(1 + the number of redraws ``[R, ...]`` that are at least the observed value) / (1 + R), of JAX or NumPy arrays."""
  at_least = redrawn >= observed[None] - SAME * abs(observed[None])
  return (1 + at_least.sum(0)) / (1 + len(redrawn))


def holm(p_values: Sequence[float]) -> list[float]:
  """Returns p-values corrected for their number by Holm's method; those that are nan stay so and do not count."""
  values = np.asarray(p_values, float)
  order = np.argsort(values)[:np.isfinite(values).sum()]
  corrected = np.full(len(values), np.nan)
  corrected[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(len(order), 0, -1)), 1)
  return corrected.tolist()


def gathered_pair(confidence: ArrayLike, correct: ArrayLike) -> tuple[Array, Array]:
  """Confidences as floats and outcomes as bools, of all rows."""
  confidence = checks.floating(confidence, "confidence")
  correct = jnp.asarray(checks.array(correct, "correct"))
  checks.same_shape(confidence, correct, ("confidence", "correct"))
  return checks.gathered(confidence), checks.gathered(correct).astype(bool)


def _grouped(groups: ArrayLike | None, confidence: Array) -> tuple[np.ndarray | None, int]:
  return draws.group_numbers(groups, len(confidence) if confidence.ndim else 1)


@functools.partial(jax.jit, static_argnums=(0, 4, 6))
def _observed_and_redrawn(metric: Metric, confidence: Array, correct: Array, key: Array, num_resamples: int,
                          group: Array | None, num_groups: int, rho: Array | float) -> Array:
  """The metric of the outcomes and of ``num_resamples`` redraws."""
  def numbers(key):
    own = jax.random.uniform(key, confidence.shape[:1], confidence.dtype)
    return own if group is None else draws.shared(draws.words(key), own, group, num_groups, rho)

  return observed_and_redrawn(metric, confidence, correct, jax.random.split(key, num_resamples), numbers)


def observed_and_redrawn(metric: Metric, confidence: Array, correct: Array, randomness: Array,
                         numbers: Callable[[Array], Array]) -> Array:
  """The metric of the outcomes and of R redraws, ``[1 + R, ...]``, computed alike; rows share their ``numbers``."""
  def value(sample):
    is_observed, element = sample
    # Behind the barrier XLA does not compute the draws anew for each bin sum and sort that reads them.
    redrawn = numbers(element).reshape(confidence.shape[:1] + (1,) * (confidence.ndim - 1)) < confidence
    return metric(confidence, jax.lax.optimization_barrier(jnp.where(is_observed, correct, redrawn)))

  samples = jnp.arange(len(randomness) + 1) == 0, jnp.concatenate([randomness[:1], randomness])
  return map_chunks(value, samples, draws.at_once([confidence]))
