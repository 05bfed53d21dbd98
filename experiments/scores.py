"""The scores of saved predictions: a row for each calibrator and seed."""

from collections.abc import Mapping, Sequence
import functools

import jax
import jax.numpy as jnp

from calib_jax import calibrators, evaluation, metrics
from calib_jax.evaluation.tables import UNCALIBRATED

RESAMPLES = 100  # Resamples for the correction, the noise floor and the p-value of the ECE.
CALIBRATION = {
  "ece": metrics.calibration_error,
  "ece_equal_mass_l2": functools.partial(metrics.calibration_error, binning="equal_mass", norm=2),
  "adaptive": functools.partial(metrics.calibration_error, binning="equal_mass"),
  "mce": functools.partial(metrics.calibration_error, norm="max"),
  "ks": metrics.ks_calibration_error,
}
# The columns of a row. ``ece_corrected`` is the ECE minus its bias; ``floor`` is the ECE that a perfectly calibrated
# model with these confidences would have, and ``p_value`` the probability of such an ECE if the model is calibrated.
COLUMNS = ("accuracy", "nll", "brier", *CALIBRATION, "classwise", "aurc", "ece_corrected", "floor", "p_value")


def _ece(confidence: jax.Array, correct: jax.Array, *, where: jax.Array | None = None) -> jax.Array:
  return metrics.calibration_error(confidence, correct, where=where)


@jax.jit
def _plain(logits: jax.Array, labels: jax.Array) -> tuple[dict[str, jax.Array], jax.Array, jax.Array]:
  probs = jax.nn.softmax(logits)
  confidence, correct = metrics.top_label(probs, labels)
  errors = {name: error(confidence, correct) for name, error in CALIBRATION.items()}
  risk = (~correct).astype(jnp.float32)
  values = {"accuracy": jnp.mean(correct, dtype=jnp.float32), "nll": metrics.nll(probs, labels),
            "brier": metrics.brier_score(probs, labels), **errors, "aurc": metrics.aurc(confidence, risk),
            "classwise": metrics.classwise_calibration_error(probs, labels)}
  return values, confidence, correct


def scored(logits: jax.Array, labels: jax.Array) -> dict[str, float]:
  """Returns the values of ``COLUMNS`` for one model, as fractions and nats; nan where its logits are not finite."""
  if not bool(jnp.all(jnp.isfinite(logits))):
    return dict.fromkeys(COLUMNS, float("nan"))
  values, confidence, correct = _plain(logits, labels)
  found = metrics.assess(_ece, confidence, correct, key=jax.random.key(0), num_resamples=RESAMPLES)
  values |= {"ece_corrected": found.estimate, "floor": found.floor, "p_value": found.p_value}
  return {name: float(values[name]) for name in COLUMNS}


def calibrated(validation: Sequence[evaluation.Predictions], test: Sequence[evaluation.Predictions],
               sections: Mapping[str, Mapping]) -> list[tuple[str, int, dict[str, float]]]:
  """Scores models before and after each calibrator.

  Args:
    validation: the predictions to fit to, one element a seed.
    test: the predictions to score, one element a seed.
    sections: the calibrators by label, each a dict of its ``name`` and options.
  Returns: ``(label, index of the seed, scores)``; those without a calibrator have the label "none".
  """
  found = []
  for label, section in {UNCALIBRATED: {"name": "identity"}, **sections}.items():
    calibrator = calibrators.get(**section)
    for i, (held_out, part) in enumerate(zip(validation, test, strict=True)):
      params = calibrator.fit(held_out.logits, held_out.labels)
      found.append((label, i, scored(calibrator.apply(params, part.logits), part.labels)))
  return found
