"""Cells of confidence, which are finer near 0 and 1, and what they tell about the order of their examples.

An equal-mass edge is a rank, which falls into some cell, and the cell must say how many of its first r examples are
correct although it has not kept their order. Let m of the cell's n examples be correct, let the cell be an interval of
width w, and let the mean of the correct confidences lie δ below the mean of all. If all confidences are spread evenly
over the cell, and the density of the correct ones is linear, 1 + t (1 - 2x) for x in [0, 1], then the mean of the
correct ones is at x = 1/2 - t/6, so that t = 6 δ / w. The first r = x n examples then hold m times the integral of the
density, x (1 + t (1 - x)), correct ones. ``_correct_among`` computes this, with t limited to [-1, 1], where the density
is not negative, and the result limited to what is possible.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax._numerics.sorting import exact_cumsum

Array = jax.Array
# The distance of a confidence to the nearer of 0 and 1 is divided into octaves, each half as wide as the one before,
# down to 2**-OCTAVES, and each octave into 2**DIGITS cells.
DIGITS, OCTAVES = 14, 24
HALF = (OCTAVES - 1) * 2**DIGITS + 2  # Cells on either side of 1/2.


class Cells(NamedTuple):
  """The examples of each cell."""

  counts: Array  # ``[cells]`` int32, the number of examples.
  correct: Array  # ``[cells]`` int32, the number of correct examples.
  excess: Array  # ``[cells]`` floats, the sum of the examples' confidences minus ``lowest`` of their cell.
  correct_excess: Array  # ``[cells]`` floats, the same sum over correct examples.

  def between(self) -> Callable[[Array], tuple[Array, Array, Array]]:
    """A function of ranks to the examples, correct ones and gap between each; what it shares is computed once."""
    cumulated, correct_before = jnp.cumsum(self.counts), jnp.cumsum(self.correct) - self.correct
    sums, depth = self.sums(), self.depth()
    high, low = exact_cumsum(sums)

    def between(ranks):
      cell = jnp.minimum(jnp.searchsorted(cumulated, ranks, side="right").astype(jnp.int32), len(cumulated) - 1)
      first = ranks - (cumulated[cell] - self.counts[cell])
      part = first.astype(jnp.float32) / jnp.maximum(self.counts[cell], 1).astype(jnp.float32)
      num_correct = jnp.diff(self._correct_among(first, cell, depth[cell]))
      num_correct += jnp.diff(correct_before[cell]).astype(jnp.float32)
      confidence = jnp.diff(high[cell]) + (jnp.diff(low[cell]) + jnp.diff(part * sums[cell]))
      return jnp.diff(ranks).astype(jnp.float32), num_correct, confidence - num_correct

    return between

  def _correct_among(self, first: Array, cell: Array, depth: Array) -> Array:
    """The number of correct examples among the ``first`` of each ``cell``, by the density of the module's docstring."""
    first, inside, correct = (x.astype(jnp.float32) for x in (first, self.counts[cell], self.correct[cell]))
    edges = lowest()
    width = jnp.abs(edges[jnp.minimum(cell + 1, len(edges) - 1)] - edges[cell]) + jnp.finfo(jnp.float32).tiny
    # Of two examples the correct one comes first if its depth is above 0: a tilt of 2 gives exactly 1 at part = 1/2.
    tilt = jnp.where(inside == 2, 2 * jnp.sign(depth), jnp.clip(6 * depth / width, -1, 1))
    part = first / jnp.maximum(inside, 1)
    return jnp.clip(correct * part * (1 + tilt * (1 - part)), jnp.maximum(first - (inside - correct), 0),
                    jnp.minimum(first, correct))

  def prefix_sums(self) -> tuple[Array, Array]:
    """The sums of correct - confidence over all examples up to the end of each cell, and up to places within cells."""
    high, low = exact_cumsum(self.correct.astype(jnp.float32) - self.sums())
    # Where one of two examples of a cell is correct, their order is known. The sum up to the first of them is the
    # sum up to both minus the gap of the second, correct - confidence.
    depth = self.depth()
    second = lowest() + jnp.where(depth > 0, self.excess - self.correct_excess, self.correct_excess)
    between = (high + low)[1:] + second - (depth < 0).astype(jnp.float32)
    pair = (self.counts == 2) & (self.correct == 1) & (depth != 0)
    return high + low, jnp.where(pair, between, 0)

  def depth(self) -> Array:
    """The mean confidence of each cell's examples minus its correct examples'; 0 if none is correct."""
    inside, correct = (jnp.maximum(x, 1).astype(jnp.float32) for x in (self.counts, self.correct))
    return jnp.where(self.correct > 0, self.excess / inside - self.correct_excess / correct, 0)

  def sums(self) -> Array:
    """The sum of the confidences of each cell."""
    return self.counts.astype(jnp.float32) * lowest() + self.excess


def cell_of(confidence: Array) -> Array:
  """The cell of each confidence, from the exponent and the first digits of its distance to the nearer of 0 and 1."""
  near = jnp.minimum(confidence, 1 - confidence)
  code = jax.lax.bitcast_convert_type(jnp.maximum(near, 0), jnp.int32) >> (23 - DIGITS)
  place = jnp.clip(code - ((127 - OCTAVES) << DIGITS) + 1, 0, HALF - 1)
  return jnp.where(confidence <= 0.5, place, 2 * HALF - 1 - place)


def lowest() -> Array:
  """The confidence of each cell that is nearest to 0 or 1."""
  code = np.arange(HALF - 1, dtype=np.int32) + ((127 - OCTAVES) << DIGITS)
  near = np.concatenate([np.zeros(1, np.float32), (code << (23 - DIGITS)).view(np.float32)])
  return jnp.asarray(np.concatenate([near, 1 - near[::-1]]))
