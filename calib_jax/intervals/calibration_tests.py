"""What a calibration error would be if the model were calibrated, noise floors and p-values, and with its interval."""

from collections.abc import Callable, Sequence
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax._numerics.softmax import map_chunks
from calib_jax.intervals import bootstrap, draws
from calib_jax.intervals.bias_models import BiasModel, resolved
from calib_jax.intervals.draws import Metric

Array = jax.Array
SAME = 1e-5  # Values that differ by less than this part are equal: the order of their sums differs.


class Assessment(NamedTuple):
  """What ``assess`` says of a calibration error.

  Attributes:
    value: the metric.
    estimate: the metric minus its bias, as ``bootstrap`` estimates it.
    low: the lower end of the interval of the true error.
    high: the upper end.
    floor: the mean metric of a perfectly calibrated model with these confidences; see ``consistency_interval``.
    p_value: the probability of a value as large as this if the model is calibrated; see ``calibration_test``.
  """

  value: Array
  estimate: Array
  low: Array
  high: Array
  floor: Array
  p_value: Array


def consistency_interval(metric: Metric, confidence: ArrayLike, *, key: Array, num_resamples: int = 1000,
                         level: float = 0.95, groups: ArrayLike | None = None) -> tuple[Array, Array, Array]:
  """What a calibration error would be if the model were perfectly calibrated and had these confidences.

  It gives the level below which an error may be noise alone.

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
  values = _tested(metric, confidence, jnp.zeros(confidence.shape, bool), key, num_resamples,
                   *_grouped(groups, confidence), 1.0)[1:]
  return jnp.mean(values, axis=0), *(jnp.nanquantile(values, (1 + side * level) / 2, axis=0) for side in (-1, 1))


def calibration_test(metric: Metric, confidence: ArrayLike, correct: ArrayLike, *, key: Array,
                     num_resamples: int = 1000, groups: ArrayLike | None = None) -> Array:
  """The p-value of a calibration error under the hypothesis that the model is perfectly calibrated.

  Use it to ask whether an error is more than the noise of so few examples.

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
  confidence, correct = _gathered_pair(confidence, correct)
  rho = 0.0 if groups is None else draws.dependence(confidence, correct, draws.members(groups, len(confidence)))
  values = _tested(metric, confidence, correct, key, num_resamples, *_grouped(groups, confidence), rho)
  return p_value_of(values[0], values[1:])


def assess(metric: Metric, confidence: ArrayLike, correct: ArrayLike, *, key: Array, num_resamples: int = 1000,
           level: float = 0.95, groups: ArrayLike | None = None, bias: BiasModel | str = "auto") -> Assessment:
  """A calibration error with its interval, its noise floor and its p-value, in one compiled program.

  Use it to report a calibration error: the number alone does not say how much of it is noise.

  This is ``bootstrap`` with ``method="bias_corrected"``, ``consistency_interval`` and ``calibration_test``, each with
  resamples of its own.

  Args:
    metric: a function of ``(confidence, correct, *, where)``, three arrays of one shape, to a scalar or an array,
      traceable by ``jit``; it is compiled once for each function object.
    confidence: ``[N, ...]`` floats in [0, 1]; the entries of a row, such as the seeds of an example, may depend on each
      other, as in ``calibration_test``.
    correct: bools, or zeros and ones, of that shape: whether the event happened.
    key: PRNG key; the same key gives the same result.
    num_resamples: number of resamples of each kind: halves, fifths, and outcomes.
    level: the probability that the interval is meant to cover, in (0, 1).
    groups: optional ``[N]`` integers, as for ``bootstrap`` and ``calibration_test``.
    bias: as for ``bootstrap``.

  Returns:
    Arrays of the metric's shape.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  >>> from calib_jax.metrics import calibration_error
  >>> result = assess(calibration_error, jnp.full(100, 0.8), jnp.zeros(100, bool), key=jax.random.key(0))
  >>> bool(result.low <= result.estimate <= result.high), bool(result.floor < 0.1), float(result.p_value) < 0.002
  (True, True, True)
  """
  checks.options(num_resamples=(num_resamples, "integer [1, inf)"), level=(level, "(0, 1)"))
  confidence, correct = _gathered_pair(confidence, correct)
  bias = resolved(bias, metric)
  members = None if groups is None else draws.members(groups, len(confidence))
  return _assess(metric, confidence, correct, members, key, np.float32(bias.rate),
                 *draws.group_numbers(groups, len(confidence)), num_resamples, level, bias)


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


def _gathered_pair(confidence: ArrayLike, correct: ArrayLike) -> tuple[Array, Array]:
  """Confidences as floats and outcomes as bools, of all rows."""
  confidence, correct = checks.floating(confidence, "confidence"), checks.array(correct, "correct")
  checks.same_shape(confidence, correct, ("confidence", "correct"))
  correct = jnp.asarray(checks.credits(confidence, correct))
  if correct.dtype != bool and not checks.is_traced(correct):
    raise ValueError("correct must be bools, or zeros and ones: how much credits between them vary if a model is "
                     "calibrated is not known, so that they have no noise floor and no p-value. Their interval is "
                     'bootstrap(metric, confidence, correct, method="bias_corrected").')
  return checks.gathered(confidence), checks.gathered(correct).astype(bool)


def _grouped(groups: ArrayLike | None, confidence: Array) -> tuple[np.ndarray | None, int]:
  return draws.group_numbers(groups, len(confidence) if confidence.ndim else 1)


@functools.partial(jax.jit, static_argnums=(0, 4, 6))
def _tested(metric: Metric, confidence: Array, correct: Array, key: Array, num_resamples: int, group: Array | None,  # noqa: PLR0917
            num_groups: int, rho: Array | float) -> Array:
  """The metric of the outcomes and of ``num_resamples`` redraws."""
  def numbers(key):
    own = jax.random.uniform(key, confidence.shape[:1], confidence.dtype)
    return own if group is None else draws.shared(draws.words(key), own, group, num_groups, rho)

  return _observed_and_redrawn(metric, confidence, correct, jax.random.split(key, num_resamples), numbers)


def _observed_and_redrawn(metric: Metric, confidence: Array, correct: Array, randomness: Array,
                          numbers: Callable[[Array], Array]) -> Array:
  """The metric of the outcomes and of R redraws, ``[1 + R, ...]``, computed alike; rows share their ``numbers``."""
  def value(sample):
    is_observed, element = sample
    # Behind the barrier XLA does not compute the draws anew for each bin sum and sort that reads them.
    redrawn = numbers(element).reshape(confidence.shape[:1] + (1,) * (confidence.ndim - 1)) < confidence
    return metric(confidence, jax.lax.optimization_barrier(jnp.where(is_observed, correct, redrawn)))

  samples = jnp.arange(len(randomness) + 1) == 0, jnp.concatenate([randomness[:1], randomness])
  return map_chunks(value, samples, draws.at_once([confidence]))


@functools.partial(jax.jit, static_argnums=(0, 7, 8, 9, 10))
def _assess(metric: Metric, confidence: Array, correct: Array, members: Array | None, key: Array, rate: Array,  # noqa: PLR0917
            group: Array | None, num_groups: int, num_resamples: int, level: float, bias: BiasModel) -> Assessment:
  outcomes = draws.subsample_words(num_groups, key, num_resamples)[-1]
  rho = 0.0 if members is None else draws.dependence(confidence, correct, members)

  def numbers(words):
    return draws.shared(words, draws.uniform(words, len(confidence)), group, num_groups, rho)

  def of_pairs(error):
    def value(confidence, correct, where=None):
      where = jnp.ones(len(confidence), bool) if where is None else where
      return error(confidence, correct, where=jnp.broadcast_to(
        where.reshape(len(where), *(1,) * (confidence.ndim - 1)), confidence.shape))

    return value

  values = _observed_and_redrawn(of_pairs(metric), confidence, correct, outcomes, numbers)
  observed, redrawn = values[0], values[1:]
  arrays, error = (confidence, correct), of_pairs(bias.with_bias or metric)
  value = observed if bias.with_bias is None else error(*arrays)
  parts = bootstrap.subsampled(error, arrays, members, key, num_resamples)
  interval = bootstrap.corrected(value, *parts, arrays, members, rate, bias, level)
  return Assessment(observed, *interval, jnp.mean(redrawn, axis=0), p_value_of(observed, redrawn))
