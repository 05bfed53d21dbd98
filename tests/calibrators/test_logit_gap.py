"""SMART against float64 references of its network and its objective."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from calib_jax.calibrators import logit_gap
from calib_jax.calibrators.flexible import start_layers
from tests.calibrators.data import made, synthetic

SHAPE = (600, 10)


def _error(probs, labels, weights=None):
  """Charbonnier-SoftECE as the released code computes it: Gaussian weights of the bins' centres, normalised by row."""
  weights = np.full(len(labels), 1.0) if weights is None else weights
  confidence, correct = probs.max(1), probs.argmax(1) == labels
  member = np.exp(-0.5 * ((confidence[:, None] - (np.arange(15) + 0.5) / 15) / 0.05) ** 2)
  member *= (weights / member.sum(1))[:, None]
  mass = member.sum(0)
  gap = (member * (confidence - correct)[:, None]).sum(0) / np.maximum(mass, 1e-12)
  return (mass / weights.sum() * np.sqrt(gap**2 + 1e-6)).sum()


def _temperatures(params, logits):
  ordered = np.sort(logits.astype(np.float64), axis=1)
  x = ((ordered[:, -1] - ordered[:, -2])[:, None] - np.asarray(params["centre"])) / np.asarray(params["unit"])
  for i in range(3):
    layer = {name: np.asarray(value, np.float64) for name, value in params[f"layer_{i}"].items()}
    x = (np.tanh(x) if i else x) @ layer["kernel"] + layer["bias"]
  return float(params["temperature"]) * (0.1 + np.logaddexp(0, x[:, 0] + np.log(np.exp(0.9) - 1)))


def test_the_objective_is_that_of_the_released_code():
  rng = np.random.default_rng(0)
  probs = special.softmax(3 * rng.normal(size=(300, 4)), axis=1)
  labels, weights = rng.integers(0, 4, 300), rng.integers(0, 3, 300).astype(float)
  for counts in (np.ones(300), weights):
    arrays = (jnp.asarray(x, jnp.float32) for x in (probs.max(1), probs.argmax(1) == labels, counts / counts.sum()))
    actual = logit_gap.charbonnier_error(*arrays)
    np.testing.assert_allclose(actual, _error(probs, labels, counts), rtol=1e-4)


def test_a_fit_lowers_the_objective_and_divides_by_the_temperatures_of_the_network():
  logits, labels = synthetic(*SHAPE)
  calibrator = made("smart")
  params = calibrator.fit(logits, labels)
  test = synthetic(*SHAPE, seed=1)[0]
  temperatures = _temperatures(params, test)
  expected = special.log_softmax(test / temperatures[:, None], axis=1)
  np.testing.assert_allclose(calibrator.apply(params, test), expected, rtol=1e-3, atol=1e-4)
  assert params["converged"] and 0 < params["iterations"] < 500 and np.ptp(temperatures) > 0.05
  plain = made("temperature_scaling")
  before, after = (_error(np.exp(np.asarray(c.apply(p, logits), np.float64)), labels)
                   for c, p in ((plain, plain.fit(logits, labels)), (calibrator, params)))
  assert after < 0.9 * before, (before, after)


@pytest.mark.parametrize("factor", [pytest.param(1e-3, marks=pytest.mark.slow), 300.0])
def test_classes_keep_their_order_and_the_scale_of_logits_does_not_matter(factor):
  logits, labels = synthetic(*SHAPE)
  calibrator = made("smart")
  scaled = (factor * logits).astype(np.float32)
  log_probs = np.asarray(calibrator.apply(calibrator.fit(scaled, labels), scaled))
  np.testing.assert_array_equal(log_probs.argmax(1), logits.argmax(1))
  ranked = np.take_along_axis(log_probs, np.argsort(logits, axis=1, kind="stable"), axis=1)
  assert (np.diff(ranked, axis=1) >= -1e-6).all()
  expected = np.asarray(calibrator.apply(calibrator.fit(logits, labels), logits))
  np.testing.assert_allclose(np.exp(log_probs), np.exp(expected), atol=0.02)


def test_the_fit_begins_with_temperature_scaling():
  logits, labels = synthetic(*SHAPE)
  params = made("smart").fit(logits, labels) | start_layers((1, 16, 16), 0, jnp.float32)
  plain = made("temperature_scaling")
  expected = plain.apply(plain.fit(logits, labels), logits)
  np.testing.assert_allclose(made("smart").apply(params, logits), expected, rtol=1e-5, atol=1e-5)
