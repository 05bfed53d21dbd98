"""No metric that sorts its examples depends on their order, however many of them tie."""

import jax
import numpy as np
import pytest

from calib_jax import metrics
from calib_jax._numerics.sorting import shared_count
from calib_jax.metrics.histogram import CalibrationHistogram
from tests.metrics import references

# Sums over examples, and what is another metric of the top label.
SUMS = {"accuracy", "adaptive_calibration_error", "brier_score", "class_group_scores", "classwise_losses",
        "expected_calibration_error", "kde_calibration_error", "maximum_calibration_error", "mean_entropy", "nll"}
# The folds of ``calibration_refinement`` are of rows, so that it depends on their order.
NOT_METRICS = {"Assessment", "BiasModel", "CONSERVATIVE", "CalibrationRefinement", "ClassGroupScores", "Reliability",
               "RiskCoverage", "UpperBound", "assess", "bias_model", "bootstrap",
               "calibration_error_upper", "calibration_refinement", "calibration_test", "cohens_d", "collection",
               "consistency_interval", "paired_difference", "sem", "top_label", "validate", "within_subject_sem"}


@jax.jit
def _sorted(probs, labels):
  """Every metric of predictions of two classes that sorts them, by name."""
  confidence, correct = metrics.top_label(probs, labels)
  values = {name: getattr(metrics, name)(confidence, correct, binning="equal_mass") for name in (
    "calibration_error", "sweep_calibration_error", "reliability")}
  values |= {name: getattr(metrics, name)(confidence, correct) for name in (
    "ks_calibration_error", "smooth_calibration_error", "two_bin_calibration_error", "aurc", "excess_aurc",
    "risk_coverage_curve", "auroc", "fpr_at_tpr")}
  values["classwise_calibration_error"] = metrics.classwise_calibration_error(probs, labels, binning="equal_mass")
  values["CalibrationHistogram"] = CalibrationHistogram.from_model_output(probs=probs, labels=labels).compute()
  values["CONVENTIONS"] = [metrics.CONVENTIONS[name](confidence, correct)
                           for name in ("uncertainty_calibration", "adafocal")]
  return values


def _predictions(distinct):
  """Two-class predictions with so many different confidences; too many are right below 0.75, too few above."""
  rng = np.random.default_rng(0)
  levels = np.linspace(0.52, 0.98, distinct) if distinct > 1 else np.array([0.8])
  top = levels[rng.integers(0, distinct, 600)].astype(np.float32)
  labels = (rng.uniform(size=600) < 0.75 + 0.5 * (top - 0.75)).astype(np.int32)
  return np.stack([1 - top, top], axis=1), labels


def test_every_metric_that_sorts_is_invariant_to_permutations():
  for distinct in (10, 1):
    probs, labels = _predictions(distinct)
    # One order has the wrong examples of each tie first, and one the right ones.
    orders = [np.lexsort((labels, probs[:, 1])), np.lexsort((1 - labels, probs[:, 1])),
              np.random.default_rng(1).permutation(len(labels))]
    expected, *permuted = (_sorted(probs[order], labels[order]) for order in orders)
    for values in permuted:
      for name in expected:
        for a, b in zip(jax.tree.leaves(values[name]), jax.tree.leaves(expected[name]), strict=True):
          # Sums near 1 that are rounded in another order. The smooth error is accurate to 1e-4 of its value.
          np.testing.assert_allclose(a, b, rtol=2e-4 if "smooth" in name else 2e-5, atol=3e-6, err_msg=name)
  assert expected.keys() | SUMS | NOT_METRICS == set(metrics.__all__)


@pytest.mark.parametrize("name", ["sweep_calibration_error", "ks_calibration_error"])
def test_ties_may_keep_their_order(name):
  probs, labels = _predictions(10)
  expected = getattr(references, name)(probs[:, 1], labels == 1, ties="order")
  np.testing.assert_allclose(getattr(metrics, name)(probs[:, 1], labels == 1, ties="order"), expected, rtol=1e-5)


def test_a_sweep_may_end_at_more_bins_than_it_computes_together():
  confidence, correct = np.linspace(0.01, 0.99, 1500, dtype=np.float32), np.arange(1500) >= 450
  expected = np.sqrt(np.mean((correct - confidence.astype(np.float64)) ** 2))  # In this order, a bin an example.
  np.testing.assert_allclose(metrics.sweep_calibration_error(confidence, correct), expected, rtol=1e-5)


def test_the_share_of_a_tie_is_exact_where_the_product_exceeds_32_bits():
  rng = np.random.default_rng(0)
  size = rng.integers(1, 100_000_000, 1000)
  taken, correct = (rng.integers(0, size + 1).astype(np.int32) for _ in range(2))
  whole, fraction = shared_count(taken, correct, size.astype(np.int32), np.float32)
  exact = [(int(t) * int(c) - int(w) * int(s)) / int(s)
           for t, c, s, w in zip(taken, correct, size, np.asarray(whole), strict=True)]
  np.testing.assert_allclose(fraction, exact, rtol=1e-6, atol=1e-6)
  assert np.max(np.abs(fraction)) < 25
