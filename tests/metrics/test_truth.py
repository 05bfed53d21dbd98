"""Estimators against a known truth: a Gaussian mixture whose posterior is exact (experiments/estimators.py)."""

import functools

import jax
import numpy as np
import pytest

from calib_jax import metrics
from experiments import estimators

TRUTH = {a: estimators.truth(a) for a in estimators.SHARPNESS.values()}


def test_the_truth_itself():
  calibrated, overconfident = TRUTH[1.0], TRUTH[1.6]
  assert max(calibrated.values()) < 1e-9
  # One large sample, by no estimator at all: the mean of what the gap is known to be.
  x = np.random.default_rng(0).normal(size=4_000_000) + 1
  odds = np.abs(2 * x)
  gap = np.abs(1 / (1 + np.exp(-odds)) - 1 / (1 + np.exp(-1.6 * odds)))
  np.testing.assert_allclose(overconfident["l1"], gap.mean(), rtol=2e-3)
  np.testing.assert_allclose(overconfident["l2"], np.sqrt((gap**2).mean()), rtol=2e-3)
  # Overconfident everywhere: the largest sum of gaps is the whole, and smoothing takes nothing away.
  np.testing.assert_allclose([overconfident["ks"], overconfident["smooth"]], overconfident["l1"], rtol=1e-3)


@pytest.mark.parametrize("name", estimators.ESTIMATORS)
def test_estimators_tend_to_the_truth(name):
  estimator, target = estimators.ESTIMATORS[name]
  for sharpness, truth in TRUTH.items():
    near, far = (estimators.simulate(estimator, n, sharpness, 60) - truth[target] for n in (8000, 300))
    rms_near, rms_far = (np.sqrt(np.mean(x**2)) for x in (near, far))
    assert rms_near < 0.45 * rms_far and rms_near < 0.015, (sharpness, rms_near, rms_far)


def test_plain_binned_errors_lean_up_and_debiasing_mends_most_of_it():
  plain, debiased = (functools.partial(metrics.calibration_error, binning="equal_mass", norm=2, debias=d)
                     for d in (False, True))
  for sharpness, truth in TRUTH.items():
    biases = [np.mean(estimators.simulate(e, 300, sharpness) - truth["l2"]) for e in (plain, debiased)]
    assert biases[0] > 0.025 and abs(biases[1]) < 0.4 * biases[0], biases


DEBIASED = functools.partial(metrics.calibration_error, binning="equal_mass", norm=2, debias=True)


@pytest.mark.parametrize(("metric", "target"), [
  (metrics.ks_calibration_error, "ks"), (metrics.smooth_calibration_error, "smooth"), (DEBIASED, "l2"),
  (metrics.calibration_error, "l1")], ids=["ks", "smooth", "debiased", "equal width"])
def test_the_bootstrap_interval_covers_the_true_error(metric, target):
  truth, n, repeats = TRUTH[1.6][target], 3000, 100
  pairs = estimators.sample(jax.random.key(1), (repeats, n), 1.6)
  covered = 0
  for i in range(repeats):
    _, low, high = metrics.bootstrap(metric, pairs[0][i], pairs[1][i], key=jax.random.key(i), num_resamples=100)
    covered += bool(low <= truth <= high)
  assert 88 <= covered <= 100  # 95 expected, give or take 2.2.


def test_of_a_calibrated_model_only_the_debiased_interval_reaches_down_to_no_error():
  reached = dict.fromkeys((metrics.calibration_error, metrics.smooth_calibration_error, DEBIASED), 0)
  pairs = estimators.sample(jax.random.key(2), (20, 3000), 1.0)
  for metric in reached:
    for i in range(20):
      _, low, _ = metrics.bootstrap(metric, pairs[0][i], pairs[1][i], key=jax.random.key(i), num_resamples=200)
      reached[metric] += bool(low == 0)
  assert list(reached.values())[:2] == [0, 0] and reached[DEBIASED] >= 14, reached


def test_the_bootstrap_of_a_binned_error_leans_up():
  confidence, correct = estimators.sample(jax.random.key(0), (300,), 1.0)
  estimate, low, high = metrics.bootstrap(metrics.calibration_error, confidence, correct, key=jax.random.key(0),
                                          num_resamples=300)
  assert (low + high) / 2 > estimate > 0
