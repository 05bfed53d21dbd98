"""Percentile intervals: their levels, their coverage of skewed means, and that JAX and NumPy agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from calib_jax import metrics
from calib_jax.intervals import percentiles


def _ends(values, estimate, count, level):
  """The definition for a vector of finite values, in float64."""
  shift = stats.norm.ppf(np.mean(values < estimate) + np.mean(values == estimate) / 2)
  skewness = stats.skew(values) / 6
  z = stats.t.ppf((1 + level) / 2, count - 1) * np.sqrt(count / (count - 1))
  moved = [stats.norm.cdf(shift + (shift + x) / (1 - skewness * (shift + x))) for x in (-z, z)]
  low, high = min(moved[0], stats.norm.cdf(-z)), max(moved[1], stats.norm.cdf(z))
  return np.quantile(values, [low, high], method="weibull")


@pytest.mark.parametrize("count", [8, 500])
def test_ends_are_those_of_the_definition(count):
  rng = np.random.default_rng(0)
  values = rng.gamma(9, size=(999, 2))
  values[:100, 1] = 8.0  # Ties with the estimate.
  values, estimate = np.concatenate([values, -values], axis=1), np.array([8.5, 8.0, -8.5, -8.0])
  expected = np.stack([_ends(x, e, count, 0.9) for x, e in zip(values.T, estimate, strict=True)], axis=1)
  np.testing.assert_allclose(percentiles.ends(values, estimate, count, 0.9), expected, rtol=1e-10)
  actual = jax.jit(percentiles.ends, static_argnums=(2, 3))(*map(np.float32, (values, estimate)), count, 0.9)
  np.testing.assert_allclose(actual, expected, rtol=1e-4)


def test_what_is_no_number_is_left_out_and_extremes_stay_finite():
  values = np.random.default_rng(0).normal(size=200)
  holed = np.concatenate([values, np.full(50, np.nan)])[:, None]
  np.testing.assert_allclose(percentiles.ends(holed, np.zeros(1), 50, 0.95),
                             np.array(percentiles.ends(values[:, None], np.zeros(1), 50, 0.95)), rtol=1e-12)
  assert np.isnan(percentiles.ends(np.full((9, 1), np.nan), np.zeros(1), 9, 0.95)).all()
  for estimate in (-1e4, 1e4):  # Beyond all resamples.
    low, high = percentiles.ends(1e4 * values, np.float64(estimate), 50, 0.95)
    assert values.min() <= low / 1e4 < high / 1e4 <= values.max()
  np.testing.assert_array_equal(percentiles.ends(np.ones(9), np.float64(1), 1, 0.95), 1)  # One example.
  with_infinity = np.append(values, np.inf)
  assert np.isfinite(percentiles.ends(with_infinity, np.float64(0), 50, 0.5)).all()


def test_intervals_of_a_skewed_mean_of_few_groups_hold_the_truth():
  # Thirty exponential variables, thrice each: plain quantiles hold the mean in 90.6% of these samples.
  groups = np.repeat(np.arange(30), 3)

  def interval(key):
    of_x, of_resamples = jax.random.split(key)
    x = jnp.repeat(jax.random.exponential(of_x, (30,)), 3)
    return metrics.bootstrap(jnp.mean, x, key=of_resamples, num_resamples=200, groups=groups)

  _, low, high = jax.jit(lambda keys: jax.lax.map(interval, keys))(jax.random.split(jax.random.key(0), 1000))
  assert jnp.mean((low <= 1) & (high >= 1)) >= 0.93
