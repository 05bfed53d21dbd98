"""How the confidence of each predicted class differs from its accuracy."""

from typing import NamedTuple

import numpy as np

from calib_jax.evaluation.results import Values


class ClassGaps(NamedTuple):
  """How the confidence of each predicted class differs from its accuracy.

  Attributes:
    gap: ``[K]``, the mean confidence minus the accuracy of the examples that are predicted to be of the class; nan for
      a class that is never predicted.
    error: ``[K]``, the standard error of the gap.
    count: ``[K]``, the number of examples, or of their groups; the seeds of an example count once.
    share: ``[K]``, the share of the predictions that are of the class.
  """

  gap: np.ndarray
  error: np.ndarray
  count: np.ndarray
  share: np.ndarray


def class_gaps(values: Values, num_classes: int) -> ClassGaps:
  """Computes the gap of each predicted class, over the predictions of all seeds together."""
  excess, predicted = (values.confidence - values.correct).ravel(), values.predicted.ravel()
  weights = None if values.weights is None else np.repeat(values.weights, values.predicted.shape[1])
  chance, count = values.confidence.ravel().astype(np.float64), np.bincount(predicted, weights, num_classes)
  groups = np.arange(len(values.predicted)) if values.groups is None else values.groups
  group = np.unique(groups, return_inverse=True)[1]
  # What a group, or an example with its seeds, adds to a class is one sum.
  cells, cell = np.unique(np.repeat(group, values.predicted.shape[1]) * num_classes + predicted, return_inverse=True)
  with np.errstate(invalid="ignore", divide="ignore"):
    weighted = excess if weights is None else weights * excess
    gap = np.bincount(predicted, weighted, num_classes) / count
    deviation = excess - gap[predicted]
    sums = np.bincount(cell, deviation if weights is None else weights * deviation, len(cells))
    # At least as much as a calibrated model's: predictions that are all right have almost no spread.
    # Seeds may all be wrong of the same examples, so they count as one.
    variance, rho = chance * (1 - chance), values.dependence()
    variance = variance if weights is None else weights**2 * variance
    together = np.bincount(cell, np.sqrt(variance), len(cells)) ** 2  # Of what a group adds, where ρ is 1.
    number, squares, of_groups = (np.bincount(cells % num_classes, x, num_classes) for x in (None, sums**2, together))
    of_examples = values.confidence.shape[1] * np.bincount(predicted, variance, num_classes)
    of_calibrated = (1 - rho) * of_examples + rho * of_groups
    error = np.sqrt(np.maximum(squares * number / np.maximum(number - 1, 1), of_calibrated)) / count
  return ClassGaps(gap, np.where(number > 1, error, np.nan), number, count / count.sum())
