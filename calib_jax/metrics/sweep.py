"""The calibration error at the largest number of bins whose accuracies are in order (Roelofs et al. 2020)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics import binning as bins
from calib_jax._numerics.sorting import exact_cumsum, shared_count, sorted_pairs, sum_between, tie_bounds
from calib_jax._numerics.weighted_ranks import Ranked, ranked
from calib_jax.intervals.bias_models import biased_as, of_norm
from calib_jax.metrics import formulas
from calib_jax.metrics.binned import BINNINGS, TIES
from calib_jax.metrics.compiled import of_pairs

Array = jax.Array
_BLOCK = 1024  # Bins that are computed together.
# A function of the numbers ``[B + 1]`` of some of M bins, and of M: to the sizes, the numbers of correct examples and
# the sums of confidence - correct, ``[B]`` floats, of the bins from each number to the next.
Bins = Callable[[Array, Array], tuple[Array, Array, Array]]


@biased_as(of_norm, of_pairs=True)
def sweep_calibration_error(confidence: ArrayLike, correct: ArrayLike, *, binning: str = "equal_mass",
                            norm: float = 2, ties: str = "share", where: ArrayLike | None = None,
                            weights: ArrayLike | None = None) -> Array:
  """``calibration_error`` with the largest number of bins for which the accuracies do not fall from bin to bin.

  Use it for an error whose number of bins the data choose, and so with less bias.

  The number of bins M grows from 2 until an accuracy falls below a bin's before it, or until M = N. The error has
  the last M for which none falls, or M = 1. Empty bins are skipped.

  The sorted examples are turned into prefix sums once. A bin is a range of ranks, so that its sums are differences of
  two prefix sums, and a number of bins M is tested in O(M), or in O(M log N) for equal width, in blocks of 1,024 bins.

  Args:
    confidence: floats of any shape, in [0, 1].
    correct: bools, zeros and ones, or credits in [0, 1], of that shape: whether the event happened, or how much of it.
    binning: ``"equal_width"`` or ``"equal_mass"``.
    norm: p, at least 1.
    ties: ``"share"`` or ``"order"``, for equal-mass edges that divide a tie, as in ``calibration_error``.
    where: optional bools of that shape; examples that are False are ignored and may hold NaN.
    weights: optional example weights of that shape, at least 0, as for ``calibration_error``. N is their sum if they
      are all whole, and else the number of examples whose weight is not 0.

  Returns:
    A scalar; 0 if nothing counts. O(N log N), and O(M²) for the M that is taken, which is some dozens unless the data
    are nearly sorted by correctness.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    Roelofs et al. 2020, Algorithm 1; Karandikar et al. 2021, Appendix A.

  >>> sweep_calibration_error(jnp.array([0.9, 0.8, 0.6, 0.2]), jnp.array([True, True, False, False])).round(3)
  Array(0.335, dtype=float32)
  """
  checks.options(binning=(binning, BINNINGS), norm=(norm, "[1, inf)"), ties=(ties, TIES))
  return of_pairs(_sweep_calibration_error, confidence, correct, where, weights, counts_credits=True, binning=binning,
                  norm=norm, ties=ties)


def _sweep_calibration_error(confidence: Array, correct: Array, counts: Array, binning, norm, ties) -> Array:
  if not len(confidence):
    return jnp.zeros((), confidence.dtype)
  number = count = jnp.sum(counts.astype(bool), dtype=jnp.int32)  # Of rows, and the N of the definition.
  if counts.dtype == bool:
    confidence, correct = sorted_pairs(confidence, correct, counts, ties)  # Those that do not count are above 1.
    bins_of = _sorted_bins(confidence, correct, count, binning, ties)
  else:
    rows = ranked(confidence, correct, counts, ties)
    confidence, bins_of = rows.confidence, _weighted_bins(rows, count, binning)
    count = jnp.where(rows.is_whole, rows.total.astype(jnp.int32), count)
  # Equal-width bins that are narrower than any difference separate all values, and more bins change nothing.
  most = count if binning == "equal_mass" else jnp.minimum(count, _enough_to_separate(confidence, number))
  # Where the accuracies of single examples are in order, so are any groups' of neighbours, and all M succeed.
  zero = jnp.zeros_like(confidence[0])
  if counts.dtype != bool:
    falls = jnp.diff(rows.correct) < -formulas.TOLERANCE
    is_in_order = ~jnp.any(falls & (jnp.arange(1, len(falls) + 1, dtype=jnp.int32) < number))
  else:
    is_in_order = _is_in_order(bins_of, count, zero) if ties == "share" else False
  start = jnp.where(is_in_order, most, jnp.ones_like(most))
  num_bins = last_in_order(bins_of, start, most, zero)
  return error_of(bins_of, jnp.where(num_bins < most, num_bins, jnp.maximum(count, 1)), norm, zero)


def last_in_order(bins_of: Bins, start: Array, most: Array, zero: Array) -> Array:
  """The most bins, up to ``most``, before the first above ``start`` whose accuracies fall; ``zero`` types the sums."""
  return jax.lax.while_loop(lambda m: (m < most) & _is_in_order(bins_of, m + 1, zero), lambda m: m + 1, start)


def error_of(bins_of: Bins, num_bins: Array, norm: float, zero: Array) -> Array:
  """The error of ``num_bins`` bins, whose blocks are added one by one."""
  def add_block(state):
    block, size, error = state
    sizes, _, gaps = bins_of(_numbers(block, num_bins), num_bins)
    # The bins of all blocks before are one bin, whose gap is their error.
    sizes, gaps = jnp.append(sizes, size), jnp.append(gaps, size * error)
    return block + 1, jnp.sum(sizes), formulas.binned_error(sizes, None, gaps, norm=norm)

  return jax.lax.while_loop(lambda s: s[0] * _BLOCK < num_bins, add_block, (jnp.int32(0), zero, zero))[2]


def _numbers(block: Array, num_bins: Array) -> Array:
  """The numbers of the bins of a block and of the bin after them, none above ``num_bins``: bins beyond it are empty."""
  return jnp.minimum(block * _BLOCK + jnp.arange(_BLOCK + 1, dtype=jnp.int32), num_bins)


def _sorted_bins(confidence: Array, correct: Array, count: Array, binning: str, ties: str) -> Bins:
  """The ``Bins`` of the first ``count`` examples in the order of ``confidence`` ``[N]``."""
  place, dtype = jnp.arange(len(confidence), dtype=jnp.int32), confidence.dtype
  whole = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(correct, dtype=jnp.int32)])
  fraction = jnp.zeros(whole.shape, dtype)  # What ties add to ``whole``.
  if ties == "share":
    first, last = tie_bounds(confidence)
    extra, part = shared_count(place - first, whole[last + 1] - whole[first], last + 1 - first, dtype)
    whole, fraction = whole.at[:-1].set(whole[first] + extra), fraction.at[:-1].set(part)
  high, low = exact_cumsum(jnp.where(place < count, confidence, 0))

  def bins_of(j, num_bins):
    if binning == "equal_mass":
      ranks = bins.equal_mass_start(j, count, num_bins)
    else:
      ranks = _places(confidence, count, j, num_bins)
    size, num_correct = (jnp.diff(x).astype(dtype) for x in (ranks, whole[ranks]))
    num_correct += jnp.diff(fraction[ranks])
    return size, num_correct, jnp.diff(high[ranks]) + jnp.diff(low[ranks]) - num_correct

  return bins_of


def _weighted_bins(rows: Ranked, count: Array, binning: str) -> Bins:
  """The ``Bins`` of the first ``count`` examples with weights."""
  values = rows.correct, rows.confidence
  sums = [exact_cumsum(rows.weights * x) for x in values]

  def bins_of(j, num_bins):
    if binning == "equal_mass":
      ranks = rows.starts(j, num_bins)
      size = jnp.diff(ranks)
      num_correct, total = (rows.between(ranks, *x) for x in zip(sums, values, strict=True))
    else:
      place = _places(rows.confidence, count, j, num_bins)
      size, num_correct, total = (sum_between(x, place[:-1], place[1:]) for x in (rows.before, *sums))
    return size, num_correct, total - num_correct

  return bins_of


def _places(confidence: Array, count: Array, j: Array, num_bins: Array) -> Array:
  """How many of the first ``count`` values of ``confidence`` ``[N]`` are in the equal-width bins before each ``j``."""
  edges = j.astype(confidence.dtype) / num_bins.astype(confidence.dtype)
  inner = jnp.searchsorted(confidence, edges, side="right").astype(jnp.int32)
  return jnp.where(j == 0, 0, jnp.where(j == num_bins, count, inner))


def _is_in_order(bins_of: Bins, num_bins: Array, zero: Array) -> Array:
  """Whether no accuracy of ``num_bins`` bins is below a bin's before it; empty bins are skipped."""
  # The loop counts blocks, not bins, because XLA miscounts the steps of a loop whose counter grows by more than 1.
  def step(state):
    block, highest, _ = state
    size, num_correct, _ = bins_of(_numbers(block, num_bins), num_bins)
    rise, highest = formulas.accuracies_rise(size, num_correct, highest)
    return block + 1, highest, rise

  return jax.lax.while_loop(lambda s: (s[0] * _BLOCK < num_bins) & s[2], step, (jnp.int32(0), zero, zero == 0))[2]


def _enough_to_separate(confidence: Array, count: Array) -> Array:
  """A number of equal-width bins, at most 2^30, that separates the first ``count`` values of ``confidence`` ``[N]``."""
  steps, is_between = jnp.diff(confidence), jnp.arange(1, len(confidence), dtype=jnp.int32) < count
  smallest = jnp.min(jnp.where((steps > 0) & is_between, steps, 1), initial=1)
  return jnp.minimum(1 / smallest + 2, 2.0**30).astype(jnp.int32)
