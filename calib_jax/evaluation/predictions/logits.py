"""The outputs of a model in a file of predictions: logits, or probabilities whose logarithms become logits."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from calib_jax._checks.shapes import ABSENT
from calib_jax._system import capacity
from calib_jax._system.errors import FileError, short
from calib_jax._system.files import release
from calib_jax.evaluation.predictions import headers

FLOATS = (np.float16, np.float32, np.float64)
CHUNK = 2**20  # Numbers of the outputs that are checked at a time.
EXACT = 1e-3  # How far from 1 the sum of a row may be before rows are divided by their sums; metrics allow as much.
NEAR = 2e-3  # How far it may be if probabilities are not rounded.
FEWEST = 10  # Rows from which on probabilities that are all 0 or 1 are taken for predicted classes.
DECIMALS = 6  # The most decimals to which outputs are taken to be rounded.


def is_float(dtype: np.dtype) -> bool:
  """Returns whether numbers are float16 to float64, of either byte order."""
  return dtype.newbyteorder("=") in FLOATS


def native(name: str, array: np.ndarray) -> np.ndarray:
  """Returns an array in this machine's byte order, which JAX needs."""
  if array.dtype.isnative:
    return array
  capacity.check_read(f": {name}", array.nbytes)
  return array.astype(array.dtype.newbyteorder("="))


def as_logits(name: str, outputs: np.ndarray, say: Callable[[str], None], are_logits: bool,  # noqa: C901
              percent: bool = False) -> tuple[np.ndarray, np.ndarray | None]:
  """Returns float32 logits ``[N, K]`` of outputs, and the probabilities ``[N, K]`` if the outputs are such.

  Outputs are floats ``[N, K]``, or ``[N]`` or ``[N, 1]`` of the second of two classes, and -inf of a class that the
  row does not have, also beside probabilities. What they are is said by the
  user (``are_logits``, ``percent``), by their name or by their values. ``say`` is called with what they are taken for,
  where their name does not say it. All that is large is done with some rows at a time.

  Outputs of another shape or type, that are NaN or +inf, or -inf in all classes of a row, that are probabilities by
  name and not by value, or percentages and nobody says so, are a FileError.
  """
  is_named_probs = name in headers.PROBS or name in headers.CONFIDENCES
  if are_logits and (percent or is_named_probs):
    raise FileError(f": its {name} are {'percentages by --percent' if percent else 'probabilities by their name'}"
                    ": leave out --logits, or call them logits.")
  if outputs.ndim not in (1, 2) or not is_float(outputs.dtype) or outputs.size == 0:
    raise FileError(f": {name} must be floats (float16 to float64) of shape [N, K], not {outputs.dtype} of shape "
                    f"{outputs.shape}.")
  outputs = native(name, outputs)
  binary, unit = outputs.ndim == 1 or outputs.shape[1] == 1, 100 if percent else 1
  summary = summarize(outputs)
  if summary.num_bad:
    raise FileError(f": {summary.num_bad} of the {len(outputs)} rows of its {name} hold NaN, +inf, or -inf in "
                    f"every class; the first is row {summary.first_bad}, counted from 0: "
                    f"{short(outputs[summary.first_bad].tolist())}.")
  if binary and len(outputs) >= FEWEST and name in (*headers.PROBS, *headers.EITHER) and (
      summary.low == 0 and summary.high == unit) and bool(((outputs == 0) | (outputs == unit)).all()):
    raise FileError(f": all of its {name} are 0 or {unit}, as predicted classes are and probabilities are not: save "
                    "the probability of class 1 in their place, such as predict_proba(X)[:, 1] of scikit-learn.")
  in_range, absent = summary.low >= 0 and summary.high <= unit, None
  if summary.has_absent and summary.low >= 0 and summary.high <= 100 * (1 + 1e-6):
    capacity.check_read(f": {name}", outputs.nbytes + outputs.size)
    absent, with_absent = np.isneginf(outputs), outputs
    outputs = np.where(absent, outputs.dtype.type(0), outputs)
  distributions = in_range if binary else sums_to(unit, outputs, summary)
  are_probs = percent or is_named_probs or (
    distributions and not are_logits and (name in headers.EITHER or not binary))
  if not (distributions or are_logits or binary) and sums_to(100, outputs, summary):
    raise FileError(f": its {name} are percentages, because each row sums to 100: add --percent "
                    "(percent=True in Python).")
  if name in headers.EITHER and not are_logits and not percent:
    say(f": its {name} are taken for {'probabilities' if are_probs else 'logits'}, because "
        + (("they are in [0, 1]." if binary else "each row sums to 1.") if are_probs else "they are no probabilities."))
  elif are_probs and not percent and not is_named_probs:
    say(f": its {name} are probabilities (each row sums to 1), so their logarithms are used.")
  if not are_probs:
    outputs = outputs if absent is None else with_absent
    if binary or outputs.dtype != np.float32:
      capacity.check_read(f": {name}", (2 if binary else 1) * 4 * outputs.size)
    with np.errstate(over="ignore"):  # To -inf, which is a class that the row does not have.
      logits = outputs.astype(np.float32, copy=False)
    return np.stack([np.zeros_like(logits.ravel()), logits.ravel()], axis=1) if binary else logits, None
  if not distributions:
    raise FileError(f": the values of its {name} are no {'percentages' if percent else 'probabilities'}: "
                    f"{_fault(summary, unit, binary, len(outputs))}")
  divided, size = not binary and summary.deviation(unit) > EXACT * unit, outputs.size * (2 if binary else 1)
  capacity.check_read(f": {name}", (4 + (binary or divided or percent) * max(outputs.itemsize, 4)) * size)
  if divided:
    say(f": {division(name, outputs, summary, unit)}")
  if binary:
    outputs = outputs.ravel()
    outputs = np.stack([unit - outputs, outputs], axis=1)
  if divided or percent:
    probs = np.empty(outputs.shape, np.result_type(outputs, np.float32))
    for chunk, rows in zip(_chunks(outputs), _chunks(probs), strict=True):
      np.divide(chunk, chunk.sum(1, keepdims=True, dtype=probs.dtype) if divided else unit, out=rows)
    outputs = probs
  logits = np.empty(outputs.shape, np.float32)
  for chunk, rows in zip(_chunks(outputs), _chunks(logits), strict=True):
    np.log(np.maximum(chunk, np.finfo(np.float32).tiny, dtype=np.float32), out=rows)
  if absent is not None:
    logits[absent] = -np.inf
  return logits, outputs


def check_labels(logits: np.ndarray, labels: np.ndarray) -> None:
  """Raises a FileError if a row does not have the class of its label."""
  start = 0
  for chunk in _chunks(logits):
    label_logits = chunk[np.arange(len(chunk)), labels[start:start + len(chunk)]]
    with np.errstate(all="ignore"):
      absent = ~(label_logits - chunk.max(1) > ABSENT)
    if absent.any():
      row = start + int(absent.argmax())
      raise FileError(f": the label of row {row}, counted from 0, is {labels[row]}, a class that the row does "
                      "not have, because its logit is -inf, or 1e4 or more below the row's largest; if labels have no "
                      "meaning here, save kind='out_of_distribution' too.")
    start += len(chunk)


class Summary(NamedTuple):
  """What decides whether outputs are logits, probabilities or percentages."""

  num_bad: int  # The number of rows with NaN, +inf, or -inf in every class.
  first_bad: int  # The first of them, if there are any.
  low: float  # The lowest score but -inf, which a class that the row does not have has.
  high: float  # The highest score.
  sums: tuple[float, float]  # The lowest and the highest sum of a row.
  rows: tuple[int, int]  # The rows that have these sums.
  has_absent: bool  # Whether a score is -inf, which the sums leave out.

  def deviation(self, unit: float) -> float:
    """Returns how far the sum of a row is from ``unit`` at most."""
    return max(abs(total - unit) for total in self.sums)


def summarize(outputs: np.ndarray) -> Summary:
  """Summarizes outputs ``[N, K]`` or ``[N]``, some rows at a time."""
  lowest, highest, totals, has_absent = [], [], [], False
  with np.errstate(all="ignore"):  # What is beyond the range of float32 becomes infinite.
    for chunk in _chunks(outputs):
      chunk = chunk.astype(np.float32, copy=False).reshape(len(chunk), -1)
      lowest.append(chunk.min())
      highest.append(chunk.max(1))
      if lowest[-1] == -np.inf:
        has_absent, is_there = True, chunk != -np.inf
        lowest[-1], chunk = chunk.min(where=is_there, initial=np.inf), np.where(is_there, chunk, 0)
      totals.append(chunk.sum(1))
  largest, total = np.concatenate(highest), np.concatenate(totals)
  bad = ~np.isfinite(largest)  # NaN, +inf, or -inf where all are.
  rows = int(total.argmin()), int(total.argmax())
  return Summary(int(bad.sum()), int(bad.argmax()), min(lowest).item(), largest.max().item(),
                 (total[rows[0]].item(), total[rows[1]].item()), rows, has_absent)


def tolerance(unit: int, outputs: np.ndarray) -> float:
  """Returns how far from ``unit`` the sum of a row may be: K / 2 units of the last place to which outputs are rounded.

  It is at least ``NEAR`` and less than half of ``unit``.
  """
  decimals = _decimals(outputs)
  rounding = 0 if decimals is None else outputs.shape[1] / 2 * 10.0**-decimals
  return min(max(rounding + 1e-5 * unit, NEAR * unit), unit / 2)


def sums_to(unit: int, outputs: np.ndarray, summary: Summary) -> bool:
  """Returns whether all rows of outputs ``[N, K]`` are in [0, unit] and sum to ``unit``, but for ``tolerance``."""
  off = summary.deviation(unit)
  return summary.low >= 0 and summary.high <= unit * (1 + 1e-6) and off < unit / 2 and (
    off <= NEAR * unit or off <= tolerance(unit, outputs))


def division(name: str, outputs: np.ndarray, summary: Summary, unit: int) -> str:
  """Returns the sentence that says why rows are divided by their sums."""
  decimals, (low, high) = _decimals(outputs), summary.sums
  rounded = "" if decimals is None else f", because they are rounded to {decimals} decimals"
  return (f"the rows of its {name} sum to {low / unit:.4g} to {high / unit:.4g}{' of 100%' if unit > 1 else ''}"
          f"{rounded}: each is divided by its sum.")


def _decimals(outputs: np.ndarray) -> int | None:
  """Returns the fewest decimals to which all outputs are rounded; None for more than ``DECIMALS``.

  >>> _decimals(np.array([[0.25, 0.5], [0.125, 0.3]], np.float32))
  3
  """
  decimals, rounding = 0, 2 * np.finfo(outputs.dtype).eps
  for chunk in _chunks(outputs):
    while True:
      scaled = chunk.astype(np.float64) * 10**decimals
      if (np.abs(scaled - np.rint(scaled)) <= rounding * scaled).all():
        break
      decimals += 1
      if decimals > DECIMALS:
        return None
  return decimals


def _fault(summary: Summary, unit: int, binary: bool, count: int) -> str:
  """Returns why outputs are no probabilities, or no percentages, and what they may be."""
  if summary.low >= 0 and not binary:
    row, total = max(zip(summary.rows, summary.sums, strict=True), key=lambda pair: abs(pair[1] - unit))
    return (f"row {row}, counted from 0, sums to {total:.6g} in place of {unit}, and no sum of {count} rows is further "
            "off. If each class is a label of its own, add --task=multilabel; if they are logits, call them logits.")
  percent = "if they are percentages, add --percent; " if binary and summary.low >= 0 and summary.high <= 100 else ""
  if binary and summary.low >= 0 and 1 < summary.high <= 10:
    percent = f"if they are grades up to {10 if summary.high > 5 else 5}, divide them by that; {percent}"
  return (f"they go from {summary.low:g} to {summary.high:g}, and must be in [0, {unit}]; {percent}if they are logits, "
          "call them logits.")


def _chunks(outputs: np.ndarray) -> Iterator[np.ndarray]:
  """Yields views of some rows at a time."""
  step = max(CHUNK * len(outputs) // outputs.size, 1)
  for start in range(0, len(outputs), step):
    yield outputs[start:start + step]
  release(outputs)
