"""A calibration error with its interval, its noise floor and its p-value, in one compiled program."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax.intervals import bootstrap, draws
from calib_jax.intervals.bias_models import BiasModel, resolved
from calib_jax.intervals.calibration_tests import gathered_pair, observed_and_redrawn, p_value_of
from calib_jax.intervals.draws import Metric

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
           level: float = 0.95, groups: ArrayLike | None = None, bias: BiasModel | str = "auto") -> Assessment:
  """A calibration error with its interval, its noise floor and its p-value, in one compiled program.

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
  confidence, correct = gathered_pair(confidence, correct)
  bias = resolved(bias, metric)
  members = None if groups is None else draws.members(groups, len(confidence))
  return _assess(metric, confidence, correct, members, key, np.float32(bias.rate),
                 *draws.group_numbers(groups, len(confidence)), num_resamples, level, bias)


@functools.partial(jax.jit, static_argnums=(0, 7, 8, 9, 10))
def _assess(metric: Metric, confidence: Array, correct: Array, members: Array | None, key: Array, rate: Array,
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

  values = observed_and_redrawn(of_pairs(metric), confidence, correct, outcomes, numbers)
  observed, redrawn = values[0], values[1:]
  arrays, error = (confidence, correct), of_pairs(bias.with_bias or metric)
  value = observed if bias.with_bias is None else error(*arrays)
  parts = bootstrap.subsampled(error, arrays, members, key, num_resamples)
  interval = bootstrap.corrected(value, *parts, arrays, members, rate, bias, level)
  return Assessment(observed, *interval, jnp.mean(redrawn, axis=0), p_value_of(observed, redrawn))
