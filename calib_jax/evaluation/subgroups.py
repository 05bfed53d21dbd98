r"""How well subgroups of the examples are calibrated, among them each predicted class, and which is worse.

The offset of examples is their mean confidence minus their accuracy. A subgroup of offset a is worse than the other
examples, of offset b, if :math:`|a| > |b|`, which is to say that a - b and a + b have the sign of a. Both are tested by
Student's t at half of the level on each side; the p-value is twice the larger one (an intersection–union
test), so that its level is the level of each.
"""

from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from scipy.special import stdtr, stdtrit

from calib_jax.evaluation.columns import COLUMNS
from calib_jax.evaluation.predictions.predictions import Subgroups
from calib_jax.evaluation.resampled_errors import Ordered, units
from calib_jax.evaluation.results import Interval, Values, over_seeds
from calib_jax.intervals import draws, resamples
from calib_jax.intervals.calibration_tests import holm, p_value_of
from calib_jax.intervals.groups import effective_number

FEWEST = 10  # Examples, or groups of them, of a subgroup that is compared with the others.
REDRAWS = 40  # Redraws for each subgroup at least, so that the smallest p-value times their number is 0.025.
Part = tuple[np.ndarray, int]  # Examples, and the sign of their mean in a sum of means.


@dataclasses.dataclass(frozen=True)
class Subgroup:
  """What was measured of a subgroup of the examples.

  Attributes:
    num_examples: the number of its examples.
    num_units: the number of groups of dependent examples that it has a part of, or else of examples; with weights
      their effective number.
    accuracy: its accuracy.
    ece: its ECE.
    floor: the ECE that a calibrated model with these confidences would show.
    p_value: the probability of an ECE as large as this if the model is calibrated, corrected for the number of
      subgroups (Holm).
    offset: the mean confidence minus the accuracy, with its interval.
    offset_of_others: the offset of the other examples, with its interval; None without any.
    worse_p_value: the p-value of an offset that is at most as far from 0 as the others' offset, corrected (Holm); None
      if either has fewer than ``FEWEST`` units.
  """

  num_examples: int
  num_units: float
  accuracy: float
  ece: float
  floor: float
  p_value: float
  offset: Interval
  offset_of_others: Interval | None
  worse_p_value: float | None

  @property
  def is_few(self) -> bool:
    """Whether it is so small that it is not compared with the others."""
    return self.num_units < FEWEST


def measured(values: Values, subgroups: Subgroups, *, num_bins: int = 15, num_resamples: int = 1000
             ) -> dict[str, Subgroup]:
  """Measures the subgroups of at least one example.

  Args:
    values: the values of the examples; only confidences, outcomes and groups are read.
    subgroups: to which subgroup each example belongs.
    num_bins: the number of bins of the ECE.
    num_resamples: the number of redraws of the outcomes for the noise floor; there are more for many subgroups.

  Returns:
    The subgroups by name. The one whose interval of the offset is furthest from 0 is the first; of those whose interval
    holds 0, the one with the largest offset.
  """
  members = [np.flatnonzero(subgroups.number == k) for k in range(len(subgroups.names))]
  sample = _Sample.of(values)
  ece, floor, p_values = _errors(values, members, sample.rho, num_bins, num_resamples)
  offsets = [sample.sum_of_means((rows, 1)) for rows in members]
  others = [np.flatnonzero(subgroups.number != k) for k in range(len(members))]
  worse = [sample.worse(*pair) for pair in zip(members, others, strict=True)]
  of_others = [sample.sum_of_means((rows, 1)).interval.within(-1, 1) if len(rows) else None for rows in others]
  by_name = {name: Subgroup(
    len(rows), sample.num_units(rows), float(sample.mean(values.correct, rows).mean()), float(ece[k]), float(floor[k]),
    p_value, offsets[k].interval.within(-1, 1), of_others[k], None if np.isnan(worse_p) else worse_p)
    for k, (name, rows, p_value, worse_p) in enumerate(zip(
      subgroups.names, members, holm(p_values), holm(worse), strict=True))}
  return dict(sorted(by_name.items(), key=lambda item: _place(item[1].offset)))


def _place(offset: Interval) -> tuple[float, float]:
  """What subgroups are sorted by: how far from 0 the interval and the offset are, the furthest first."""
  return -max(offset.low, -offset.high, 0.0), -abs(offset.estimate)


class _Mean(NamedTuple):
  """An estimate with its interval, and the degrees of freedom of Student's t that the interval is by."""

  interval: Interval
  freedom: float

  def p_above(self, sign: float) -> float:
    """Returns the p-value of an estimate that is at most 0, times a sign."""
    margin = (self.interval.high - self.interval.low) / 2
    if not 0 < margin < np.inf:
      return 1.0
    return float(stdtr(self.freedom, -sign * self.interval.estimate / margin * _quantile(self.freedom)))


def _quantile(freedom: float) -> float:
  return float(stdtrit(freedom, (1 + resamples.LEVEL) / 2)) if freedom > 1e-6 else np.inf


class _Sample(NamedTuple):
  """The examples, as sums of their means need them."""

  confidence: np.ndarray  # float64 ``[N, S]``.
  excess: np.ndarray  # ``[N, S]``, the confidence minus the outcome.
  variance: np.ndarray  # ``[N]``, of the outcome of a calibrated model.
  unit: np.ndarray  # ``[N]``, the number of the group of dependent examples, or of the example.
  rho: float  # How strongly the outcomes of a group depend on each other.
  weights: np.ndarray | None = None  # ``[N]``, of the examples; None where all are equal.

  @classmethod
  def of(cls, values: Values) -> "_Sample":
    confidence = values.confidence.astype(np.float64)
    unit, _ = draws.group_numbers(values.groups, len(confidence))
    return cls(confidence, confidence - values.correct, (confidence * (1 - confidence)).mean(axis=1),
               np.arange(len(confidence)) if unit is None else unit, values.dependence(), values.weights)

  def num_units(self, rows: np.ndarray) -> float:
    """Returns how many units have a part of some examples; with weights their effective number."""
    if self.weights is not None:
      return float(effective_number(self.unit[rows], self.weights[rows])) if len(rows) else 0
    return len(np.unique(self.unit[rows]))

  def mean(self, of: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the weighted mean over some examples of an array ``[N, ...]``."""
    return np.average(of[rows], axis=0, weights=None if self.weights is None else self.weights[rows])

  def sum_of_means(self, *parts: Part) -> _Mean:
    """Returns the sum of signed mean excesses of parts of the examples.

    Its standard error has one sum for each unit, also where a unit is in both parts. Some confident predictions may all
    be right, and their own spread is then almost 0. So the variance is at least a calibrated model's, and has in
    each part one more unit that is right and one that is wrong: without these two, intervals hold the offset of 60
    examples with 5% of errors in 88% of draws.
    """
    influence, weight = np.zeros(len(self.excess)), np.zeros(len(self.excess))
    estimate, units, of_two = np.zeros(self.excess.shape[1]), [], 0.0
    for rows, sign in parts:
      mean, confidence = self.excess.mean(axis=1), self.mean(self.confidence, rows).mean()
      units.append(self.num_units(rows))
      estimate += sign * self.mean(self.excess, rows)
      weight[rows] = sign / len(rows) if self.weights is None else sign * self.weights[rows] / self.weights[rows].sum()
      deviation = mean[rows] - self.mean(mean, rows)
      influence[rows] = weight[rows] * deviation * np.sqrt(units[-1] / max(units[-1] - 1, 1))
      of_two += (confidence**2 + (1 - confidence) ** 2) / units[-1] ** 2
    own = np.sum(np.bincount(self.unit, influence) ** 2)
    together = np.sum(np.bincount(self.unit, weight * np.sqrt(self.variance)) ** 2)  # Where ρ is 1.
    of_calibrated = (1 - self.rho) * np.sum(weight**2 * self.variance) + self.rho * together
    freedom, mean = min(units) - 1, float(estimate.mean())
    margin = _quantile(freedom) * float(np.sqrt(max(own, of_calibrated) + of_two))
    return _Mean(over_seeds(Interval(mean, mean - margin, mean + margin), estimate), freedom)

  def worse(self, rows: np.ndarray, others: np.ndarray) -> float:
    """Returns the p-value of an offset that is at most as far from 0 as the others' offset; nan of too few units."""
    if min(self.num_units(rows), self.num_units(others)) < FEWEST:
      return np.nan
    sign = 1.0 if self.mean(self.excess, rows).mean() > 0 else -1.0
    return min(2 * max(self.sum_of_means((rows, 1), (others, of_others)).p_above(sign) for of_others in (-1, 1)), 1.0)


def _errors(values: Values, members: Sequence[np.ndarray], rho: float, num_bins: int, num_resamples: int
            ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the ECE of subgroups, its mean over redraws of the outcomes and its p-value."""
  (count, num_seeds), ece = values.confidence.shape, COLUMNS["ece"].compute.function
  weights = units(values.weights)
  ordered = [[Ordered(values.confidence[rows, s], num_bins, None if weights is None else weights[rows])
              for s in range(num_seeds)] for rows in members]
  group, num_groups = draws.group_numbers(values.groups, count)
  number = max(num_resamples, REDRAWS * len(members))
  words = np.asarray(resamples.sample_words(jax.random.key(0), number))

  def of_outcomes(outcomes):  # [R, N, S]
    return np.stack([np.mean([ece(x.sums(np.ones((1, len(rows)), bool), outcomes[:, rows, s]))
                              for s, x in enumerate(of_seeds)], axis=0)
                     for rows, of_seeds in zip(members, ordered, strict=True)], axis=1)

  redrawn = []
  for batch in resamples.batches(number, values.confidence.size):
    numbers = draws.shared(words[batch], draws.uniform(words[batch], count), group, num_groups, np.float32(rho))
    redrawn.append(of_outcomes(numbers[..., None] < values.confidence))
  redrawn, (observed,) = np.concatenate(redrawn), of_outcomes(values.correct[None])
  return observed, redrawn.mean(0), p_value_of(observed, redrawn)


class ClassGaps(NamedTuple):
  """How the confidence of each predicted class differs from its accuracy.

  Attributes:
    gap: ``[K]``, the mean confidence minus the accuracy of the examples that are predicted to be of the class; nan for
      a class that is never predicted.
    error: ``[K]``, the standard error of the gap.
    count: ``[K]``, the number of examples, or of their groups; the seeds of an example count once.
    share: ``[K]``, the share of the predictions that are of the class.
  """

  gap: np.ndarray
  error: np.ndarray
  count: np.ndarray
  share: np.ndarray


def class_gaps(values: Values, num_classes: int) -> ClassGaps:
  """Computes the gap of each predicted class, over the predictions of all seeds together."""
  excess, predicted = (values.confidence - values.correct).ravel(), values.predicted.ravel()
  weights = None if values.weights is None else np.repeat(values.weights, values.predicted.shape[1])
  chance, count = values.confidence.ravel().astype(np.float64), np.bincount(predicted, weights, num_classes)
  groups = np.arange(len(values.predicted)) if values.groups is None else values.groups
  group = np.unique(groups, return_inverse=True)[1]
  # What a group, or an example with its seeds, adds to a class is one sum.
  cells, cell = np.unique(np.repeat(group, values.predicted.shape[1]) * num_classes + predicted, return_inverse=True)
  with np.errstate(invalid="ignore", divide="ignore"):
    weighted = excess if weights is None else weights * excess
    gap = np.bincount(predicted, weighted, num_classes) / count
    deviation = excess - gap[predicted]
    sums = np.bincount(cell, deviation if weights is None else weights * deviation, len(cells))
    # At least as much as a calibrated model's: predictions that are all right have almost no spread.
    # Seeds may all be wrong of the same examples, so they count as one.
    variance, rho = chance * (1 - chance), values.dependence()
    variance = variance if weights is None else weights**2 * variance
    together = np.bincount(cell, np.sqrt(variance), len(cells)) ** 2  # Of what a group adds, where ρ is 1.
    number, squares, of_groups = (np.bincount(cells % num_classes, x, num_classes) for x in (None, sums**2, together))
    of_examples = values.confidence.shape[1] * np.bincount(predicted, variance, num_classes)
    of_calibrated = (1 - rho) * of_examples + rho * of_groups
    error = np.sqrt(np.maximum(squares * number / np.maximum(number - 1, 1), of_calibrated)) / count
  return ClassGaps(gap, np.where(number > 1, error, np.nan), number, count / count.sum())
