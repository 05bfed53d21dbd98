"""Calibration errors of every class, with intervals and noise floors, for up to thousands of classes.

A resample of N examples and K classes costs O(NK), which is too much a thousand times over. The examples are therefore
put into ``BLOCKS`` random blocks, the gaps of all bins are summed in each block once, and the blocks are resampled.
"""

from collections.abc import Sequence
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax._numerics import binning as bins
from calib_jax._system import compilation
from calib_jax.evaluation.predictions.calibrated import Calibrated
from calib_jax.intervals import draws, resamples
from calib_jax.intervals.resamples import Resampled, bias_corrected, subsamples
from calib_jax.metrics.formulas import binned_error

BLOCKS = 64
AT_ONCE = 24  # Resamples whose gaps are summed at a time, too few for the threads of a small matrix product.
SORTED, PASSES = 2**23, 8  # Probabilities that are sorted at a time, unless that takes more passes over the logits.
LEADING = 2**22  # Most counts of the leading bits of probabilities, of all classes.


class ClassSums(NamedTuple):
  """Sums over the examples of one model."""

  # float32 ``[blocks, K, B]``, the sum of the probabilities minus the number of labels in each bin of each class, over
  # the examples of a block, times the number of blocks / N. With weights these are sums of weights, and N is theirs.
  gaps: np.ndarray
  redrawn: np.ndarray  # float32 ``[R]``, the classwise errors for labels redrawn from the probabilities.


class Summing:
  """Sums the gaps of the bins of every class some rows at a time; with weights there are no bins of equal mass."""

  def __init__(self, source: Calibrated, num_bins: int, num_redraws: int):
    """Reads the probabilities for the edges of the equal-mass bins, in which equal probabilities share a bin."""
    part = source.part
    self.rng = np.random.default_rng(0)
    self.group, num_groups = draws.group_numbers(part.groups, len(part.labels))
    self.block = resamples.random_blocks(len(part.labels), part.groups, BLOCKS, self.rng)
    self.num_blocks = min(BLOCKS, num_groups)
    self.shape = part.logits.shape[1], num_bins
    num_cells = part.logits.shape[1] * num_bins
    self.weights = None if part.weights is None else part.weights / part.weights.mean()
    self.edges = jnp.asarray(_equal_mass_edges(source, num_bins) if part.weights is None else
                             np.empty((0, self.shape[0]), np.float32))
    if self.group is not None:
      rho = _dependence(source, draws.members(part.groups, len(part.labels)))
      self.share, self.choices = rho**0.5, np.random.default_rng(1)
      self.of_groups = self.choices.uniform(size=(num_groups, num_redraws)).astype(np.float32)
    self.drawn = compilation.sized(_drawn, part.logits.size)
    self.cells = compilation.sized(_cells, part.logits.size, static_argnums=2)
    self.gaps = {name: np.zeros(self.num_blocks * num_cells)
                 for name in ("equal_width", *(("equal_mass",) if part.weights is None else ()))}
    self.observed = {name: np.zeros(num_cells) for name in self.gaps}
    dtype = np.int32 if part.weights is None else np.float64
    self.redrawn = {name: np.zeros((num_redraws, num_cells), dtype) for name in self.gaps}

  def add(self, rows: slice, first: int, probs: np.ndarray, labels: np.ndarray) -> None:
    """Adds the examples at the positions ``rows``, but for the ``first`` of them, which were added before."""
    uniform = np.zeros((len(labels), len(self.redrawn["equal_width"])), np.float32)
    # The same for any size of chunks, and for all seeds of an example, so that they depend on each other fully.
    uniform[first:] = self.rng.uniform(size=uniform[first:].shape)
    if self.group is not None:
      is_shared = self.choices.uniform(size=uniform[first:].shape) < self.share
      uniform[first:] = np.where(is_shared, self.of_groups[self.group[rows][first:]], uniform[first:])
    drawn = np.asarray(self.drawn(probs, uniform))[first:].T
    cells = {name: np.asarray(x)[first:] for name, x in self.cells(probs, self.edges, self.shape[1]).items()}
    probs, labels, block, weights = probs[first:].ravel(), labels[first:], self.block[rows][first:], None
    if self.weights is not None:
      weights = self.weights[rows][first:]
      probs = probs * np.repeat(weights, self.shape[0])
    row, num_cells = np.arange(len(labels)), self.shape[0] * self.shape[1]
    first_cells, drawn = num_cells * np.arange(len(drawn))[:, None], row * self.shape[0] + drawn
    for name, gaps in self.gaps.items():
      cell = cells[name]
      true = cell[row, labels]
      gaps += np.bincount((block[:, None] * num_cells + cell).ravel(), probs, len(gaps))
      gaps -= np.bincount(block * num_cells + true, weights, len(gaps))
      self.observed[name] += np.bincount(true, weights, num_cells)
      # One call for all redraws: each of them adds few labels.
      np.add.at(self.redrawn[name].reshape(-1), (cell.take(drawn) + first_cells).reshape(-1),
                np.int32(1) if weights is None else np.tile(weights, len(drawn)))

  def sums(self) -> dict[str, ClassSums]:
    """Returns the sums by the kind of the bins."""
    count, num_classes = len(self.block), self.shape[0]
    sums = {}
    for name, gaps in self.gaps.items():
      expected = gaps.reshape(self.num_blocks, -1).sum(0) + self.observed[name]
      errors = binned_error(None, None, expected - self.redrawn[name], count=count * num_classes)
      gaps = gaps.reshape(self.num_blocks, *self.shape) * (self.num_blocks / count)
      sums[name] = ClassSums(gaps.astype(np.float32), errors.astype(np.float32))
    return sums


def _cells(probs: jax.Array, edges: jax.Array, num_bins: int) -> dict[str, jax.Array]:
  """The bin of each probability plus ``num_bins`` times its class, by the kind of the bins."""
  first = num_bins * jnp.arange(probs.shape[1], dtype=jnp.int32)[None]
  above = jnp.zeros(probs.shape, jnp.int32)
  if len(edges):  # One bin has no inner edge.
    above = jax.lax.fori_loop(0, len(edges), lambda j, count: count + (probs > edges[j][None]).astype(jnp.int32),
                              above, unroll=min(len(edges), 16))
  return {"equal_width": first + bins.equal_width_index(probs, num_bins), "equal_mass": first + above}


def _drawn(probs: jax.Array, uniform: jax.Array) -> jax.Array:
  """Labels ``[rows, R]`` that are drawn from probabilities ``[rows, K]`` by uniform numbers ``[rows, R]``."""
  cumulated = jnp.cumsum(probs, axis=1)
  place = jax.vmap(lambda ends, u: jnp.searchsorted(ends, u, side="right"))(cumulated, uniform * cumulated[:, -1:])
  return jnp.minimum(place, probs.shape[1] - 1).astype(jnp.int32)


def _dependence(source: Calibrated, members: np.ndarray) -> float:
  """``draws.dependence`` of whether the predicted class is right."""
  labels = source.part.labels
  confidence, correct = np.empty(len(labels), np.float32), np.empty(len(labels), bool)
  for rows, _, log_probs in source.chunks():
    probs = np.asarray(source.probs(rows, log_probs))
    confidence[rows], correct[rows] = probs.max(1), probs.argmax(1) == labels[rows]
  return float(draws.dependence(jnp.asarray(confidence), correct, members))


def _equal_mass_edges(source: Calibrated, num_bins: int) -> np.ndarray:
  """Returns the inner edges of the bins of each class, ``[B - 1, K]``; a bin includes its upper edge."""
  count, num_classes = source.part.logits.shape
  sizes = [len(part) for part in np.array_split(np.arange(count), num_bins)]
  last = np.maximum(np.cumsum(sizes)[:-1] - 1, 0)
  if count * num_classes > SORTED and (edges := _selected(source, last)) is not None:
    return edges
  edges = np.empty((len(last), num_classes), np.float32)
  step = max(SORTED // count, -(-num_classes // PASSES))
  for start in range(0, num_classes, step):
    columns = slice(start, min(start + step, num_classes))
    by_class = np.empty((columns.stop - start, count), np.float32)
    for rows, _, log_probs in source.chunks():
      by_class[:, rows] = source.probs(rows, log_probs)[:, columns].T
    by_class.sort(axis=1)
    edges[:, columns] = by_class[:, last].T
  return edges


def _selected(source: Calibrated, ranks: np.ndarray) -> np.ndarray | None:
  """The probabilities of these ``ranks`` ``[E]`` in the order of each class, ``[E, K]``; None if many are tied."""
  # One pass counts the leading bits of probabilities, which have their order; a second one sorts what has the ranks.
  num_classes = source.part.logits.shape[1]
  shift = next(shift for shift in range(15, 32) if shift == 31 or num_classes << (31 - shift) <= LEADING)
  classes, number = np.arange(num_classes), 1 << (31 - shift)

  def bits():
    for rows, first, log_probs in source.chunks():
      values = source.probs(rows, log_probs)[first:].view(np.uint32) & np.uint32(2**31 - 1)  # Without the sign of -0.
      yield values, (values >> shift) + number * classes

  counts = np.zeros(num_classes * number, np.int32)
  for _, place in bits():
    np.add.at(counts, place.reshape(-1), np.int32(1))
  below = np.cumsum(counts.reshape(num_classes, number), axis=1)
  place = np.stack([row.searchsorted(ranks, side="right") for row in below])  # [K, E]
  is_wanted = np.zeros(len(counts), bool)
  is_wanted[place + number * classes[:, None]] = True
  if counts[is_wanted].sum(dtype=np.int64) > SORTED:
    return None
  selected = []
  for values, at in bits():
    is_found = is_wanted[at]
    selected.append(values[is_found] + (np.nonzero(is_found)[1] << 31))
  selected = np.sort(np.concatenate(selected))
  first = selected.searchsorted((classes[:, None] << 31) + (place << shift))
  before = below[classes[:, None], place] - counts.reshape(num_classes, number)[classes[:, None], place]
  return (selected[first + ranks - before] & (2**31 - 1)).astype(np.uint32).view(np.float32).T


@functools.lru_cache(maxsize=1)
def _subsamples(num_blocks: int, num_resamples: int) -> list[np.ndarray]:
  return subsamples(num_blocks, jax.random.key(0), num_resamples)


def resampled(sums: Sequence[ClassSums], num_resamples: int) -> Resampled:
  """Resamples the blocks of a classwise error; the ``value`` is ``[1 + S]``, the mean over seeds and each seed's."""
  gaps = np.concatenate([part.gaps.reshape(len(part.gaps), -1) for part in sums], axis=1)
  num_errors = len(sums) * sums[0].gaps.shape[1]

  def errors(counts):
    """The mean error of the classes, where the blocks count as often as ``counts`` ``[R, blocks]`` says."""
    pieces = np.array_split(counts, max(1, -(-len(counts) // AT_ONCE)))
    return np.concatenate([binned_error(None, None, x.astype(np.float32) @ gaps, count=x.sum(1) * num_errors)
                           for x in pieces])

  redrawn = np.mean([part.redrawn for part in sums], axis=0)
  error = bias_corrected(errors, _subsamples(len(gaps), num_resamples))
  at_least = redrawn >= error.value * (1 - 1e-5)  # The same labels give the same error but for rounding.
  per_seed = [float(binned_error(None, None, part.gaps.mean(0), count=1).mean()) for part in sums]
  return error._replace(value=np.array([error.value, *per_seed]), floor=redrawn.mean(),
                        most_by_chance=np.quantile(redrawn, 0.975),
                        p_value=(1 + np.sum(at_least)) / (1 + len(redrawn)))
