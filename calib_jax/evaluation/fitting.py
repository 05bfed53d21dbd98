"""Fits calibrators, applies them, and turns predictions into a table of metrics with intervals."""

from collections.abc import Callable, Mapping, Sequence
import sys

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators
from calib_jax._system.errors import UserError, printable
from calib_jax._system.files import release
from calib_jax.evaluation.measures import measure, per_example
from calib_jax.evaluation.predictions import Predictions
from calib_jax.evaluation.rowwise import Calibrated

# The label of predictions before calibration.
UNCALIBRATED = "none"


# Calibrators by label, each with a list of its params, one element a seed.
Fitted = dict[str, tuple[calibrators.Calibrator, list]]


def fit(validation: Sequence[Predictions], labelled: Mapping[str, calibrators.Calibrator],
        say: Callable[[str], None] = print) -> Fitted:
  """Fits each calibrator to each seed's predictions, and reports fits that stopped before their optimum.

  Args:
    validation: the predictions to fit to, one element a seed.
    labelled: the calibrators by label.
    say: is called with a sentence for each calibrator that is known to hurt on so few examples.

  Returns:
    The calibrators by label, each with its fitted params of every seed.
  """
  for label, calibrator in labelled.items():
    if sentence := calibrators.caution(calibrator, *validation[0].logits.shape):
      say(printable(f"caution: {label}: {sentence}"))
  return _fit(validation, labelled)


def _fit(validation: Sequence[Predictions], labelled: Mapping[str, calibrators.Calibrator]) -> Fitted:
  fitted, on_device = {}, [jnp.asarray(part.logits) for part in validation]
  for part in validation:
    release(part.logits)
  for label, calibrator in labelled.items():
    params = [calibrator.fit(logits, part.labels) for logits, part in zip(on_device, validation, strict=True)]
    unfinished = sum(not p.get("converged", True) for p in params)
    if unfinished:
      print(f"{printable(label)}: {unfinished} of {len(params)} fits stopped before their optimum.", file=sys.stderr)
    fitted[label] = (calibrator, params)
  return fitted


def calibrated(fitted: Fitted, label: str, test: Sequence[Predictions]) -> list[Calibrated]:
  """Returns predictions with one calibrator, which is applied to some rows at a time when they are needed.

  Args:
    fitted: the calibrators and their params, as ``fit`` returns them.
    label: the label of a calibrator, or "none".
    test: the predictions, one element a seed.

  Returns:
    One element a seed.
  """
  if label == UNCALIBRATED:
    return [Calibrated.of(part) for part in test]
  calibrator, params = fitted[label]
  apply_one = jax.jit(calibrator.apply)
  return [Calibrated(part, apply_one, (p,)) for p, part in zip(params, test, strict=True)]


def apply(fitted: Fitted, test: Sequence[Predictions]) -> dict[str, list[Predictions]]:
  """Applies fitted calibrators to predictions.

  Args:
    fitted: the calibrators and their params, as ``fit`` returns them.
    test: the predictions, one element a seed.

  Returns:
    The predictions by label, with those before calibration under the label "none".
  """
  return {label: [_whole(source) for source in calibrated(fitted, label, test)] for label in (UNCALIBRATED, *fitted)}


def _whole(source: Calibrated) -> Predictions:
  logits = np.empty(source.part.logits.shape, np.float32)
  for rows, _, log_probs in source.chunks():
    logits[rows] = log_probs
  return source.part._replace(logits=logits, probs=source.given)


def calibrate(validation: Sequence[Predictions], test: Sequence[Predictions],
              labelled: Mapping[str, calibrators.Calibrator]) -> dict[str, list[Predictions]]:
  """Fits calibrators to ``validation`` and applies them to ``test``.

  Args:
    validation: the predictions to fit to, one element a seed.
    test: the predictions to calibrate, one element a seed.
    labelled: the calibrators by label.

  Returns:
    The predictions by label, with those before calibration under the label "none".

  Raises:
    UserError: if the two have different numbers of classes.
  """
  if validation[0].logits.shape[1] != test[0].logits.shape[1]:
    raise UserError(f"predictions to fit on have {validation[0].logits.shape[1]} classes, those to test on "
                    f"{test[0].logits.shape[1]}.")
  return apply(_fit(validation, labelled), test)


def evaluate(calibrated: Mapping[str, Sequence[Predictions | Calibrated]], *, num_bins: int = 15,
             num_resamples: int = 1000) -> dict[str, dict[str, dict]]:
  """Computes every metric with a bootstrap interval.

  Args:
    calibrated: predictions by label, as ``calibrate`` returns them; test sets of all seeds must have the same size.
    num_bins: the number of bins of calibration errors.
    num_resamples: the number of resamples of the bootstrap.

  Returns:
    ``{calibrator: {metric: {"estimate", "low", "high", "value", "per_seed"}}}``, in fractions and nats. ``value`` is
    the mean of the metric over seeds, and ``per_seed`` has its value for each. ``estimate`` is the same as ``value``
    for means; for calibration errors the bias of the sample is subtracted. ``low`` and ``high`` are a 95% interval, by
    ``metrics.bootstrap`` over test examples, which are drawn jointly for all seeds. It covers the randomness of the
    test set and not that of training. Calibration errors also have ``floor``, their mean for a perfectly calibrated
    model with these confidences, and ``p_value``, the probability of an error as large as this if the model is
    calibrated.
  """
  rows = {label: per_example(parts, num_bins=num_bins) for label, parts in calibrated.items()}
  return measure(rows, num_bins=num_bins, num_resamples=num_resamples)[0]
