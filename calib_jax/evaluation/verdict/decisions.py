"""What estimates and differences support: which row is better, best or worse, and which error is not chance."""

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from scipy.special import ndtri

from calib_jax import metrics
from calib_jax.evaluation.columns import COLUMNS
from calib_jax.evaluation.predictions.fitting import UNCALIBRATED
from calib_jax.evaluation.results import Estimate, EvaluatedSet, Interval, Results, Row, RowKey, over_seeds
from calib_jax.evaluation.subgroups import ClassGaps, Subgroup, class_gaps
from calib_jax.intervals.groups import standard_error

SIGNIFICANCE = 0.05
# The verdict tests a row's ECE, its mean confidence, its classes and whether a calibrator lowers its log loss, each at
# this part of SIGNIFICANCE.
TESTS = 4
FEWEST = 30  # Examples of a class whose gap is judged.
POINT = 0.01  # The loss of accuracy that the verdict mentions.
OFF = 0.05  # Probabilities with a calibration error beyond this are not to be relied on.
WIDE = 0.05  # An arm of the interval of the mean confidence from which on there are too few examples to tell.
FEWEST_ERRORS = 5  # Wrong answers, or groups with one, below which it is said that they choose no calibrator.
LIKE_GUESSING = 0.02  # The share of a guess's log loss that a model gains at most where it is no better.


def side(interval: Interval) -> int:
  """Returns 1 if an interval lies above zero, -1 if it lies below, and 0 if it holds zero."""
  return int(interval.low > 0) - int(interval.high < 0)


def is_miscalibrated(error: Estimate, number: int = 1) -> bool:
  """Returns whether a calibrated model would hardly show such an error, by one of ``number`` tests (Bonferroni)."""
  return error.p_value < SIGNIFICANCE / number


def most(evaluated: EvaluatedSet, row: RowKey, level: float, number: int = 1) -> float | None:
  """Returns an upper bound of the true error of a row, or None if none is known for its examples.

  The level is corrected for the rows of the set, of which the verdict chose one by the same examples, and for
  ``number`` sets.
  """
  values = evaluated.rows[row].values
  if values is None or values.groups is not None or values.weights is not None or values.confidence.shape[1] > 1:
    return None
  level = 1 - (1 - level) / (number * len(evaluated.rows))
  return metrics.calibration_error_upper(values.confidence[:, 0], values.correct[:, 0], level=level).upper


def widened(interval: Interval, number: int) -> Interval:
  """Returns a wider interval, so that ``number`` of its kind hold at once with 95% (Bonferroni of normal intervals)."""
  factor = ndtri(1 - SIGNIFICANCE / 2 / number) / ndtri(1 - SIGNIFICANCE / 2)
  return Interval(interval.estimate, interval.estimate - factor * (interval.estimate - interval.low),
                  interval.estimate + factor * (interval.high - interval.estimate))


def difference(evaluated: EvaluatedSet, metric: str, row: RowKey, other: RowKey) -> Interval | None:
  """Returns the metric of a row minus another row's, or None if the two are not compared."""
  if (row, other) in evaluated.differences:
    return evaluated.differences[row, other].get(metric)
  reverse = evaluated.differences.get((other, row), {}).get(metric)
  return reverse and -reverse


def compared(evaluated: EvaluatedSet, metric: str, row: RowKey, other: RowKey, number: int = 1) -> str:
  """Returns "better" or "worse" if the difference of two rows, one of ``number``, excludes zero, and else ""."""
  change = difference(evaluated, metric, row, other)
  if not COLUMNS[metric].compare or change is None or evaluated.has_few_units:
    return ""
  direction = side(change if number == 1 else widened(change, number))
  if not direction:
    return ""
  return "worse" if (direction > 0) == COLUMNS[metric].lower_is_better else "better"


def is_best(evaluated: EvaluatedSet, metric: str, row: RowKey) -> bool:
  """Returns whether a row is better than every other one; a wrong "best" is as likely as one wrong difference."""
  others = [other for other in evaluated.rows if other != row]
  return bool(others) and COLUMNS[metric].lower_is_better is not None and all(
    compared(evaluated, metric, row, other) == "better" for other in others)


def to_use(evaluated: EvaluatedSet, model: str, labels: Sequence[str]) -> str:
  """Returns the calibrator that is shown to lower the log loss of a model, or "" if none is.

  Each is tested against no calibration, as one of the verdict's ``TESTS`` and one of the calibrators. Those that lose
  accuracy are left out. Of the others, which go from the simplest to the most flexible, the first is taken, unless
  another one has a lower log loss than it beyond an interval that holds for all of them at once.
  """
  none = (model, UNCALIBRATED)
  able = [label for label in labels
          if compared(evaluated, "nll", (model, label), none, TESTS * len(labels)) == "better"
          and not (lost_accuracy(evaluated, (model, label), none)
                   and compared(evaluated, "accuracy", (model, label), none) == "worse")]
  if not able:
    return ""
  first, *others = able
  lower = [label for label in others
           if compared(evaluated, "nll", (model, label), (model, first), len(others)) == "better"]
  return min(lower or [first], key=lambda label: evaluated.rows[model, label].estimates["nll"].value)


def gain(evaluated: EvaluatedSet, model: str, label: str, number: int) -> Interval:
  """Returns by how much a calibrator lowers the log loss, with the interval by which one of ``number`` is tested."""
  return widened(difference(evaluated, "nll", (model, UNCALIBRATED), (model, label)), TESTS * number)


def best(evaluated: EvaluatedSet, metric: str, rows: Sequence[RowKey], number: int) -> RowKey | None:
  """Returns the row that is better than all others by one of ``number`` metrics that are compared, or None."""
  return next((row for row in rows if all(compared(evaluated, metric, row, other, number) == "better"
                                          for other in rows if other != row)), None)


def is_off(error: Estimate, number: int) -> bool:
  """Returns whether a calibration error is above ``OFF`` by an interval that holds for ``number`` sets at once.

  Its p-value must show it too, at the part of one of ``TESTS``, so that no line that says so contradicts another one.
  """
  return is_above(error, OFF, number) and is_miscalibrated(error, max(number, TESTS))


def is_above(error: Estimate, limit: float, number: int) -> bool:
  """Returns whether a calibration error is above a limit by an interval that holds for ``number`` sets at once."""
  return widened(Interval(error.estimate, error.low, error.high), number).low > limit


def excess_of(row: Row) -> Interval:
  """Returns the mean confidence minus the accuracy of a row, with the interval of one of ``TESTS`` tests."""
  return widened(row.excess, TESTS).within(-1, 1)


def fault(evaluated: EvaluatedSet, row: RowKey) -> str:
  """Returns what the first three of ``TESTS`` show of a row, which every sentence says: one decision for all of them.

  It is "mean" (the mean confidence is wrong), "places" (the ECE is above chance), "classes" (the confidence of single
  predicted classes is wrong), "few" (nothing is shown, and so few examples would hide much) or "" (nothing is shown).
  """
  measured = evaluated.rows[row]
  if side(excess_of(measured)):
    return "mean"
  if is_miscalibrated(measured.estimates["ece"], TESTS):
    return "places"
  if have_classes(evaluated, row) and (
      miscalibrated_classes(class_gaps(measured.values, evaluated.num_classes)).size):
    return "classes"
  return "few" if is_wide(measured.excess, evaluated.num_units) else ""


def have_classes(evaluated: EvaluatedSet, row: RowKey) -> bool:
  """Returns whether the columns of a row are classes: not of records, nor of questions whose options differ."""
  values = evaluated.rows[row].values
  if values is None or not evaluated.num_classes:
    return False
  return values.num_options is None or bool(values.num_options.min() == values.num_options.max())


def is_wide(excess: Interval, num_units: float) -> bool:
  """Returns whether so few examples were measured that a mean confidence may be wrong by more than ``WIDE``."""
  return (excess.high - excess.low) / 2 > WIDE or 3 / num_units > WIDE


def ranking(before: Row, after: Row, one_map: Callable[[np.ndarray], np.ndarray] | None = None) -> str:
  """Returns what became of the order of the confidences: "changes", "stays but for ties" or "stays".

  ``one_map`` is what one calibrator makes of confidences, where ``after`` has several calibrators, each for a fold: the
  order of values of several maps says nothing of any of them.
  """
  pairs = [(old, new if one_map is None else one_map(old))
           for old, new in zip(before.values.confidence.T, after.values.confidence.T, strict=True)]
  in_order = [new[np.lexsort((new, old))] for old, new in pairs]
  if any((np.maximum.accumulate(new) - new).max() > 1e-6 for new in in_order):  # Less is rounding.
    return "changes"
  ties = any(len(np.unique(new)) < len(np.unique(old)) for old, new in pairs)
  return "stays but for ties" if ties else "stays"


def least_gain(row: Row, num_classes: int) -> float:
  """Returns how much of the log loss in nats the miscalibration that is shown allows to remove, at least.

  ``num_classes`` is 0 where the columns are no classes. Where the confidence is wrong by g on average, the right
  confidence would have a log loss that is lower by at least 2 g² (Pinsker's inequality). The g are the ends next to 0
  of the intervals of the mean confidence, of the ECE and of the predicted classes; the largest sum counts.
  """
  excess, error = excess_of(row), row.estimates["ece"]
  gaps = [max(excess.low, -excess.high), widened(Interval(error.estimate, error.low, error.high), TESTS).low]
  gains = [2 * max(gap, 0.0) ** 2 for gap in gaps]
  if num_classes:
    of_class = class_gaps(row.values, num_classes)
    certain = np.maximum(abs(of_class.gap) - margins(of_class), 0)
    is_judged = of_class.count >= FEWEST
    gains.append(2 * float(np.sum(of_class.share[is_judged] * certain[is_judged] ** 2)))
  return max(gains)


def guess(row: Row) -> tuple[str, float] | None:
  """Returns what guess a row with values is no better than, with its log loss in nats, or None.

  A guess gives equal probabilities to the classes that an example has, or the share of each class among the other
  examples. A row is no better than the one with the lower log loss if neither a lower log loss nor a higher accuracy is
  shown, and if it can gain at most ``LIKE_GUESSING`` of the log loss and ``WIDE`` of the accuracy.
  """
  values = row.values
  if values.labels is None or values.num_options is None:
    return None
  labels, count = values.labels, len(values.labels)
  if 3 / values.num_units > WIDE:
    return None  # So few say nothing of the accuracy.
  weights = None if values.weights is None else values.weights / values.weights.mean()
  shares = np.stack([np.bincount(of_seed, weights)[of_seed] for of_seed in labels.T], axis=1)
  by_shares = np.log(count - 1 + values.num_options.max()) - np.log(shares)  # n - 1 others of the class, and one more.
  losses = {"equal probabilities": np.log(values.num_options), "the shares of the classes": by_shares}
  name = min(losses, key=lambda kind: values.mean(losses[kind]).mean())

  def interval(gain):
    margin = 1.96 * standard_error(gain.mean(axis=1), values.groups, values.weights)
    mean = float(values.mean(gain.mean(axis=1)))
    return over_seeds(Interval(mean, mean - margin, mean + margin), values.mean(gain))

  loss = float(values.mean(losses[name]).mean())
  of_loss = interval(losses[name] - values.nll)
  chance = max(float(values.mean(1 / values.num_options).mean()), float(shares.max(0).mean()) / count)
  of_accuracy = interval(values.correct - chance)
  is_guess = of_loss.low <= 0 and of_accuracy.low <= 0 and of_loss.high <= LIKE_GUESSING * loss and (
    of_accuracy.high <= WIDE)
  return (name, loss) if is_guess else None


def subgroups(results: Results, row: RowKey) -> Mapping[str, Mapping[str, Subgroup]]:
  """Returns the subgroups of the test set by the name of the array that tells them apart, and by their own."""
  of_set = results.sections.get("subgroups", {}).get(results.first[0], {})
  return {by: of_rows[results.row_name(row)] for by, of_rows in of_set.items() if results.row_name(row) in of_rows}


def worse_subgroups(results: Results, row: RowKey) -> list[tuple[str, str, Subgroup]]:
  """Returns the subgroups that are shown to be worse than the other examples, the worst first (Bonferroni by array)."""
  by_array = subgroups(results, row)
  worse = [(by, name, x) for by, of_array in by_array.items() for name, x in of_array.items()
           if x.worse_p_value is not None and x.worse_p_value < SIGNIFICANCE / len(by_array)]
  return sorted(worse, key=lambda item: -abs(item[2].offset.estimate))


def disagree(by_convention: Mapping[str, Mapping[Hashable, float]], evaluated: EvaluatedSet) -> list[RowKey]:
  """Returns the rows with the lowest error by some convention, most often first, if the ECE of two differs."""
  wins = [min(errors, key=errors.get) for errors in by_convention.values()]
  rows = sorted(set(wins), key=lambda row: (-wins.count(row), row))
  number = len(rows) * (len(rows) - 1) // 2
  pairs = ((a, b) for i, a in enumerate(rows) for b in rows[:i])
  return rows if any(compared(evaluated, "ece", *pair, number) for pair in pairs) else []


def lost_accuracy(evaluated: EvaluatedSet, row: RowKey, reference: RowKey | None = None) -> float:
  """Returns how much accuracy a row loses against the first one, or ``reference``, if more than ``POINT``, else 0."""
  reference = reference or (next(iter(evaluated.rows))[0], UNCALIBRATED)
  lost = evaluated.rows[reference].estimates["accuracy"].value - evaluated.rows[row].estimates["accuracy"].value
  return lost if lost > POINT else 0.0


def miscalibrated_classes(gaps: ClassGaps) -> np.ndarray:
  """Returns the classes whose gap is not chance, by intervals that hold for all classes at once, of ``TESTS`` tests."""
  return np.flatnonzero((gaps.count >= FEWEST) & (abs(gaps.gap) > margins(gaps)))


def margins(gaps: ClassGaps) -> np.ndarray:
  """Returns by how much the gaps of all classes may be wrong at once, by one of ``TESTS`` tests."""
  return _class_quantile(gaps) * gaps.error


def _class_quantile(gaps: ClassGaps) -> float:
  return ndtri(1 - SIGNIFICANCE / TESTS / 2 / len(gaps.gap))
