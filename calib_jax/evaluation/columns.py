"""The columns of the tables of an evaluation: one list, in the order in which tables have them.

A new column is one entry of ``COLUMNS``. The list gives the columns their order, and its order changes nothing else.
"""

from collections.abc import Callable, Iterable
import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from calib_jax import _checks as checks
from calib_jax import metrics
from calib_jax.evaluation import resampled_errors
from calib_jax.evaluation.results import Estimate, Interval, Values
from calib_jax.intervals.bias_models import NORM_2, BiasModel, bias_model
from calib_jax.intervals.resamples import LEAST_REDRAWS, Resampled

FEWER = 20  # Slow errors have the number of resamples divided by this.
CLASSWISE_REDRAWS = 100  # Redraws of the labels for the noise floor of the classwise errors.


class Mean(NamedTuple):
  """The mean over examples of what ``of`` takes from ``Values``, ``[N, S]``."""

  of: Callable[[Values], np.ndarray]


class CurvePart(NamedTuple):
  """A number of the risk–coverage curve."""

  number: str  # "area", "excess" (over the area of the best ordering), or "coverage" at ``risk``.
  risk: float = 0.0  # The largest share of errors among the predictions that are kept, of "coverage".


class Error(NamedTuple):
  """A calibration error of the confidence."""

  function: Callable[..., Any]  # Maps the ``resampled_errors.Sums`` of R resamples to the error ``[R]``.
  slow: bool = False  # Whether it takes long, so that its number of resamples is divided by ``FEWER``.
  as_column: str = ""  # Of a debiased error, the name of the error with its bias, whose estimate and interval it has.


class ClasswiseError(NamedTuple):
  """The mean over classes of the calibration error of their probabilities, in bins of one ``binning``."""

  binning: str


class LossPart(NamedTuple):
  """What recalibration removes of the log loss (``place`` 0) or leaves (1); it is computed on request alone."""

  place: int


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of the tables.

  Attributes:
    name: its name in ``results.json`` and ``--columns``.
    heading: the heading of the column.
    unit: "%" or "", for values that are shown as they are.
    compute: how it is computed.
    compare: whether the differences of two rows have intervals.
    bias: as ``metrics.bootstrap`` takes it, of calibration errors; None of others, which have no noise floor.
    group: the title of its table on the page.
    ends: a function of an error's ``Estimate``, of the row's mean excess of confidence over accuracy and of what the
      resamples say of the error, ``resamples.Resampled``, to the ends that its interval has instead; None to keep them.
    lower_is_better: whether a lower value is better; None if neither is.
    least: the least value that it can have.
    most: the largest value that it can have; None for log K.
    weighted: whether it is computed of examples with weights. Those that depend on the number of examples of a bin or
      a rank are not, because only the ratios of weights matter.
  """

  name: str
  heading: str
  unit: str
  compute: Mean | CurvePart | Error | ClasswiseError | LossPart
  compare: bool
  bias: BiasModel | None
  group: str
  ends: Callable[[Estimate, Interval, Resampled], tuple[float, float]] | None = None
  lower_is_better: bool | None = True
  least: float = 0.0
  most: float | None = 1.0
  weighted: bool = True

  @property
  def scale(self) -> float:
    """The factor that values are multiplied by in tables."""
    return 100 if self.unit == "%" else 1

  @property
  def is_debiased(self) -> bool:
    """Whether it is a calibration error without its bias as computed."""
    return isinstance(self.compute, Error) and bool(self.compute.as_column)

  def num_redraws(self, num_resamples: int) -> int:
    """Returns how many redraws the p-value of a calibration error counts."""
    if isinstance(self.compute, ClasswiseError):
      return CLASSWISE_REDRAWS
    return num_resamples // FEWER if self.compute.slow else max(num_resamples, LEAST_REDRAWS)


SCORES, BINS, OTHERS, PARTS = GROUPS = (  # The tables of the page, in its order, of so many columns as fit on a screen.
  "Accuracy, proper scores and selective prediction",
  "Calibration errors in bins of the confidence",
  "Calibration errors without fixed bins, and those of every class",
  "Parts of the log loss")


def at_least_those_of_the_mean(error: Estimate, excess: Interval, _: Resampled) -> tuple[float, float]:
  """The ends of KS, which have the margin of the mean excess above the error, as in ``metrics.bootstrap``."""
  return error.low, max(error.high, error.value + (excess.high - excess.low) / 2)


def within_chance(error: Estimate, _: Interval, resampled: Resampled) -> tuple[float, float]:
  """The ends of a classwise error.

  With few examples a class the bias of a mean over classes is larger than its noise, and not known as well. The error
  is at most the true one plus the error of chance (triangle inequality), and on average at least the true one.
  """
  return (min(error.low, max(error.value - float(resampled.most_by_chance), 0.0)),
          max(error.high, error.value + error.high - error.estimate))


def _binned(name: str, heading: str, *, compare: bool = False, as_column: str = "", **options) -> Column:
  """A calibration error in bins."""
  function = functools.partial(resampled_errors.binned_error, **options)
  return Column(name, heading, "%", Error(function, as_column=as_column), compare,
                bias_model(metrics.calibration_error, **options), BINS, weighted=not as_column)


COLUMNS: dict[str, Column] = {column.name: column for column in (
  Column("accuracy", "accuracy %", "%", Mean(lambda values: values.correct), True, None, SCORES,
         lower_is_better=False),
  Column("nll", "NLL", "", Mean(lambda values: values.nll), True, None, SCORES, most=np.inf),
  Column("nll_calibration", "calibration part of the NLL", "", LossPart(0), False, None, PARTS, least=-np.inf,
         most=np.inf, weighted=False),
  Column("nll_refinement", "refinement part of the NLL", "", LossPart(1), False, None, PARTS, most=np.inf,
         weighted=False),
  Column("brier", "Brier", "", Mean(lambda values: values.brier), True, None, SCORES, most=2.0),
  Column("entropy", "mean entropy", "", Mean(lambda values: values.entropy), True, None, SCORES,
         lower_is_better=None, most=None),
  _binned("ece", "ECE %, equal width, norm 1", compare=True),
  _binned("ece_equal_mass_l2", "ECE %, equal mass, norm 2", compare=True, binning="equal_mass", norm=2),
  _binned("adaptive", "ECE %, equal mass, norm 1", binning="equal_mass"),
  _binned("mce", "MCE %", norm="max"),
  _binned("debiased", "ECE %, equal mass, norm 2, debiased", as_column="ece_equal_mass_l2", binning="equal_mass",
          norm=2, debias=True),
  Column("ks", "KS %", "%", Error(resampled_errors.ks), False, bias_model(metrics.ks_calibration_error), OTHERS,
         at_least_those_of_the_mean),
  Column("sweep", "sweep %", "%", Error(resampled_errors.sweep, slow=True), False,
         bias_model(metrics.sweep_calibration_error), OTHERS, weighted=False),
  Column("smooth", "smooth ECE %", "%", Error(resampled_errors.smooth, slow=True), False,
         bias_model(metrics.smooth_calibration_error), OTHERS),
  Column("classwise", "classwise ECE %, equal width", "%", ClasswiseError("equal_width"), False, NORM_2, OTHERS,
         within_chance),
  Column("classwise_equal_mass", "classwise ECE %, equal mass", "%", ClasswiseError("equal_mass"), False, NORM_2,
         OTHERS, within_chance, weighted=False),
  Column("aurc", "AURC %", "%", CurvePart("area"), True, None, SCORES, weighted=False),
  Column("excess_aurc", "E-AURC %", "%", CurvePart("excess"), True, None, SCORES, weighted=False),
  Column("coverage_at_1", "coverage % at 1% risk", "%", CurvePart("coverage", 0.01), True, None, SCORES,
         lower_is_better=False, weighted=False),
  Column("coverage_at_5", "coverage % at 5% risk", "%", CurvePart("coverage", 0.05), True, None, SCORES,
         lower_is_better=False, weighted=False),
)}
# What stands beside a calibration error as computed, each in a column of its own that is called NAME_floor and so on.
BESIDE_ERRORS = ("floor", "p", "debiased")


def computed_by(kind: type, weights: np.ndarray | None = None) -> dict[str, Column]:
  """Returns the columns that are computed in one way, such as ``Mean``, of examples with ``weights`` or without."""
  return {name: column for name, column in COLUMNS.items()
          if isinstance(column.compute, kind) and (weights is None or column.weighted)}


def numbers_of(names: Iterable[str]) -> list[tuple[Column, str]]:
  """Returns the column and the number, "" or one of ``BESIDE_ERRORS``, of names such as ``SHORT_TABLE`` has."""
  known = {f"{name}{'_' if number else ''}{number}": (column, number) for name, column in COLUMNS.items()
           for number in ("", *(BESIDE_ERRORS if column.bias else ()))}
  names = list(names)
  for name in names:
    if name not in known:  # Without the endings, which most columns have.
      raise ValueError(f"column must be one of {', '.join(map(repr, COLUMNS))}, or of calibration errors one with "
                       f"{', '.join(f'_{number}' for number in BESIDE_ERRORS)} after it: got {name!r}."
                       f"{checks.suggestion(name, known)}")
  return [known[name] for name in names]
