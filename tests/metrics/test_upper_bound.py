"""The upper bound of the calibration error: its formula, and that it holds where the truth is known."""

import numpy as np
import pytest
from scipy import optimize, special

from calib_jax import metrics
from calib_jax.metrics.upper_bound import SHARE


def reference(confidence, correct, level, m):
  """The bound with SciPy's relative entropy and root finding."""
  number, risk = len(confidence), 1 - level
  value = np.rint(np.float64(confidence) * m) / m
  error = sum(abs(np.sum((correct - value)[value == b])) for b in np.unique(value)) / number
  of_sample = min(1, error + np.sqrt(np.log(1 / (SHARE * risk)) / (2 * number)))

  def largest(mean):
    def excess(q):
      return special.rel_entr(mean, q) + special.rel_entr(1 - mean, 1 - q) - np.log(1 / ((1 - SHARE) * risk)) / number

    return 1.0 if mean >= 1 or excess(1 - 1e-12) < 0 else optimize.brentq(excess, mean, 1 - 1e-12, xtol=1e-14)

  furthest = 1 + 0.5 / m
  distance = min(1, largest(min(1, (of_sample + np.abs(confidence - value).mean()) / furthest)) * furthest)
  return largest(of_sample), distance, error


@pytest.mark.parametrize(("number", "level", "m"), [(1, 0.95, 20), (40, 0.9, 5), (3000, 0.95, 20), (3000, 0.999, 1)])
def test_it_equals_the_reference(number, level, m):
  rng = np.random.default_rng(number)
  confidence = rng.beta(4, 1, number)
  correct = rng.uniform(size=number) < confidence - 0.1
  actual = metrics.calibration_error_upper(confidence, correct, level=level, num_values=m)
  np.testing.assert_allclose(actual, reference(confidence, correct, level, m), atol=1e-9)
  assert actual.error <= actual.upper <= 1 and actual.upper <= actual.distance + 1e-12


def test_it_is_one_without_examples_and_what_is_no_probability_is_refused():
  assert metrics.calibration_error_upper(np.zeros(0), np.zeros(0, bool)) == (1, 1, 0)
  assert metrics.calibration_error_upper(np.ones(10), np.zeros(10, bool)).upper == 1
  with pytest.raises(ValueError, match=r"confidence must be in \[0, 1\]"):
    metrics.calibration_error_upper(np.array([0.5, 1.5]), np.array([True, False]))
  with pytest.raises(ValueError, match=r"level must be in \(0, 1\)"):
    metrics.calibration_error_upper(np.array([0.5]), np.array([True]), level=1.0)


def _bumps(c):
  return np.clip(c + 0.2 * np.sign(np.sin(40 * np.pi * c)), 0, 1)  # They cancel within bins of a fifteenth.


TRUTHS = {"calibrated": lambda c: c, "overconfident": lambda c: c - 0.1, "bumps": _bumps,
          "underconfident": lambda c: np.minimum(c + 0.15, 1)}


@pytest.mark.parametrize("truth", TRUTHS)
def test_it_holds_where_the_truth_is_known(truth):
  rng = np.random.default_rng(0)
  grid = np.linspace(0.5, 1, 2_000_001)
  value = np.rint(20 * grid)
  of_values = np.bincount(value.astype(int), TRUTHS[truth](grid) - value / 20)
  error = np.abs(of_values).sum() / len(grid)
  for number in (50, 2000):
    bounds = []
    for _ in range(300):
      confidence = rng.uniform(0.5, 1, number)
      bounds.append(metrics.calibration_error_upper(confidence, rng.uniform(size=number) < TRUTHS[truth](confidence)))
    assert np.mean([bound.upper < error for bound in bounds]) <= 0.05
  assert np.mean([bound.upper for bound in bounds]) < error + 0.09  # Of 2,000 examples.
