"""Estimators against a known truth: a Gaussian mixture whose posterior is exact (experiments/estimators)."""

import numpy as np
import pytest

from experiments.estimators import simulation as estimators


def test_the_truth_itself():
  calibrated, overconfident = estimators.truth(1.0), estimators.truth(1.6)
  assert max(calibrated.values()) < 1e-9
  # One large sample, by no estimator at all: the mean of what the gap is known to be.
  x = np.random.default_rng(0).normal(size=1_000_000) + 1
  odds = np.abs(2 * x)
  gap = np.abs(1 / (1 + np.exp(-odds)) - 1 / (1 + np.exp(-1.6 * odds)))
  np.testing.assert_allclose(overconfident["l1"], gap.mean(), rtol=2e-3)
  np.testing.assert_allclose(overconfident["l2"], np.sqrt((gap**2).mean()), rtol=2e-3)
  # Overconfident everywhere: the largest sum of gaps is the whole, and smoothing takes nothing away.
  np.testing.assert_allclose([overconfident["ks"], overconfident["smooth"]], overconfident["l1"], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["equal mass, norm 2, debiased", "KS", "smooth (smECE)"])
def test_estimators_tend_to_the_truth(name):
  estimator, target = estimators.ESTIMATORS[name]
  for sharpness in estimators.SHARPNESS.values():
    truth = estimators.truth(sharpness)[target]
    near, far = (estimators.simulate(estimator, n, sharpness, 60) - truth for n in (8000, 300))
    rms_near, rms_far = (np.sqrt(np.mean(x**2)) for x in (near, far))
    assert rms_near < 0.45 * rms_far and rms_near < 0.015, (sharpness, rms_near, rms_far)
