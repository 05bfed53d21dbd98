"""Metrics of calibration, selective prediction and detection: pure functions of arrays.

Calibration errors come as functions of any binary pair ``(confidence, correct)`` and as top-label shorthands of
``probs`` ``[..., K]`` and ``labels`` ``[...]``. All take ``where`` (False is ignored), flatten leading axes,
and work under ``jit`` and ``vmap``. Errors are fractions. docs/metrics.md says which to trust.

>>> probs, labels = jnp.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]]), jnp.array([0, 1, 1])
>>> expected_calibration_error(probs, labels).round(3)
Array(0.4, dtype=float32)
>>> expected_calibration_error(probs, labels, where=jnp.array([True, True, False])).round(3)
Array(0.25, dtype=float32)
>>> estimate, low, high = bootstrap(accuracy, probs, labels, key=jax.random.key(0), num_resamples=100)
"""

from calib_jax.intervals.bias_models import CONSERVATIVE, BiasModel, bias_model
from calib_jax.intervals.bootstrap import bootstrap
from calib_jax.intervals.calibration_tests import Assessment, assess, calibration_test, consistency_interval
from calib_jax.intervals.differences import paired_difference
from calib_jax.metrics.binned import Reliability, calibration_error, classwise_calibration_error, reliability
from calib_jax.metrics.class_group_scores import ClassGroupScores, class_group_scores
from calib_jax.metrics.conventions import CONVENTIONS
from calib_jax.metrics.decomposition import CalibrationRefinement, calibration_refinement
from calib_jax.metrics.histogram import CalibrationHistogram, collection
from calib_jax.metrics.ranking import RiskCoverage, aurc, auroc, excess_aurc, fpr_at_tpr, risk_coverage_curve
from calib_jax.metrics.scores import (
  accuracy,
  brier_score,
  classwise_losses,
  mean_entropy,
  nll,
  top_label,
  validate,
)
from calib_jax.metrics.shorthands import (
  adaptive_calibration_error,
  expected_calibration_error,
  maximum_calibration_error,
)
from calib_jax.metrics.statistics import cohens_d, sem, within_subject_sem
from calib_jax.metrics.sweep import sweep_calibration_error
from calib_jax.metrics.unbinned import (
  kde_calibration_error,
  ks_calibration_error,
  smooth_calibration_error,
  two_bin_calibration_error,
)
from calib_jax.metrics.upper_bound import UpperBound, calibration_error_upper

__all__ = ["CONSERVATIVE", "CONVENTIONS", "Assessment", "BiasModel", "CalibrationHistogram", "CalibrationRefinement",
           "ClassGroupScores", "Reliability", "RiskCoverage", "UpperBound", "accuracy", "adaptive_calibration_error",
           "assess", "aurc", "auroc", "bias_model", "bootstrap", "brier_score", "calibration_error",
           "calibration_error_upper", "calibration_refinement", "calibration_test", "class_group_scores",
           "classwise_calibration_error", "classwise_losses", "cohens_d", "collection", "consistency_interval",
           "excess_aurc", "expected_calibration_error", "fpr_at_tpr", "kde_calibration_error", "ks_calibration_error",
           "maximum_calibration_error", "mean_entropy", "nll", "paired_difference", "reliability",
           "risk_coverage_curve", "sem", "smooth_calibration_error", "sweep_calibration_error", "top_label",
           "two_bin_calibration_error", "validate", "within_subject_sem"]


def __dir__() -> list[str]:
  return sorted(__all__)
