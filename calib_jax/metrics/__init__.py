"""Metrics of calibration and accuracy: pure functions of ``probs`` ``[..., K]`` and ``labels`` ``[...]``.

Calibration errors come as functions of any binary pair ``(confidence, correct)`` and as top-label shorthands. All take
``where`` (False counts for nothing), flatten leading axes, and work under ``jit`` and ``vmap``. Errors are fractions.

>>> probs, labels = jnp.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]]), jnp.array([0, 1, 1])
>>> expected_calibration_error(probs, labels).round(3)
Array(0.4, dtype=float32)
>>> expected_calibration_error(probs, labels, where=jnp.array([True, True, False])).round(3)
Array(0.25, dtype=float32)
>>> estimate, low, high = bootstrap(accuracy, probs, labels, key=jax.random.key(0), num_resamples=100)
"""

from calib_jax.metrics.binned import (
  Reliability,
  adaptive_calibration_error,
  calibration_error,
  expected_calibration_error,
  maximum_calibration_error,
  reliability,
)
from calib_jax.metrics.intervals import bootstrap
from calib_jax.metrics.scores import accuracy, brier_score, nll, top_label

__all__ = ["Reliability", "accuracy", "adaptive_calibration_error", "bootstrap", "brier_score", "calibration_error",
           "expected_calibration_error", "maximum_calibration_error", "nll", "reliability", "top_label"]
