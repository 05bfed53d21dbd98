"""Bootstrap intervals of any metric, by percentiles or corrected for bias."""

from collections.abc import Sequence
import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax._numerics.softmax import map_chunks
from calib_jax.intervals import draws, percentiles
from calib_jax.intervals.bias_correction import interval_of_moments, moments
from calib_jax.intervals.bias_models import PAIRS, BiasModel, resolved
from calib_jax.intervals.draws import Metric

Array = jax.Array
METHODS = ("percentile", "bias_corrected")


def bootstrap(metric: Metric, *arrays: ArrayLike, key: Array, num_resamples: int = 1000, level: float = 0.95,
              method: str = "percentile", groups: ArrayLike | None = None, bias: BiasModel | str = "auto"
              ) -> tuple[Array, Array, Array]:
  r"""The value of a metric with a bootstrap interval.

  Use it to say how far a metric of another sample may be.

  ``method="percentile"`` gives the metric and quantiles of the metric over resamples, at levels that are corrected for
  the bias and skewness of the resamples and for small samples (BCa, Efron 1987, with the wider quantiles of Hesterberg
  2015). It suits means, such as accuracy and proper scores. Calibration errors are biased upwards, because the noise of
  each bin's accuracy adds to its gap, and the noise of a resample is added to the sample's: percentiles of a
  calibration error lie too high, and may even begin above the estimate.

  ``method="bias_corrected"`` is for calibration errors, whose true value τ is at least 0. It assumes that the square Q
  of the metric, as a function of the sample, has

  .. math:: \mathrm{E}[Q] = \tau^2 + B, \qquad \mathrm{Var}[Q] = V_0 + \tau^2 V_1

  which is exact for a sum of squared gaps with independent normal noise, and describes other calibration errors, in
  proportion to the noise near 0 and normal far from it. A random half of the examples and the other half have the noise
  of the sample once more, with opposite signs: the mean of their two Q has variance :math:`V_0`, and half of the
  difference has variance :math:`Q V_1`. A random fifth has four times that noise, so that its Q has mean
  :math:`Q + 4B`, and a half's has mean :math:`Q + B`. The estimate, with the B of fifths, is
  :math:`\sqrt{\max(Q - B, 0)}`. The interval holds every τ for which the observed Q lies between the
  ``(1 - level) / 2`` and ``(1 + level) / 2`` quantiles of the gamma distribution with the mean and variance above (by
  Wilson and Hilferty's cube root). For the lower end, B is the larger one of fifths and halves. For the upper end, a Q
  below B/2 counts as B/2, so that the interval of a model that seems better calibrated than chance allows does not
  shrink to nothing; and B falls to the part s of itself, as :math:`(s + (1 - s) \exp(-\tau^2 / B)) B`. Of norm-2
  errors s is 1. To other errors, bins whose gap is larger than their noise add no bias, though they add some in halves
  and fifths: s is 1/2.

  The bias of ``smooth_calibration_error`` falls more slowly near 0. The noise of a kernel mean of bandwidth σ is
  :math:`(N\sigma)^{-1/2}`, and the error is the σ to which this is equal, :math:`N^{-1/3}`. So its square falls with
  the ``rate`` ρ = 2/3, and a fifth has :math:`Q + (5^\rho - 1) B_0`. Far from 0 the bandwidth is the error, and
  the rate is 1. In between, :math:`B = B_1 + (B_0 - B_1) \exp(-\tau^2 / B_0)`, where :math:`B_1` is B for ρ = 1. The
  lower end takes :math:`B_0`, and the upper end :math:`(s + (1 - s) \exp(-\tau^2 / B_0)) B_1`, s = 0.

  Two errors have a rule of their own. The debiased error has the interval of the same error with its bias, whose
  true value is the same. The upper end of ``ks_calibration_error`` is at least z standard deviations of the mean of
  confidence - correct above the error.

  Which of these rules holds says ``bias``, never the name of the metric or how it was made: a ``functools.partial`` of
  an error of this package is a function of your own, as a lambda is.

  docs/coverage.md has the simulated coverage of all of them, and says where intervals are too short.

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
    bias: for ``method="bias_corrected"``, the ``BiasModel`` of the metric: ``bias_model(calibration_error, norm=2)``
      for an error of this package with options, or one of your own. ``"auto"`` is the model of an error of this package
      that is passed as it is, and for any other function ``CONSERVATIVE``, whose upper end subtracts no bias. So it is
      for a ``functools.partial`` of an error of this package, too: without ``bias`` the interval of a debiased, a KS or
      a smooth error with options lacks the rules of that error, and says nothing of it.

  Returns:
    ``(estimate, low, high)``.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  >>> estimate, low, high = bootstrap(jnp.mean, jnp.arange(100.0), key=jax.random.key(0))
  >>> bool(low < estimate < high)
  True
  """
  checks.options(method=(method, METHODS))
  arrays, members = examples(metric, arrays, groups, num_resamples, level)
  bias = resolved(bias, metric)
  if method == "bias_corrected":
    metric = bias.with_bias or metric
  return _bootstrap(metric, arrays, members, key, np.float32(bias.rate), num_resamples, level, method, bias)


def examples(metric: Metric, arrays: Sequence[ArrayLike], groups: ArrayLike | None, num_resamples: int, level: float
             ) -> tuple[tuple[Array, ...], np.ndarray | None]:
  """The arrays to resample and the examples of each group, or None, after checks of the arguments of ``bootstrap``."""
  checks.options(num_resamples=(num_resamples, "integer [1, inf)"), level=(level, "(0, 1)"))
  if metric in PAIRS:
    arrays = [part for i in range(0, len(arrays) - 1, 2)
              for part in (arrays[i], checks.credits(arrays[i], arrays[i + 1]))]
  arrays = tuple(checks.gathered(jnp.asarray(checks.array(x, "arrays"))) for x in arrays)
  if not arrays or any(x.ndim == 0 or len(x) != len(arrays[0]) or len(x) == 0 for x in arrays):
    raise ValueError("arrays must share their first axis, of at least one example: got shapes "
                     f"{[x.shape for x in arrays]}.")
  return arrays, None if groups is None else draws.members(groups, len(arrays[0]))


@functools.partial(jax.jit, static_argnums=(0, 5, 6, 7, 8))
def _bootstrap(metric: Metric, arrays: tuple[Array, ...], members: Array | None, key: Array, rate: Array,  # noqa: PLR0917
               num_resamples: int, level: float, method: str, bias: BiasModel) -> tuple[Array, Array, Array]:
  if method == "bias_corrected":
    value = metric(*arrays)
    parts = subsampled(metric, arrays, members, key, num_resamples)
    return corrected(value, *parts, arrays, members, rate, bias, level)
  count = len(arrays[0] if members is None else members)

  def value(sample):
    is_sample, words = sample
    every = jnp.arange(count, dtype=jnp.int32)
    return _of_resample(metric, arrays, members, jnp.where(is_sample, every, draws.draw(words, count, count)))

  # The sample itself comes first, among its resamples, so that the metric is compiled only once.
  words = draws.words(jax.random.split(key, num_resamples))
  samples = jnp.arange(num_resamples + 1) == 0, jnp.concatenate([words[:1], words])
  values = map_chunks(value, samples, draws.at_once(arrays))
  return values[0], *percentiles.ends(values[1:], values[0], count, level)


def corrected(value: Array, halves: Array, fifths: Array, arrays: tuple[Array, ...], members: Array | None,  # noqa: PLR0917
              rate: Array | float, bias: BiasModel, level: float) -> tuple[Array, Array, Array]:
  """The estimate and interval of ``bootstrap`` from the value and what ``subsampled`` returns."""
  parts = moments(halves[:, 0], halves[:, 1], fifths)
  estimate, low, high = interval_of_moments(value, *parts, rate, bias.sure_part, level)
  if bias.margin is not None:
    high = jnp.maximum(high, value + bias.margin(*arrays[:2], members, level))
  return estimate, low, high


def subsampled(metric: Metric, arrays: tuple[Array, ...], members: Array | None, key: Array,
               num_resamples: int) -> tuple[Array, Array]:
  """The metric of random halves and of what they leave out, ``[R, 2, ...]``, and of random fifths, ``[R, ...]``."""
  order, halves, fifths, _ = draws.subsample_words(len(arrays[0] if members is None else members), key, num_resamples)

  def of_resample(index):
    return _of_resample(metric, arrays, members, index)

  def half_and_rest(words):
    return jax.vmap(of_resample)(jnp.stack(draws.half_and_rest(words, order)))

  return (map_chunks(half_and_rest, halves, draws.at_once(arrays)),
          map_chunks(lambda words: of_resample(draws.fifth(words, order)), fifths, draws.at_once(arrays)))


def _of_resample(metric: Metric, arrays: tuple[Array, ...], members: Array | None, index: Array) -> Array:
  """The metric of the examples ``index``, or of all members of the groups ``index``."""
  if members is None:
    return metric(*(x[index] for x in arrays))
  index = members[index].reshape(-1)
  resample = (x[jnp.maximum(index, 0)] for x in arrays)
  return metric(*resample) if members.size == len(arrays[0]) else metric(*resample, where=index >= 0)
