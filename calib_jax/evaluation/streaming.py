"""Metrics of predictions that do not fit in memory: a pair of .npy is read in batches of constant size."""

from collections.abc import Iterator
import json
import pathlib
import sys

import jax
import numpy as np

from calib_jax import metrics
from calib_jax.errors import UserError
from calib_jax.evaluation import reading
from calib_jax.files import read_npy

LARGE = 50_000_000  # Numbers of a file that is streamed.
BATCH = 2**20  # Numbers of a batch.


def is_large(path: str) -> bool:
  """Returns whether predictions are a pair of .npy of which the scores are too many for memory to be used freely."""
  pair = reading.PAIR.fullmatch(str(path))
  return bool(pair) and read_npy(pair[1]).size >= LARGE


def measure(path: str, *, progress: bool = True) -> dict[str, float]:
  """Measures a pair of .npy in constant memory.

  Args:
    path: ``LOGITS.npy,LABELS.npy``; the scores are logits unless the name of their file says probs.
    progress: whether to show the progress on a terminal.
  Returns: the metrics of ``metrics.CalibrationHistogram``.
  Raises: UserError if the arrays do not fit together, or a row is not finite or a label out of range.
  """
  scores_path, labels_path = reading.PAIR.fullmatch(str(path)).groups()
  scores, labels = read_npy(scores_path), read_npy(labels_path)
  if scores.ndim != 2 or scores.dtype.kind != "f" or labels.shape != scores.shape[:1] or labels.dtype.kind not in "iu":
    raise UserError(f"{path}: scores must be floats [N, K] and labels integers [N]: got {scores.dtype} of shape "
                    f"{scores.shape} and {labels.dtype} of shape {labels.shape}.")
  name = "probs" if any(alias in pathlib.Path(scores_path).stem.lower() for alias in reading.PROBS) else "logits"
  update = jax.jit(lambda state, scores, labels, where: state.merge(
    metrics.CalibrationHistogram.from_model_output(labels=labels, where=where, **{name: scores})), donate_argnums=0,
    compiler_options=_frugal())
  state, total = metrics.CalibrationHistogram.empty(), len(labels)
  state = jax.tree.map(lambda x: x.copy(), state)  # Its arrays share memory, which cannot be donated twice.
  for start, batch_scores, batch_labels, where in _batches(scores_path, labels_path):
    wrong = ~np.isfinite(batch_scores).all(1) | (batch_labels < 0) | (batch_labels >= scores.shape[1])
    if name == "probs":
      wrong |= np.abs(batch_scores.sum(1) - 1) > 2e-3
    if wrong.any():
      raise UserError(f"{path}: row {start + int(wrong.argmax())} of {name} is not finite or, for probs, does not sum "
                      f"to 1, or its label is not in [0, {scores.shape[1]}).")
    state = jax.block_until_ready(update(state, batch_scores, batch_labels, where))  # Else batches queue in memory.
    if progress and sys.stderr.isatty():
      print(f"\r{min(start + len(where), total):,} of {total:,} rows", end="", file=sys.stderr, flush=True)
  if progress and sys.stderr.isatty():
    print(file=sys.stderr)
  compute = jax.jit(type(state).compute, compiler_options=_frugal())
  return {key: np.asarray(value).item() for key, value in compute(state).items()}


def _frugal() -> dict[str, bool | int]:
  """Returns options with which XLA:CPU compiles in less memory: 80 MB instead of 240 MB for ``compute``.

  XLA refuses options that it does not know, so they are only for the version that was measured.
  """
  is_known = jax.default_backend() == "cpu" and jax.__version__.startswith("0.10.")
  return {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False} if is_known else {}


def _batches(scores_path: str, labels_path: str) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
  """Yields batches of the same size, the last filled with zeros.

  The files are mapped anew for each batch, because pages of a mapping stay in memory as long as it exists.
  """
  total, num_classes = read_npy(scores_path).shape
  size = max(BATCH // num_classes, 1)
  for start in range(0, total, size):
    rows = slice(start, start + size)
    scores, labels = (np.array(read_npy(path)[rows]) for path in (scores_path, labels_path))
    where = np.arange(size) < len(labels)
    fill = size - len(labels)
    yield (start, np.pad(scores.astype(np.float32), ((0, fill), (0, 0)), constant_values=1 / num_classes),
           np.pad(labels.astype(np.int32), (0, fill)), where)


def to_json(found: dict[str, float]) -> str:
  """Returns the metrics as JSON."""
  return json.dumps(found, indent=2) + "\n"
