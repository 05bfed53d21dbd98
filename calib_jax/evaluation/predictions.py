"""Predictions on disk: the border between whatever trained a classifier and everything that judges it."""

import os
import pathlib
from typing import NamedTuple

import numpy as np

from calib_jax import metrics
from calib_jax.errors import UserError
from calib_jax.files import read_npz, write_npz


class Predictions(NamedTuple):
  """Logits float32 ``[N, K]`` and labels int32 ``[N]``; log-probabilities serve as logits."""

  logits: np.ndarray
  labels: np.ndarray


def save(path: pathlib.Path, logits: np.ndarray, labels: np.ndarray) -> None:
  """Writes ``logits`` and ``labels`` as an ``.npz``, whole or not at all."""
  write_npz(path, logits=logits, labels=labels)


def load(path: str | os.PathLike) -> Predictions:
  """Reads ``logits`` or ``probs``, and ``labels``, without pickle. UserError where the file does not hold them.

  Probabilities become logits by a logarithm, zeros by that of the smallest normal float32.
  """
  arrays = read_npz(path, ("logits", "probs", "labels"))
  if "labels" not in arrays or not arrays.keys() & {"logits", "probs"}:
    raise UserError(f"{path} must hold labels, and logits or probs; it holds {', '.join(arrays) or 'none of them'}.")
  labels, scores = arrays["labels"], arrays.get("logits", arrays.get("probs"))
  if scores.ndim != 2 or not np.issubdtype(scores.dtype, np.floating) or scores.shape[1] < 2 or len(scores) == 0:
    raise UserError(f"{path}: logits must be floats of shape [N, K], not {scores.dtype} of shape {scores.shape}.")
  if labels.shape != scores.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
    raise UserError(f"{path}: labels must be integers of shape [{len(scores)}], "
                    f"not {labels.dtype} of shape {labels.shape}.")
  if labels.min() < 0 or labels.max() >= scores.shape[1]:
    raise UserError(f"{path}: labels must be in [0, {scores.shape[1]}): they go from {labels.min()} to {labels.max()}.")
  if not np.isfinite(scores).all():
    raise UserError(f"{path}: {int((~np.isfinite(scores)).any(1).sum())} rows of its logits are not finite.")
  if "logits" not in arrays:
    try:
      metrics.validate(scores, labels)
    except ValueError as error:
      raise UserError(f"{path}: {error} Save them as logits if they are scores.") from None
    scores = np.log(np.maximum(scores, np.finfo(np.float32).tiny))
  return Predictions(scores.astype(np.float32), labels.astype(np.int32))
