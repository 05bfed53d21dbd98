"""What an evaluation measures: the values of ``COLUMNS`` with intervals, and the differences of two rows."""

from collections.abc import Collection, Hashable, Mapping, Sequence
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import losses, metrics
from calib_jax._checks.shapes import ABSENT
from calib_jax._system import compilation
from calib_jax.evaluation import class_errors, few_errors, resampled_errors
from calib_jax.evaluation.columns import (
  CLASSWISE_REDRAWS,
  COLUMNS,
  FEWER,
  ClasswiseError,
  Column,
  CurvePart,
  Error,
  LossPart,
  Mean,
  computed_by,
)
from calib_jax.evaluation.predictions.calibrated import Calibrated
from calib_jax.evaluation.predictions.predictions import Predictions
from calib_jax.evaluation.results import LEVEL, Estimate, Interval, Values, over_seeds
from calib_jax.intervals import resamples
from calib_jax.intervals.bias_correction import correlation, interval_of_difference
from calib_jax.metrics import decomposition

Ordered = Mapping[Hashable, Sequence[resampled_errors.Ordered | resampled_errors.Blocks]]  # Of each seed, by row.


class NotNumbers(ValueError):
  """Some predictions are not numbers, as after a fit that failed."""


def _per_example(probs: jax.Array, log_probs: jax.Array, labels: jax.Array) -> tuple[jax.Array, ...]:
  confidence, correct = metrics.top_label(probs, labels)
  entropy = -jnp.sum(jnp.where(probs > 0, probs * log_probs, 0), axis=-1)
  is_present = log_probs - jnp.max(log_probs, axis=-1, keepdims=True) > ABSENT  # Other classes are masked.
  return (confidence, correct, losses.cross_entropy(log_probs, labels), losses.brier(log_probs, labels), entropy,
          jnp.argmax(probs, axis=-1).astype(jnp.int32), jnp.sum(is_present, axis=-1, dtype=jnp.int32))


def _of_records(probs: jax.Array, log_probs: jax.Array, correct: jax.Array) -> tuple[jax.Array, ...]:
  """The values of records, whose columns are of a wrong and of a right answer."""
  entropy = -jnp.sum(jnp.where(probs > 0, probs * log_probs, 0), axis=-1)
  brier = (probs[:, 1] - correct.astype(probs.dtype)) ** 2
  return probs[:, 1], correct == 1, losses.cross_entropy(log_probs, correct), brier, entropy


def per_example(parts: Sequence[Predictions | Calibrated], *, num_bins: int = 15,
                num_redraws: int = CLASSWISE_REDRAWS, metrics_on_request: Collection[str] = ()) -> Values:
  """Computes the values of each example.

  Args:
    parts: the predictions, one element a seed, all of the same size.
    num_bins: the number of bins of each class.
    num_redraws: the number of redraws of the labels for the noise floor of the classwise errors.
    metrics_on_request: the names of columns that are asked for; a ``LossPart`` is computed only if it is among them.

  Returns:
    The values.

  Raises:
    NotNumbers: if a prediction is NaN, whose class would be as good as any.
  """
  columns, sums, are_records = [], [], Calibrated.of(parts[0]).part.records
  types = (np.float32, bool, np.float32, np.float32, np.float32, *(() if are_records else (np.int32, np.int32)))
  for source in map(Calibrated.of, parts):
    labels = source.part.labels
    summing = None if are_records else class_errors.Summing(source, num_bins, num_redraws)
    of_seed = [np.empty(len(labels), dtype) for dtype in types]
    computed = compilation.sized(_of_records if are_records else _per_example, source.part.logits.size)
    for rows, first, log_probs in source.chunks():
      probs = source.probs(rows, log_probs)
      for column, values in zip(of_seed, computed(probs, log_probs, labels[rows]), strict=True):
        column[rows] = values
      if summing:
        summing.add(rows, first, probs, labels[rows])
    if num_nan := int(np.isnan(of_seed[2]).sum()):
      raise NotNumbers(f"{num_nan:,} of {len(labels):,} predictions are not numbers")
    columns.append([*of_seed, labels])
    sums.append(summing.sums() if summing else {})
  *values, labels = (np.stack(x, axis=1) for x in zip(*columns, strict=True))
  predicted, num_options = (None, None) if are_records else values[5:]
  by_binning = {binning: [of_seed[binning] for of_seed in sums] for binning in sums[0]}
  first = Calibrated.of(parts[0]).part
  asked = not computed_by(LossPart, first.weights).keys().isdisjoint(metrics_on_request)
  removed = removed_losses(parts) if asked else None
  return Values(*values[:5], predicted, by_binning, first.groups, labels, num_options, removed, first.subgroups,
                first.weights)


def removed_losses(parts: Sequence[Predictions | Calibrated]) -> np.ndarray | None:
  """What recalibration removes of the log loss of each example and seed, for ``Values.removed``, float32 ``[N, S, 3]``.

  None if there are fewer examples or groups than folds. All probabilities of a seed are in memory at once, because
  recalibrations are fitted to them.
  """
  groups = Calibrated.of(parts[0]).part.groups
  columns = []
  for source in map(Calibrated.of, parts):
    labels = source.part.labels
    if len(labels if groups is None else np.unique(groups)) < decomposition.NUM_FOLDS:
      return None
    probs = np.empty(source.part.logits.shape, np.float32)
    for rows, _, log_probs in source.chunks():
      probs[rows] = source.probs(rows, log_probs)
    columns.append(decomposition.of_examples(probs, labels, np.ones(len(labels), np.float32), groups)["nll"])
  return np.stack(columns, axis=1)


def measure(rows: Mapping[Hashable, Values], *, num_bins: int = 15, num_resamples: int = 1000
            ) -> tuple[dict[Hashable, dict[str, Estimate]], dict[tuple[Any, ...], dict[str, Interval]]]:
  """Computes every column of each row with its interval, and the differences of every two rows.

  Args:
    rows: the values of the same examples by row; their numbers of seeds may differ.
    num_bins: the number of bins of calibration errors.
    num_resamples: the number of resamples of the intervals. Sweep and smooth errors have a twentieth of it. They are
      left out if that is below ten, too few for an interval.

  Returns:
    ``({row: {column: estimate}}, {(row, earlier row): {column: difference}})``. The differences, of columns that
    ``compare``, are the row minus the earlier row, as ``metrics.paired_difference`` computes them. Where
    errors are few, intervals have the ends of ``few_errors``. With several seeds they are over test examples and seeds;
    see ``over_seeds``.
  """
  key, some = jax.random.key(0), next(iter(rows.values()))
  block = resamples.blocks_of(len(some.confidence), some.groups)
  ordered = _ordered(rows, num_bins, block)
  errors, differences_of_errors = _errors(rows, ordered, block, key, num_resamples)
  means, differences_of_means = _joint(rows, ordered, block, key, num_resamples)
  parts = loss_parts(rows, key=key, num_resamples=num_resamples, block=block)
  tables = {row: few_errors.of_row(means[row] | errors[row] | parts.get(row, {}), rows[row]) for row in rows}
  differences = {}
  for (row, other), changes in differences_of_means.items():
    changes |= differences_of_errors[row, other]
    differences[row, other] = {}
    are_few = few_errors.are_few(rows[row]) or few_errors.are_few(rows[other])
    for name, column in COLUMNS.items():
      if are_few and isinstance(column.compute, CurvePart):
        continue  # A few errors decide such a number, and their places may be chance.
      if column.compare and name in changes:
        least, most = _range(column, rows[row])
        change = few_errors.of_difference(name, changes[name], rows[row], rows[other], _of_one_model(row, other))
        wider = over_seeds(change, *(tables[x][name].per_seed for x in (row, other)))
        differences[row, other][name] = wider.within(least - most, most - least)
  return {row: {name: _of_population(column, table[name], rows[row]) for name, column in COLUMNS.items()
                if name in table} for row, table in tables.items()}, differences


def _of_one_model(row: Hashable, other: Hashable) -> bool:
  """Whether two rows are of one model: keys without the name of a model are labels of its calibrators."""
  return not isinstance(row, tuple) or row[0] == other[0]


def _range(column: Column, values: Values) -> tuple[float, float]:
  """The least and the largest value that a column can have."""
  num_classes = values.class_sums["equal_width"][0].gaps.shape[1] if values.class_sums else 2
  return column.least, np.log(num_classes) if column.most is None else column.most


def _of_population(column: Column, estimate: Estimate, values: Values) -> Estimate:
  """The estimate with its interval over examples and seeds, within the values that the column can have.

  The interval of a calibration error holds 0 where a calibrated model would show as much.
  """
  low = estimate.low if estimate.p_value is None or estimate.p_value <= 1 - LEVEL else min(column.least, estimate.low)
  wider = over_seeds(Interval(estimate.estimate, low, estimate.high), estimate.per_seed)
  inside = wider.within(*_range(column, values))
  return dataclasses.replace(estimate, low=inside.low, high=inside.high)


def _ordered(rows: Mapping[Hashable, Values], num_bins: int, block: np.ndarray | None) -> Ordered:
  """The examples of each seed of each row in order, or in cells for resamples of blocks."""
  weights = resampled_errors.units(next(iter(rows.values())).weights)
  if block is None:
    return {row: [resampled_errors.Ordered(x, num_bins, weights) for x in values.confidence.T]
            for row, values in rows.items()}
  return {row: [resampled_errors.Blocks(*x, block, num_bins, resamples.CELLS, weights)
                for x in zip(values.confidence.T, values.correct.T, strict=True)] for row, values in rows.items()}


def _errors(rows: Mapping[Hashable, Values], ordered: Ordered, block: np.ndarray | None, key: jax.Array,
            num_resamples: int) -> tuple[dict[Hashable, dict[str, Estimate]], dict[tuple, dict[str, Interval]]]:
  """Estimates the calibration errors of each row, and those differences of every two rows that are compared."""
  weights = next(iter(rows.values())).weights
  columns, classwise = (computed_by(kind, weights) for kind in (Error, ClasswiseError))  # Records have no classes.
  # Errors with the most resamples come first.
  errors = {name: (column.compute.function, num_resamples // (FEWER if is_slow else 1)) for is_slow in (False, True)
            for name, column in columns.items()
            if column.compute.slow == is_slow and (not is_slow or num_resamples >= 10 * FEWER)}
  arrays = {row: (values.confidence, values.correct, ordered[row]) for row, values in rows.items()}
  assessed = resamples.errors_of_rows(errors, arrays, key=key, groups=next(iter(rows.values())).groups, block=block)
  resampled = {(row, name): error for row, by_name in assessed.items() for name, error in by_name.items()}
  for row, values in rows.items():
    for name, column in classwise.items() if values.class_sums else ():
      resampled[row, name] = class_errors.resampled(values.class_sums[column.compute.binning], num_resamples)
  rules = {(row, name): COLUMNS[name].bias for row, name in resampled}
  estimates = {row: {} for row in rows}
  for (row, name), ends in resamples.intervals(resampled, rules).items():
    error = resampled[row, name]
    means = (np.ravel(x)[0] for x in (error.value, *ends, error.floor, error.p_value))  # The rest is of each seed.
    estimates[row][name] = Estimate.around(*means, error.value[1:].tolist())
  for row, table in estimates.items():
    excess = rows[row].excess()
    for name, error in table.items():
      if (ends := COLUMNS[name].ends) is not None:
        low, high = ends(error, excess, resampled[row, name])
        table[name] = dataclasses.replace(error, low=low, high=high)
    for name in errors:
      if as_column := columns[name].compute.as_column:
        table[name] = dataclasses.replace(table[name], **{
          part: getattr(table[as_column], part) for part in ("estimate", "low", "high")})
  return estimates, {(row, other): {name: _difference(name, row, other, estimates, resampled)
                                    for name, column in columns.items() if column.compare}
                     for row, other in _pairs(rows)}


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


def _joint(rows: Mapping[Hashable, Values], ordered: Ordered, block: np.ndarray | None, key: jax.Array,
           num_resamples: int) -> tuple[dict[Hashable, dict[str, Estimate]], dict[tuple, dict[str, Interval]]]:
  """Estimates means and numbers of risk–coverage curves, and their differences, by the same resamples of all rows."""
  pairs, weights = _pairs(rows), next(iter(rows.values())).weights
  means, curves = computed_by(Mean, weights), computed_by(CurvePart, weights)
  risks = tuple(sorted({column.compute.risk for column in curves.values() if column.compute.number == "coverage"}))
  numbers = [("area", 0.0), ("excess", 0.0), *(("coverage", risk) for risk in risks)]  # As ``risk_coverage`` has them.
  places_of_curves = [numbers.index(column.compute) for column in curves.values()]
  seeds = [(values, s) for values in rows.values() for s in range(values.confidence.shape[1])]
  ordered = [x for row in rows for x in ordered[row]]
  summands = resamples.summed(block, (column.compute.of(values)[:, s] for values, s in seeds
                                      for column in means.values()), weights)
  places = np.cumsum([values.confidence.shape[1] for values in rows.values()])

  def every_number(counts, steps):
    """The mean over seeds and each seed of every row, followed by the difference of every pair, ``[R, …, columns]``."""
    # For so few rows, the threads of a matrix product wait for each other longer than they work.
    sums = np.einsum("rn,mn->rm", counts.astype(np.float64), summands)
    averages = (sums[:, :-1] / sums[:, -1:]).reshape(len(counts), len(seeds), len(means))
    by_seed = averages
    if curves:
      areas = [resampled_errors.risk_coverage(*x, risks)[:, places_of_curves] for x in steps]
      by_seed = np.concatenate([averages, np.stack(areas, axis=1)], axis=2)
    by_row = dict(zip(rows, map(resamples.mean_first, np.split(by_seed, places[:-1], axis=1)), strict=True))
    return np.concatenate([*by_row.values(), *(by_row[a][:, :1] - by_row[b][:, :1] for a, b in pairs)], axis=1)

  steps = [x.steps(values.correct[:, s]) for x, (values, s) in zip(ordered, seeds, strict=True)] if curves else []

  def of_resamples(counts):
    return every_number(counts, (of_row(counts) for of_row in steps))

  if block is None:
    ends = resamples.percentile(of_resamples, summands.shape[1], key=key, num_resamples=num_resamples,
                                groups=next(iter(rows.values())).groups)
  else:  # Ends are moved by what cells change of the sample's own numbers.
    approximate, *ends = resamples.percentile(of_resamples, summands.shape[1], key=key, num_resamples=num_resamples,
                                              size=resamples.CELLS)
    every = np.ones((1, len(block)), np.int32)
    value = every_number(np.ones((1, summands.shape[1])), (  # Generators, which nothing reads without curves.
      x.exact.steps(values.correct[:, s])(every) for x, (values, s) in zip(ordered, seeds, strict=True)))[0]
    ends = [value, *(end + value - approximate for end in ends)]
  ends_of_rows = places + np.arange(1, 1 + len(places))
  *by_row, by_pair = zip(*(np.split(x, ends_of_rows) for x in ends), strict=True)
  names = (*means, *curves)
  estimates = {row: {name: Estimate.around(value[0, m], value[0, m], low[0, m], high[0, m],
                                           per_seed=value[1:, m].tolist())
                     for m, name in enumerate(names)} for row, (value, low, high) in zip(rows, by_row, strict=True)}
  differences = {pair: {name: Interval(*(float(x[i, m]) for x in by_pair)) for m, name in enumerate(names)}
                 for i, pair in enumerate(pairs)}
  return estimates, differences


def loss_parts(rows: Mapping[Hashable, Values], *, key, num_resamples: int, block: np.ndarray | None = None
               ) -> dict[Hashable, dict[str, Estimate]]:
  """Estimates the two parts, as ``metrics.calibration_refinement`` does; with several seeds, of the mean over them.

  ``block`` is what ``resamples.blocks_of`` returns. Rows without ``Values.removed`` have no estimates.
  """
  rows = {row: values for row, values in rows.items() if values.removed is not None}
  if not rows:
    return {}
  means = np.stack([values.removed.mean(axis=1, dtype=np.float64) for values in rows.values()])  # [rows, N, 3]
  *sums, sizes = resamples.summed(block, means.transpose(0, 2, 1).reshape(-1, means.shape[1]))
  sums = np.stack(sums, axis=1).reshape(len(sizes), len(rows), -1).swapaxes(0, 1).copy()  # [rows, N or blocks, 3]
  groups = next(iter(rows.values())).groups if block is None else None

  def of_resamples(counts):
    counts = counts.astype(np.float64)
    return decomposition.five_means(np.einsum("rn,mnk->rmk", counts, sums) / (counts @ sizes)[:, None, None])

  ends = resamples.percentile(of_resamples, len(sizes), key=key, num_resamples=num_resamples, groups=groups)
  tables = {}
  for (row, values), *of_row in zip(rows.items(), *ends, strict=True):
    _, *parts = decomposition.parts(*of_row)
    of_seeds = decomposition.five_means(values.removed.mean(axis=0, dtype=np.float64))[:, (1, 3)].T
    places = {name: column.compute.place for name, column in computed_by(LossPart).items()}
    tables[row] = {name: Estimate.around(parts[place].estimate, *parts[place], per_seed=of_seeds[place].tolist())
                   for name, place in places.items()}
  return tables
