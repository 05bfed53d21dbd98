"""Predictions are saved in files, so that classifiers of any framework can be evaluated."""

import os
import pathlib
import sys
from typing import NamedTuple

import numpy as np

from calib_jax import metrics
from calib_jax.errors import UserError
from calib_jax.files import read_npz, write_npz

KINDS = ("in_distribution", "shifted", "out_of_distribution")


class Predictions(NamedTuple):
  """The predictions of a classifier on a set of examples.

  Attributes:
    logits: float32 ``[N, K]``, which may be log-probabilities.
    labels: int32 ``[N]``; those of an out-of-distribution set have no meaning.
    kind: how the examples relate to the training data, one of ``KINDS``.
    features: ``[N, D]``, the features before the head; None if they were not saved.
  """

  logits: np.ndarray
  labels: np.ndarray
  kind: str = "in_distribution"
  features: np.ndarray | None = None


def save(path: pathlib.Path, logits: np.ndarray, labels: np.ndarray, kind: str = "in_distribution",
         features: np.ndarray | None = None) -> None:
  """Writes predictions as an ``.npz``. The file appears only once it is complete.

  Args:
    path: the file to write.
    logits: ``[N, K]``.
    labels: ``[N]``.
    kind: how the examples relate to the training data, one of ``KINDS``.
    features: ``[N, D]``, the features before the head; None to save none.
  """
  extra = {} if kind == "in_distribution" else {"kind": np.array(kind)}
  write_npz(path, logits=logits, labels=labels, **extra, **({} if features is None else {"features": features}))


def load(path: str | os.PathLike) -> Predictions:
  """Reads predictions from an ``.npz``, without pickle.

  Args:
    path: a file with ``labels`` and ``logits`` or ``probs``. Logits are then the logarithms of ``probs``, with zeros
      replaced by the smallest normal float32.
  Returns: the predictions.
  Raises: UserError if the file cannot be read, or an array is missing or has a wrong shape, dtype or value.
  """
  arrays = read_npz(path, ("logits", "probs", "labels", "kind", "features"))
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
    num_bad = int((~np.isfinite(scores)).any(1).sum())
    raise UserError(f"{path}: {num_bad} of the {len(scores)} rows of its logits are not finite.")
  if "logits" in arrays and scores.min() >= 0 and np.abs(scores.sum(1, dtype=np.float32) - 1).max() < 2e-3:
    print(f"{path}: its logits are probabilities (each row sums to 1), so their logarithms are used.", file=sys.stderr)
    arrays["probs"] = arrays.pop("logits")
  if "logits" not in arrays:
    try:
      metrics.validate(scores, labels)
    except ValueError as error:
      raise UserError(f"{path}: {error} Save them as logits if they are not probabilities.") from None
    scores = np.log(np.maximum(scores, np.finfo(np.float32).tiny))
  kind = str(arrays.get("kind", "in_distribution"))
  if kind not in KINDS:
    raise UserError(f"{path}: kind must be one of {', '.join(KINDS)}: got {kind!r}.")
  return Predictions(scores.astype(np.float32), labels.astype(np.int32), kind, arrays.get("features"))
