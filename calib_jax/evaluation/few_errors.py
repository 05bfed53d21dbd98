r"""Intervals where few examples are wrong, or few are right: what was not seen yet may come.

Resamples of 60 right answers are 60 right answers, and their intervals have no width. The interval of Agresti & Coull
(1998) adds two right and two wrong answers to a share. Here the loss of the four is what the model itself expects of a
right and of a wrong answer, such as for the NLL, with confidences c and entropies H,

.. math:: \frac{\sum_i -c_i \log c_i}{\sum_i c_i} \quad\text{and}\quad \frac{\sum_i H_i + c_i \log c_i}{\sum_i 1 - c_i}

and the normal interval of the mean of all counts beside the interval of the resamples: the ends further out count.
The AURC is such a mean too, of errors times weights of their ranks. The accuracy of independent examples has its exact
interval (Clopper & Pearson 1934). A coverage at a risk begins where fewer errors are shown than the risk allows, and
ends at the value of the curve with as few errors as the accuracy may have.
"""

import dataclasses

import numpy as np
from scipy import special

from calib_jax.evaluation.columns import COLUMNS, ClasswiseError, CurvePart
from calib_jax.evaluation.results import LEVEL, Estimate, Interval, Values
from calib_jax.intervals.groups import standard_error
from calib_jax.thresholds.means import binomial_interval

FEW = 25  # Units that are wrong, or right, below which ends are moved.
ADDED = 2.0  # Units of each kind.
WORST = 87.0  # What a wrong answer of a certain model costs in nats, as much as float32 holds.
ERRORS = ("ece", "ece_equal_mass_l2", "debiased", "adaptive", "ks", "sweep", "smooth")  # At least the mean excess.


def are_few(values: Values) -> bool:
  """Returns whether few examples, or groups that hold them, are wrong or right."""
  def units(rows):
    share = values.mean(rows).min()
    number = np.inf if values.groups is None else len(np.unique(values.groups[rows.any(axis=1)]))
    return min(share * values.num_units if values.groups is None else number, number)
  return min(units(values.correct), units(~values.correct)) < FEW


def num_wrong(values: Values) -> int:
  """Returns how many examples are wrong, or groups that hold one, the fewest of the seeds."""
  wrong = ~values.correct
  if values.groups is not None:
    return min(len(np.unique(values.groups[of_seed])) for of_seed in wrong.T)
  return int(wrong.sum(axis=0).min())


def of_right_and_wrong(values: Values) -> dict[str, tuple[float, float]]:
  """Returns by name what the model expects of a right and of a wrong answer, a mean over seeds."""
  c, entropy = values.confidence.astype(np.float64), values.entropy.astype(np.float64)
  own = -c * np.log(np.maximum(c, np.finfo(np.float32).tiny))
  right, wrong = values.mean(c).mean(), values.mean(1 - c).mean()
  classes = 1 if values.predicted is None else 2

  def pair(of_right, of_wrong, worst):
    return (float(values.mean(of_right).mean() / right) if right > 0 else worst,
            float(values.mean(of_wrong).mean() / wrong) if wrong > 1e-9 else worst)

  return {"accuracy": (1.0, 0.0), "nll": pair(own, np.maximum(entropy - own, 0), WORST),
          "brier": pair(classes * c * (1 - c) ** 2, classes * (1 - c) * c**2, float(classes)),
          "excess": pair(c * (c - 1), (1 - c) * c, 1.0)}


def with_unseen(of_examples: np.ndarray, right: float, wrong: float, values: Values, square: float | None = None
                ) -> Interval:
  """Returns the mean of ``[N]`` values and its normal interval with ``ADDED`` units of both kinds.

  ``square`` is the mean square of a wrong answer's value; by default all wrong answers have one value.
  """
  count, mean = values.num_units, float(values.mean(of_examples))
  error = standard_error(of_examples, values.groups, values.weights)
  total = count + 2 * ADDED
  centre = (count * mean + ADDED * (right + wrong)) / total
  spread = 0.0 if square is None else max(square - wrong**2, 0.0)
  variance = (count * (count * error**2 + (mean - centre) ** 2)
              + ADDED * ((right - centre) ** 2 + (wrong - centre) ** 2 + spread)) / total
  margin = 1.96 * (variance / total) ** 0.5
  return Interval(mean, min(centre - margin, mean), max(centre + margin, mean))


def of_row(table: dict[str, Estimate], values: Values) -> dict[str, Estimate]:
  """Returns the estimates of a row with ends for errors that were not seen, if few were."""
  table = table | _of_coverages(table, values)
  if not are_few(values):
    return table
  expected = of_right_and_wrong(values)
  for name in {"accuracy", "nll", "brier"} & table.keys():
    interval = with_unseen(getattr(values, "correct" if name == "accuracy" else name).mean(axis=1), *expected[name],
                           values)
    table[name] = _wider(table[name], interval.low, interval.high)
  if values.groups is None and values.weights is None:
    accuracy = table["accuracy"]
    low, high = binomial_interval(accuracy.value, len(values.correct), LEVEL)
    table["accuracy"] = dataclasses.replace(accuracy, low=low, high=high)
  table |= _of_curve(table, values)
  excess = with_unseen((values.confidence - values.correct).mean(axis=1), *expected["excess"], values)
  least, most = max(excess.low, -excess.high, 0.0), max(-excess.low, excess.high)
  for name in ERRORS:
    if name in table:  # Above the mean excess it has what bins show beside it.
      beyond = max(table[name].estimate - abs(excess.estimate), 0.0)
      table[name] = _wider(table[name], least, most + beyond)
  for name, error in table.items():
    if isinstance(COLUMNS[name].compute, ClasswiseError):  # A wrong answer is in the bins of two of the K classes.
      num_classes = values.class_sums[COLUMNS[name].compute.binning][0].gaps.shape[1]
      table[name] = _wider(error, 0.0, error.estimate + 2 / num_classes * max(most - abs(excess.estimate), 0.0))
  return table


def _of_curve(table: dict[str, Estimate], values: Values) -> dict[str, Estimate]:
  """The numbers of the risk–coverage curve in a table, with ends for errors that were not seen."""
  curves = {name: COLUMNS[name].compute for name in table if isinstance(COLUMNS[name].compute, CurvePart)}
  if not curves:
    return {}
  chance = 1 - values.confidence.astype(np.float64) + 1e-12
  weights = np.stack([_rank_weights(of_seed) for of_seed in values.confidence.T], axis=1)
  # Errors of noise are anywhere, and cost more than those that the model expects among its least sure answers.
  expected, square = (max((weights**power * chance).sum() / chance.sum(), (weights**power).mean()) for power in (1, 2))
  area = with_unseen((weights * ~values.correct).mean(axis=1), 0.0, expected, values, square)
  risk, most, least = (1 - x for x in (table["accuracy"].value, table["accuracy"].low, table["accuracy"].high))
  fewer = ~values.correct * (least / risk if risk > 0 else 0.0)
  wider = {}
  for name, curve in curves.items():
    if curve.number == "coverage":
      ends = 1.0, float(np.mean([_coverage(*x, curve.risk) for x in zip(values.confidence.T, fewer.T, strict=True)]))
    elif curve.number == "area":
      ends = area.low, area.high
    else:  # The best order of a share r of errors has the area r + (1 - r) log(1 - r).
      ends = max(area.low - _best_area(most), 0.0), area.high - _best_area(least)
    wider[name] = _wider(table[name], *ends)
  return wider


def _of_coverages(table: dict[str, Estimate], values: Values) -> dict[str, Estimate]:
  """The coverages at a risk in a table, with a lower end up to which fewer errors than the risk allows are shown.

  Of k accepted examples the errors are too few for the risk if a binomial law has so few in 2.5%; without any error, k
  must be 3.7 / risk.
  """
  wider = {}
  for name, error in table.items():
    if not (isinstance(COLUMNS[name].compute, CurvePart) and COLUMNS[name].compute.number == "coverage"):
      continue
    count = len(values.correct)
    taken = np.unique(np.linspace(1, count, min(count, 1000)).astype(int))
    per_unit, lows = values.num_units / count, []
    for confidence, correct in zip(values.confidence.T, values.correct.T, strict=True):
      wrong = np.cumsum(_shared(confidence, ~correct * 1.0))[taken - 1]
      units, wrong_units = np.floor(taken * per_unit), np.ceil(wrong * per_unit)
      chance = special.betainc(np.maximum(units - wrong_units, 0), wrong_units + 1, 1 - COLUMNS[name].compute.risk)
      is_shown = (wrong_units < units) & (chance <= (1 - LEVEL) / 2)  # The binomial chance of so few errors.
      lows.append(taken[is_shown].max(initial=0) / count)
    wider[name] = _wider(error, float(np.mean(lows)), 0.0)
  return wider


def _best_area(risk: float) -> float:
  return risk + (1 - risk) * float(np.log1p(-min(risk, 1 - 1e-12)))


def _rank_weights(confidence: np.ndarray) -> np.ndarray:
  """By how much the AURC times N grows where one of ``[N]`` answers is wrong; the answers of a tie share it."""
  _, rank, sizes = np.unique(-confidence, return_inverse=True, return_counts=True)
  of_places = np.cumsum(1 / np.arange(len(confidence), 0, -1))[::-1]  # The sum of 1 / j from the place k to N.
  return (np.add.reduceat(of_places, np.cumsum(sizes) - sizes) / sizes)[rank]


def _coverage(confidence: np.ndarray, errors: np.ndarray, risk: float) -> float:
  """The largest share of the surest examples whose mean error is at most ``risk``."""
  allowed = np.flatnonzero(np.cumsum(_shared(confidence, errors)) <= risk * np.arange(1, 1 + len(errors)) + 1e-12)
  return (allowed[-1] + 1) / len(errors) if len(allowed) else 0.0


def _shared(confidence: np.ndarray, errors: np.ndarray) -> np.ndarray:
  """The errors from the surest example on; tied examples share theirs."""
  _, rank, sizes = np.unique(-confidence, return_inverse=True, return_counts=True)
  return np.repeat(np.bincount(rank, errors) / sizes, sizes)


def of_difference(name: str, change: Interval, values: Values, other: Values, is_same_model: bool) -> Interval:
  """Returns the difference of two rows of the same examples with ends for errors that were not seen."""
  if name == "accuracy":
    return _of_accuracies(change, values, other, is_same_model)
  if name not in ("nll", "brier", *ERRORS) or not (are_few(values) or are_few(other)):
    return change
  expected = [of_right_and_wrong(x)["excess" if name in ERRORS else name] for x in (values, other)]
  if name in ERRORS:  # What was not seen moves the mean excess of both rows alike.
    own, others = (with_unseen((x.confidence - x.correct).mean(axis=1), *pair, x)
                   for x, pair in zip((values, other), expected, strict=True))
    moves = [end - x.estimate for x in (own, others) for end in (x.low, x.high)]
    ends = [abs(own.estimate + move) - abs(others.estimate + move) for move in moves]
    return Interval(change.estimate, min(change.low, *ends), max(change.high, *ends))
  right, wrong = (np.subtract(*x) for x in zip(*expected, strict=True))
  interval = with_unseen(getattr(values, name).mean(axis=1) - getattr(other, name).mean(axis=1), right, wrong, values)
  return Interval(change.estimate, min(change.low, interval.low), max(change.high, interval.high))


def _of_accuracies(change: Interval, values: Values, other: Values, is_same_model: bool) -> Interval:
  """The difference of two accuracies: where few examples tell the rows apart, two more of each kind do.

  A calibrator that changes no prediction of its model changes no accuracy.
  """
  if values.correct.shape != other.correct.shape:
    return change
  if is_same_model and (values.predicted is None or np.array_equal(values.predicted, other.predicted)):
    return change
  apart = (values.correct != other.correct).any(axis=1)
  if (apart.sum() if values.groups is None else len(np.unique(values.groups[apart]))) >= FEW:
    return change
  interval = with_unseen(values.correct.mean(axis=1) - other.correct.mean(axis=1), 1.0, -1.0, values)
  return Interval(change.estimate, min(change.low, interval.low), max(change.high, interval.high))


def _wider(estimate: Estimate, low: float, high: float) -> Estimate:
  return dataclasses.replace(estimate, low=min(estimate.low, low), high=max(estimate.high, high))
