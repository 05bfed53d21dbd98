"""Sorted examples, each with as many ranks as its weight, and what lies below a rank.

A whole weight w stands for w equal examples. Equal-mass groups do not divide these: where all weights are whole, groups
are what ``numpy.array_split`` makes of the repeated examples. Other weights are masses, which can be divided: each of M
groups has the M-th part of their sum, and an example at an edge belongs in parts to the groups on either side.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from calib_jax._numerics import binning as bins
from calib_jax._numerics.sorting import exact_cumsum, sorted_credits, sum_between, tie_bounds

Array = jax.Array
MOST = 2.0**31  # Sums of whole weights are below it, as int32; sums of larger ones are masses.


class Ranked(NamedTuple):
  """Examples in ascending order of confidence; those that do not count are last, and have weight 0."""

  confidence: Array  # ``[N]`` floats.
  correct: Array  # ``[N]`` floats or, where tied examples share, their weighted mean over the tie.
  weights: Array  # ``[N]`` floats.
  # The sums of the weights before each place from 0 to N, two arrays ``[N + 1]`` that are to be added.
  before: tuple[Array, Array]
  is_whole: Array  # Whether all weights are whole numbers.

  @property
  def ends(self) -> Array:
    """The rank at which each example ends, ``[N]``."""
    return (self.before[0] + self.before[1])[1:]

  @property
  def total(self) -> Array:
    """The sum of all weights."""
    return self.ends[-1]

  def starts(self, group: Array, num_bins: Array | int) -> Array:
    """The rank at which each ``group`` of equal mass begins, of ``num_bins``, which may be traced."""
    whole = bins.equal_mass_start(group, jnp.where(self.is_whole, self.total, 0).astype(jnp.int32), num_bins)
    share = group.astype(self.total.dtype) / jnp.asarray(num_bins, self.total.dtype)
    return jnp.where(self.is_whole, whole.astype(share.dtype), share * self.total)

  def place(self, rank: Array) -> tuple[Array, Array]:
    """The example that each ``rank`` above 0 divides or ends, and how much of its weight lies below the rank."""
    place = jnp.clip(jnp.searchsorted(self.ends, rank, side="left"), 0, len(self.ends) - 1).astype(jnp.int32)
    return place, jnp.maximum((rank - self.before[0][place]) - self.before[1][place], 0)

  def between(self, ranks: Array, sums: tuple[Array, Array], values: Array) -> Array:
    """Weighted sums of values between ``ranks``; ``sums`` is ``exact_cumsum`` of the weights times the values."""
    place, taken = self.place(ranks)
    first, last = place[:-1], place[1:]
    # What lies above a rank in its example, not below it, is as small as the range is, and so is its rounding error.
    left = jnp.minimum(self.weights[first] - taken[:-1], jnp.diff(ranks)) * values[first]
    right = jnp.where(last > first, taken[1:], 0) * values[last]
    return left + sum_between(sums, jnp.minimum(first + 1, last), last) + right

  def cut(self, num_bins: int) -> tuple[Array, Array, Array, Array, Array]:
    """``(confidence, correct, weights, group)`` of N + M - 1 parts of examples, cut at M groups' edges; and these."""
    starts = self.starts(jnp.arange(num_bins + 1, dtype=jnp.int32), num_bins)
    inner = starts[1:-1]
    # An edge that rounding alone separates from the end of an example is at that end.
    near = self.ends[jnp.stack([jnp.maximum(self.place(inner)[0] - 1, 0), self.place(inner)[0]])]
    gaps = jnp.abs(near - inner[None, :])
    slack = 2 * jnp.finfo(inner.dtype).eps * self.total
    inner = jnp.where(jnp.min(gaps, axis=0) <= slack, jnp.where(gaps[0] < gaps[1], near[0], near[1]), inner)
    place, taken = self.place(inner)
    taken = jnp.where(inner == self.ends[place], self.weights[place], taken)
    # The part of the example below the edge and, if it holds the edge before too, above that one.
    holds_both = jnp.concatenate([jnp.zeros(1, bool), place[1:] == place[:-1]])[:len(place)]
    parts = taken - jnp.where(holds_both, jnp.roll(taken, 1), 0)
    weights = jnp.concatenate([self.weights.at[place].add(-parts), parts])
    rows = jnp.concatenate([jnp.arange(len(self.ends), dtype=jnp.int32), place])
    # What is left of an example lies above all edges that it holds.
    index = jnp.searchsorted(place, rows[:len(self.ends)], side="right").astype(jnp.int32)
    index = jnp.concatenate([index, jnp.arange(num_bins - 1, dtype=jnp.int32)])
    index = jnp.where(weights == 0, num_bins, index)
    above = jnp.clip(jnp.searchsorted(self.ends, inner, side="right"), 0, len(self.ends) - 1)
    middles = jnp.where(inner < self.total, (self.confidence[place] + self.confidence[above]) / 2, 1)
    edges = jnp.concatenate([jnp.zeros(1, middles.dtype), middles, jnp.ones(1, middles.dtype)])
    return self.confidence[rows], self.correct[rows], weights, index, edges


def ranked(confidence: Array, correct: Array, weights: Array, ties: str) -> Ranked:
  """Sorts ``[N]`` examples, at least one; ``ties`` is as for ``sorting.sorted_pairs``, and ``correct`` any floats."""
  confidence, correct, weights = sorted_credits(confidence, correct, weights.astype(bool), weights)
  before = exact_cumsum(weights)
  if ties == "share":
    first, last = tie_bounds(confidence)
    sums = exact_cumsum(weights * correct)
    correct = sum_between(sums, first, last + 1) / bins.divisor(sum_between(before, first, last + 1))
  is_whole = jnp.all(weights == jnp.floor(weights)) & (before[0][-1] < MOST)
  return Ranked(confidence, correct, weights, before, is_whole)
