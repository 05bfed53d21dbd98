"""What estimates and differences support: which row is better, best or worse, and which error is not chance."""

from collections.abc import Mapping

import numpy as np
from scipy.special import ndtri

from calib_jax.evaluation.measures import JOINT, METRICS, ClassGaps
from calib_jax.evaluation.results import UNCALIBRATED, Estimate, EvaluatedSet, Interval, RowKey

SIGNIFICANCE = 0.05
TESTS = 3  # The verdict tests a row's ECE, its mean confidence and its classes, each at a third of SIGNIFICANCE.
FEWEST = 30  # Examples of a class whose gap is judged.
POINT = 0.01  # The loss of accuracy that is said.


def side(interval: Interval) -> int:
  """Returns 1 if an interval lies above zero, -1 if it lies below, and 0 if it holds zero."""
  return int(interval.low > 0) - int(interval.high < 0)


def is_miscalibrated(error: Estimate, number: int = 1) -> bool:
  """Returns whether a calibrated model would hardly show a calibration error as large as this.

  Args:
    error: the error.
    number: how many tests are made, each of which is judged at that part of ``SIGNIFICANCE`` (Bonferroni).
  """
  return error.p_value < SIGNIFICANCE / number


def corrected(interval: Interval, number: int) -> Interval:
  """Returns an interval that is wider, so that as many of its kind hold at once with 95% (Bonferroni).

  Its arms grow as those of a normal interval do.
  """
  factor = ndtri(1 - SIGNIFICANCE / 2 / number) / ndtri(1 - SIGNIFICANCE / 2)
  return Interval(interval.estimate, interval.estimate - factor * (interval.estimate - interval.low),
                  interval.estimate + factor * (interval.high - interval.estimate))


def difference(evaluated: EvaluatedSet, metric: str, row: RowKey, other: RowKey) -> Interval | None:
  """Returns the metric of a row minus that of another one, or None if the two are not compared."""
  if (row, other) in evaluated.differences:
    return evaluated.differences[row, other].get(metric)
  reverse = evaluated.differences.get((other, row), {}).get(metric)
  return reverse and Interval(-reverse.estimate, -reverse.high, -reverse.low)


def compared(evaluated: EvaluatedSet, metric: str, row: RowKey, other: RowKey) -> str:
  """Returns "better" or "worse" if the difference of two rows excludes zero, and else ""."""
  change = difference(evaluated, metric, row, other)
  if metric not in JOINT or change is None or not side(change):
    return ""
  return "worse" if (side(change) > 0) == METRICS[metric].lower_is_better else "better"


def is_best(evaluated: EvaluatedSet, metric: str, row: RowKey) -> bool:
  """Returns whether a row is better than every other row of a set.

  Every difference has to exclude zero, so that the chance of a wrong "best" is that of one difference: the number of
  rows needs no correction.
  """
  others = [other for other in evaluated.rows if other != row]
  return bool(others) and METRICS[metric].lower_is_better is not None and all(
    compared(evaluated, metric, row, other) == "better" for other in others)


def lost_accuracy(evaluated: EvaluatedSet, row: RowKey, reference: RowKey | None = None) -> float:
  """Returns how much accuracy a row loses against another one, if that is more than ``POINT``, and else 0.

  Args:
    evaluated: the set.
    row: the row.
    reference: the other row; None for the first model before calibration.
  """
  reference = reference or (next(iter(evaluated.rows))[0], UNCALIBRATED)
  lost = evaluated.rows[reference].estimates["accuracy"].value - evaluated.rows[row].estimates["accuracy"].value
  return lost if lost > POINT else 0.0


def miscalibrated_classes(gaps: ClassGaps) -> np.ndarray:
  """Returns the classes whose gap is not chance, by intervals that hold for all classes at once, of ``TESTS`` tests."""
  quantile = ndtri(1 - SIGNIFICANCE / TESTS / 2 / len(gaps.gap))
  return np.flatnonzero((gaps.count >= FEWEST) & (abs(gaps.gap) > quantile * gaps.error))


def lowest(errors: Mapping[str, float]) -> str:
  """Returns the name of the lowest error."""
  return min(errors, key=errors.get)
