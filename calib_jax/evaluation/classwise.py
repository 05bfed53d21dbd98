"""Calibration errors of every class, with intervals and noise floors, for up to thousands of classes.

A resample of N examples and K classes costs O(NK), which is too much a thousand times over. The examples are therefore
put into ``BLOCKS`` random blocks, the gaps of all bins are summed in each block once, and the blocks are resampled.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from calib_jax import metrics
from calib_jax.evaluation.predictions import Predictions

BLOCKS = 64
CHUNK = 2**21  # Probabilities that are in memory at a time, beyond the bins of all.


class ClassSums(NamedTuple):
  """Sums over the examples of one model.

  Attributes:
    gaps: float32 ``[blocks, K, B]``, the sum of the probabilities minus the number of labels in each bin of each class,
      over the examples of a block, times the number of blocks / N.
    redrawn: float32 ``[R]``, the classwise errors for labels redrawn from the probabilities.
  """

  gaps: np.ndarray
  redrawn: np.ndarray


def class_sums(part: Predictions, num_bins: int, binning: str, num_redraws: int) -> ClassSums:
  """Sums the gaps of every bin of every class.

  Args:
    part: the predictions.
    num_bins: the number B of bins of each class.
    binning: ``"equal_width"``, or ``"equal_mass"``, where equal probabilities are in the same bin.
    num_redraws: how many times R the labels are redrawn.
  Returns: the sums.
  """
  count, num_classes = part.logits.shape
  rng = np.random.default_rng(0)
  group = np.arange(count) if part.groups is None else np.unique(part.groups, return_inverse=True)[1]
  num_blocks = min(BLOCKS, group.max() + 1)
  block = (rng.permutation(group.max() + 1) % num_blocks)[group]
  step = max(CHUNK // num_classes, 1)
  log_total = np.concatenate([scipy.special.logsumexp(part.logits[i:i + step], axis=1, keepdims=True)
                              for i in range(0, count, step)])  # logsumexp makes several copies of its argument.
  edges = _edges(part.logits, log_total, num_bins, binning)
  num_cells, classes = num_classes * num_bins, np.arange(num_classes)
  expected, observed = np.zeros(num_blocks * num_cells), np.zeros(num_blocks * num_cells)
  redrawn = np.zeros((num_redraws, num_cells), np.float32)
  for start in range(0, count, step):
    rows = slice(start, start + step)
    probs, labels = np.exp(part.logits[rows] - log_total[rows]), part.labels[rows]
    cell = num_bins * classes + sum((probs > edge).astype(np.int32) for edge in edges)
    place, row = block[rows, None] * num_cells + cell, np.arange(len(labels))
    expected += np.bincount(place.ravel(), probs.ravel(), len(expected))
    observed += np.bincount(place[row, labels], minlength=len(observed))
    # Each row's cumulated probabilities end at 1 and begin above those of the row before: one search serves all rows.
    cumulated = (np.cumsum(probs, axis=1, dtype=np.float64) / probs.sum(1, dtype=np.float64)[:, None] + row[:, None])
    for redraw in redrawn:
      drawn = np.searchsorted(cumulated.ravel(), row + rng.uniform(size=len(row)), side="right") - num_classes * row
      redraw += np.bincount(cell[row, np.minimum(drawn, num_classes - 1)], minlength=num_cells)
  gaps = (expected - observed).reshape(num_blocks, num_classes, num_bins) * (num_blocks / count)
  total = expected.reshape(num_blocks, num_cells).sum(0)
  errors = np.abs(total - redrawn).sum(1) / (count * num_classes)
  return ClassSums(gaps.astype(np.float32), errors.astype(np.float32))


def _edges(logits: np.ndarray, log_total: np.ndarray, num_bins: int, binning: str) -> list[np.ndarray]:
  """Returns the inner edges of the bins, each a number or, for equal mass, ``[K]``; a bin includes its upper edge."""
  if binning == "equal_width":
    return list((np.arange(1, num_bins) / num_bins).astype(np.float32))
  count, num_classes = logits.shape
  sizes = [len(part) for part in np.array_split(np.arange(count), num_bins)]
  last = [place - 1 for place in np.cumsum(sizes)[:-1]]
  edges, step = [], max(CHUNK // count, 1)
  for start in range(0, num_classes, step):
    probs = np.exp(logits[:, start:start + step] - log_total)
    edges.append(np.partition(probs, sorted(set(last)), axis=0)[last])
  return list(np.concatenate(edges, axis=1))


def classwise_cell(sums: Sequence[ClassSums], num_resamples: int) -> dict[str, float | list[float]]:
  """Returns the cell of a classwise error, the mean over seeds.

  Args:
    sums: those of each seed.
    num_resamples: the number of resamples of the interval.
  Returns: ``{"estimate", "low", "high", "value", "floor", "p_value", "per_seed"}``.
  """
  gaps = np.stack([part.gaps for part in sums], axis=1)
  estimate, low, high = metrics.bootstrap(_mean_error, gaps, key=jax.random.key(0), num_resamples=num_resamples,
                                          method="bias_corrected")
  per_seed = [float(np.abs(part.gaps.mean(0)).sum(-1).mean()) for part in sums]
  value, redrawn = float(np.mean(per_seed)), np.mean([part.redrawn for part in sums], axis=0)
  return {"value": value, "estimate": float(estimate), "low": float(low), "high": float(high),
          "floor": float(redrawn.mean()), "p_value": float((1 + np.sum(redrawn >= value)) / (1 + len(redrawn))),
          "per_seed": per_seed}


def _mean_error(gaps: jax.Array) -> jax.Array:
  """The classwise error of blocks ``[blocks, S, K, B]``."""
  return jnp.mean(jnp.sum(jnp.abs(jnp.mean(gaps, axis=0)), axis=-1))
