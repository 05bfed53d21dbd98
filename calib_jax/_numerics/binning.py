"""Bins of confidence in [0, 1], hard and soft, for every loss and metric; and sums with small rounding errors."""

import operator

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
# Rows that are added one by one: 256 additions lose at most 256 eps / 2 of their sum, as sums of equal values may.
BLOCK = 256


def array_module(x: Array | np.ndarray):
  """NumPy for its arrays and ``jax.numpy`` for all others: functions of both libraries are written once."""
  return np if isinstance(x, np.ndarray | np.generic) else jnp


def soft_membership(confidence: Array, num_bins: int, temperature: float, low: float = 0.0) -> Array:
  """Softmax over the bins of -(c - centre)² / T (Karandikar et al. 2021, Section 4.1): ``[...]`` to ``[..., bins]``."""
  centers = low + (1 - low) * (jnp.arange(num_bins, dtype=confidence.dtype) + 0.5) / num_bins
  distance = confidence[..., None] - centers.reshape((1,) * confidence.ndim + (-1,))
  return jax.nn.softmax(-(distance**2) / temperature, axis=-1)


def equal_width_index(confidence: Array, num_bins: int, closed: str = "right") -> Array:
  """Index of each value's bin (lo, hi], or [lo, hi), among equal-width bins of [0, 1]; the outer bins hold the ends."""
  # Inner edges are rounded to the precision of the data, so that a float32 0.2 lies on the edge 0.2 of 5 bins.
  if num_bins > 64:
    inner = equal_width_edges(num_bins, confidence.dtype)[1:-1]
    return jnp.searchsorted(inner, confidence, side="left" if closed == "right" else "right").astype(jnp.int32)
  # For a few edges, comparisons that are written out are faster than ``searchsorted``, by bisection or not.
  is_above = operator.gt if closed == "right" else operator.ge
  index = jnp.zeros(confidence.shape, jnp.int32)
  for edge in (np.arange(1, num_bins) / num_bins).astype(confidence.dtype):
    index += is_above(confidence, edge).astype(jnp.int32)
  return index


def equal_width_edges(num_bins: int, dtype) -> Array:
  """``j / num_bins`` for j from 0 to ``num_bins``, rounded correctly: XLA's division by a constant may not be."""
  return jnp.asarray(np.arange(num_bins + 1) / num_bins, dtype)


def equal_mass_index(rank: Array, count: Array | int, num_bins: int) -> Array:
  """Index of the group of each rank from 0 on when ``count`` sorted values are split as by ``numpy.array_split``."""
  xp = array_module(rank)
  size, larger = xp.divmod(xp.asarray(count, xp.int32), num_bins)
  rank, threshold = rank.astype(xp.int32), larger * (size + 1)
  return xp.where(rank < threshold, rank // (size + 1), larger + (rank - threshold) // xp.maximum(size, 1))


def equal_mass_start(group: Array, count: Array | int, num_bins: Array | int) -> Array:
  """The rank at which each ``group`` of ``equal_mass_index`` begins; ``count`` for group ``num_bins``."""
  xp = array_module(group)
  size, larger = xp.divmod(xp.asarray(count, xp.int32), num_bins)
  return group * size + xp.minimum(group, larger)


def equal_mass_starts(count: Array | int, num_bins: int, xp=jnp) -> Array:
  """The rank at which each group begins, and ``count``: ``[num_bins + 1]``, of the library ``xp``."""
  return equal_mass_start(xp.arange(num_bins + 1, dtype=xp.int32), count, num_bins)


def equal_mass_edges(ordered: Array, count: Array | int, num_bins: int) -> Array:
  """0, midpoints between neighbouring groups of ``ordered``, and 1 (also of empty groups): ``[num_bins + 1]``."""
  xp = array_module(ordered)
  start = equal_mass_starts(count, num_bins, xp)[1:-1]
  last = max(len(ordered) - 1, 0)
  padded = ordered if len(ordered) else xp.zeros(1, ordered.dtype)
  inner = (padded[xp.clip(start - 1, 0, last)] + padded[xp.clip(start, 0, last)]) / 2
  inner = xp.where(start < count, inner, 1)
  return xp.concatenate([xp.zeros(1, ordered.dtype), inner, xp.ones(1, ordered.dtype)])


def pairwise_sum(x: Array) -> Array:
  """The sum over axis 0, in blocks and then over their sums, so that the rounding error grows with log N, not N."""
  while x.shape[0] > 1:
    block = min(128, x.shape[0])
    padding = -x.shape[0] % block
    x = jnp.pad(x, ((0, padding),) + ((0, 0),) * (x.ndim - 1)) if padding else x
    x = jnp.sum(x.reshape(-1, block, *x.shape[1:]), axis=1)
  return x[0] if x.shape[0] else jnp.sum(x, axis=0)


def divisor(x: Array | np.ndarray) -> Array | np.ndarray:
  """Numbers of at least 0 to divide by: 1 in place of 0."""
  return array_module(x).where(x == 0, 1, x)


def total(counts: Array) -> Array:
  """The sum of the weights ``[N]``, or the int32 number of bools that are True."""
  return jnp.sum(counts, dtype=jnp.int32) if counts.dtype == bool else pairwise_sum(counts)


def masked_mean(values: Array, counts: Array) -> Array:
  """The mean of the ``values`` ``[N]`` that count, by their weights if ``counts`` are numbers; 0 if none counts."""
  terms = jnp.where(counts, values, 0) if counts.dtype == bool else counts * values
  return pairwise_sum(terms) / divisor(total(counts)).astype(values.dtype)


def bin_sums(values: Array, index: Array, num_bins: int) -> Array:
  """Sums of ``values`` by bin in O(N), blocks of 256 rows pairwise; an index outside the bins is ignored."""
  blocks = -(-len(index) // BLOCK)
  place = jnp.arange(len(index), dtype=jnp.int32) // BLOCK * num_bins + index
  place = jnp.where((index >= 0) & (index < num_bins), place, blocks * num_bins)
  sums = add_at(place, values, blocks * num_bins)
  return pairwise_sum(sums.reshape(blocks, num_bins, *values.shape[1:]))


def add_at(place: Array, values: Array, size: int) -> Array:
  """Sums of the rows of ``values`` by ``place``, int32 in ``[0, size]``; those at ``size`` are ignored."""
  # They are added to a cell that is thrown away: a branch for each row would take as long as two or three additions.
  sums = jnp.zeros((size + 1, *values.shape[1:]), values.dtype)
  return sums.at[place].add(values, mode="promise_in_bounds")[:-1]
