"""No metric depends on the order of its examples, however many of them tie."""

import jax
import numpy as np
import pytest

from calib_jax import metrics
from calib_jax._numerics.sorting import shared_count
from calib_jax.metrics.histogram import CalibrationHistogram
from tests.metrics import references

N = 3000
BINNED = [{"binning": binning, "norm": norm} for binning in ("equal_width", "equal_mass") for norm in (1, 2, "max")]


def _everything(probs, labels):
  """Every metric of predictions of two classes, by name."""
  confidence, correct = metrics.top_label(probs, labels)
  values = {f"calibration_error {options}": metrics.calibration_error(confidence, correct, **options)
            for options in (*BINNED, *({"binning": "equal_mass"} | o for o in (
              {"form": "label"}, {"debias": True, "norm": 2}, {"sign": "over"}, {"sign": "under"})))}
  values |= {f"classwise_calibration_error {options}": metrics.classwise_calibration_error(probs, labels, **options)
             for options in BINNED}
  values |= {f"sweep_calibration_error {b}": metrics.sweep_calibration_error(confidence, correct, binning=b)
             for b in ("equal_width", "equal_mass")}
  values |= {f"reliability {field}": value for field, value in metrics.reliability(
    confidence, correct, binning="equal_mass")._asdict().items()}
  values |= {f"CalibrationHistogram {name}": value for name, value in CalibrationHistogram.from_model_output(
    probs=probs, labels=labels).compute().items()}
  for name in ("expected_calibration_error", "maximum_calibration_error", "adaptive_calibration_error", "accuracy",
               "nll", "brier_score", "mean_entropy", "classwise_losses"):
    values[name] = getattr(metrics, name)(probs, labels)
  for name in ("ks_calibration_error", "smooth_calibration_error"):
    values[name] = getattr(metrics, name)(confidence, correct)
  values |= {f"class_group_scores {field}": value for field, value in metrics.class_group_scores(
    probs, labels, np.array([5, 9]))._asdict().items()}
  values["kde_calibration_error"] = metrics.kde_calibration_error(probs, labels, bandwidth=0.1)
  for name in ("aurc", "excess_aurc", "risk_coverage_curve"):
    values[name] = getattr(metrics, name)(confidence, correct)
  for name in ("auroc", "fpr_at_tpr"):
    values[name] = getattr(metrics, name)(confidence, correct)
  values |= {f"CONVENTIONS {name}": rule(confidence, correct) for name, rule in metrics.CONVENTIONS.items()
             if callable(rule)}  # The others are options, one of which keeps the order of ties as its authors do.
  return values


def test_every_public_metric_is_among_them():
  # The folds of ``calibration_refinement`` are of rows, so that it depends on their order.
  not_metrics = {"Assessment", "BiasModel", "CONSERVATIVE", "CalibrationRefinement", "ClassGroupScores", "Reliability",
                 "RiskCoverage", "assess", "bias_model", "bootstrap", "calibration_refinement", "calibration_test",
                 "cohens_d", "collection", "consistency_interval", "paired_difference", "sem", "top_label",
                 "top_label_from_features", "validate", "VariationalError", "variational_calibration_error",
                 "within_subject_sem"}
  shapes = jax.ShapeDtypeStruct((N, 2), np.float32), jax.ShapeDtypeStruct((N,), np.int32)
  tested = {name.split()[0] for name in jax.eval_shape(_everything, *shapes)}
  assert tested == set(metrics.__all__) - not_metrics


def _predictions(distinct, seed=0):
  """Two-class predictions with so many different confidences; too many are right below 0.75, too few above."""
  rng = np.random.default_rng(seed)
  levels = np.linspace(0.52, 0.98, distinct) if distinct > 1 else np.array([0.8])
  top = levels[rng.integers(0, distinct, N)].astype(np.float32)
  labels = (rng.uniform(size=N) < 0.75 + 0.5 * (top - 0.75)).astype(np.int32)
  return np.stack([1 - top, top], axis=1), labels


@pytest.mark.parametrize("distinct", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_every_metric_is_invariant_to_permutations(distinct):
  probs, labels = _predictions(distinct)
  # One order has the wrong examples of each tie first, and one the right ones.
  orders = [np.lexsort((labels, probs[:, 1])), np.lexsort((1 - labels, probs[:, 1])),
            np.random.default_rng(1).permutation(N)]
  compiled = jax.jit(_everything)
  first, *others = (compiled(probs[order], labels[order]) for order in orders)
  for other in others:
    for name, value in first.items():
      # Sums of N terms near 1 that are rounded in another order. The smooth error is accurate to 1e-4 of its value.
      rtol = 2e-4 if "smooth" in name else 2e-5
      np.testing.assert_allclose(other[name], value, rtol=rtol, atol=3e-6, err_msg=f"{distinct} {name}")


@pytest.mark.parametrize("ties", ["share", "order"])
@pytest.mark.parametrize("distinct", [10, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["sweep_calibration_error", "ks_calibration_error", "calibration_error"])
def test_either_rule_is_that_of_the_reference(name, distinct, ties):
  probs, labels = _predictions(distinct)
  options = {"ties": ties} | ({"binning": "equal_mass"} if name == "calibration_error" else {})
  actual = getattr(metrics, name)(probs[:, 1], labels == 1, **options)
  if (name, distinct, ties) == ("sweep_calibration_error", 1, "share"):
    # Shares of a single tie never fall, so that there are N bins of one gap; the reference takes long to count to N.
    expected = abs(np.mean(labels == 1) - probs[0, 1])
  else:
    expected = getattr(references, name)(probs[:, 1], labels == 1, **options)
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6)


def test_the_share_of_a_tie_is_exact_where_the_product_exceeds_32_bits():
  rng = np.random.default_rng(0)
  size = rng.integers(1, 100_000_000, 1000)
  taken, correct = (rng.integers(0, size + 1).astype(np.int32) for _ in range(2))
  whole, fraction = shared_count(taken, correct, size.astype(np.int32), np.float32)
  exact = [(int(t) * int(c) - int(w) * int(s)) / int(s)
           for t, c, s, w in zip(taken, correct, size, np.asarray(whole), strict=True)]
  np.testing.assert_allclose(fraction, exact, rtol=1e-6, atol=1e-6)
  assert np.max(np.abs(fraction)) < 25
