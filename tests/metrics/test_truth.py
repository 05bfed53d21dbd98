"""Estimators against a known truth: a Gaussian mixture whose posterior is exact (experiments/estimators)."""

import functools

import jax
import numpy as np
import pytest

from calib_jax import metrics
from experiments.estimators import simulation as estimators


def test_the_truth_itself():
  calibrated, overconfident = estimators.truth(1.0), estimators.truth(1.6)
  assert max(calibrated.values()) < 1e-9
  # One large sample, by no estimator at all: the mean of what the gap is known to be.
  x = np.random.default_rng(0).normal(size=4_000_000) + 1
  odds = np.abs(2 * x)
  gap = np.abs(1 / (1 + np.exp(-odds)) - 1 / (1 + np.exp(-1.6 * odds)))
  np.testing.assert_allclose(overconfident["l1"], gap.mean(), rtol=2e-3)
  np.testing.assert_allclose(overconfident["l2"], np.sqrt((gap**2).mean()), rtol=2e-3)
  # Overconfident everywhere: the largest sum of gaps is the whole, and smoothing takes nothing away.
  np.testing.assert_allclose([overconfident["ks"], overconfident["smooth"]], overconfident["l1"], rtol=1e-3)


FAST = ("ECE, 15 equal-width bins", "equal mass, norm 2, debiased", "KS")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST))
                                  for name in estimators.ESTIMATORS])
def test_estimators_tend_to_the_truth(name):
  estimator, target = estimators.ESTIMATORS[name]
  for sharpness in estimators.SHARPNESS.values():
    truth = estimators.truth(sharpness)[target]
    near, far = (estimators.simulate(estimator, n, sharpness, 60) - truth for n in (8000, 300))
    rms_near, rms_far = (np.sqrt(np.mean(x**2)) for x in (near, far))
    assert rms_near < 0.45 * rms_far and rms_near < 0.015, (sharpness, rms_near, rms_far)


def test_plain_binned_errors_are_biased_upwards_and_debiasing_removes_most_of_it():
  for sharpness in estimators.SHARPNESS.values():
    truth = estimators.truth(sharpness)["l2"]
    plain, debiased = (np.mean(estimators.simulate(estimators.ESTIMATORS[name][0], 300, sharpness) - truth)
                       for name in ("equal mass, norm 2", "equal mass, norm 2, debiased"))
    assert plain > 0.025 and abs(debiased) < 0.4 * plain, (plain, debiased)


# Optimised whatever the other tests are: this runs longer than it compiles.
@functools.partial(jax.jit, static_argnums=(0, 1, 2, 4, 5), compiler_options={"xla_backend_optimization_level": 3})
def _intervals(metric, repeats, size, sharpness, num_resamples, seed):
  """Estimates and bootstrap intervals ``[repeats]`` of samples of ``size``, in one program."""
  pairs = estimators.sample(jax.random.key(seed), (repeats, size), sharpness)

  def interval(x):
    return metrics.bootstrap(metric, x[0], x[1], key=x[2], num_resamples=num_resamples)

  return jax.lax.map(interval, (*pairs, jax.random.split(jax.random.key(seed), repeats)))


NAMES = {"ks": "KS", "smooth": "smooth (smECE)", "debiased": "equal mass, norm 2, debiased",
         "equal width": "ECE, 15 equal-width bins"}


@pytest.mark.parametrize(("name", "repeats"), [
  ("equal width", 60), *(pytest.param(*case, marks=pytest.mark.slow) for case in (
    ("ks", 100), ("debiased", 100), ("smooth", 40)))])
def test_the_bootstrap_interval_covers_the_true_error(name, repeats):
  metric, target = estimators.ESTIMATORS[NAMES[name]]
  _, low, high = _intervals(metric, repeats, 3000, 1.6, 60, 1)
  truth = estimators.truth(1.6)[target]
  # 95% are expected, with a standard error of 2.2% for 100 repeats, 2.8% for 60 and 3.4% for 40.
  assert np.mean((low <= truth) & (truth <= high)) >= (0.85 if repeats < 100 else 0.88)


@pytest.mark.slow
def test_of_a_calibrated_model_only_the_debiased_interval_reaches_down_to_no_error():
  reached = {name: np.sum(_intervals(estimators.ESTIMATORS[NAMES[name]][0], 20, 3000, 1.0, 100, 2)[1] == 0)
             for name in ("equal width", "smooth", "debiased")}
  assert reached["equal width"] == reached["smooth"] == 0 and reached["debiased"] >= 14, reached


def test_the_middle_of_a_binned_errors_interval_is_above_the_estimate():
  estimate, low, high = _intervals(metrics.calibration_error, 1, 300, 1.0, 300, 0)
  assert (low + high) / 2 > estimate > 0
