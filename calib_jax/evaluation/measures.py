"""What an evaluation measures: the columns of its tables, and their values with intervals."""

from collections.abc import Callable, Hashable, Mapping, Sequence
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import losses, metrics
from calib_jax.evaluation import class_errors, resamples
from calib_jax.evaluation.predictions import Predictions
from calib_jax.evaluation.rowwise import Calibrated
from calib_jax.metrics import resampled_errors

FEWER = 20  # Slow metrics have the number of resamples divided by this.


class Metric(NamedTuple):
  """A metric is one column of the tables.

  Attributes:
    heading: the heading of the column.
    scale: the factor that numbers are multiplied by in the tables, 100 for percent.
    lower_is_better: whether a lower value is better; None if neither is.
    is_main: whether the short table has it.
    function: maps the ``resampled_errors.Sums`` of R resamples to a calibration error ``[R]``; None for the other
      metrics, which ``measure`` computes together.
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
  return functools.partial(resampled_errors.calibration_error, **options)


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
  "ks": Metric("KS %", 100, function=resampled_errors.ks),
  "sweep": Metric("sweep %", 100, function=resampled_errors.sweep, slow=True),
  "smooth": Metric("smooth ECE %", 100, function=resampled_errors.smooth, slow=True, bias_rate=2 / 3),
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
  class_sums: Mapping[str, Sequence[class_errors.ClassSums]]
  groups: np.ndarray | None = None
  labels: np.ndarray | None = None


@jax.jit
def _per_example(probs: jax.Array, log_probs: jax.Array, labels: jax.Array) -> tuple[jax.Array, ...]:
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

  Returns:
    The values.
  """
  columns, sums = [], []
  for source in map(Calibrated.of, parts):
    labels, summing = source.part.labels, class_errors.Summing(source, num_bins, num_redraws)
    found = [np.empty(len(labels), dtype) for dtype in (np.float32, bool, np.float32, np.float32, np.float32, np.int32)]
    for rows, first, log_probs in source.chunks():
      probs = source.probs(rows, log_probs)
      for column, values in zip(found, _per_example(probs, log_probs, labels[rows]), strict=True):
        column[rows] = values
      summing.add(rows, first, probs, labels[rows])
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

  Returns:
    ``({row: {metric: cell}}, {(row, earlier row): {metric: {"difference", "low", "high"}}})``. A cell has ``estimate``,
    ``low``, ``high``, ``value``, ``per_seed`` and, for calibration errors, ``floor`` and ``p_value``: see ``evaluate``.
    The differences, of ``JOINT``, are those of the row minus the earlier row, with a percentile interval.
  """
  key, table = jax.random.key(0), {row: {} for row in rows}
  errors = {name: (metric.function, num_resamples // FEWER if metric.slow else num_resamples)
            for name, metric in METRICS.items() if metric.function and (not metric.slow or num_resamples >= 10 * FEWER)}
  resampled, per_seed = {}, {}
  for row, values in rows.items():
    found = resamples.assess(errors, values.confidence, values.correct, num_bins=num_bins, key=key,
                             groups=values.groups)
    resampled |= {(row, name): part for name, part in found.items()}
    per_seed |= {(row, name): part.value[1:].tolist() for name, part in found.items()}
    for name, binning in (("classwise", "equal_width"), ("classwise_equal_mass", "equal_mass")):
      resampled[row, name] = class_errors.resampled(values.class_sums[binning], num_resamples)
      per_seed[row, name] = class_errors.per_seed(values.class_sums[binning])
  bias_rates = {(row, name): METRICS[name].bias_rate for row, name in resampled}
  for (row, name), ends in resamples.intervals(resampled, bias_rates).items():
    found = resampled[row, name]
    table[row][name] = _cell(found.value, *ends, per_seed[row, name], floor=found.floor, p_value=found.p_value)
  joint, differences = _joint(rows, num_bins, key, num_resamples)
  for row, cells in joint.items():
    table[row] |= {name: cells[name] for name in JOINT if METRICS[name].function is None}
    table[row] = {name: table[row][name] for name in METRICS if name in table[row]}
  return table, differences


def _joint(rows: Mapping[Hashable, Values], num_bins: int, key: jax.Array, num_resamples: int
           ) -> tuple[dict[Hashable, dict[str, dict]], dict[tuple, dict[str, dict]]]:
  """Bootstraps ``JOINT`` by the same resamples for all rows.

  Returns:
    The cells of each row and the differences of every two rows, as ``measure`` returns them.
  """
  numbers = {row: [_joint_of(values, s, num_bins) for s in range(values.confidence.shape[1])]
             for row, values in rows.items()}
  names = tuple(rows)
  pairs = [(row, names[j]) for i, row in enumerate(names) for j in range(i)]

  def every_number(counts):
    """The numbers of every row ``[R, 1 + S, JOINT]``, then the differences of every pair ``[R, JOINT]``, in a row."""
    found = {row: resamples.mean_first(np.stack([of_seed(counts) for of_seed in seeds], axis=1))
             for row, seeds in numbers.items()}
    apart = [found[a][:, 0] - found[b][:, 0] for a, b in pairs]
    return np.concatenate([x.reshape(len(counts), -1) for x in (*found.values(), *apart)], axis=1)

  some = next(iter(rows.values()))
  ends = resamples.percentile(every_number, len(some.confidence), key=key, num_resamples=num_resamples,
                              groups=some.groups)
  places = np.cumsum([len(JOINT) * (1 + len(seeds)) for seeds in numbers.values()] + [len(JOINT)] * len(pairs))[:-1]
  parts = [[x.reshape(-1, len(JOINT)) for x in part] for part in zip(*(np.split(x, places) for x in ends), strict=True)]
  cells = {row: {name: _cell(value[:, m], value[:, m], low[:, m], high[:, m], value[1:, m].tolist())
                 for m, name in enumerate(JOINT)} for row, (value, low, high) in zip(rows, parts, strict=False)}
  differences = {pair: {name: dict(zip(("difference", "low", "high"), (float(x[0, m]) for x in part), strict=True))
                        for m, name in enumerate(JOINT)} for pair, part in zip(pairs, parts[len(rows):], strict=True)}
  return cells, differences


def _joint_of(values: Values, seed: int, num_bins: int) -> Callable[[np.ndarray], np.ndarray]:
  """Returns a function of how often each example counts, ``[R, N]``, to the numbers ``[R, JOINT]`` of one seed."""
  examples, correct = resampled_errors.Ordered(values.confidence[:, seed], num_bins), values.correct[:, seed]
  scores = np.stack([x[:, seed] for x in (values.nll, values.brier, values.entropy)], axis=1).astype(np.float64)

  def joint(counts):
    sums = examples.sums(counts, correct)
    size = sums.size[:, -1:]
    errors = np.stack([METRICS[name].function(sums) for name in ("ece", "ece_equal_mass_l2")], axis=1)
    return np.concatenate([sums.correct[:, -1:] / size, counts @ scores / size, errors,
                           resampled_errors.risk_coverage(sums, (0.01, 0.05))], axis=1)

  return joint


def _cell(value: np.ndarray, estimate: np.ndarray, low: np.ndarray, high: np.ndarray, per_seed: list[float],
          **other: np.ndarray) -> dict[str, float | list[float]]:
  """Returns the cell of one metric, of scalars or of arrays that begin with the mean over seeds."""
  numbers = {"value": value, "estimate": estimate, "low": low, "high": high, **other}
  cell = {name: float(np.ravel(x)[0]) for name, x in numbers.items()} | {"per_seed": per_seed}
  # A percentile interval of a handful of resamples may miss its estimate.
  return cell | {"low": min(cell["low"], cell["estimate"]), "high": max(cell["high"], cell["estimate"])}
