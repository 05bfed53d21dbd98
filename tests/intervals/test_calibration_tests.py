"""Consistency resampling and p-values, alone and in ``assess``: exact distributions, sizes, dependent rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from calib_jax import metrics
from calib_jax.intervals import calibration_tests

KEY = jax.random.key(0)


def _calibrated(n, seed=0):
  rng = np.random.default_rng(seed)
  confidence = rng.uniform(0.5, 1, n).astype(np.float32)
  return confidence, rng.uniform(size=n) < confidence


def one_bin(confidence, correct, *, where=None):
  """A calibration error with a distribution that can be written down: the gap of the two means."""
  where = jnp.ones(confidence.shape, bool) if where is None else where
  return jnp.abs(jnp.mean(correct.astype(jnp.float32), where=where) - jnp.mean(confidence, where=where))


def test_the_consistency_interval_of_one_bin_is_that_of_the_binomial():
  """|B/n - 0.8| with B binomial, whose mean and quantiles are sums of n + 1 probabilities."""
  n = 60
  mean, low, high = metrics.consistency_interval(one_bin, np.full(n, 0.8, np.float32), key=KEY, num_resamples=20_000)
  chance, gap = stats.binom.pmf(np.arange(n + 1), n, 0.8), np.abs(np.arange(n + 1) / n - 0.8)
  expected = np.sum(chance * gap)
  spread = np.sqrt(np.sum(chance * gap**2) - expected**2)
  np.testing.assert_allclose(mean, expected, atol=5 * spread / np.sqrt(20_000))
  for end, level in ((low, 0.025), (high, 0.975)):
    # The quantile of a discrete distribution: the chance of less, and of at most this, are on either side of the level.
    below, at_most = chance[gap < float(end) - 1e-5].sum(), chance[gap <= float(end) + 1e-5].sum()
    assert below - 0.005 <= level <= at_most + 0.005


def test_p_values_are_uniform_under_the_null():
  confidence, correct = (np.stack(x) for x in zip(*(_calibrated(150, seed) for seed in range(400)), strict=True))

  def p_value(x):
    return metrics.calibration_test(metrics.calibration_error, x[0], x[1], key=x[2], num_resamples=99)

  p = np.sort(jax.jit(lambda *x: jax.lax.map(p_value, x))(confidence, correct, jax.random.split(KEY, 400)))
  # Kolmogorov's distance from the uniform distribution: 1.63 / sqrt(400) is exceeded with a chance of 1%; the p-values
  # are multiples of 1/100.
  distance = np.max(np.abs(np.arange(1, 401) / 400 - p))
  assert distance < 1.63 / 20 + 0.01, distance


def test_redraws_that_equal_the_outcomes_but_for_rounding_count_for_the_p_value():
  assert calibration_tests.p_value_of(np.float32(1), np.float32([1 - 4e-6, 1, 1.1, 0.9])) == 4 / 5


@pytest.mark.slow
def test_outcomes_that_mirror_each_other_have_one_p_value():
  half = np.full(20, 0.5, np.float32)
  exact = stats.binom.cdf(7, 20, 0.5) * 2  # As far from 10 as 7 is, or farther.
  for right in (7, 13):
    correct = np.arange(20) < right
    for p in (metrics.calibration_test(metrics.calibration_error, half, correct, key=KEY, num_resamples=4000),
              metrics.assess(metrics.calibration_error, half, correct, key=KEY, num_resamples=4000).p_value):
      assert abs(p - exact) < 5 * np.sqrt(exact * (1 - exact) / 4000)


def test_no_examples_have_no_error_and_metrics_may_return_arrays():
  actual = metrics.consistency_interval(metrics.calibration_error, np.zeros(0, np.float32), key=KEY, num_resamples=5)
  np.testing.assert_array_equal(actual, 0)
  confidence, correct = _calibrated(100)
  options = {"key": KEY, "num_resamples": 20}

  def several(confidence, correct):
    return jnp.stack([one_bin(confidence, correct), one_bin(confidence**2, correct)])

  assert all(x.shape == (2,) for x in metrics.consistency_interval(several, confidence, **options))
  assert metrics.calibration_test(several, confidence, correct, **options).shape == (2,)
  corrected = metrics.bootstrap(several, confidence, correct, method="bias_corrected", **options)
  assert all(x.shape == (2,) and np.isfinite(x).all() for x in corrected)


@pytest.mark.parametrize(("dependent", "test"), [
  pytest.param("seeds", "assess", marks=pytest.mark.slow), ("groups", "calibration_test")])
def test_a_calibrated_model_of_dependent_entries_is_rejected_as_often_as_said(dependent, test):
  # Five equal entries of each of 150 examples: five seeds, or five rows of a group. If they were redrawn independently,
  # p would be below 5% in 20% of samples of seeds, and in 90% of those of groups.
  of_x, of_y = jax.random.split(jax.random.key(3))
  log_odds = jnp.abs(2 * (1 + jax.random.normal(of_x, (120, 150))))
  correct = jax.random.uniform(of_y, log_odds.shape) < jax.nn.sigmoid(log_odds)
  groups = np.repeat(np.arange(150), 5) if dependent == "groups" else None

  def mean_error(confidence, correct, where=None):
    if confidence.ndim == 1:
      return metrics.calibration_error(confidence, correct, where=where)
    over_seeds = jax.vmap(lambda *x: metrics.calibration_error(*x[:2], where=x[2]), in_axes=1)
    return over_seeds(confidence, correct, jnp.ones(confidence.shape, bool) if where is None else where).mean()

  def p_value(x):
    entries = [jnp.repeat(v[:, None], 5, axis=1) for v in (jax.nn.sigmoid(x[0]), x[1])]
    entries = [v.reshape(-1) for v in entries] if dependent == "groups" else entries
    if test == "assess":
      return metrics.assess(mean_error, *entries, key=x[2], num_resamples=79, groups=groups).p_value
    return metrics.calibration_test(mean_error, *entries, key=x[2], num_resamples=79, groups=groups)

  p_values = jax.lax.map(p_value, (log_odds, correct, jax.random.split(KEY, 120)))
  assert jnp.sum(p_values <= 0.05) <= 14  # At 5%, more have a chance of 1e-3.


@pytest.mark.slow
def test_a_few_unequal_groups_reject_a_calibrated_model_as_often_as_said():
  # With the estimate of the dependence itself, rather than an upper one, p would be below 5% in a tenth of samples.
  groups = np.repeat(np.arange(114), [100] * 4 + [30] * 10 + [3] * 100)

  def p_value(keys):
    confidence = jax.nn.sigmoid(jnp.abs(1.2 + 1.3 * jax.random.normal(keys[0], groups.shape)))
    correct = jax.random.uniform(keys[1], (114,))[groups] < confidence
    return metrics.calibration_test(metrics.calibration_error, confidence, correct, key=keys[2], num_resamples=79,
                                    groups=groups)

  p_values = jax.jit(lambda keys: jax.lax.map(p_value, keys))(jax.random.split(KEY, (500, 3)))
  assert jnp.sum(p_values <= 0.05) <= 41  # At 5%, more have a chance of 9e-4; at 10%, fewer one of a tenth.


@pytest.mark.parametrize("groups", [pytest.param(None, marks=pytest.mark.slow), np.arange(200) // 2])
def test_assess_agrees_with_the_functions_that_it_joins(groups):
  confidence, correct = _calibrated(200)
  correct = correct & (np.arange(200) % 4 > 0)  # Overconfident.
  options = {"key": KEY, "num_resamples": 4000}
  actual = metrics.assess(one_bin, confidence, correct, groups=groups, **options)
  np.testing.assert_allclose(actual.value, abs(correct.mean() - confidence.astype(np.float64).mean()), rtol=1e-5)
  interval = metrics.bootstrap(one_bin, confidence, correct, groups=groups, method="bias_corrected", **options)
  # Moments of 4,000 resamples differ by some 3% between two draws, and with them the half-width of the interval.
  width = float(interval[2] - interval[1])
  np.testing.assert_allclose([actual.estimate, actual.low, actual.high], interval, atol=0.1 * width)
  floor, low, high = metrics.consistency_interval(one_bin, confidence, **options)
  np.testing.assert_allclose(actual.floor, floor, atol=5 * float(high - low) / np.sqrt(4000))
  assert float(actual.p_value) == pytest.approx(1 / 4001)


def test_assess_takes_pairs_of_any_shape():
  confidence, correct = _calibrated(60)
  options = {"key": KEY, "num_resamples": 20}
  actual = metrics.assess(one_bin, confidence.reshape(20, 3), correct.reshape(20, 3), **options)
  np.testing.assert_allclose(actual.value, one_bin(confidence, correct), rtol=1e-5)
  expected = metrics.assess(one_bin, confidence, correct, groups=np.arange(60) // 3, **options)
  np.testing.assert_allclose(actual.estimate, expected.estimate, atol=1e-6)


def test_holm_corrects_for_the_number_of_p_values_that_are_numbers():
  np.testing.assert_allclose(calibration_tests.holm([0.01, 0.04, 0.03, float("nan")]), [0.03, 0.06, 0.06, np.nan])
