"""The averaged two-bin error: its integral in float64, and the law that the truth is best in expectation."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics


def reference(confidence, correct, weights=None):
  """The integral over q, a sum over the intervals between different confidences."""
  c, a = np.float64(confidence), np.float64(correct)
  w = np.ones_like(c) if weights is None else np.float64(weights)
  gap, total, ends = w * (c - a), w.sum(), np.unique(np.concatenate([[0.0], c, [1.0]]))
  return sum((high - low) * (gap[c < (low + high) / 2].sum() ** 2 + gap[c >= (low + high) / 2].sum() ** 2)
             for low, high in itertools.pairwise(ends)) / total**2


def _pairs(number, seed=0):
  rng = np.random.default_rng(seed)
  confidence = np.round(rng.uniform(size=number), 2 if seed % 2 else 6).astype(np.float32)  # With ties, and without.
  return confidence, rng.uniform(size=number) < confidence


@pytest.mark.parametrize("number", [1, 2, 7, 400])
def test_it_equals_the_reference_with_masks_credits_and_weights(number):
  for seed in (0, 1):
    confidence, correct = _pairs(number, seed)
    rng = np.random.default_rng(seed)
    credit, weights = rng.uniform(size=number).astype(np.float32), rng.integers(0, 3, number).astype(np.float32) + 1
    error = metrics.two_bin_calibration_error
    np.testing.assert_allclose(error(confidence, correct), reference(confidence, correct), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(error(confidence, credit), reference(confidence, credit), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(error(confidence, correct, weights=weights), reference(confidence, correct, weights),
                               rtol=1e-5, atol=1e-9)
    longer = np.append(confidence, np.nan).astype(np.float32), np.append(correct, True)
    where = np.append(np.ones(number, bool), False)
    np.testing.assert_allclose(jax.jit(error)(*longer, where=where), reference(confidence, correct), rtol=1e-5,
                               atol=1e-9)


def test_nothing_and_certain_confidences_are_finite():
  assert metrics.two_bin_calibration_error(jnp.array([]), jnp.array([], bool)) == 0
  assert metrics.two_bin_calibration_error(jnp.array([1.0, 0.0]), jnp.array([True, False])) == 0
  np.testing.assert_allclose(metrics.two_bin_calibration_error(jnp.ones(5), jnp.zeros(5, bool)), 1)


def test_no_report_has_a_lower_expectation_than_the_truth_and_a_false_one_lowers_the_ece():
  """The expectation over all 2^6 labels, exactly: for the truth it is Σ p (1 - p) / N²."""
  rng = np.random.default_rng(0)
  truth = rng.uniform(0.1, 0.9, 6)
  labels = np.array(list(itertools.product([0, 1], repeat=6)))
  chances = np.prod(np.where(labels, truth, 1 - truth), axis=1)

  def expected(report):
    return chances @ [reference(report, y) for y in labels]

  of_truth = expected(truth)
  np.testing.assert_allclose(of_truth, np.sum(truth * (1 - truth)) / 36, rtol=1e-10)
  others = [np.clip(truth + scale * rng.normal(size=6), 0, 1) for scale in (0.01, 0.1, 0.5) for _ in range(20)]
  assert min(expected(report) - of_truth for report in others) > 1e-7
  np.testing.assert_allclose(expected(np.full(6, truth.mean())), of_truth, rtol=1e-10)  # It is less, and not false.

  def expected_ece(report):
    return chances @ [float(metrics.calibration_error(np.float32(report), y)) for y in labels]

  assert expected_ece(np.full(6, truth.mean())) < 0.7 * expected_ece(truth)  # One bin has less noise than six.


@pytest.mark.slow
def test_its_test_of_calibration_holds_its_level_and_sees_overconfidence():
  rejected = {0.0: 0, 0.08: 0}
  for shift in rejected:
    for seed in range(60):
      rng = np.random.default_rng(seed)
      confidence = rng.uniform(0.5, 1, 400).astype(np.float32)
      correct = rng.uniform(size=400) < confidence - shift
      p_value = metrics.calibration_test(metrics.two_bin_calibration_error, confidence, correct,
                                         key=jax.random.key(seed), num_resamples=200)
      rejected[shift] += float(p_value) <= 0.05
  assert rejected[0.0] <= 8 and rejected[0.08] >= 40
