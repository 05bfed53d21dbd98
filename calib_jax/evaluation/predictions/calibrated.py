"""Calibrated predictions that are computed some rows at a time, because all of them may not fit in memory."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators
from calib_jax._system.files import release
from calib_jax.evaluation.predictions.predictions import Predictions

CHUNK = 2**18  # Numbers of the logits that are calibrated at a time.


class Calibrated(NamedTuple):
  """Predictions, and what calibrates them."""

  part: Predictions  # The predictions before calibration.
  apply: Callable[[Any, jax.Array], jax.Array]  # A function of ``(params, logits)`` to log-probabilities.
  params: Sequence[Any]  # The params; one element, or one a fold.
  # int ``[N]``, the element of ``params`` for each example; None if there is one for all.
  fold: np.ndarray | None = None

  @classmethod
  def of(cls, part: "Predictions | Calibrated") -> "Calibrated":
    """Returns the argument itself, or predictions as they are before calibration."""
    return part if isinstance(part, cls) else cls(part, _identity, ({},))

  def at_once_if(self, together: bool) -> "Calibrated":
    """Returns the argument itself or, if its calibrator needs all rows together, what that makes of them."""
    if not together:
      return self
    return Calibrated.of(self.part._replace(logits=self.log_probs(), probs=None))

  def log_probs(self, rows: slice = slice(None)) -> np.ndarray:
    """Returns the log-probabilities of some examples, float32 ``[rows, K]``."""
    logits = self.part.logits[rows]
    if self.fold is None:
      return np.asarray(self.apply(self.params[0], logits))
    log_probs, fold = np.empty(logits.shape, np.float32), self.fold[rows]
    for k in np.unique(fold):  # All rows are calibrated for each fold, so that one shape is compiled once.
      log_probs[fold == k] = np.asarray(self.apply(self.params[k], logits))[fold == k]
    return log_probs

  def probs(self, rows: slice, log_probs: np.ndarray) -> np.ndarray:
    """Returns the probabilities of examples from their ``log_probs``, float32 ``[rows, K]``.

    Of a file of probabilities they are what the file has: exp(log p) may lie on the other side of a bin's edge, and
    equal ones may differ.
    """
    return np.asarray(_exp(log_probs)) if self.file_probs is None else self.file_probs[rows].astype(np.float32)

  @property
  def file_probs(self) -> np.ndarray | None:
    """The probabilities that the file has, if nothing calibrates them."""
    return self.part.probs if self.apply is _identity else None

  def chunks(self) -> Iterator[tuple[slice, int, np.ndarray]]:
    """Yields slices of rows with their log-probabilities ``[rows, K]``, about ``CHUNK`` numbers at a time.

    All slices have the same length, so that what is done with them is compiled once. The last one may begin before the
    end of the one before: the number that is yielded with a slice is how many of its rows were in the one before.
    """
    count, num_classes = self.part.logits.shape
    step = min(max(CHUNK // num_classes, 1), count)
    for start in range(0, count, step):
      first = min(start, count - step)
      rows = slice(first, first + step)
      yield rows, start - first, self.log_probs(rows)
      release(self.part.logits)
      if self.file_probs is not None:
        release(self.file_probs)


_identity = jax.jit(calibrators.identity().apply)
_exp = jax.jit(jnp.exp)
