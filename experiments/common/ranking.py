"""Ranks the methods of an experiment: win rates, mean ranks, which are above the lowest, and the Pareto front."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from experiments.common import comparison

BASELINES = ("cross entropy", "cross_entropy")
MOST_LOST = 0.1  # The accuracy that a seed of a method may lose to cross entropy, before it has collapsed.


def collapsed(rows: pd.DataFrame) -> set[tuple[str, str]]:
  """Returns the ``(task, method)``, left out of means, of which a seed is far less accurate than cross entropy."""
  if "accuracy" not in rows:
    return set()
  values = comparison.values(rows[rows["calibrator"] == "none"], "accuracy")
  usual = {task: by_seed.mean for (task, method, _), by_seed in values.items() if method in BASELINES}
  return {(task, method) for (task, method, _), by_seed in values.items()
          if task in usual and not np.min([*by_seed.values()]) > usual[task] - MOST_LOST}


def trained(rows: pd.DataFrame) -> pd.DataFrame:
  """Returns the rows of the methods that have not collapsed."""
  out = collapsed(rows)
  return rows[[pair not in out for pair in zip(rows["task"], rows["method"], strict=True)]]


def table(by_name: Mapping[str, Mapping[str, float]]) -> tuple[tuple[str, ...], np.ndarray]:
  """Returns the methods whose values are all finite, and these ``[S, M]``, on the seeds that all methods have."""
  seeds = [seed for seed in next(iter(by_name.values())) if all(seed in by_seed for by_seed in by_name.values())]
  names = tuple(name for name, by_seed in by_name.items() if all(np.isfinite(by_seed[seed]) for seed in seeds))
  return names, np.array([[by_name[name][seed] for name in names] for seed in seeds])


def mean_ranks(values: np.ndarray) -> np.ndarray:
  """Returns the mean ranks ``[M]`` of methods over seeds, from 1, by values ``[S, M]`` of which lower is better."""
  return stats.rankdata(values, axis=1).mean(0)


def wins(values: np.ndarray) -> np.ndarray:
  """Returns the share ``[M]`` of pairs of another method and a seed in which each is better; a tie counts half."""
  number = values.shape[1]
  return (number - mean_ranks(values)) / max(number - 1, 1)


def worse_than_first(values: Mapping[str, Mapping[str, float]], order: Sequence[str]) -> list[bool]:
  """Returns whether methods are shown to be above the first, the lowest; corrected for all pairs, as it is chosen."""
  level = (1 - comparison.LEVEL) / (len(order) * (len(order) - 1) / 2 or 1)
  changes = {name: comparison.paired(values[name], values[order[0]]) for name in order}
  return [name != order[0] and change.mean > 0 and change.p_value < level for name, change in changes.items()]


def of_methods(rows: pd.DataFrame, column: str, calibrator: str) -> dict[str, comparison.BySeed]:
  """Returns the values of a column by method and by seed, after one calibrator."""
  part = rows[rows["calibrator"] == calibrator]
  return {method: by_seed for (_, method, _), by_seed in comparison.values(part, column).items()}


def means(rows: pd.DataFrame, column: str, calibrator: str) -> dict[str, float]:
  """Returns the mean over seeds of a column by method, after one calibrator."""
  return {method: by_seed.mean for method, by_seed in of_methods(rows, column, calibrator).items()}


def pareto(accuracy: Sequence[float], error: Sequence[float]) -> list[bool]:
  """Returns whether each point has no other that is at least as accurate and has at most its error, one of them better.

  >>> pareto([0.9, 0.8, 0.85], [0.05, 0.01, 0.06])
  [True, True, False]
  """
  points = list(zip(accuracy, error, strict=True))
  return [not any(a >= own[0] and e <= own[1] and (a, e) != own for a, e in points) for own in points]
