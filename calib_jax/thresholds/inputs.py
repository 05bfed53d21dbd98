"""Probabilities, labels and groups of examples, checked, as NumPy arrays."""

from jax.typing import ArrayLike
import numpy as np
from scipy import stats

from calib_jax import _checks as checks
from calib_jax.intervals import draws


def classified(probs: ArrayLike, labels: ArrayLike | None = None) -> tuple[np.ndarray, np.ndarray | None]:
  """Probabilities ``[N, K]`` as float64, and labels ``[N]`` if there are any, of at least one example, checked."""
  probs = np.asarray(probs)
  if probs.ndim != 2 or not len(probs):
    raise ValueError(f"probs must have shape [N, K] with N of at least 1: got shape {probs.shape}.")
  checks.class_values(probs, np.zeros(len(probs), np.int32) if labels is None else labels)
  return probs.astype(np.float64), None if labels is None else np.asarray(labels).astype(np.int64)


def effective_size(groups: ArrayLike | None, count: int) -> float:
  """(Σ m)²/Σ m² of the sizes m of the groups (Kish 1965); the number of examples if there are no groups."""
  numbers, n = draws.group_numbers(groups, count)
  return float(n if numbers is None else count**2 / np.sum(np.bincount(numbers).astype(float) ** 2))


def binomial_interval(rate: float, n: float, level: float) -> tuple[float, float]:
  """The exact interval of a rate among n, which groups may make a fraction (Clopper & Pearson 1934)."""
  tail, hits = (1 - level) / 2, rate * n
  return (float(stats.beta.ppf(tail, hits, n - hits + 1)) if hits > 0 else 0.0,
          float(stats.beta.isf(tail, hits + 1, n - hits)) if hits < n else 1.0)
