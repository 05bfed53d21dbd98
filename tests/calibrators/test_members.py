"""The joint calibration of an ensemble's members, against its formula in float64."""

import jax
import numpy as np
import pytest
from scipy import optimize, special

from calib_jax import calibrators

M, N, K = 3, 60, 4  # Of all fits, so that they compile once.
JOINT = calibrators.joint_ensemble_scaling()


def _members(kind="noise", seed=0):
  rng = np.random.default_rng(seed)
  true = rng.normal(size=(N, K))
  labels = (true + rng.gumbel(size=(N, K))).argmax(1)
  members = {"noise": lambda: 2 * true + rng.normal(size=(M, N, K)),
             "much noise": lambda: 2 * true + 4 * rng.normal(size=(M, N, K)),
             "outliers": lambda: true + 2 * rng.standard_t(2, size=(M, N, K)),
             "one is misled": lambda: np.stack([4 * true, 4 * true, 3 * rng.normal(size=(N, K)) - 3 * true])}[kind]()
  return members.astype(np.float32), labels


def _probs(logits, confidence, disagreement):
  z = special.log_softmax(np.asarray(logits, np.float64), axis=-1)
  mean = z.mean(0)
  return special.softmax((mean + disagreement * (z - mean)) / confidence, axis=-1).mean(0)


def _nll(x, logits, labels):
  return -np.mean(np.log(_probs(logits, np.exp(x[0]), x[1])[np.arange(len(labels)), labels]))


def _check_lowest(params, logits, labels):
  c1, c2 = float(params["confidence"]), float(params["disagreement"])
  least = min(optimize.minimize(_nll, (0.0, start), (logits, labels), bounds=[(-5, 5), (0, None)]).fun
              for start in (0.0, 0.5, 1.0, 3.0))
  assert params["converged"] and c2 >= 0 and _nll((np.log(c1), c2), logits, labels) <= least + 1e-5
  return c1, c2


@pytest.mark.parametrize(("kind", "seed"), [
  ("noise", 0), ("outliers", 10),  # Without a bound, fits of the last and of the next end just below 0.
  pytest.param("much noise", 1, marks=pytest.mark.slow),
  ("outliers", 16),  # The optimum is at 0, and a fit from 1 ends elsewhere.
  ("one is misled", 71)])  # A fit from 0 would stay there, 1e-4 nats above the optimum.
def test_the_constants_are_those_of_the_lowest_nll_and_probabilities_those_of_the_formula(kind, seed):
  logits, labels = _members(kind, seed)
  params = JOINT.fit(logits, labels)
  constants, log_probs = _check_lowest(params, logits, labels), JOINT.apply(params, logits)
  np.testing.assert_allclose(np.exp(log_probs), _probs(logits, *constants), rtol=1e-4, atol=1e-6)
  # The order of the members does not matter.
  np.testing.assert_allclose(JOINT.apply(params, logits[::-1]), log_probs, rtol=1e-5, atol=1e-6)


def test_equal_members_are_one_model_with_a_temperature():
  logits, labels = _members()
  params = JOINT.fit(np.stack([logits[0]] * 3), labels)
  temperature = calibrators.temperature_scaling().fit(logits[0], labels)["temperature"]
  assert float(params["confidence"]) == pytest.approx(float(temperature), rel=1e-3)


def test_masks_weights_and_leading_axes_are_those_of_every_calibrator():
  logits, labels = _members()
  where = np.arange(N) < 40
  damaged = np.where(where[:, None], logits, np.nan)
  masked = JOINT.fit(damaged, labels, where=where)
  _check_lowest(masked, logits[:, :40], labels[:40])
  others = [JOINT.fit(logits, labels, weights=2.0 * where), JOINT.fitted(
    damaged.reshape(M, 10, 6, K), labels.reshape(10, 6), where=where.reshape(10, 6)).params]
  for params in others:
    for name in ("confidence", "disagreement"):
      assert float(params[name]) == pytest.approx(float(masked[name]), rel=2e-3)
  assert jax.eval_shape(JOINT.fit, logits, labels)["disagreement"].shape == ()


def test_absent_classes_extreme_logits_and_what_is_refused():
  logits, labels = _members()
  three = labels % 3
  absent = np.where(np.arange(K) == 3, -np.inf, logits)
  params = JOINT.fit(absent, three)
  _check_lowest(params, logits[..., :3], three)
  log_probs = np.asarray(JOINT.apply(params, absent))
  assert np.isneginf(log_probs[:, -1]).all() and np.isfinite(log_probs[:, :-1]).all()
  some = logits.copy()
  some[0, :, 1] = -np.inf
  filled = some.copy()
  filled[0, :, 1] = np.delete(some[0], 1, axis=1).min(axis=1) - np.log(2)
  params = JOINT.fit(some, labels)
  np.testing.assert_allclose(JOINT.apply(params, some), JOINT.apply(params, filled), rtol=1e-6)
  for extreme in (300 * logits, np.zeros_like(logits), 3 * np.eye(K, dtype=np.float32)[None, labels].repeat(M, 0)):
    params = JOINT.fit(extreme, labels)
    assert not np.isnan(np.asarray(JOINT.apply(params, extreme))).any() and np.isfinite(params["confidence"])
  assert params["confidence"] < 0.5  # Every prediction is right.
  two = np.where(np.arange(K) > 1, -np.inf, logits)
  assert np.isfinite(JOINT.fit(two, labels % 2, where=np.arange(N) == 0)["confidence"])  # One example of two classes.
  for call, message in ((lambda: JOINT.fit(logits[0], labels), r"must be \[M, \.\.\., K\]"),
                        (lambda: JOINT.fit(logits, labels + 3), "label"),
                        (lambda: JOINT.fit(np.where(logits > 4, np.nan, logits), labels), "finite")):
    with pytest.raises(ValueError, match=message):
      call()
