"""The joint calibration of an ensemble's members, against its formula in float64."""

import jax
import numpy as np
import pytest
from scipy import optimize, special

from calib_jax import calibrators

M, N, K = 4, 400, 5


def _members(disagreement=1.0, scale=2.0, seed=0):
  rng = np.random.default_rng(seed)
  true = rng.normal(size=(N, K))
  labels = (true + rng.gumbel(size=(N, K))).argmax(1)
  return (scale * (true + disagreement * rng.normal(size=(M, N, K)))).astype(np.float32), labels


def _probs(logits, confidence, disagreement):
  z = special.log_softmax(np.asarray(logits, np.float64), axis=-1)
  mean = z.mean(0)
  return special.softmax((mean + disagreement * (z - mean)) / confidence, axis=-1).mean(0)


def _nll(x, logits, labels):
  return -np.mean(np.log(_probs(logits, np.exp(x[0]), x[1])[np.arange(len(labels)), labels]))


@pytest.mark.parametrize(("disagreement", "scale"), [(0.3, 3.0), (1.0, 2.0), (2.0, 0.7)])
def test_the_constants_are_those_of_the_lowest_nll_and_probabilities_those_of_the_formula(disagreement, scale):
  logits, labels = _members(disagreement, scale)
  calibrator = calibrators.joint_ensemble_scaling()
  params = calibrator.fit(logits, labels)
  c1, c2 = float(params["confidence"]), float(params["disagreement"])
  least = min(optimize.minimize(_nll, (0.0, start), (logits, labels), bounds=[(-5, 5), (0, None)]).fun
              for start in (0.0, 0.5, 1.0, 3.0))
  assert params["converged"] and c2 >= 0 and _nll((np.log(c1), c2), logits, labels) <= least + 1e-5
  log_probs = calibrator.apply(params, logits)
  np.testing.assert_allclose(np.exp(log_probs), _probs(logits, c1, c2), rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(calibrator.fitted(logits, labels)(logits), log_probs, rtol=1e-6)


@pytest.mark.parametrize("seed", [70, 75])
def test_disagreement_is_never_turned_around(seed):
  """Members that mislead would have the lowest NLL with a negative constant."""
  rng = np.random.default_rng(seed)
  true = rng.normal(size=(60, 4))
  labels = (true + rng.gumbel(size=(60, 4))).argmax(1)
  logits = (2 * true + 4 * rng.normal(size=(3, 60, 4))).astype(np.float32)
  params = calibrators.joint_ensemble_scaling().fit(logits, labels)
  least = optimize.minimize(_nll, (1.0, 0.0), (logits, labels), bounds=[(-5, 5), (0, 0)]).fun
  constants = np.log(float(params["confidence"])), float(params["disagreement"])
  assert 0 <= constants[1] < 0.1 and _nll(constants, logits, labels) == pytest.approx(least, abs=1e-5)


def test_equal_members_are_one_model_with_a_temperature_and_their_order_does_not_matter():
  logits, labels = _members()
  params = calibrators.joint_ensemble_scaling().fit(np.stack([logits[0]] * 3), labels)
  temperature = calibrators.temperature_scaling().fit(logits[0], labels)["temperature"]
  assert float(params["confidence"]) == pytest.approx(float(temperature), rel=1e-3)
  apply = calibrators.joint_ensemble_scaling().apply
  np.testing.assert_allclose(apply(params, logits[::-1]), apply(params, logits), rtol=1e-5, atol=1e-6)


def test_masks_weights_and_leading_axes_are_those_of_every_calibrator():
  logits, labels = _members()
  fit, where = calibrators.joint_ensemble_scaling().fit, np.arange(N) < 300
  sliced = fit(logits[:, :300], labels[:300])
  damaged = np.where(where[:, None], logits, np.nan)
  others = [fit(damaged, labels, where=where), fit(logits, labels, weights=2.0 * where),
            fit(logits[:, :300].reshape(M, 10, 30, K), labels[:300].reshape(10, 30)),
            jax.jit(fit)(logits[:, :300], labels[:300])]
  for params in others:
    for name in ("confidence", "disagreement"):
      assert float(params[name]) == pytest.approx(float(sliced[name]), rel=2e-3)


def test_absent_classes_extreme_logits_and_what_is_refused():
  logits, labels = _members()
  calibrator = calibrators.joint_ensemble_scaling()
  absent = np.concatenate([logits, np.full((M, N, 1), -np.inf, np.float32)], -1)
  params, masked = calibrator.fit(logits, labels), calibrator.fit(absent, labels)
  assert float(masked["confidence"]) == pytest.approx(float(params["confidence"]), rel=1e-3)
  log_probs = np.asarray(calibrator.apply(masked, absent))
  assert np.isneginf(log_probs[:, -1]).all() and np.isfinite(log_probs[:, :-1]).all()
  some = logits.copy()
  some[0, :, 1] = -np.inf
  filled = some.copy()
  filled[0, :, 1] = np.delete(some[0], 1, axis=1).min(axis=1) - np.log(2)
  params = calibrator.fit(some, labels)
  np.testing.assert_allclose(calibrator.apply(params, some), calibrator.apply(params, filled), rtol=1e-6)
  for extreme in (300 * logits, np.zeros_like(logits), 3 * np.eye(K, dtype=np.float32)[None, labels].repeat(M, 0)):
    params = calibrator.fit(extreme, labels)
    assert not np.isnan(np.asarray(calibrator.apply(params, extreme))).any() and np.isfinite(params["confidence"])
  assert params["confidence"] < 0.5  # Every prediction is right.
  assert np.isfinite(calibrator.fit(logits[:, :1, :2], [0])["confidence"])
  for call, message in ((lambda: calibrator.fit(logits[0], labels), r"must be \[M, \.\.\., K\]"),
                        (lambda: calibrator.fit(logits, labels + 3), "label"),
                        (lambda: calibrator.fit(np.where(logits > 4, np.nan, logits), labels), "finite")):
    with pytest.raises(ValueError, match=message):
      call()
