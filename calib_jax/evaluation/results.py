"""What an evaluation computes: estimates with intervals, in rows, in sets."""

from collections.abc import Hashable, Mapping, Sequence
import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

import calib_jax
from calib_jax.evaluation.asked import Asked
from calib_jax.evaluation.class_errors import ClassSums
from calib_jax.evaluation.predictions.fitting import UNCALIBRATED, FittedRows
from calib_jax.evaluation.predictions.predictions import Subgroups
from calib_jax.intervals import banerjee, draws
from calib_jax.intervals.groups import effective_number, standard_error
from calib_jax.intervals.resamples import LEVEL

# The columns of the short table: metrics by name; of calibration errors, which stand as computed, also NAME_floor,
# NAME_p and NAME_debiased.
SHORT_TABLE = ("accuracy", "nll", "brier", "ece", "ece_floor", "ece_p", "ece_debiased")

# Groups of dependent examples, or the effective number of examples with weights, from which there are intervals.
FEWEST_UNITS = 10
RowKey = tuple[str, str]  # The name of the model and the label of the calibrator.


@dataclasses.dataclass(frozen=True)
class Interval:
  """A number with its 95% interval, ``low`` to ``high``."""

  estimate: float
  low: float
  high: float

  def within(self, least: float, most: float) -> "Interval":
    """Returns the interval without what lies outside of the range of its quantity."""
    return Interval(self.estimate, max(self.low, least), min(self.high, most))

  def __neg__(self) -> "Interval":
    """Returns the interval of the number with the other sign."""
    return Interval(-self.estimate, -self.high, -self.low)


def over_seeds(interval: Interval, of_seeds: Sequence[float], of_other: Sequence[float] | None = None) -> Interval:
  """Widens an interval over test examples to one over test examples and seeds.

  The interval is of the mean over seeds, or of its difference between two rows, whose values of each seed are
  ``of_seeds`` and ``of_other``; these are paired seed by seed if there are as many. It stays the same if there is only
  one seed.

  The squared length of each arm is that over examples plus, for a row of S seeds, the squared half width of Banerjee's
  interval over seeds, which has S - 1 degrees of freedom. What varies with the example and the seed is in both terms. A
  row of one seed that is compared with one of several is taken to vary as much from seed to seed as that one.
  """
  samples = [np.asarray(x, np.float64) for x in (of_seeds, of_other) if x is not None]
  if len(samples) == 2 and len(samples[0]) == len(samples[1]):
    samples = [samples[0] - samples[1]]
  terms = [(np.var(x, ddof=1) / len(x), len(x) - 1) for x in samples if len(x) > 1]
  if len(samples) == 2 and len(terms) == 1:
    (variance, freedom), = terms
    terms = [(variance * (freedom + 2), freedom)]  # S² / S + S² / 1 for S = freedom + 1 seeds and one.
  between = banerjee.half_width(terms, 1 - LEVEL)
  if not between > 0:
    return interval
  low, high = (float(np.hypot(end - interval.estimate, between)) for end in (interval.low, interval.high))
  return Interval(interval.estimate, interval.estimate - low, interval.estimate + high)


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A metric of a sample, and what the sample says of the metric's true value.

  Attributes:
    value: the metric of the sample, the mean over seeds.
    estimate: the metric minus the bias of the sample; ``value`` for metrics without bias, such as means.
    low: the lower end of the 95% interval of the true value, at most ``estimate``.
    high: its upper end, at least ``estimate``.
    floor: the mean of a calibration error for a perfectly calibrated model with these confidences; None for others.
    p_value: the probability of a calibration error as large as this if the model is calibrated; None for others.
    per_seed: the metric of each seed; None for made-up numbers.
  """

  value: float
  estimate: float
  low: float
  high: float
  floor: float | None = None
  p_value: float | None = None
  per_seed: Sequence[float] | None = None

  @classmethod
  def around(cls, value: float, estimate: float, low: float, high: float, floor: float | None = None,
             p_value: float | None = None, per_seed: Sequence[float] | None = None) -> "Estimate":
    """Returns an estimate whose interval holds it, which a percentile interval of a few resamples may not."""
    floor, p_value = (None if x is None else float(x) for x in (floor, p_value))
    return cls(float(value), float(estimate), float(min(low, estimate)), float(max(high, estimate)), floor, p_value,
               per_seed)


@dataclasses.dataclass(frozen=True)
class Values:
  """The values of each example that metrics need; S is the number of seeds.

  Attributes:
    confidence: float32 ``[N, S]``, the probability of the predicted class; of records their confidence.
    correct: bool ``[N, S]``.
    nll: float32 ``[N, S]``.
    brier: float32 ``[N, S]``.
    entropy: float32 ``[N, S]``.
    predicted: int32 ``[N, S]``; None of records, which have no classes.
    class_sums: the sums of each class, one element a seed, by the kind of the bins; none of records.
    groups: int32 ``[N]``, equal for examples that belong together, or None.
    labels: int32 ``[N, S]``.
    num_options: int32 ``[N, S]``, the number of classes that an example has: those whose logits are not masked; None
      of records.
    removed: float32 ``[N, S, 3]``, what ``metrics.decomposition.of_examples`` returns of the NLL, or None.
    subgroups: the subgroups that are reported one by one, as ``Predictions`` has them, or None.
    weights: float64 ``[N]`` above 0, whose ratios alone matter; None where all are equal.
  """

  confidence: np.ndarray
  correct: np.ndarray
  nll: np.ndarray
  brier: np.ndarray
  entropy: np.ndarray
  predicted: np.ndarray | None
  class_sums: Mapping[str, Sequence[ClassSums]]
  groups: np.ndarray | None = None
  labels: np.ndarray | None = None
  num_options: np.ndarray | None = None
  removed: np.ndarray | None = None
  subgroups: Mapping[str, Subgroups] | None = None
  weights: np.ndarray | None = None

  def take(self, rows: np.ndarray) -> "Values":
    """Returns the values of some examples, without sums of classes."""
    taken = {field.name: value[rows] for field in dataclasses.fields(self)
             if isinstance(value := getattr(self, field.name), np.ndarray)}
    return dataclasses.replace(self, class_sums={}, subgroups=None, **taken)

  def mean(self, of: np.ndarray) -> np.ndarray:
    """Returns the weighted mean over examples of an array ``[N, ...]``."""
    return np.average(of, axis=0, weights=self.weights)

  @property
  def num_units(self) -> float:
    """How many examples, or groups of them, there are; with weights their effective number."""
    if self.weights is not None:
      return effective_number(self.groups, self.weights)
    return len(self.confidence) if self.groups is None else len(np.unique(self.groups))

  def dependence(self) -> float:
    """Returns how strongly the outcomes of a group depend on each other: ``intervals.draws.dependence``."""
    if self.groups is None:
      return 0.0
    members = draws.members(self.groups, len(self.confidence))
    return float(draws.dependence(jnp.asarray(self.confidence), jnp.asarray(self.correct), members))

  def excess(self) -> Interval:
    """Returns the mean confidence minus the accuracy, with a normal interval over examples or their groups.

    Some hundred confident predictions, or some ten groups of them, may all be right, and then their own spread is
    almost 0. A calibrated model's spread is not, so that the interval has at least its width.
    """
    excess, chance = (self.confidence - self.correct).mean(axis=1), self.confidence.astype(np.float64)
    variance = (chance * (1 - chance)).mean(axis=1)  # Of an example: seeds may all be wrong of the same ones.
    if self.weights is not None:
      variance = variance * (self.weights / self.weights.mean()) ** 2
    rho, group = self.dependence(), np.arange(len(chance)) if self.groups is None else self.groups
    of_groups = np.bincount(np.unique(group, return_inverse=True)[1], np.sqrt(variance)) ** 2  # Where ρ is 1.
    of_calibrated = float(np.sqrt((1 - rho) * variance.sum() + rho * of_groups.sum())) / len(chance)
    mean, margin = float(self.mean(excess)), 1.96 * max(
      standard_error(excess, self.groups, self.weights), of_calibrated)
    return Interval(mean, mean - margin, mean + margin)


@dataclasses.dataclass(frozen=True)
class Row:
  """What was measured of one model with one calibrator on one set.

  Attributes:
    estimates: the estimates by the name of the column, in the order of ``COLUMNS``.
    excess: the mean confidence minus the accuracy.
    values: the values of each example, for figures and sections; None for made-up numbers.
  """

  estimates: Mapping[str, Estimate]
  excess: Interval
  values: Values | None = None


@dataclasses.dataclass(frozen=True)
class EvaluatedSet:
  """What was measured on one set.

  Attributes:
    num_examples: N.
    num_classes: K; 0 of records, which have no classes.
    num_seeds: the largest number of seeds of a model.
    kind: how the examples relate to the training data, one of ``KINDS``.
    num_groups: the number of groups of examples that depend on each other; None if every example is on its own.
    rows: the rows, the first model's first; none of an out-of-distribution set.
    differences: the differences of metrics by name, of a row minus an earlier row, by the pair of rows. Pairs without
      the same examples have none.
    num_effective: where examples have weights, how many equal ones, or groups of them, say as much
      (``groups.effective_number``); else None.
  """

  num_examples: int
  num_classes: int
  num_seeds: int
  kind: str = "in_distribution"
  num_groups: int | None = None
  rows: Mapping[RowKey, Row] = dataclasses.field(default_factory=dict)
  differences: Mapping[tuple[RowKey, RowKey], Mapping[str, Interval]] = dataclasses.field(default_factory=dict)
  num_effective: float | None = None

  @property
  def num_units(self) -> float:
    """How many examples, or groups of them, intervals are over; with weights their effective number."""
    return self.num_effective or self.num_groups or self.num_examples

  @property
  def has_few_units(self) -> bool:
    """Whether the spread of so few groups, or of examples with such weights, and so every interval, is not known."""
    return (self.num_groups or self.num_effective) is not None and self.num_units < FEWEST_UNITS


@dataclasses.dataclass(frozen=True)
class Recommendation:
  """What to do, by what an evaluation shows.

  Attributes:
    kind: "use" a calibrator; "keep" the model as it is; "calibrate" it, for which no calibrator was tried, or "mend"
      it, because none of those that were tried does; "prefer" a model; "do_not_rely" on probabilities; "subgroup" that
      is worse than the other examples; "undecided".
    subject: the calibrator, the model or the sets that it is about.
    text: the sentence.
    numbers: what the sentence rests on, in fractions and nats.
  """

  kind: str
  subject: str
  text: str
  numbers: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Verdict:
  """What an evaluation recommends, which terminal, Markdown, JSON and page show in the same words.

  Attributes:
    recommendations: the recommendations, the most important first.
    reasons: sentences that say what they rest on.
    row: the row that is recommended: a model, and its calibrator or "none"; None for made-up ones.
  """

  recommendations: tuple[Recommendation, ...]
  reasons: tuple[str, ...]
  row: RowKey | None = None

  @property
  def first_line(self) -> str:
    """The recommendations in one line."""
    return " ".join(x.text for x in self.recommendations)

  @property
  def lines(self) -> list[str]:
    """The first line and the reasons."""
    return [self.first_line, *self.reasons]


@dataclasses.dataclass(frozen=True)
class Results:
  """What an evaluation computed.

  Attributes:
    num_bins: the number of bins of calibration errors.
    num_resamples: the number of resamples of the intervals.
    sets: the sets by name; the first is the test set.
    fitted: the calibrators of each model, as ``evaluation.fit`` returns them.
    sections: by section, what its ``compute`` returns; see ``evaluation.sections``.
    classes: the names of the classes, or None.
    level: the probability that intervals are meant to cover.
    columns: the columns of the short table, as ``SHORT_TABLE``.
    asked: what is asked of the confidences of the first model, which the section ``uses`` answers; None for nothing.
    failed: a sentence for each row that is left out because the predictions of its calibrator are not numbers.
    is_crossed: whether the first set is what calibrators were fitted to, each example calibrated without its fold.
    notes: sentences on the input, which stand beside the tables.
    verdict: what ``judge`` recommends by all of this, which every table, page and file shows; None before that.
  """

  num_bins: int
  num_resamples: int
  sets: Mapping[str, EvaluatedSet]
  fitted: Mapping[str, FittedRows] = dataclasses.field(default_factory=dict)
  sections: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  classes: tuple[str, ...] | None = None
  level: float = 0.95
  columns: tuple[str, ...] = SHORT_TABLE
  asked: Asked | None = None
  failed: Mapping[RowKey, str] = dataclasses.field(default_factory=dict)
  is_crossed: bool = False
  notes: tuple[str, ...] = ()
  verdict: Verdict | None = None

  @property
  def measured(self) -> dict[str, EvaluatedSet]:
    """The sets that have rows; the first is the test set."""
    return {name: evaluated for name, evaluated in self.sets.items() if evaluated.rows}

  @property
  def first(self) -> tuple[str, EvaluatedSet]:
    """The name of the test set, and what was measured on it."""
    return next(iter(self.measured.items()))

  @property
  def rows(self) -> list[tuple[str, EvaluatedSet, RowKey, Row]]:
    """All rows, each after the name of its set, the set and its key."""
    return [(name, evaluated, key, row) for name, evaluated in self.sets.items() for key, row in evaluated.rows.items()]

  @property
  def num_seeds(self) -> int:
    """The largest number of seeds of a set."""
    return max(evaluated.num_seeds for evaluated in self.sets.values())

  def row_name(self, row: RowKey) -> str:
    """Returns the name of a row, which names the model only if there are several."""
    calibrator = "uncalibrated" if row[1] == UNCALIBRATED else row[1]
    several = len({model for _, _, (model, _), _ in self.rows}) > 1
    return f"{row[0]}, {calibrator}" if several else calibrator

  def class_name(self, k: int) -> str:
    """Returns the name of a class, or its number."""
    return self.classes[k] if self.classes else str(k)

  def named(self, by_row: Mapping[RowKey, Hashable]) -> dict[str, Any]:
    """Returns what is given by row by the rows' names."""
    return {self.row_name(row): value for row, value in by_row.items()}

  def _repr_html_(self) -> str:
    """Returns the table as a notebook shows it."""
    return calib_jax.evaluation.to_html(self)
