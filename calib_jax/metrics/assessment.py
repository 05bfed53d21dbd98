"""A calibration error with its interval, its noise floor and its p-value, in one compiled program."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics.softmax import map_chunks
from calib_jax.metrics import draws
from calib_jax.metrics.bias_correction import bias_corrected, checked_rate
from calib_jax.metrics.bias_models import BiasModel, resolved
from calib_jax.metrics.bootstrap_intervals import with_margin
from calib_jax.metrics.calibration_tests import gathered_pair, p_value_of
from calib_jax.metrics.draws import Metric

Array = jax.Array


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


def assess(metric: Metric, confidence: ArrayLike, correct: ArrayLike, *, key: Array, num_resamples: int = 1000,
           level: float = 0.95, groups: ArrayLike | None = None, bias: BiasModel | str = "auto",
           bias_rate: ArrayLike | None = None) -> Assessment:
  """A calibration error with its interval, its noise floor and its p-value, in one compiled program.

  This is ``bootstrap`` with ``method="bias_corrected"``, ``consistency_interval`` and ``calibration_test``, each with
  resamples of its own. The metric is traced only once, which matters for metrics that take long to compile.

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
    bias_rate: as for ``bootstrap``.

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
  confidence, correct = gathered_pair(confidence, correct)
  members = draws.members(groups, len(confidence))
  bias = resolved(bias, metric)
  arguments = confidence, correct, members, key, checked_rate(bias_rate, bias), num_resamples, level, bias
  result = _assess(metric, *arguments)
  if bias.with_bias is None:
    return result
  interval = _assess(bias.with_bias, *arguments)
  return result._replace(estimate=interval.estimate, low=interval.low, high=interval.high)


@functools.partial(jax.jit, static_argnums=(0, 6, 7, 8))
def _assess(metric: Metric, confidence: Array, correct: Array, members: Array, key: Array, rate: Array,
            num_resamples: int, level: float, bias: BiasModel) -> Assessment:
  """``assess``; subsamples are masks here, so that the metric has one shape and is compiled once."""
  place, halves, fifths, outcomes = draws.assess_words(len(members), key, num_resamples)
  index = jnp.maximum(members, 0).reshape(-1)
  chance, happened = confidence[index], correct[index]
  rho = draws.dependence(confidence, correct, members)

  def value(sample):
    # Behind the barrier XLA does not compute the draws anew for each bin sum and sort that reads them.
    outcome, where = jax.lax.optimization_barrier(draws.assess_sample(*sample, place, members, chance, happened, rho))
    where = jnp.broadcast_to(jnp.expand_dims(where, tuple(range(1, chance.ndim))), chance.shape)
    return metric(chance, outcome, where=where)

  kinds = jnp.repeat(jnp.arange(1, 5), num_resamples)
  kinds, words = jnp.append(draws.SAMPLE, kinds), jnp.concatenate([halves[:1], halves, halves, fifths, outcomes])
  values = map_chunks(value, (kinds, words), draws.at_once([confidence, correct]))
  observed, (half, rest, fifth, redrawn) = values[0], values[1:].reshape(4, num_resamples, *values.shape[1:])
  interval = bias_corrected(observed, jnp.stack([half, rest], axis=1), fifth, rate, bias.sure_part, level)
  interval = with_margin(bias, observed, interval, (confidence, correct), members, level)
  return Assessment(observed, *interval, jnp.mean(redrawn, axis=0), p_value_of(observed, redrawn))
