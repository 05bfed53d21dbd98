"""Statistics of examples that come in groups: members of one group may depend on each other by any amount."""

import numpy as np


def stratified_folds(labels: np.ndarray, num_folds: int, groups: np.ndarray | None = None) -> np.ndarray:
  """The fold of each example ``[N]``, so that each has its share of each class and groups stay together."""
  unit = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
  num_units = int(unit.max(initial=-1)) + 1
  if num_units < num_folds:
    raise ValueError(f"cross-validation in {num_folds} folds needs at least {num_folds} "
                     f"{'examples' if groups is None else 'groups'}: there are {num_units}.")
  common = labels
  if groups is not None:
    pairs, counts = np.unique(np.stack([unit, labels]), axis=1, return_counts=True)
    order = np.lexsort((counts, pairs[0]))  # The last pair of a unit has its most common label.
    common = pairs[1][order][np.searchsorted(pairs[0][order], np.arange(num_units), side="right") - 1]
  shuffled = np.random.default_rng(0).permutation(num_units)
  by_label = shuffled[np.argsort(common[shuffled], kind="stable")]
  fold = np.empty(num_units, np.int64)
  fold[by_label] = np.arange(num_units) % num_folds
  return fold[unit]


def effective_number(groups: np.ndarray | None, weights: np.ndarray) -> float:
  """(Σ w)² / Σ w² of the weights of examples, or of the sums of groups' weights: as many equal ones say as much."""
  if groups is not None:
    weights = np.bincount(np.unique(groups, return_inverse=True)[1], weights)
  return weights.sum() ** 2 / np.sum(weights**2)


def standard_error(values: np.ndarray, groups: np.ndarray | None = None, weights: np.ndarray | None = None) -> float:
  """The standard error of the weighted mean of ``[N]`` values; a group's count as one sum, and one group has inf."""
  deviation = values - np.average(values, weights=weights)
  if weights is not None:
    deviation = deviation * (weights / weights.mean())
  if groups is not None:
    deviation = np.bincount(np.unique(groups, return_inverse=True)[1], deviation)
    if len(deviation) == 1:
      return float("inf")
    deviation = deviation * np.sqrt(len(deviation) / (len(deviation) - 1))
  return float(np.sqrt(np.sum(deviation**2)) / len(values))
