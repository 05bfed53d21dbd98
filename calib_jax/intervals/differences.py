"""Differences of metrics between two models on the same examples."""

from collections.abc import Sequence
import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax.intervals.bias_correction import correlation, interval_of_difference
from calib_jax.intervals.bias_models import MEANS, MODELS, BiasModel, resolved
from calib_jax.intervals.bootstrap import bootstrap, corrected, examples, subsampled
from calib_jax.intervals.draws import Metric

Array = jax.Array
METHODS = ("auto", "percentile", "bias_corrected")

def paired_difference(metric: Metric, a: Sequence[ArrayLike], b: Sequence[ArrayLike], *, key: Array,
                      num_resamples: int = 1000, level: float = 0.95, groups: ArrayLike | None = None,
                      method: str = "auto", bias: BiasModel | str = "auto") -> tuple[Array, Array, Array]:
  r"""The difference of a metric between two models on the same examples, with its bootstrap interval.

  Use it to compare two models: what is hard for both cancels.

  Both models are resampled with the same examples, so that the examples' difficulty, which both share, cancels.

  ``method="percentile"`` is for means, such as accuracy and proper scores. It takes the quantiles of the difference
  over resamples. For calibration errors these quantiles are wrong, because the two errors have unlike biases: between a
  calibrated and an overconfident model they cover the true difference in less than 1% of samples of 1,000.

  ``method="bias_corrected"`` is for calibration errors. It joins the bias-corrected intervals of the two errors, as
  ``bootstrap`` computes them, :math:`l_a \le e_a \le h_a` and :math:`l_b \le e_b \le h_b` (MOVER, Zou & Donner 2008):

  .. math::
    \mathrm{low} = e_a - e_b - \sqrt{s^2 + t^2 - 2 r s t}, \quad s = e_a - l_a, \quad t = h_b - e_b

  and likewise for the upper end. Where both intervals lie above 0, r is the correlation of the noise of the two errors
  over halves of the sample, if it is negative, and else 0. Where one of them reaches 0, r = -1: the ends are
  :math:`l_a - h_b` and :math:`h_a - l_b`. There the noise of the labels, which both models share, enters one error by
  its size and the other by its sign: the two are uncorrelated and yet dependent, and no estimate of r covers. These
  intervals are wide; what they call different is so. docs/coverage.md has their simulated coverage.

  Args:
    metric: a function of the arrays of one model to a scalar or an array, traceable by ``jit``.
    a: the arguments of the metric for one model, ``[N, ...]`` arrays.
    b: the arguments of the metric for the other model, ``[N, ...]`` arrays of the same examples.
    key: PRNG key; the same key gives the same interval.
    num_resamples: number of resamples.
    level: the probability that the interval is meant to cover, in (0, 1).
    groups: optional ``[N]`` integers, as for ``bootstrap``.
    method: ``"percentile"``, ``"bias_corrected"``, or ``"auto"``, which knows the metrics of this package that are
      passed as they are and ``jnp.mean``, and is ``"bias_corrected"`` where ``bias`` is passed.
    bias: as for ``bootstrap``.

  Returns:
    ``(difference, low, high)``, where ``difference`` is the metric of ``a`` minus ``b``'s, for calibration errors
    without their biases.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value, or ``"auto"`` does not know the metric or
      has no sound interval for it, which is so of class-wise errors.

  References:
    Zou & Donner 2008, Statistics in Medicine 27(10).

  >>> a, b = jnp.arange(100.0), jnp.arange(100.0) - 1
  >>> difference, low, high = paired_difference(jnp.mean, [a], [b], key=jax.random.key(0))
  >>> [round(float(x), 4) for x in (difference, low, high)]
  [1.0, 1.0, 1.0]
  """
  if len(a) != len(b):
    raise ValueError(f"a and b must have the same number of arrays: got {len(a)} and {len(b)}.")
  checks.options(method=(method, METHODS))
  model = resolved(bias, metric)
  if method == "auto":
    if bias == "auto" and metric not in MODELS and metric not in MEANS:
      raise ValueError('method must be named for a metric of your own: "percentile" for means, such as accuracy and '
                       'proper scores, or "bias_corrected" for calibration errors, or bias for one with options: '
                       "bias=metrics.bias_model(metrics.calibration_error, norm=2).")
    if not model.compares:
      raise ValueError('method must be named for class-wise errors: with few examples a class the intervals of '
                       '"bias_corrected" held the true difference in as little as 54% of simulations.')
    method = "percentile" if bias == "auto" and metric in MEANS else "bias_corrected"
  if method == "percentile":
    return bootstrap(_difference(metric, len(a)), *a, *b, key=key, num_resamples=num_resamples, level=level,
                     groups=groups)
  arrays, members = examples(metric, [*a, *b], groups, num_resamples, level)
  return _of_errors(model.with_bias or metric, arrays, members, key, num_resamples, level, model)


@functools.cache
def _difference(metric: Metric, num_arrays: int) -> Metric:
  """A function of the arrays of two models. It is cached so that ``bootstrap`` compiles it once for each metric."""
  return lambda *arrays, **where: metric(*arrays[:num_arrays], **where) - metric(*arrays[num_arrays:], **where)


@functools.partial(jax.jit, static_argnums=(0, 4, 5, 6))
def _of_errors(metric: Metric, arrays: tuple[Array, ...], members: Array | None, key: Array,
               num_resamples: int, level: float, bias: BiasModel) -> tuple[Array, Array, Array]:
  """``paired_difference`` of a calibration error, of the arrays of one model followed by the other's."""
  models = arrays[:len(arrays) // 2], arrays[len(arrays) // 2:]

  def of_both(*arrays, **where):
    middle = len(arrays) // 2
    return jnp.stack([metric(*arrays[:middle], **where), metric(*arrays[middle:], **where)])

  values = of_both(*arrays)
  halves, fifths = subsampled(of_both, arrays, members, key, num_resamples)
  intervals = [corrected(values[i], halves[:, :, i], fifths[:, i], model, members, bias.rate, bias, level)
               for i, model in enumerate(models)]
  noise = (halves[:, 0]**2 - halves[:, 1]**2) / 2
  return interval_of_difference(*intervals, correlation(noise[:, 0], noise[:, 1]))
