"""The paired difference of two models: its resamples, its sign, and its coverage of the truth."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics
from tests.intervals.test_calibration_tests import one_bin

KEY = jax.random.key(0)


def _binary(num_repeats, size, key=1):
  """Log-odds of the predicted class under the posterior, and whether it is right: a calibrated model of two classes."""
  of_x, of_y = jax.random.split(jax.random.key(key))
  log_odds = jnp.abs(2 * (1 + jax.random.normal(of_x, (num_repeats, size))))
  return log_odds, jax.random.uniform(of_y, log_odds.shape) < jax.nn.sigmoid(log_odds)


def test_the_paired_difference_is_that_of_the_same_resamples():
  rng = np.random.default_rng(0)
  difficulty, noise = rng.normal(size=500), 0.1 * rng.normal(size=500)
  a, b = (difficulty + 0.05 + noise).astype(np.float32), difficulty.astype(np.float32)
  difference, low, high = metrics.paired_difference(jnp.mean, [a], [b], key=KEY, num_resamples=4000)
  np.testing.assert_allclose(difference, np.mean(a.astype(np.float64) - b), atol=1e-6)
  half = 1.96 * np.std(a - b) / np.sqrt(500)  # Much less than that of either mean.
  np.testing.assert_allclose([difference - low, high - difference], half, rtol=0.1)
  swapped = metrics.paired_difference(jnp.mean, [b], [a], key=KEY, num_resamples=4000, method="percentile")
  np.testing.assert_allclose(swapped, [-difference, -high, -low], atol=1e-6)


@pytest.mark.slow
def test_intervals_of_the_difference_of_two_errors_hold_the_true_difference():
  # A calibrated model against one that is 1.6 times overconfident. Quantiles of the difference hold the truth in 33 of
  # these samples, of the debiased error, whose interval is that of the error with its bias.
  log_odds, correct = _binary(60, 500)
  options = {"binning": "equal_mass", "norm": 2, "debias": True}
  error, bias = (of(metrics.calibration_error, **options) for of in (functools.partial, metrics.bias_model))

  def interval(x):
    log_odds, correct, key = x
    models = [(jax.nn.sigmoid(a * log_odds), correct) for a in (1.0, 1.6)]
    return metrics.paired_difference(error, *models, key=key, num_resamples=60, bias=bias)

  _, low, high = jax.lax.map(interval, (log_odds, correct, jax.random.split(KEY, 60)))
  odds = np.asarray(_binary(1, 500_000, key=2)[0], np.float64)
  truth = -np.sqrt(np.mean((1 / (1 + np.exp(-1.6 * odds)) - 1 / (1 + np.exp(-odds)))**2))
  assert jnp.sum((low <= truth) & (truth <= high)) >= 51  # At 95%, fewer have a chance of 1e-3.


def test_the_difference_of_two_errors_changes_its_sign_with_their_order_and_is_0_for_one_model():
  log_odds, correct = (x[0] for x in _binary(1, 400))
  a, b = [(jax.nn.sigmoid(scale * log_odds), correct) for scale in (1.0, 2.0)]
  forth, back, same = (metrics.paired_difference(metrics.calibration_error, *pair, key=KEY, num_resamples=50)
                       for pair in ((a, b), (b, a), (a, a)))
  np.testing.assert_allclose(forth, [-back[0], -back[2], -back[1]], atol=1e-6)
  np.testing.assert_array_equal(same, 0)


def test_the_difference_of_debiased_errors_is_that_of_the_errors_with_their_bias():
  log_odds, correct = (x[0] for x in _binary(1, 400))
  a, b = [(jax.nn.sigmoid(scale * log_odds), correct) for scale in (1.0, 2.0)]
  of_bias = metrics.paired_difference(lambda confidence, correct: 0.0, a, b, key=KEY, num_resamples=20,
                                      bias=metrics.BiasModel(with_bias=one_bin))
  expected = metrics.paired_difference(one_bin, a, b, key=KEY, num_resamples=20, bias=metrics.CONSERVATIVE)
  np.testing.assert_allclose(of_bias, expected, rtol=1e-6)
