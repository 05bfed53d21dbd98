"""What an evaluation measures: the columns of its tables, and their values with intervals."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import _checks as checks
from calib_jax import losses, metrics
from calib_jax._checks.shapes import ABSENT
from calib_jax._system import compilation
from calib_jax.evaluation import class_errors, loss_parts
from calib_jax.evaluation.results import Estimate, Interval, Values, over_seeds
from calib_jax.intervals import resamples
from calib_jax.intervals.bias_correction import correlation, interval_of_difference
from calib_jax.intervals.bias_models import CONSERVATIVE, NORM_2, BiasModel, bias_model
from calib_jax.metrics import resampled_errors
from calib_jax.predictions.calibrated import Calibrated
from calib_jax.predictions.predictions import Predictions

FEWER = 20  # Slow metrics have the number of resamples divided by this.
CLASSWISE_REDRAWS = 100  # Redraws of the labels for the noise floor of the classwise errors.


class Metric(NamedTuple):
  """A metric is one column of the tables.

  Attributes:
    heading: the heading of the column.
    scale: the factor that numbers are multiplied by in the tables, 100 for percent.
    lower_is_better: whether a lower value is better; None if neither is.
    function: maps the ``resampled_errors.Sums`` of R resamples to a calibration error ``[R]``; None for the other
      metrics, which ``measure`` computes together.
    slow: whether it takes long, so that its number of resamples is divided by ``FEWER``.
    bias: that of ``metrics.bootstrap``, for a calibration error.
    least: the least value that it can have.
    most: the largest value that it can have; None for log K.
    on_request: whether it is computed only where it is asked for, because it takes long.
  """

  heading: str
  scale: float
  lower_is_better: bool | None = True
  function: Callable | None = None
  slow: bool = False
  bias: BiasModel = CONSERVATIVE
  least: float = 0.0
  most: float | None = 1.0
  on_request: bool = False


def _binned(heading: str, **options) -> Metric:
  return Metric(heading, 100, function=functools.partial(resampled_errors.calibration_error, **options),
                bias=bias_model(metrics.calibration_error, **options))


# The metrics of an evaluation by name, in the order of its tables.
METRICS: dict[str, Metric] = {
  "accuracy": Metric("accuracy %", 100, False),
  "nll": Metric("NLL", 1, most=np.inf),
  "nll_calibration": Metric("calibration part of the NLL", 1, least=-np.inf, most=np.inf, on_request=True),
  "nll_refinement": Metric("refinement part of the NLL", 1, most=np.inf, on_request=True),
  "brier": Metric("Brier", 1, most=2.0),
  "entropy": Metric("mean entropy", 1, None, most=None),
  "ece": _binned("ECE %, equal width, norm 1"),
  "ece_equal_mass_l2": _binned("ECE %, equal mass, norm 2", binning="equal_mass", norm=2),
  "adaptive": _binned("ECE %, equal mass, norm 1", binning="equal_mass"),
  "mce": _binned("MCE %", norm="max"),
  "debiased": _binned("ECE %, equal mass, norm 2, debiased", binning="equal_mass", norm=2, debias=True),
  "ks": Metric("KS %", 100, function=resampled_errors.ks, bias=bias_model(metrics.ks_calibration_error)),
  "sweep": Metric("sweep %", 100, function=resampled_errors.sweep, slow=True,
                  bias=bias_model(metrics.sweep_calibration_error)),
  "smooth": Metric("smooth ECE %", 100, function=resampled_errors.smooth, slow=True,
                   bias=bias_model(metrics.smooth_calibration_error)),
  # The rule of class-wise errors, in ``_errors``, replaces that of a part.
  "classwise": Metric("classwise ECE %, equal width", 100, bias=NORM_2),
  "classwise_equal_mass": Metric("classwise ECE %, equal mass", 100, bias=NORM_2),
  "aurc": Metric("AURC %", 100),
  "excess_aurc": Metric("E-AURC %", 100),
  "coverage_at_1": Metric("coverage % at 1% risk", 100, False),
  "coverage_at_5": Metric("coverage % at 5% risk", 100, False),
}
# The values whose differences between rows have intervals, and those among them that are not calibration errors.
JOINT = ("accuracy", "nll", "brier", "entropy", "ece", "ece_equal_mass_l2", "aurc", "excess_aurc", "coverage_at_1",
         "coverage_at_5")
MEANS = tuple(name for name in JOINT if not METRICS[name].function)
# The metrics that are calibration errors, and what of them stands beside what is computed.
ERRORS = tuple(name for name, metric in METRICS.items() if metric.function or name.startswith("classwise"))
NUMBER_OF = ("floor", "p", "debiased")


def numbers_of(names: Iterable[str]) -> list[tuple[str, str]]:
  """Returns the metric and the number, "" or one of ``NUMBER_OF``, of columns called like those of ``COLUMNS``.

  Raises:
    UserError: for an unknown name.
  """
  known = {f"{metric}{'_' if number else ''}{number}": (metric, number)
           for metric in METRICS for number in ("", *(NUMBER_OF if metric in ERRORS else ()))}
  names = list(names)
  for name in names:
    checks.choice("column", name, known)
  return [known[name] for name in names]


def num_present(log_probs: jax.Array) -> jax.Array:
  """How many classes each row of log-probabilities ``[N, K]`` has: those that are not masked."""
  return jnp.sum(log_probs - jnp.max(log_probs, axis=-1, keepdims=True) > ABSENT, axis=-1, dtype=jnp.int32)


class NotNumbers(ValueError):
  """Predictions of which some are not numbers, as those of a calibrator whose fit failed."""


def _per_example(probs: jax.Array, log_probs: jax.Array, labels: jax.Array) -> tuple[jax.Array, ...]:
  confidence, correct = metrics.top_label(probs, labels)
  entropy = -jnp.sum(jnp.where(probs > 0, probs * log_probs, 0), axis=-1)
  return (confidence, correct, losses.cross_entropy(log_probs, labels), losses.brier(log_probs, labels), entropy,
          jnp.argmax(probs, axis=-1).astype(jnp.int32), num_present(log_probs))


def per_example(parts: Sequence[Predictions | Calibrated], *, num_bins: int = 15,
                num_redraws: int = CLASSWISE_REDRAWS, metrics_on_request: Collection[str] = ()) -> Values:
  """Computes the values of each example.

  Args:
    parts: the predictions, one element a seed, all of the same size.
    num_bins: the number of bins of each class.
    num_redraws: the number of redraws of the labels for the noise floor of the classwise errors.
    metrics_on_request: those of the metrics ``on_request`` that are computed; other names are ignored.

  Returns:
    The values.

  Raises:
    NotNumbers: if a prediction is NaN, whose class would be as good as any.
  """
  columns, sums = [], []
  for source in map(Calibrated.of, parts):
    labels, summing = source.part.labels, class_errors.Summing(source, num_bins, num_redraws)
    of_seed = [np.empty(len(labels), dtype)
               for dtype in (np.float32, bool, np.float32, np.float32, np.float32, np.int32, np.int32)]
    computed = compilation.sized(_per_example, source.part.logits.size)
    for rows, first, log_probs in source.chunks():
      probs = source.probs(rows, log_probs)
      for column, values in zip(of_seed, computed(probs, log_probs, labels[rows]), strict=True):
        column[rows] = values
      summing.add(rows, first, probs, labels[rows])
    if num_nan := int(np.isnan(of_seed[2]).sum()):
      raise NotNumbers(f"{num_nan:,} of {len(labels):,} predictions are not numbers")
    columns.append([*of_seed, labels])
    sums.append(summing.sums())
  *values, num_options, labels = (np.stack(x, axis=1) for x in zip(*columns, strict=True))
  by_binning = {binning: [of_seed[binning] for of_seed in sums] for binning in sums[0]}
  removed = loss_parts.removed(parts) if not set(loss_parts.NAMES).isdisjoint(metrics_on_request) else None
  return Values(*values, by_binning, Calibrated.of(parts[0]).part.groups, labels, num_options, removed)


def measure(rows: Mapping[Hashable, Values], *, num_bins: int = 15, num_resamples: int = 1000
            ) -> tuple[dict[Hashable, dict[str, Estimate]], dict[tuple, dict[str, Interval]]]:
  """Computes every metric of each row with its interval, and the differences of every two rows.

  Args:
    rows: the values of the same examples by row; their numbers of seeds may differ.
    num_bins: the number of bins of calibration errors.
    num_resamples: the number of resamples of the intervals. Sweep and smooth errors have a twentieth of it. They are
      left out if that is below ten, too few for an interval.

  Returns:
    ``({row: {metric: estimate}}, {(row, earlier row): {metric: difference}})``. The differences, of ``JOINT``, are
    those of the row minus the earlier row, as ``metrics.paired_difference`` computes them. With several seeds intervals
    are over test examples and seeds; see ``over_seeds``.
  """
  key = jax.random.key(0)
  errors, differences_of_errors = _errors(rows, num_bins, key, num_resamples)
  means, differences_of_means = _joint(rows, num_bins, key, num_resamples)
  parts = loss_parts.estimates(rows, key=key, num_resamples=num_resamples)
  tables = {row: means[row] | errors[row] | parts.get(row, {}) for row in rows}
  estimates = {row: {name: table[name] for name in METRICS if name in table} for row, table in tables.items()}
  differences = {}
  for (row, other), apart in differences_of_means.items():
    apart |= differences_of_errors[row, other]
    seeds = [[estimates[x][name].per_seed for name in JOINT] for x in (row, other)]
    differences[row, other] = {name: _of_differences(name, over_seeds(apart[name], *of_seeds), rows[row])
                               for name, *of_seeds in zip(JOINT, *seeds, strict=True)}
  return {row: {name: _of_population(name, estimate, rows[row]) for name, estimate in table.items()}
          for row, table in estimates.items()}, differences


def num_redraws(name: str, num_resamples: int) -> int:
  """Returns how many redraws the p-value of a metric counts."""
  if name.startswith("classwise"):
    return CLASSWISE_REDRAWS
  return num_resamples // FEWER if METRICS[name].slow else num_resamples


def _range(name: str, values: Values) -> tuple[float, float]:
  """The least and the largest value that a metric can have."""
  metric = METRICS[name]
  most = np.log(values.class_sums["equal_width"][0].gaps.shape[1]) if metric.most is None else metric.most
  return metric.least, most


def _of_population(name: str, estimate: Estimate, values: Values) -> Estimate:
  """The estimate with its interval over examples and seeds, within the values that the metric can have."""
  wider = over_seeds(Interval(estimate.estimate, estimate.low, estimate.high), estimate.per_seed)
  inside = wider.within(*_range(name, values))
  return dataclasses.replace(estimate, low=inside.low, high=inside.high)


def _of_differences(name: str, interval: Interval, values: Values) -> Interval:
  """The interval of a difference, within the values that differences of the metric can have."""
  least, most = _range(name, values)
  return interval.within(least - most, most - least)


def _errors(rows: Mapping[Hashable, Values], num_bins: int, key: jax.Array, num_resamples: int
            ) -> tuple[dict[Hashable, dict[str, Estimate]], dict[tuple, dict[str, Interval]]]:
  """Estimates the calibration errors of each row, and those differences of every two rows that ``JOINT`` has."""
  errors = {name: (metric.function, num_resamples // FEWER if metric.slow else num_resamples)
            for name, metric in METRICS.items() if metric.function and (not metric.slow or num_resamples >= 10 * FEWER)}
  assessed = resamples.assess(errors, {row: (values.confidence, values.correct) for row, values in rows.items()},
                              ordered=functools.partial(resampled_errors.Ordered, num_bins=num_bins), key=key,
                              groups=next(iter(rows.values())).groups)
  resampled = {(row, name): error for row, by_name in assessed.items() for name, error in by_name.items()}
  for row, values in rows.items():
    for name, binning in (("classwise", "equal_width"), ("classwise_equal_mass", "equal_mass")):
      resampled[row, name] = class_errors.resampled(values.class_sums[binning], num_resamples)
  rules = {(row, name): METRICS[name].bias for row, name in resampled}
  estimates = {row: {} for row in rows}
  for (row, name), ends in resamples.intervals(resampled, rules).items():
    error = resampled[row, name]
    means = (np.ravel(x)[0] for x in (error.value, *ends, error.floor, error.p_value))  # The rest is of each seed.
    estimates[row][name] = Estimate.around(*means, error.value[1:].tolist())
  for row, table in estimates.items():
    with_bias, excess = table["ece_equal_mass_l2"], rows[row].excess()
    # The rules that ``metrics.bootstrap`` has for these two.
    table["debiased"] = dataclasses.replace(table["debiased"], estimate=with_bias.estimate, low=with_bias.low,
                                            high=with_bias.high)
    above = table["ks"].value + (excess.high - excess.low) / 2
    # With few examples a class the bias of a mean over classes is larger than its noise, and not known as well. The
    # error is at most the true one plus that of chance (triangle inequality), and on average at least the true one.
    for name in ("classwise", "classwise_equal_mass"):
      error, most_by_chance = table[name], float(resampled[row, name].most_by_chance)
      table[name] = dataclasses.replace(error, low=min(error.low, max(error.value - most_by_chance, 0.0)),
                                        high=max(error.high, error.value + error.high - error.estimate))
    table["ks"] = dataclasses.replace(table["ks"], high=max(table["ks"].high, above))
  return estimates, {(row, other): {name: _difference(name, row, other, estimates, resampled)
                                    for name in JOINT if METRICS[name].function} for row, other in _pairs(rows)}


def _difference(name: str, row: Hashable, other: Hashable, estimates: Mapping[Hashable, Mapping[str, Estimate]],
                resampled: Mapping[tuple, resamples.Resampled]) -> Interval:
  """The difference of a calibration error of two rows."""
  ends = [[np.float64(x) for x in (estimate.estimate, estimate.low, estimate.high)]
          for estimate in (estimates[row][name], estimates[other][name])]
  together = correlation(resampled[row, name].noise, resampled[other, name].noise)
  return Interval(*map(float, interval_of_difference(*ends, together)))


def _pairs(rows: Mapping[Hashable, Values]) -> list[tuple[Hashable, Hashable]]:
  """Every row with each earlier one."""
  names = tuple(rows)
  return [(row, names[j]) for i, row in enumerate(names) for j in range(i)]


def _joint(rows: Mapping[Hashable, Values], num_bins: int, key: jax.Array, num_resamples: int
           ) -> tuple[dict[Hashable, dict[str, Estimate]], dict[tuple, dict[str, Interval]]]:
  """Estimates ``MEANS`` of each row, and the differences of every two rows, by the same resamples for all rows."""
  pairs = _pairs(rows)
  seeds = [(values, s) for values in rows.values() for s in range(values.confidence.shape[1])]
  ordered = [resampled_errors.Ordered(values.confidence[:, s], num_bins) for values, s in seeds]
  scores = np.array([x[:, s] for values, s in seeds
                     for x in (values.correct, values.nll, values.brier, values.entropy)], np.float64)
  places = np.cumsum([values.confidence.shape[1] for values in rows.values()])

  def every_number(counts):
    """The mean over seeds and each seed of every row, followed by the difference of every pair, ``[R, …, MEANS]``."""
    # For so few rows, the threads of a matrix product wait for each other longer than they work.
    sums = np.einsum("rn,mn->rm", counts.astype(np.float64), scores)
    means = (sums / counts.sum(1, keepdims=True)).reshape(len(counts), len(seeds), 4)
    areas = [resampled_errors.risk_coverage(x, counts, values.correct[:, s], (0.01, 0.05))
             for x, (values, s) in zip(ordered, seeds, strict=True)]
    by_seed = np.concatenate([means, np.stack(areas, axis=1)], axis=2)
    by_row = dict(zip(rows, map(resamples.mean_first, np.split(by_seed, places[:-1], axis=1)), strict=True))
    return np.concatenate([*by_row.values(), *(by_row[a][:, :1] - by_row[b][:, :1] for a, b in pairs)], axis=1)

  some = next(iter(rows.values()))
  ends = resamples.percentile(every_number, len(some.confidence), key=key, num_resamples=num_resamples,
                              groups=some.groups)
  ends_of_rows = places + np.arange(1, 1 + len(places))
  *by_row, apart = zip(*(np.split(x, ends_of_rows) for x in ends), strict=True)
  estimates = {row: {name: Estimate.around(value[0, m], value[0, m], low[0, m], high[0, m],
                                           per_seed=value[1:, m].tolist())
                     for m, name in enumerate(MEANS)} for row, (value, low, high) in zip(rows, by_row, strict=True)}
  differences = {pair: {name: Interval(*(float(x[i, m]) for x in apart)) for m, name in enumerate(MEANS)}
                 for i, pair in enumerate(pairs)}
  return estimates, differences
