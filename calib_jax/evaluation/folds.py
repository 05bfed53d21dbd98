"""Cross-validation: every example is calibrated by a calibrator that was fitted to other examples."""

from collections.abc import Mapping

import jax
import numpy as np

from calib_jax import calibrators
from calib_jax._system.errors import UserError
from calib_jax.evaluation.fitting import UNCALIBRATED, fit
from calib_jax.evaluation.predictions import Predictions
from calib_jax.evaluation.rowwise import Calibrated


def stratified_folds(labels: np.ndarray, num_folds: int, groups: np.ndarray | None = None) -> np.ndarray:
  """Assigns each example to a fold, so that each fold has its share of each class and groups stay together.

  Args:
    labels: ``[N]`` integers.
    num_folds: the number of folds.
    groups: ``[N]`` integers, equal for examples that belong together; None if every example is on its own.

  Returns:
    ``[N]`` integers in ``[0, num_folds)``. Groups count by their most common label.

  Raises:
    UserError: if there are fewer groups than folds.

  >>> stratified_folds(np.array([0, 0, 1, 1]), 2)[:2].sum()
  np.int64(1)
  """
  unit = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
  num_units = int(unit.max()) + 1
  if num_units < num_folds:
    raise UserError(f"{num_folds} folds need at least {num_folds} {'examples' if groups is None else 'groups'}: there "
                    f"are {num_units}.")
  pairs, counts = np.unique(np.stack([unit, labels]), axis=1, return_counts=True)
  order = np.lexsort((counts, pairs[0]))  # The last pair of a unit is that of its most common label.
  common = pairs[1][order][np.searchsorted(pairs[0][order], np.arange(num_units), side="right") - 1]
  shuffled = np.random.default_rng(0).permutation(num_units)
  by_label = shuffled[np.argsort(common[shuffled], kind="stable")]
  fold = np.empty(num_units, np.int64)
  fold[by_label] = np.arange(num_units) % num_folds
  return fold[unit]


def out_of_fold(part: Predictions, labelled: Mapping[str, calibrators.Calibrator], num_folds: int
                ) -> dict[str, list[Calibrated]]:
  """Calibrates each fold with calibrators that are fitted to the other folds.

  Args:
    part: the predictions.
    labelled: the calibrators by label.
    num_folds: the number of folds.

  Returns:
    The predictions by label, in the order of ``part``, with those before calibration under the label "none".

  Raises:
    UserError: if there are fewer groups than folds.
  """
  fold = stratified_folds(part.labels, num_folds, part.groups)
  params = {label: [] for label in labelled}
  for k in range(num_folds):
    others = part._replace(logits=part.logits[fold != k], labels=part.labels[fold != k], probs=None)
    for label, (_, of_fold) in fit([others], labelled, lambda caution: None).items():
      params[label] += of_fold
  return {UNCALIBRATED: [Calibrated.of(part)]} | {
    label: [Calibrated(part, jax.jit(calibrator.apply), params[label], fold)] for label, calibrator in labelled.items()}
