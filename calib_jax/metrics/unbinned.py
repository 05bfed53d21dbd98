"""Calibration errors without bins: Kolmogorov-Smirnov, smooth, and with a kernel estimate of the accuracy."""

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax._numerics.binning import divisor, masked_mean, total
from calib_jax._numerics.sorting import exact_cumsum, sorted_credits, sorted_pairs
from calib_jax.intervals.bias_models import BiasModel, biased_as, of_norm
from calib_jax.losses.kernels import FORMS, leave_one_out, log_densities, neighbours
from calib_jax.metrics import formulas
from calib_jax.metrics.binned import TIES
from calib_jax.metrics.compiled import of_classes, of_pairs
from calib_jax.metrics.scores import top_label

Array = jax.Array
BANDWIDTHS = np.concatenate([np.logspace(-5, -1, 15), np.linspace(0.2, 1, 5)])


def ks_margin(confidence: Array, correct: Array, members: Array | None, level: float) -> Array:
  """How far the true KS error may be above the sample's, at least: the ``margin`` of its ``BiasModel``.

  The sum that is the largest in truth is noisy too, and the KS error of the sample is at least as large. So the true
  error is above it by at most z standard deviations of that sum, which the sum over all examples has at least.
  The model of ``bootstrap`` takes the noise of the sum that is the largest in the sample, which may be much smaller.
  """
  gap = confidence - correct.astype(confidence.dtype)
  excess = (gap - gap.mean()).reshape(len(gap), -1).sum(1)
  if members is not None:
    excess = jnp.where(members >= 0, excess[jnp.maximum(members, 0)], 0).sum(1)
  return ndtri(jnp.asarray((1 + level) / 2, gap.dtype)) * jnp.sqrt((excess**2).sum()) / gap.size


@biased_as(lambda **_: BiasModel(sure_part=0.5, margin=ks_margin), of_pairs=True)
def ks_calibration_error(confidence: ArrayLike, correct: ArrayLike, *, ties: str = "share",
                         where: ArrayLike | None = None, weights: ArrayLike | None = None) -> Array:
  r"""Kolmogorov-Smirnov calibration error: the largest gap between two cumulative sums, in [0, 1].

  Use it for one number without any bins or bandwidth, whose size is that of a probability.

  .. math:: \max_k \left|\frac{1}{N} \sum_{i \le k} (a_{(i)} - c_{(i)})\right|

  where :math:`c_{(i)}` is the i-th smallest confidence and :math:`a_{(i)}` says whether that example is correct.

  Args:
    confidence: floats of any shape, in [0, 1].
    correct: bools, zeros and ones, or credits in [0, 1], of that shape: whether the event happened, or how much of it.
    ties: ``"share"``: each of several examples of equal confidence counts as the mean of ``correct`` over all of them,
      so that the value does not depend on their order; ``"order"``: they keep their order.
    where: optional bools of that shape; examples that are False are ignored and may hold NaN.
    weights: optional example weights of that shape, at least 0; an integer weight w equals w copies of the row.

  Returns:
    A scalar; 0 if nothing counts. O(N log N).

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or shape.

  References:
    Gupta et al. 2020, Eq. 3.

  >>> ks_calibration_error(jnp.array([0.9, 0.8, 0.6, 0.2]), jnp.array([True, True, False, False])).round(3)
  Array(0.2, dtype=float32)
  """
  checks.options(ties=(ties, TIES))
  return of_pairs(_ks_calibration_error, confidence, correct, where, weights, counts_credits=True, ties=ties)


def _ks_calibration_error(confidence: Array, correct: Array, counts: Array, ties) -> Array:
  count = total(counts)
  if counts.dtype != bool:
    confidence, correct, weights = sorted_credits(confidence, correct, counts.astype(bool), counts)
    gap = weights * (confidence - correct)
  else:
    confidence, correct = sorted_pairs(confidence, correct, counts, ties)
    is_counted = jnp.arange(len(confidence), dtype=jnp.int32) < count
    gap = jnp.where(is_counted, confidence - correct.astype(confidence.dtype), 0)
  high, low = exact_cumsum(gap)
  sums = (high + low)[1:]
  if ties == "share":  # The sums rise or fall linearly through a tie, so that the largest is at an end of one.
    sums = jnp.where(jnp.append(confidence[1:] != confidence[:-1], True), sums, 0)
  return formulas.ks_error(sums, count)


def two_bin_calibration_error(confidence: ArrayLike, correct: ArrayLike, *, where: ArrayLike | None = None,
                              weights: ArrayLike | None = None) -> Array:
  r"""Averaged two-bin calibration error, a squared error that is least, in expectation, for the true probabilities.

  Use it to rank models, or as a target, where a calibration error could be lowered by false probabilities.

  .. math:: E = \int_0^1 \Big(\frac{1}{N} \sum_{i: c_i < q} (c_i - a_i)\Big)^2 +
    \Big(\frac{1}{N} \sum_{i: c_i \ge q} (c_i - a_i)\Big)^2 \, dq

  with :math:`c_i` the confidence of example i and :math:`a_i` whether it is correct. If :math:`p_i` are the true
  probabilities, the expectation of the two squares is :math:`\sum_i p_i (1 - p_i) / N^2` plus the squares of the sums
  of :math:`c_i - p_i` over both bins: the first part does not depend on what is said or on q, and the second is 0 for
  the truth (and for the mean of all p, said of each example: like any calibration error it does not ask for more). The
  ECE and its like can be lowered by false probabilities, because fewer bins that hold any have less noise.

  Args:
    confidence: floats of any shape, in [0, 1].
    correct: bools, zeros and ones, or credits in [0, 1], of that shape: whether the event happened, or how much of it.
    where: optional bools of that shape; examples that are False are ignored and may hold NaN.
    weights: optional example weights of that shape, at least 0, which multiply c - a; N is their sum.

  Returns:
    A scalar, a squared fraction: a calibrated model has about the mean of p (1 - p) over N. 0 if nothing counts.
    O(N log N).

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or shape.

  References:
    Hartline et al. 2025, of which the formula is written so that the law above holds.

  >>> two_bin_calibration_error(jnp.array([0.9, 0.8, 0.6, 0.2]), jnp.array([True, True, False, False])).round(4)
  Array(0.0194, dtype=float32)
  """
  return of_pairs(_two_bin_calibration_error, confidence, correct, where, weights, counts_credits=True)


def _two_bin_calibration_error(confidence: Array, correct: Array, counts: Array) -> Array:
  is_counted = counts.astype(bool)
  confidence, correct, weights = sorted_credits(confidence, correct.astype(confidence.dtype), is_counted,
                                                counts.astype(confidence.dtype))
  confidence = jnp.where(confidence > 1, 1, confidence)  # What does not count is last.
  count = divisor(total(counts)).astype(confidence.dtype)
  sums = jnp.sum(jnp.stack(exact_cumsum(weights * (confidence - correct))), axis=0) / count
  ends = jnp.concatenate([jnp.zeros(1, confidence.dtype), confidence, jnp.ones(1, confidence.dtype)])
  return jnp.sum(jnp.diff(ends) * (sums**2 + (sums[-1] - sums) ** 2))


@biased_as(lambda **_: BiasModel(rate=2 / 3), of_pairs=True)
def smooth_calibration_error(confidence: ArrayLike, correct: ArrayLike, *, where: ArrayLike | None = None,
                             weights: ArrayLike | None = None) -> Array:
  r"""Smooth calibration error (smECE), in [0, 1], which has neither bins nor a bandwidth to choose.

  Use it for an error that changes continuously with the predictions.

  .. math:: \mathrm{smECE}_\sigma = \int_0^1 \left|\frac{1}{N} \sum_i (a_i - c_i) K_\sigma(t, c_i)\right| dt, \qquad
    \text{at the } \sigma \text{ for which } \mathrm{smECE}_\sigma = \sigma

  with :math:`c_i` the confidence of example i, :math:`a_i` whether it is correct, and :math:`K_\sigma` the Gaussian
  kernel of standard deviation σ reflected at 0 and 1. Equal confidences may come in any order.

  The integral is computed on a grid of 8,192 cells, to about 1e-4 of its value. Reflection at both ends makes the
  smoothed residual even and periodic with period 2, so that smoothing multiplies its Fourier coefficient of frequency
  πk by :math:`\exp(-(\pi k \sigma)^2 / 2)`. The left-hand side falls as σ grows, and bisection finds the σ.

  Args:
    confidence: floats of any shape, in [0, 1].
    correct: bools, zeros and ones, or credits in [0, 1], of that shape: whether the event happened, or how much of it.
    where: optional bools of that shape; examples that are False are ignored and may hold NaN.
    weights: optional example weights of that shape, at least 0; an integer weight w equals w copies of the row.

  Returns:
    A scalar; 0 if nothing counts. O(N), and 32 Fourier transforms of the grid.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or shape.

  References:
    Błasiok & Nakkiran 2023, Definitions 1-3, Algorithm 1.

  >>> smooth_calibration_error(jnp.array([0.9, 0.8, 0.6, 0.2]), jnp.array([True, True, False, False])).round(3)
  Array(0.172, dtype=float32)
  """
  return of_pairs(_smooth_calibration_error, confidence, correct, where, weights)


def _smooth_calibration_error(confidence: Array, correct: Array, counts: Array) -> Array:
  count = divisor(total(counts)).astype(confidence.dtype)
  residual = (correct - confidence) / count
  if counts.dtype != bool:
    residual = counts * residual
  mass = jnp.zeros(formulas.GRID, confidence.dtype)
  for cell, share in formulas.grid_shares(confidence):
    mass = mass.at[cell].add(residual * share)
  # The grid followed by its mirror image is one period of the reflected residual.
  coefficients = jnp.fft.rfft(jnp.concatenate([mass, mass[::-1]]))
  error = formulas.smooth_error(coefficients, lambda x: jnp.fft.irfft(x, 2 * formulas.GRID)[:formulas.GRID])
  return error * jnp.any(counts).astype(count.dtype)


@biased_as(of_norm)
def kde_calibration_error(probs: ArrayLike, labels: ArrayLike, *, bandwidth: float | None = None, norm: float = 1.0,
                          form: str = "top_label", where: ArrayLike | None = None,
                          weights: ArrayLike | None = None) -> Array:
  r"""Calibration error with a leave-one-out kernel estimate of the accuracy at each prediction, with no root.

  Use it to compare with papers that train or report a kernel estimate.

  .. math::
    E = \frac{1}{N} \sum_i \sum_k \left|\frac{\sum_{j \ne i} \kappa(f_i; f_j)\, y_{jk}}{\sum_{j \ne i} \kappa(f_i; f_j)}
    - f_{ik}\right|^p

  This is ``losses.kde_ece`` of probabilities f instead of logits.

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1; they are clipped to [1e-6, 1 - 1e-6].
    labels: ``[...]`` integers in ``[0, K)``.
    bandwidth: h > 0. None chooses the h of ``logspace(-5, -1, 15)`` and ``linspace(0.2, 1, 5)`` with the largest
      leave-one-out likelihood: the product over examples of the kernel density of the other examples at each. The code
      that Popordanoska et al. released has a factor h too many there and takes the smallest, with errors of 2 to 4
      times these.
    norm: p, at least 1.
    form: ``"top_label"``: Beta kernel on the confidence; ``"canonical"``: Dirichlet kernel on the whole vector;
      ``"marginal"``: Beta kernel on each class, with one bandwidth for all classes, summed over classes.
    where: optional ``[...]`` bools; examples that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, 0 or at least 1; an integer weight w equals w copies of the row. A row
      that is left out leaves w - 1 copies, so that weights between 0 and 1 are refused, and NaN where they are traced.

  Returns:
    A scalar; 0 with fewer than two examples that count. O(N²) time, 20 times that to choose the bandwidth, and O(N)
    memory.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    Popordanoska et al. 2022, Section 3.

  >>> probs, labels = jnp.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]), jnp.array([0, 1, 0])
  >>> kde_calibration_error(probs, labels, bandwidth=0.1).round(1)
  Array(0.2, dtype=float32)
  """
  checks.options(bandwidth=(bandwidth, "(0, inf) or None"), norm=(norm, "[1, inf)"), form=(form, FORMS))
  if weights is not None:
    weights, where = checks.weights_and_where(weights, where, labels)
    weights = neighbours(jnp.where(where, weights, 0))
  return of_classes(_kde_calibration_error, probs, labels, where, weights, bandwidth=bandwidth, norm=norm, form=form)


def _kde_calibration_error(probs: Array, labels: Array, counts: Array, bandwidth, norm, form) -> Array:
  onehot = jax.nn.one_hot(labels, probs.shape[1], dtype=probs.dtype)
  if form == "canonical":
    columns, events = probs[None], onehot[None]
  elif form == "marginal":
    columns, events = probs.T, onehot.T[..., None]
  else:
    confidence, correct = top_label(probs, labels)
    columns, events = confidence[None], correct[None, :, None].astype(probs.dtype)

  def log_vectors(column):
    column = jnp.clip(column, 1e-6, 1 - 1e-6)
    return jnp.log(column) if form == "canonical" else jnp.stack([jnp.log(column), jnp.log1p(-column)], axis=-1)

  index = jnp.arange(len(labels), dtype=jnp.int32)

  if bandwidth is None:
    def likelihood(h):
      log_density = jax.lax.map(lambda column: log_densities(log_vectors(column), counts, h), columns)
      log_density = jnp.where(counts.astype(bool), log_density, 0)
      return jnp.sum(log_density if counts.dtype == bool else counts[None, :] * log_density)

    grid = jnp.asarray(BANDWIDTHS, probs.dtype)
    bandwidth = grid[jnp.argmax(jax.lax.map(likelihood, grid))]

  def term(x):
    log_f = log_vectors(x[0])
    return leave_one_out(log_f, log_f, x[1], counts, index, bandwidth, norm)

  terms = jnp.sum(jax.lax.map(term, (columns, events)), axis=0)
  return jnp.where(total(counts) > 1, masked_mean(terms, counts), 0)
