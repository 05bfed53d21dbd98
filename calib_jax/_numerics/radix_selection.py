"""Sums of equal-mass bins without sorting, by selecting the few values at their edges.

The M - 1 inner edges of M equal-mass bins are order statistics. Each is found digit by digit: the bits of a float32 in
[0, 1], read as an integer, are in the order of the floats and fit in three digits of ten bits. A histogram of the first
digit tells the first digit of every order statistic, a histogram of the second digit among the values that share that
first digit tells the second, and so on: three passes of O(N) instead of a sort. Below some 8,000 examples sorting is
as fast.
"""

import jax
import jax.numpy as jnp

from calib_jax._numerics import binning as bins
from calib_jax._numerics.sorting import exact_cumsum, shared_count

Array = jax.Array
DIGIT = 10  # Bits of a digit.
RADIX = 2**DIGIT
SMALLEST, MOST_BINS = 8192, 32  # Sorting is as fast for fewer examples, or for more bins.


def equal_mass_sums(confidence: Array, correct: Array, where: Array, num_bins: int) -> tuple[Array, Array, Array]:
  """The examples, the correct ones and the sum of confidences of equal-mass bins, ``[num_bins]`` each; ties share."""
  count = jnp.sum(where, dtype=jnp.int32)
  starts = bins.equal_mass_starts(count, num_bins)
  inner = starts[1:-1]
  confidence = jnp.where(confidence == 0, jnp.zeros_like(confidence), confidence)  # -0.0 has other bits than 0.0.
  bits = jnp.where(where, jax.lax.bitcast_convert_type(confidence, jnp.int32), -1)
  selected, num_below = select(bits, jnp.clip(inner, 0, jnp.maximum(count - 1, 0)))
  edges = jnp.where(count > 0, jax.lax.bitcast_convert_type(selected, jnp.float32), 0)

  # The distinct edges divide [0, 1] into cells: one for each edge's own value, and those between.
  def cell(values):
    # Edge by edge, which XLA's CPU code computes for several values at a time; jnp.searchsorted is slower.
    return sum((edge < values).astype(jnp.int32) + (edge <= values).astype(jnp.int32) for edge in edges)

  num_cells = 2 * num_bins - 1
  index = jnp.where(where, cell(confidence), num_cells)
  flags = jnp.stack([where, correct > 0], axis=-1).astype(jnp.int32)
  cell_counts, cell_correct = bins.bin_sums(flags, index, num_cells).T
  sum_high, sum_low = exact_cumsum(bins.bin_sums(confidence, index, num_cells))
  correct_before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(cell_correct, dtype=jnp.int32)])

  # The sums over all examples before the rank of each edge: those below its value, and some of those that have it.
  at_edge, taken = cell(edges), inner - num_below
  whole, fraction = shared_count(taken, cell_correct[at_edge], cell_counts[at_edge], confidence.dtype)

  def between(before_edges, total):
    """Differences of neighbouring sums; the first sum is 0 and the last ``total``."""
    return jnp.diff(before_edges, prepend=jnp.zeros_like(total)[None], append=total[None])

  num_correct = between(correct_before[at_edge] + whole, correct_before[-1]).astype(confidence.dtype)
  num_correct += between(fraction, jnp.zeros((), fraction.dtype))
  sums = between(sum_high[at_edge], sum_high[-1])
  sums += between(sum_low[at_edge] + taken.astype(edges.dtype) * edges, sum_low[-1])
  return jnp.diff(starts), num_correct, sums


def select(bits: Array, ranks: Array) -> tuple[Array, Array]:
  """The values at ``ranks`` ``[E]``, which ascend, of the sorted ``bits``, and how many values are below each.

  The ``bits`` ``[N]`` are int32 in [0, 2^30); negative numbers do not count.
  """
  num_ranks = len(ranks)
  prefix, num_below = jnp.zeros_like(ranks), jnp.zeros_like(ranks)  # The leading digits of each value.
  for shift in (2 * DIGIT, DIGIT, 0):
    # Ranks whose values have the same leading digits share the histogram of the first of them.
    is_new = jnp.concatenate([jnp.ones(1, bool), prefix[1:] != prefix[:-1]])
    first = jax.lax.cummax(jnp.where(is_new, jnp.arange(num_ranks, dtype=jnp.int32), 0))
    leading, owner = bits >> (shift + DIGIT), jnp.full(bits.shape, -1, jnp.int32)
    for rank in range(num_ranks if shift < 2 * DIGIT else 1):
      owner = jnp.where((leading == prefix[rank]) & is_new[rank], rank, owner)
    place = jnp.where((owner >= 0) & (bits >= 0), owner * RADIX + ((bits >> shift) & (RADIX - 1)), num_ranks * RADIX)
    histogram = bins.add_at(place, jnp.ones_like(place), num_ranks * RADIX).reshape(num_ranks, RADIX)
    up_to = jnp.cumsum(histogram, axis=1)[first]
    digit = jnp.sum(up_to <= (ranks - num_below)[:, None], axis=1, dtype=jnp.int32)
    num_below += jnp.sum(jnp.where(jnp.arange(RADIX)[None] == digit[:, None] - 1, up_to, 0), axis=1, dtype=jnp.int32)
    prefix = prefix * RADIX + digit
  return prefix, num_below
