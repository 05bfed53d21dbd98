"""The scores of a file of predictions: logits, or probabilities whose logarithms become logits."""

from collections.abc import Callable, Iterator
import os

import numpy as np

from calib_jax import metrics
from calib_jax._system import capacity
from calib_jax._system.errors import UserError, short
from calib_jax._system.files import release
from calib_jax.evaluation import columns

FLOATS = (np.float16, np.float32, np.float64)
CHUNK = 2**20  # Numbers of the scores that are checked at a time.


def is_float(dtype: np.dtype) -> bool:
  """Returns whether numbers are float16 to float64, of either byte order."""
  return dtype.newbyteorder("=") in FLOATS


def native(path: str | os.PathLike, name: str, array: np.ndarray) -> np.ndarray:
  """Returns an array in this machine's byte order, which JAX needs."""
  if array.dtype.isnative:
    return array
  capacity.check_read(f"{path}: {name}", array.nbytes)
  return array.astype(array.dtype.newbyteorder("="))


def as_logits(path: str | os.PathLike, name: str, scores: np.ndarray, say: Callable[[str], None], are_logits: bool
            ) -> tuple[np.ndarray, np.ndarray | None]:
  """Returns float32 logits ``[N, K]`` of scores, and the scores ``[N, K]`` if they are probabilities.

  All that is large is done with some rows at a time.

  Args:
    path: the file, for messages.
    name: the name of the array; one of ``columns.PROBS`` holds probabilities, one of ``columns.EITHER`` is decided by
      its values.
    scores: floats ``[N, K]``, or ``[N]`` or ``[N, 1]`` of the second of two classes.
    say: a function that prints what the scores are taken for, where their name does not say it.
    are_logits: whether the user says that they are logits.

  Raises:
    UserError: if they have another shape or type, are not finite, or are probabilities by name and not by value.
  """
  if are_logits and name in columns.PROBS:
    raise UserError(f"{path}: its {name} are probabilities by their name: leave out --logits, or call them logits.")
  if scores.ndim not in (1, 2) or not is_float(scores.dtype) or scores.size == 0:
    raise UserError(f"{path}: {name} must be floats (float16 to float64) of shape [N, K], not {scores.dtype} of shape "
                    f"{scores.shape}.")
  scores = native(path, name, scores)
  binary = scores.ndim == 1 or scores.shape[1] == 1
  summaries = [_summary(chunk, binary) for chunk in _chunks(scores)]
  if num_bad := sum(bad for bad, *_ in summaries):
    row = next(i * _step(scores) + x[4] for i, x in enumerate(summaries) if x[0])
    raise UserError(f"{path}: {num_bad} of the {len(scores)} rows of its {name} are not finite; the first is row "
                    f"{row}, counted from 0: {short(scores[row].tolist())}.")
  low, high = min(x[1] for x in summaries), max(x[2] for x in summaries)
  in_range = low >= 0 and high <= 1
  distributions = in_range and all(x[3] for x in summaries)
  are_probs = name in columns.PROBS or (distributions and not are_logits and (name in columns.EITHER or not binary))
  if name in columns.EITHER and not are_logits:
    say(f"{path}: its {name} are taken for {'probabilities' if are_probs else 'logits'}, because "
        + (("they are in [0, 1]." if binary else "each row sums to 1.") if are_probs else "they are no probabilities."))
  elif are_probs and name not in columns.PROBS:
    say(f"{path}: its {name} are probabilities (each row sums to 1), so their logarithms are used.")
  if are_probs or binary or scores.dtype != np.float32:
    capacity.check_read(f"{path}: {name}", (2 if binary else 1) * 4 * scores.size)
  if not are_probs:
    logits = scores.astype(np.float32, copy=False)
    return np.stack([np.zeros_like(logits.ravel()), logits.ravel()], axis=1) if binary else logits, None
  if binary and not in_range:
    raise UserError(f"{path}: {name} of one column must be in [0, 1]: they go from {low:g} to {high:g}. Save them as "
                    "logits if they are log-odds.")
  if binary:
    scores = scores.ravel()
    scores = np.stack([1 - scores, scores], axis=1)
  try:
    if not all(map(_are_valid, _chunks(scores))):
      metrics.validate(scores, np.zeros(len(scores), np.int32))  # Its message counts the rows of the whole array.
  except ValueError as error:
    raise UserError(f"{path}: {error} Save them as logits if they are not probabilities.") from None
  logits = np.empty(scores.shape, np.float32)
  for chunk, rows in zip(_chunks(scores), _chunks(logits), strict=True):
    np.log(np.maximum(chunk, np.finfo(np.float32).tiny, dtype=np.float32), out=rows)
  return logits, scores


def _are_valid(probs: np.ndarray) -> bool:
  """Returns whether rows are probabilities."""
  try:
    metrics.validate(probs, np.zeros(len(probs), np.int32))
  except ValueError:
    return False
  return True


def _step(scores: np.ndarray) -> int:
  """Returns the number of rows of each of ``_chunks``."""
  return max(CHUNK * len(scores) // scores.size, 1)


def _chunks(scores: np.ndarray) -> Iterator[np.ndarray]:
  """Yields views of some rows at a time."""
  step = _step(scores)
  for start in range(0, len(scores), step):
    yield scores[start:start + step]
  release(scores)


def _summary(scores: np.ndarray, binary: bool) -> tuple[int, float, float, bool, int]:
  """Returns how many rows are not finite, the lowest and highest score, whether rows sum to about 1, the first bad."""
  with np.errstate(all="ignore"):  # Beyond the range of float32 they become infinite, which is reported.
    finite = np.isfinite(scores.astype(np.float32, copy=False)).reshape(len(scores), -1).all(1)
    sums = binary or bool(np.abs(scores.sum(1, dtype=np.float32) - 1).max() < 2e-3)
  return int((~finite).sum()), float(scores.min()), float(scores.max()), sums, int(finite.argmin())
