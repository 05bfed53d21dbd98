"""Bootstrap intervals of any metric, paired differences, and what a metric says of a perfectly calibrated model."""

from collections.abc import Callable, Sequence
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax._numerics.softmax import map_chunks
from calib_jax.metrics import draws
from calib_jax.metrics.draws import FIFTH

Array = jax.Array
Metric = Callable[..., Array]
METHODS = ("percentile", "bias_corrected")
SAME = 1e-5  # Values that differ by less than this part are equal: the order of their sums differs.
BATCH = 400_000  # Numbers of the resamples that are in memory at a time. More would not stay in a CPU's cache.


def bootstrap(metric: Metric, *arrays: ArrayLike, key: Array, num_resamples: int = 1000, level: float = 0.95,
              method: str = "percentile", groups: ArrayLike | None = None, bias_rate: ArrayLike = 1.0
              ) -> tuple[Array, Array, Array]:
  r"""The value of a metric with a bootstrap interval.

  ``method="percentile"`` gives the metric and the quantiles of the metric over resamples. It suits means, such as
  accuracy and proper scores. Calibration errors are biased upwards, because the noise of each bin's accuracy adds to
  its gap, and the noise of a resample is added to that of the sample: percentile intervals of a calibration error lie
  too high, and may even begin above the estimate.

  ``method="bias_corrected"`` is for calibration errors, whose true value τ is at least 0. It assumes that the square Q
  of the metric, as a function of the sample, has

  .. math:: \mathrm{E}[Q] = \tau^2 + B, \qquad \mathrm{Var}[Q] = V_0 + \tau^2 V_1

  which is exact for a sum of squared gaps with independent normal noise, and describes other calibration errors, in
  proportion to the noise near 0 and normal far from it. A random half of the examples and the other half have the noise
  of the sample once more, with opposite signs: the mean of their two Q has variance :math:`V_0`, and half of the
  difference has variance :math:`Q V_1`. A random fifth has four times that noise, so that its Q has mean
  :math:`Q + 4B`. The estimate is :math:`\sqrt{\max(Q - B, 0)}`. The interval holds every τ for which the observed Q
  lies between the ``(1 - level) / 2`` and ``(1 + level) / 2`` quantiles of the gamma distribution with the mean and
  variance above (by Wilson and Hilferty's cube root). For the upper end, a Q below B/2 counts as B/2, so that the
  interval of a model that seems better calibrated than chance allows does not shrink to nothing.

  The bias of ``smooth_calibration_error`` falls more slowly near 0. The noise of a kernel mean of bandwidth σ is
  :math:`(N\sigma)^{-1/2}`, and the error is the σ to which this is equal, :math:`N^{-1/3}`. So its square falls with
  the ``bias_rate`` ρ = 2/3, and a fifth has :math:`Q + (5^\rho - 1) B_0`. Far from 0 the bandwidth is the error, and
  the rate is 1. In between, :math:`B = B_1 + (B_0 - B_1) \exp(-\tau^2 / B_0)`, where :math:`B_1` is B for ρ = 1.

  95% intervals covered the true error in 93% or more of simulated samples of 300, 1,000 and 10,000 examples, for
  calibrated, overconfident, underconfident and class-dependently miscalibrated models, with these exceptions: KS (85 to
  90% in four of 18 cells), the norm-1 error in equal-mass bins (90 to 92% in four) and of equal width (91% in one), the
  debiased error (90% in two), and the smooth error of miscalibrated models (83 to 92% in nine). There the intervals are
  too short. Percentile intervals of AURC, NLL and the Brier score covered it in 91 to 96%.
  docs/metrics.md has the table.

  Args:
    metric: a function of ``arrays`` to a scalar or an array, traceable by ``jit``; it is compiled once for each
      function object. Percentiles leave out resamples for which it is nan, such as those that lack a class.
    *arrays: ``[N, ...]`` arrays of N examples, which are resampled together with replacement.
    key: PRNG key; the same key gives the same interval.
    num_resamples: number of resamples, of each size for ``method="bias_corrected"``.
    level: the probability that the interval is meant to cover, in (0, 1).
    method: ``"percentile"``, or ``"bias_corrected"`` for calibration errors.
    groups: optional ``[N]`` integers, not traced; examples with the same integer are resampled together, as for several
      images of one patient. If groups differ in size, the metric must take ``where``.
    bias_rate: for ``method="bias_corrected"``, the power of 1/N with which the bias of the squared metric of a
      calibrated model falls, not traced: 1 for errors in bins, 2/3 for ``smooth_calibration_error``; or one for each
      element of the metric.

  Returns:
    ``(estimate, low, high)``.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  >>> estimate, low, high = bootstrap(jnp.mean, jnp.arange(100.0), key=jax.random.key(0))
  >>> bool(low < estimate < high)
  True
  """
  checks.number("num_resamples", num_resamples, low=1, integer=True)
  checks.number("level", level, low=0, high=1, open_low=True, open_high=True)
  checks.choice("method", method, METHODS)
  arrays = tuple(checks.gathered(jnp.asarray(x)) for x in arrays)
  if not arrays or any(x.ndim == 0 or len(x) != len(arrays[0]) or len(x) == 0 for x in arrays):
    raise ValueError("arrays must share their first axis, of at least one example: got shapes "
                     f"{[x.shape for x in arrays]}.")
  members = None if groups is None else draws.members(groups, len(arrays[0]))
  return _bootstrap(metric, arrays, members, key, growth_of(bias_rate), num_resamples, level, method)


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
           level: float = 0.95, groups: ArrayLike | None = None, bias_rate: ArrayLike = 1.0) -> Assessment:
  """A calibration error with its interval, its noise floor and its p-value, in one compiled program.

  This is ``bootstrap`` with ``method="bias_corrected"``, ``consistency_interval`` and ``calibration_test``, each with
  resamples of its own. The metric is traced only once, which matters for metrics that take long to compile.

  Args:
    metric: a function of ``(confidence, correct, *, where)``, three arrays of one shape, to a scalar or an array,
      traceable by ``jit``; it is compiled once for each function object.
    confidence: ``[N, ...]`` floats in [0, 1].
    correct: bools, or zeros and ones, of that shape: whether the event happened.
    key: PRNG key; the same key gives the same result.
    num_resamples: number of resamples of each kind: halves, fifths, and outcomes.
    level: the probability that the interval is meant to cover, in (0, 1).
    groups: optional ``[N]`` integers, as for ``bootstrap``.
    bias_rate: as for ``bootstrap``.

  Returns:
    Arrays of the metric's shape.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  >>> from calib_jax.metrics import calibration_error
  >>> found = assess(calibration_error, jnp.full(100, 0.8), jnp.zeros(100, bool), key=jax.random.key(0))
  >>> bool(found.low <= found.estimate <= found.high), bool(found.floor < 0.1), float(found.p_value) < 0.002
  (True, True, True)
  """
  checks.number("num_resamples", num_resamples, low=1, integer=True)
  checks.number("level", level, low=0, high=1, open_low=True, open_high=True)
  confidence, correct = _gathered_pair(confidence, correct)
  members = draws.members(groups, len(confidence))
  return _assess(metric, confidence, correct, members, key, growth_of(bias_rate), num_resamples, level)


def paired_difference(metric: Metric, a: Sequence[ArrayLike], b: Sequence[ArrayLike], *, key: Array,
                      num_resamples: int = 1000, level: float = 0.95,
                      groups: ArrayLike | None = None) -> tuple[Array, Array, Array]:
  """The difference of a metric between two models on the same examples, with its percentile bootstrap interval.

  Both models are resampled with the same examples, so that the examples' difficulty, which both share, cancels.

  Args:
    metric: a function of the arrays of one model to a scalar or an array, traceable by ``jit``.
    a: the arguments of the metric for one model, ``[N, ...]`` arrays.
    b: the arguments of the metric for the other model, ``[N, ...]`` arrays of the same examples.
    key: PRNG key; the same key gives the same interval.
    num_resamples: number of resamples.
    level: the probability that the interval is meant to cover, in (0, 1).
    groups: optional ``[N]`` integers, as for ``bootstrap``.

  Returns:
    ``(difference, low, high)``, where ``difference`` is the metric of ``a`` minus that of ``b``.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  >>> a, b = jnp.arange(100.0), jnp.arange(100.0) - 1
  >>> difference, low, high = paired_difference(jnp.mean, [a], [b], key=jax.random.key(0))
  >>> [round(float(x), 4) for x in (difference, low, high)]
  [1.0, 1.0, 1.0]
  """
  if len(a) != len(b):
    raise ValueError(f"a and b must have the same number of arrays: got {len(a)} and {len(b)}.")
  return bootstrap(_difference(metric, len(a)), *a, *b, key=key, num_resamples=num_resamples, level=level,
                   groups=groups)


def consistency_interval(metric: Metric, confidence: ArrayLike, *, key: Array, num_resamples: int = 1000,
                         level: float = 0.95) -> tuple[Array, Array, Array]:
  """What a calibration error would be if the model were perfectly calibrated and had these confidences.

  The outcome of each example is redrawn as 1 with the probability ``confidence`` and 0 otherwise, many times, and the
  metric is computed for each redraw.

  Args:
    metric: a function of ``(confidence, correct)`` to a scalar or an array, traceable by ``jit``.
    confidence: floats of any shape, in [0, 1].
    key: PRNG key; the same key gives the same result.
    num_resamples: number of redraws.
    level: the share of redraws that the interval holds, in (0, 1).

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
  checks.number("num_resamples", num_resamples, low=1, integer=True)
  checks.number("level", level, low=0, high=1, open_low=True, open_high=True)
  values = _redrawn(metric, checks.gathered(checks.floating(confidence, "confidence")), key, num_resamples)
  return jnp.mean(values, axis=0), *_quantiles(values, level)


def calibration_test(metric: Metric, confidence: ArrayLike, correct: ArrayLike, *, key: Array,
                     num_resamples: int = 1000) -> Array:
  """The p-value of a calibration error under the hypothesis that the model is perfectly calibrated.

  Args:
    metric: a function of ``(confidence, correct)`` to a scalar or an array, traceable by ``jit``.
    confidence: floats of any shape, in [0, 1].
    correct: bools, or zeros and ones, of that shape: whether the event happened.
    key: PRNG key; the same key gives the same result.
    num_resamples: number R of redraws of the outcomes, as in ``consistency_interval``.

  Returns:
    (1 + the number of redraws whose metric is at least the observed one) / (1 + R), of the metric's shape. The
    probability that it is at most α, if the model is calibrated, is at most α.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    Bröcker & Smith 2007; Vaicenavicius et al. 2019.

  >>> from calib_jax.metrics import calibration_error
  >>> always_wrong = jnp.zeros(100, bool)
  >>> calibration_test(calibration_error, jnp.full(100, 0.8), always_wrong, key=jax.random.key(0)).round(3)
  Array(0.001, dtype=float32)
  """
  checks.number("num_resamples", num_resamples, low=1, integer=True)
  confidence, correct = _gathered_pair(confidence, correct)
  values = _observed_and_redrawn(metric, confidence, correct, key, num_resamples)
  return p_value_of(values[0], values[1:])


def _gathered_pair(confidence: ArrayLike, correct: ArrayLike) -> tuple[Array, Array]:
  """Confidences as floats and outcomes as bools, of all rows."""
  confidence, correct = checks.floating(confidence, "confidence"), jnp.asarray(correct)
  checks.same_shape(confidence, correct, ("confidence", "correct"))
  return checks.gathered(confidence), checks.gathered(correct).astype(bool)


def p_value_of(observed, redrawn):
  """(1 + the number of redraws ``[R, ...]`` that are at least the observed value) / (1 + R), of JAX or NumPy arrays."""
  at_least = redrawn >= observed[None] - SAME * abs(observed[None])
  return (1 + at_least.sum(0)) / (1 + len(redrawn))


@functools.cache
def _difference(metric: Metric, num_arrays: int) -> Metric:
  """A function of the arrays of two models. It is cached so that ``bootstrap`` compiles it once for each metric."""
  return lambda *arrays, **where: metric(*arrays[:num_arrays], **where) - metric(*arrays[num_arrays:], **where)


def growth_of(bias_rate: ArrayLike) -> np.ndarray:
  """By how many times its own size the bias of a squared metric grows from the sample to a fifth of it."""
  rate = np.asarray(bias_rate, np.float64)
  if not np.all((rate > 0) & (rate <= 1)):
    raise ValueError(f"bias_rate must be in (0, 1]: got {bias_rate}.")
  return (FIFTH**rate - 1).astype(np.float32)


@functools.partial(jax.jit, static_argnums=(0, 5, 6, 7))
def _bootstrap(metric: Metric, arrays: tuple[Array, ...], members: Array | None, key: Array, growth: Array,
               num_resamples: int, level: float, method: str) -> tuple[Array, Array, Array]:
  if method == "bias_corrected":
    return _bias_corrected(metric(*arrays), *_subsampled(metric, arrays, members, key, num_resamples), growth, level)
  count = len(arrays[0] if members is None else members)

  def value(sample):
    is_sample, key = sample
    every = jnp.arange(count, dtype=jnp.int32)
    return _of_resample(metric, arrays, members, jnp.where(is_sample, every, draws.draw(key, count, count)))

  # The sample itself comes first, among its resamples, so that the metric is compiled only once.
  keys = jax.random.split(key, num_resamples)
  samples = jnp.arange(num_resamples + 1) == 0, jnp.concatenate([keys[:1], keys])
  values = map_chunks(value, samples, _at_once(arrays))
  return values[0], *_quantiles(values[1:], level)


@functools.partial(jax.jit, static_argnums=(0, 6, 7))
def _assess(metric: Metric, confidence: Array, correct: Array, members: Array, key: Array, growth: Array,
            num_resamples: int, level: float) -> Assessment:
  """``assess``; subsamples are masks here, so that the metric has one shape and is compiled once."""
  place, halves, fifths, outcomes = draws.assess_keys(len(members), key, num_resamples)
  index = jnp.maximum(members, 0).reshape(-1)
  chance, happened = confidence[index], correct[index]

  def value(sample):
    # Behind the barrier XLA does not compute the draws anew for each bin sum and sort that reads them.
    outcome, where = jax.lax.optimization_barrier(draws.assess_sample(*sample, place, members, chance, happened))
    where = jnp.broadcast_to(jnp.expand_dims(where, tuple(range(1, chance.ndim))), chance.shape)
    return metric(chance, outcome, where=where)

  kinds = jnp.repeat(jnp.arange(1, 5), num_resamples)
  kinds, keys = jnp.append(draws.SAMPLE, kinds), jnp.concatenate([halves[:1], halves, halves, fifths, outcomes])
  values = map_chunks(value, (kinds, keys), _at_once([confidence, correct]))
  observed, (half, rest, fifth, redrawn) = values[0], values[1:].reshape(4, num_resamples, *values.shape[1:])
  interval = _bias_corrected(observed, jnp.stack([half, rest], axis=1), fifth, growth, level)
  return Assessment(observed, *interval, jnp.mean(redrawn, axis=0), p_value_of(observed, redrawn))


def _subsampled(metric: Metric, arrays: tuple[Array, ...], members: Array | None, key: Array,
                num_resamples: int) -> tuple[Array, Array]:
  """The metric of random halves and of what they leave out, ``[R, 2, ...]``, and of random fifths, ``[R, ...]``."""
  count = len(arrays[0] if members is None else members)
  order, keys_of_halves, keys_of_fifths = draws.subsample_keys(count, key, num_resamples)

  def half_and_rest(key):
    return jnp.stack([_of_resample(metric, arrays, members, index) for index in draws.half_and_rest(key, order)])

  def fifth(key):
    return _of_resample(metric, arrays, members, draws.fifth(key, order))

  return tuple(map_chunks(function, keys, _at_once(arrays))
               for function, keys in ((half_and_rest, keys_of_halves), (fifth, keys_of_fifths)))


def _at_once(arrays: Sequence[Array]) -> int:
  """The number of resamples of ``arrays`` that keep ``BATCH`` numbers."""
  return max(1, BATCH // max(1, sum(x.size for x in arrays)))


def _of_resample(metric: Metric, arrays: tuple[Array, ...], members: Array | None, index: Array) -> Array:
  """The metric of the examples ``index``, or of all members of the groups ``index``."""
  if members is None:
    return metric(*(x[index] for x in arrays))
  index = members[index].reshape(-1)
  resample = (x[jnp.maximum(index, 0)] for x in arrays)
  return metric(*resample) if members.size == len(arrays[0]) else metric(*resample, where=index >= 0)


def _quantiles(values: Array, level: float) -> tuple[Array, Array]:
  """The ends of the interval that holds the middle ``level`` of ``values`` on the first axis, without nan."""
  tail = (1 - level) / 2
  return tuple(jnp.nanquantile(values, q, axis=0) for q in (tail, 1 - tail))


def _bias_corrected(value: Array, halves: Array, fifths: Array, growth: Array, level: float
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


@functools.partial(jax.jit, static_argnums=(0, 3))
def _redrawn(metric: Metric, confidence: Array, key: Array, num_resamples: int) -> Array:
  """The metric of ``num_resamples`` redraws of the outcomes, on the first axis."""
  def value(key):
    return metric(confidence, jax.random.uniform(key, confidence.shape, confidence.dtype) < confidence)

  return map_chunks(value, jax.random.split(key, num_resamples), _at_once([confidence]))


@functools.partial(jax.jit, static_argnums=(0, 4))
def _observed_and_redrawn(metric: Metric, confidence: Array, correct: Array, key: Array, num_resamples: int) -> Array:
  """The metric of the outcomes and of ``num_resamples`` redraws, which are computed alike: equal ones are equal."""
  def value(sample):
    is_observed, key = sample
    redrawn = jax.random.uniform(key, confidence.shape, confidence.dtype) < confidence
    return metric(confidence, jnp.where(is_observed, correct, redrawn))

  keys = jax.random.split(key, num_resamples)
  samples = jnp.arange(num_resamples + 1) == 0, jnp.concatenate([keys[:1], keys])
  return map_chunks(value, samples, _at_once([confidence]))
