"""The rows of ``local`` as arrays, and their means and intervals over data sets.

The value of an experiment is the mean over its splits. A data set's value is the mean over its experiments, and all
means and intervals are over data sets: networks that were tested on the same images, and classifiers that were trained
on the same examples, are not independent.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from experiments.calarena import ranks
from experiments.calarena.methods import OURS
from experiments.common.rows import Row

LEVEL = 0.95
BASE = ("temperature_scaling", OURS)


class Table(NamedTuple):
  """Values by experiment and method, as means over splits.

  Attributes:
    experiments: the data set and the model of each experiment.
    methods: the name and the package of each method that has a value of every experiment.
    partial: those that lack some.
    values: ``[experiments, methods]`` by column.
    classes: ``[experiments]``.
    cal_size: ``[experiments]``.
  """

  experiments: list[tuple[str, str]]
  methods: list[tuple[str, str]]
  partial: list[tuple[str, str]]
  values: dict[str, np.ndarray]
  classes: np.ndarray
  cal_size: np.ndarray


def table(rows: Sequence[Row], columns: Sequence[str] = ("logloss", "brier", "ece-15")) -> Table:
  """Gathers rows, of which there is one for a method, an experiment and a split."""
  cells: dict[tuple, list[Row]] = {}
  sizes = {}
  for row in rows:
    key = (row["dataset"], row["model"])
    sizes.setdefault(key, (int(row["classes"]), int(row["cal_size"])))
    cells.setdefault(((row["method"], row["package"]), key), []).append(row)
  failed = {method for (method, _), found in cells.items() if any(not row["logloss"] for row in found)}
  names = list(dict.fromkeys(method for method, _ in cells))
  complete = [name for name in names if name not in failed and all((name, key) in cells for key in sizes)]
  values = {column: np.array([[np.mean([float(row[column]) for row in cells[name, key]]) for name in complete]
                              for key in sizes]).reshape(len(sizes), len(complete)) for column in columns}
  return Table(list(sizes), complete, [name for name in names if name not in complete], values,
               *(np.array(column) for column in zip(*sizes.values(), strict=True)))


def by_dataset(values: np.ndarray, experiments: Sequence[tuple[str, str]]) -> np.ndarray:
  """The means ``[data sets, ...]`` of values ``[experiments, ...]``."""
  names, index = np.unique([dataset for dataset, _ in experiments], return_inverse=True)
  return np.stack([values[index == i].mean(0) for i in range(len(names))])


def bootstrap(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The mean of values ``[data sets, methods]``, and its 95% limits by a bootstrap over data sets."""
  return values.mean(0), *ranks.interval(values, np.arange(len(values)))


def student(values: np.ndarray) -> tuple[float, float]:
  """The mean of differences ``[data sets]``, and the half width of its 95% interval by Student's t, NaN for one."""
  if len(values) < 2:
    return float(values.mean()), float("nan")
  error = np.std(values, ddof=1) / np.sqrt(len(values))
  return float(values.mean()), float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * error)


def wins(values: np.ndarray, experiments: Sequence[tuple[str, str]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Win rates, as CalArena has them, and their limits over data sets."""
  return bootstrap(by_dataset(ranks.win_rates(values), experiments))


def mean_ranks(values: np.ndarray, experiments: Sequence[tuple[str, str]]) -> np.ndarray:
  """The mean rank of each method, 1 the best."""
  return by_dataset(stats.rankdata(values, axis=1), experiments).mean(0)


def excess(values: np.ndarray, experiments: Sequence[tuple[str, str]]) -> np.ndarray:
  """By how much each method is above the best of an experiment, on average."""
  return by_dataset(values - values.min(1, keepdims=True), experiments).mean(0)


def best_single(found: Table, column: str = "logloss", skip: Callable[[str], bool] = lambda name: False) -> int:
  """The index of this package's method of the lowest mean over data sets, ``select`` left out."""
  means = by_dataset(found.values[column], found.experiments).mean(0)
  single = [j for j, (name, package) in enumerate(found.methods)
            if package == OURS and name != "select" and not skip(name)]
  return min(single, key=lambda j: means[j])
