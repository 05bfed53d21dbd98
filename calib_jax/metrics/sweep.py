"""The calibration error at the largest number of bins whose accuracies are in order (Roelofs et al. 2020)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import binning as bins
from calib_jax.metrics.binned import BINNINGS, TIES
from calib_jax.metrics.definition import of_pairs
from calib_jax.ordering import exact_cumsum, shared_count, sorted_pairs, tie_bounds
from calib_jax.rows import varying_as

Array = jax.Array
_BLOCK = 1024  # Bins that are computed together.
# A fall of an accuracy by less than this is taken for rounding. Two different accuracies of bins of up to 1,000
# examples differ by at least this.
TOLERANCE = 1e-6


@of_pairs(binning=BINNINGS, norm="[1, inf)", ties=TIES)
def sweep_calibration_error(confidence: ArrayLike, correct: ArrayLike, *, binning: str = "equal_mass",
                            norm: float = 2, ties: str = "share", where: ArrayLike | None = None) -> Array:
  """``calibration_error`` with the largest number of bins for which the accuracies do not fall from bin to bin.

  The number of bins M grows from 2 until an accuracy falls below that of a bin before it, or until M = N. The error is
  that of the last M for which none falls, or of M = 1. Empty bins are skipped.

  The sorted examples are turned into prefix sums once. A bin is a range of ranks, so that its sums are differences of
  two prefix sums, and a number of bins M is tested in O(M), or in O(M log N) for equal width, in blocks of 1,024 bins.

  Args:
    confidence: floats of any shape, in [0, 1].
    correct: bools, or zeros and ones, of that shape: whether the event happened.
    binning: ``"equal_width"`` or ``"equal_mass"``.
    norm: p, at least 1.
    ties: ``"share"`` or ``"order"``, for equal-mass edges that divide a tie, as in ``calibration_error``.
    where: optional bools of that shape; examples that are False count for nothing and may hold NaN.
  Returns: a scalar; 0 if nothing counts. O(N log N), and O(M²) for the M that is taken, which is some dozens unless the
    data are nearly sorted by correctness.
  Raises: TypeError or ValueError if an argument has the wrong dtype, shape or value.
  References: Roelofs et al. 2020, Algorithm 1; Karandikar et al. 2021, Appendix A.

  >>> sweep_calibration_error(jnp.array([0.9, 0.8, 0.6, 0.2]), jnp.array([True, True, False, False])).round(3)
  Array(0.335, dtype=float32)
  """
  if not len(confidence):
    return jnp.zeros((), confidence.dtype)
  count = jnp.sum(where, dtype=jnp.int32)
  data = _prefix_sums(*sorted_pairs(confidence, correct, where, ties), count, ties)
  # Equal-width bins that are narrower than any difference separate all values, and more bins change nothing.
  most = count if binning == "equal_mass" else jnp.minimum(count, _enough_to_separate(data.confidence))
  # Where the accuracies of single examples are in order, those of any groups of neighbours are, and all M succeed.
  start = jnp.where(_is_in_order(data, count, binning) if ties == "share" else False, most, 1)
  last_in_order = jax.lax.while_loop(lambda m: (m < most) & _is_in_order(data, m + 1, binning), lambda m: m + 1, start)
  num_bins = jnp.where(last_in_order < most, last_in_order, jnp.maximum(count, 1))

  def add_block(state):
    block, unit, total = state
    size, num_correct, confidence_sum = _block(data, block, num_bins, binning)
    gap = jnp.abs(num_correct - confidence_sum) / jnp.maximum(size, 1)
    # As ``in_units_of_largest``, of the blocks so far.
    larger = jnp.maximum(unit, jnp.max(gap))
    return block + 1, larger, total * (unit / larger) ** norm + jnp.sum(size * (gap / larger) ** norm)

  tiny, none = jnp.asarray(jnp.finfo(confidence.dtype).tiny), jnp.zeros((), confidence.dtype)
  start = (jnp.int32(0), varying_as(tiny, confidence), varying_as(none, confidence))
  _, unit, total = jax.lax.while_loop(lambda s: s[0] * _BLOCK < num_bins, add_block, start)
  return unit * (total / jnp.maximum(count, 1).astype(total.dtype)) ** (1 / norm)


class _PrefixSums(NamedTuple):
  """Sorted examples, and sums over those before each rank from 0 to N, each in two parts that are to be added.

  Attributes:
    confidence: ``[N]`` floats, ascending; infinite for the examples that do not count.
    count: the number of examples that count.
    whole: ``[N + 1]`` integers, the number of correct examples.
    fraction: ``[N + 1]`` floats, what ties add to ``whole``.
    high: ``[N + 1]`` floats, the sum of the confidences.
    low: ``[N + 1]`` floats, what rounding took from ``high``.
  """

  confidence: Array
  count: Array
  whole: Array
  fraction: Array
  high: Array
  low: Array


def _prefix_sums(confidence: Array, correct: Array, count: Array, ties: str) -> _PrefixSums:
  """The prefix sums of sorted examples, of which the first ``count`` count."""
  place = jnp.arange(len(confidence), dtype=jnp.int32)
  whole = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(correct, dtype=jnp.int32)])
  fraction = jnp.zeros(whole.shape, confidence.dtype)
  if ties == "share":
    first, last = tie_bounds(confidence)
    extra, part = shared_count(place - first, whole[last + 1] - whole[first], last + 1 - first, confidence.dtype)
    whole, fraction = whole.at[:-1].set(whole[first] + extra), fraction.at[:-1].set(part)
  sums = exact_cumsum(jnp.where(place < count, confidence, 0))
  return _PrefixSums(jnp.where(place < count, confidence, jnp.inf), count, whole, fraction, *sums)


def _block(data: _PrefixSums, block: Array, num_bins: Array, binning: str) -> tuple[Array, Array, Array]:
  """For each bin of a block: its size, its number of correct examples and the sum of its confidences, as floats."""
  dtype = data.confidence.dtype
  j = jnp.minimum(block * _BLOCK + jnp.arange(_BLOCK + 1, dtype=jnp.int32), num_bins)
  if binning == "equal_mass":
    ranks = bins.equal_mass_start(j, data.count, num_bins)
  else:
    inner = jnp.searchsorted(data.confidence, j.astype(dtype) / num_bins.astype(dtype), side="right").astype(jnp.int32)
    ranks = jnp.where(j == 0, 0, jnp.where(j == num_bins, data.count, inner))
  size, num_correct = (jnp.diff(x).astype(dtype) for x in (ranks, data.whole[ranks]))
  return size, num_correct + jnp.diff(data.fraction[ranks]), jnp.diff(data.high[ranks]) + jnp.diff(data.low[ranks])


def _is_in_order(data: _PrefixSums, num_bins: Array, binning: str) -> Array:
  """Whether no accuracy of ``num_bins`` bins is below that of a bin before it; empty bins are skipped."""
  # The loop counts blocks, not bins, because XLA miscounts the steps of a loop whose counter grows by more than 1.
  def step(state):
    block, highest, _ = state
    size, num_correct, _ = _block(data, block, num_bins, binning)
    accuracy = num_correct / jnp.maximum(size, 1)  # 0 where a bin is empty, which no bin falls below.
    highest_before = jax.lax.cummax(jnp.concatenate([highest[None], accuracy]))
    rises = (size == 0) | (accuracy >= highest_before[:-1] - TOLERANCE)
    return block + 1, highest_before[-1], jnp.all(rises)

  none, yes = jnp.zeros((), data.confidence.dtype), jnp.ones((), bool)
  start = (jnp.int32(0), varying_as(none, data.confidence), varying_as(yes, data.confidence))
  return jax.lax.while_loop(lambda s: (s[0] * _BLOCK < num_bins) & s[2], step, start)[2]


def _enough_to_separate(confidence: Array) -> Array:
  """A number of equal-width bins of which none holds two different values of ``confidence`` ``[N]``; at most 2^30."""
  steps = jnp.diff(confidence)
  smallest = jnp.min(jnp.where((steps > 0) & jnp.isfinite(steps), steps, 1), initial=1)
  return jnp.minimum(1 / smallest + 2, 2.0**30).astype(jnp.int32)
