"""Cross-validation: every example is calibrated by a calibrator that was fitted to other examples."""

from collections.abc import Mapping

import jax

from calib_jax import calibrators
from calib_jax._numerics.groups import stratified_folds
from calib_jax._system.errors import UserError
from calib_jax.predictions.calibrated import Calibrated
from calib_jax.predictions.fitting import UNCALIBRATED, fit
from calib_jax.predictions.predictions import Predictions


def out_of_fold(part: Predictions, labelled: Mapping[str, calibrators.Calibrator], num_folds: int
                ) -> dict[str, list[Calibrated]]:
  """Returns predictions by label, with those before calibration, of calibrators that are fitted to the other folds."""
  try:
    fold = stratified_folds(part.labels, num_folds, part.groups)
  except ValueError as error:
    raise UserError(str(error)) from None
  of_folds = []
  for k in range(num_folds):
    others = part._replace(logits=part.logits[fold != k], labels=part.labels[fold != k],
                           probs=None if part.probs is None else part.probs[fold != k],
                           groups=None if part.groups is None else part.groups[fold != k],
                           weights=None if part.weights is None else part.weights[fold != k])
    of_folds.append(fit([others], labelled, lambda caution: None))
  return {UNCALIBRATED: [Calibrated.of(part)]} | {
    label: [Calibrated(part, jax.jit(calibrator.apply), [of_fold[label][1][0] for of_fold in of_folds],
                       fold).at_once_if(calibrator.together)]
    for label, (calibrator, _) in of_folds[0].items()}
