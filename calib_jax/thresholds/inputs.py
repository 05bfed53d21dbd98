"""Probabilities and labels of examples, checked, as NumPy arrays."""

from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks


def classified(probs: ArrayLike, labels: ArrayLike | None = None) -> tuple[np.ndarray, np.ndarray | None]:
  """Probabilities ``[N, K]`` as float64, and labels ``[N]`` if there are any, of at least one example, checked."""
  probs = np.asarray(probs)
  if probs.ndim != 2 or not len(probs):
    raise ValueError(f"probs must have shape [N, K] with N of at least 1: got shape {probs.shape}.")
  checks.class_values(probs, np.zeros(len(probs), np.int32) if labels is None else labels)
  return probs.astype(np.float64), None if labels is None else np.asarray(labels).astype(np.int64)
