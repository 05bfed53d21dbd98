"""What an evaluation measures: the columns of its tables, and their values with intervals."""

from collections.abc import Callable, Hashable, Mapping, Sequence
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import losses, metrics
from calib_jax.evaluation import classwise
from calib_jax.evaluation.predictions import Predictions
from calib_jax.evaluation.rowwise import Calibrated
from calib_jax.metrics.binned import errors_of_shared_bins

FEWER = 20  # Slow metrics have the number of resamples divided by this.


class Metric(NamedTuple):
  """A metric is one column of the tables.

  Attributes:
    heading: the heading of the column.
    scale: the factor that numbers are multiplied by in the tables, 100 for percent.
    lower_is_better: whether a lower value is better; None if neither is.
    is_main: whether the short table has it.
    function: maps ``(confidence, correct, *, num_bins, where)`` to a calibration error; None for the other metrics,
      which ``measure`` computes together.
    slow: whether it takes long, so that its number of resamples is divided by ``FEWER``.
    bias_rate: that of ``metrics.bootstrap``.
  """

  heading: str
  scale: float
  lower_is_better: bool | None = True
  is_main: bool = False
  function: Callable | None = None
  slow: bool = False
  bias_rate: float = 1.0


def _error(**options) -> Callable:
  return functools.partial(metrics.calibration_error, **options)


def _without_bins(function: Callable) -> Callable:
  return lambda confidence, correct, *, num_bins, where: function(confidence, correct, where=where)


# The metrics of an evaluation by name, in the order of its tables.
METRICS: dict[str, Metric] = {
  "accuracy": Metric("accuracy %", 100, False, True),
  "nll": Metric("NLL", 1, is_main=True),
  "brier": Metric("Brier", 1, is_main=True),
  "entropy": Metric("mean entropy", 1, None),
  "ece": Metric("ECE %, equal width, norm 1", 100, True, True, _error()),
  "ece_equal_mass_l2": Metric("ECE %, equal mass, norm 2", 100, True, True, _error(binning="equal_mass", norm=2)),
  "adaptive": Metric("ECE %, equal mass, norm 1", 100, function=_error(binning="equal_mass")),
  "mce": Metric("MCE %", 100, function=_error(norm="max")),
  "debiased": Metric("ECE %, equal mass, norm 2, debiased", 100,
                     function=_error(binning="equal_mass", norm=2, debias=True)),
  "ks": Metric("KS %", 100, function=_without_bins(metrics.ks_calibration_error)),
  "sweep": Metric("sweep %", 100, function=_without_bins(metrics.sweep_calibration_error), slow=True),
  "smooth": Metric("smooth ECE %", 100, function=_without_bins(metrics.smooth_calibration_error), slow=True,
                   bias_rate=2 / 3),
  "classwise": Metric("classwise ECE %, equal width", 100),
  "classwise_equal_mass": Metric("classwise ECE %, equal mass", 100),
  "aurc": Metric("AURC %", 100),
  "excess_aurc": Metric("E-AURC %", 100),
  "coverage_at_1": Metric("coverage % at 1% risk", 100, False),
  "coverage_at_5": Metric("coverage % at 5% risk", 100, False),
}
# The values that are bootstrapped jointly for all rows of a table, so that the differences of rows are paired.
JOINT = ("accuracy", "nll", "brier", "entropy", "ece", "ece_equal_mass_l2", "aurc", "excess_aurc", "coverage_at_1",
         "coverage_at_5")
PERCENTILE = tuple(name for name in JOINT if METRICS[name].function is None)


class Values(NamedTuple):
  """The values of each example that metrics need; S is the number of seeds.

  Attributes:
    confidence: float32 ``[N, S]``, the probability of the predicted class.
    correct: bool ``[N, S]``.
    nll: float32 ``[N, S]``.
    brier: float32 ``[N, S]``.
    entropy: float32 ``[N, S]``.
    predicted: int32 ``[N, S]``.
    class_sums: the sums of each class, one element a seed, by the kind of the bins.
    groups: int32 ``[N]``, equal for examples that belong together, or None.
    labels: int32 ``[N, S]``.
  """

  confidence: np.ndarray
  correct: np.ndarray
  nll: np.ndarray
  brier: np.ndarray
  entropy: np.ndarray
  predicted: np.ndarray
  class_sums: Mapping[str, Sequence[classwise.ClassSums]]
  groups: np.ndarray | None = None
  labels: np.ndarray | None = None


@jax.jit
def _per_example(log_probs: jax.Array, labels: jax.Array) -> tuple[jax.Array, ...]:
  probs = jnp.exp(log_probs)
  confidence, correct = metrics.top_label(probs, labels)
  entropy = -jnp.sum(jnp.where(probs > 0, probs * log_probs, 0), axis=-1)
  return (confidence, correct, losses.cross_entropy(log_probs, labels), losses.brier(log_probs, labels), entropy,
          jnp.argmax(probs, axis=-1).astype(jnp.int32))


def per_example(parts: Sequence[Predictions | Calibrated], *, num_bins: int = 15, num_redraws: int = 100) -> Values:
  """Computes the values of each example.

  Args:
    parts: the predictions, one element a seed, all of the same size.
    num_bins: the number of bins of each class.
    num_redraws: the number of redraws of the labels for the noise floor of the classwise errors.
  Returns: the values.
  """
  columns, sums = [], []
  for source in map(Calibrated.of, parts):
    labels, summing = source.part.labels, classwise.Summing(source, num_bins, num_redraws)
    found = [np.empty(len(labels), dtype) for dtype in (np.float32, bool, np.float32, np.float32, np.float32, np.int32)]
    for rows, first, log_probs in source.chunks():
      for column, values in zip(found, _per_example(log_probs, labels[rows]), strict=True):
        column[rows] = values
      summing.add(rows, first, log_probs, labels[rows])
    columns.append([*found, labels])
    sums.append(summing.sums())
  *values, labels = (np.stack(x, axis=1) for x in zip(*columns, strict=True))
  by_binning = {name: [found[name] for found in sums] for name in sums[0]}
  return Values(*values, by_binning, Calibrated.of(parts[0]).part.groups, labels)


def measure(rows: Mapping[Hashable, Values], *, num_bins: int = 15, num_resamples: int = 1000
            ) -> tuple[dict[Hashable, dict[str, dict]], dict[tuple, dict[str, dict]]]:
  """Computes every metric of each row with its interval, and the differences of every two rows.

  Args:
    rows: the values of the same examples by row; their numbers of seeds may differ.
    num_bins: the number of bins of calibration errors.
    num_resamples: the number of resamples of the intervals. Sweep and smooth errors have a twentieth of it. They are
      left out if that is below ten, too few for an interval.
  Returns: ``({row: {metric: cell}}, {(row, earlier row): {metric: {"difference", "low", "high"}}})``. A cell has
    ``estimate``, ``low``, ``high``, ``value``, ``per_seed`` and, for calibration errors, ``floor`` and ``p_value``: see
    ``evaluate``. The differences, of ``JOINT``, are those of the row minus the earlier row, with a percentile interval.
  """
  key, table, names = jax.random.key(0), {row: {} for row in rows}, tuple(rows)
  # All are started before the first is read, because XLA computes several programs at a time, each on one core.
  started = {(row, slow): metrics.assess(
    _calibration(num_bins, slow), values.confidence, values.correct, key=key, groups=values.groups,
    num_resamples=num_resamples // FEWER if slow else num_resamples, bias_rate=_bias_rates(slow, values))._asdict()
             for slow in ((False, True) if num_resamples >= 10 * FEWER else (False,)) for row, values in rows.items()}
  for (row, slow), found in started.items():
    errors = [name for name, metric in METRICS.items() if metric.function and metric.slow == slow]
    table[row] |= {name: _cell({k: np.reshape(x, (-1, len(errors)))[:, i] for k, x in found.items()})
                   for i, name in enumerate(errors)}
  for row, values in rows.items():
    for name, binning in (("classwise", "equal_width"), ("classwise_equal_mass", "equal_mass")):
      table[row][name] = classwise.classwise_cell(values.class_sums[binning], num_resamples)
  # Rows of fewer seeds are repeated, which changes no mean over seeds.
  seeds = {row: values.confidence.shape[1] for row, values in rows.items()}
  repeats = {row: math.lcm(*seeds.values()) // number for row, number in seeds.items()}
  arrays = [np.stack([np.tile(getattr(values, name), repeats[row]) for row, values in rows.items()], axis=2)
            for name in ("confidence", "correct", "nll", "brier", "entropy")]
  joint = metrics.bootstrap(_joint(num_bins), *arrays, key=key, num_resamples=num_resamples,
                            groups=rows[names[0]].groups)
  num_values = (1 + arrays[0].shape[1]) * len(JOINT) * len(names)
  levels = [np.reshape(x[:num_values], (-1, len(JOINT), len(names))) for x in joint]
  apart = [np.reshape(x[num_values:], (len(JOINT), len(names), len(names))) for x in joint]
  for i, row in enumerate(names):
    for name in PERCENTILE:
      own = [x[:1 + seeds[row], JOINT.index(name), i] for x in levels]
      table[row][name] = _cell({"value": own[0], **dict(zip(("estimate", "low", "high"), own, strict=True))})
    table[row] = {name: table[row][name] for name in METRICS if name in table[row]}
  differences = {(row, names[j]): {
    name: dict(zip(("difference", "low", "high"), (float(x[m, i, j]) for x in apart), strict=True))
    for m, name in enumerate(JOINT)} for i, row in enumerate(names) for j in range(i)}
  return table, differences


def _bias_rates(slow: bool, values: Values) -> np.ndarray:
  """Returns the rates of what ``_calibration`` returns."""
  rates = [metric.bias_rate for metric in METRICS.values() if metric.function and metric.slow == slow]
  return np.tile(rates, 1 + values.confidence.shape[1])


def _cell(found: Mapping[str, np.ndarray]) -> dict[str, float | list[float]]:
  """Returns the cell of one metric, of arrays ``[1 + S]`` that begin with the mean over seeds."""
  cell = {key: float(x[0]) for key, x in found.items()} | {"per_seed": [float(x) for x in found["value"][1:]]}
  # A percentile interval of a handful of resamples may miss its estimate.
  return cell | {"low": min(cell["low"], cell["estimate"]), "high": max(cell["high"], cell["estimate"])}


# The caches return the same function object for the same options, so that its resamples are compiled only once.
@functools.cache
def _calibration(num_bins: int, slow: bool) -> Callable:
  """Returns a function of ``[N, S]`` arrays to the calibration errors: their means over seeds, then those of each."""
  functions = [metric.function for metric in METRICS.values() if metric.function and metric.slow == slow]
  binned = [function.keywords for function in functions if isinstance(function, functools.partial)]

  def errors(confidence, correct, *, where):
    def of_seed(confidence, correct):
      found = iter(errors_of_shared_bins(confidence, correct, binned, num_bins=num_bins, where=where) if binned else ())
      return jnp.stack([next(found) if isinstance(function, functools.partial) else
                        function(confidence, correct, num_bins=num_bins, where=where) for function in functions])

    return _mean_first(_mapped(of_seed, 1)(confidence, correct)).reshape(-1)

  return errors


@functools.cache
def _joint(num_bins: int) -> Callable:
  """Returns a function of ``[N, S, L]`` arrays to one vector.

  It begins with ``[1 + S, JOINT, L]``, the means over seeds and the values of each seed for L rows, and ends with
  ``[JOINT, L, L]``, the differences of the means between every two rows.
  """
  def of_seed(confidence, correct, nll, brier, entropy, where):
    mean = functools.partial(jnp.mean, where=where)
    error = functools.partial(METRICS["ece"].function, confidence, correct, num_bins=num_bins, where=where)
    curve = metrics.risk_coverage_curve(confidence, ~correct, where=where)
    coverage = [jnp.max(jnp.where(curve.risk <= risk, curve.coverage, 0)) for risk in (0.01, 0.05)]
    # The areas are metrics.aurc and metrics.excess_aurc, without further sorts: the best order has the errors last.
    accuracy, counted = mean(correct.astype(jnp.float32)), ~jnp.isnan(curve.coverage)
    best_risk = jnp.maximum(1 - accuracy / curve.coverage, 0)
    aurc, excess = (jnp.mean(x, where=counted) for x in (curve.risk, curve.risk - best_risk))
    return jnp.stack([accuracy, mean(nll), mean(brier), mean(entropy), error(), error(binning="equal_mass", norm=2),
                      aurc, excess, *coverage])

  def joint(*arrays, where=None):
    over_seeds = _mapped(lambda *x: of_seed(*x, where), 1)
    values = jnp.moveaxis(_mapped(lambda *x: _mean_first(over_seeds(*x)), 2)(*arrays), 0, 2)
    differences = values[0][:, :, None] - values[0][:, None, :]
    return jnp.concatenate([values.reshape(-1), differences.reshape(-1)])

  return joint


def _mapped(function: Callable, axis: int) -> Callable:
  """``jax.vmap(function, in_axes=axis)``, without a map where there is one seed or row, which halves the tracing."""
  def mapped(*arrays):
    if arrays[0].shape[axis] == 1:
      return function(*(jnp.squeeze(x, axis) for x in arrays))[None]
    return jax.vmap(function, in_axes=axis)(*arrays)

  return mapped


def _mean_first(values: jax.Array) -> jax.Array:
  """``[S, M]`` to ``[1 + S, M]``: the means over seeds, followed by the values of each seed."""
  return jnp.concatenate([jnp.mean(values, axis=0, keepdims=True), values])
