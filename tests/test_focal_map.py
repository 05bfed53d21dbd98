"""The focal calibration map against Eq. 1 in float64, its inverse, and the propositions of the paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from calib_jax import focal_map, losses

GAMMAS = np.array([-0.5, -0.1, 0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0], np.float32)


def _over(gammas, function):
  """``function(gamma)`` for each of ``gammas`` in one compilation, as numpy arrays with the exponents first."""
  return jax.tree.map(np.asarray, jax.jit(jax.vmap(function))(np.asarray(gammas, np.float32)))


def _map(q, gamma):
  """Eq. 1 of Komisarenko & Kull 2024, as printed."""
  terms = 1 / ((1 - q)**gamma * (gamma * np.log(q) / (1 - q) - 1 / q))
  return terms / terms.sum(-1, keepdims=True)


def _probs(k):
  return special.softmax(2 * np.random.default_rng(0).normal(size=(50, k)), axis=1)


@pytest.mark.parametrize("k", [10, pytest.param(1000, marks=pytest.mark.slow)])
def test_map_and_inverse_equal_the_printed_formula(k):
  p, gammas = _probs(k), np.concatenate([[-0.9], GAMMAS])

  def there_and_back(gamma):
    mapped = focal_map.focal_calibration_map(p.astype(np.float32), gamma)
    inverse = focal_map.inverse_focal_calibration_map(mapped, gamma)
    return mapped, inverse, focal_map.focal_calibration_map(inverse, gamma)

  for gamma, mapped, inverse, again in zip(gammas, *_over(gammas, there_and_back), strict=True):
    np.testing.assert_allclose(mapped, _map(p, gamma), rtol=2e-5, atol=2e-7)
    np.testing.assert_allclose(inverse.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(again, mapped, atol=1e-6 if -0.9 < gamma <= 3 else 2e-5)


def test_the_inverse_in_log_space_is_right_for_any_logits():
  scales = np.array([0.1, 5.0, 40.0, 1e4])[:, None, None]
  logits = (scales * np.random.default_rng(1).normal(size=(100, 5))).astype(np.float32)

  def there_and_back(gamma):
    log_q = -jax.nn.softplus(-focal_map.inverse_log_odds(logits, gamma))
    return log_q, focal_map.log_focal_map(log_q, gamma)

  log_q, again = _over([-0.95, *GAMMAS], there_and_back)
  np.testing.assert_allclose(np.exp(log_q).sum(-1), 1, rtol=2e-6)
  np.testing.assert_allclose(np.exp(again), np.broadcast_to(special.softmax(logits, axis=-1), again.shape), atol=2e-6)


def test_binary_map_is_proposition_2():
  q = np.linspace(0.001, 0.999, 97)
  actual = _over(GAMMAS, lambda gamma: focal_map.binary_focal_calibration_map(q.astype(np.float32), gamma))
  for gamma, mapped in zip(GAMMAS.astype(np.float64), actual, strict=True):
    odds = ((1 - q) / q)**gamma * ((1 - q) - gamma * q * np.log(q)) / (q - gamma * (1 - q) * np.log(1 - q))
    np.testing.assert_allclose(mapped, 1 / (1 + odds), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("function", [focal_map.focal_calibration_map, focal_map.inverse_focal_calibration_map])
def test_vertices_ties_and_their_gradients(function):
  p = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]], np.float32)

  def value_and_slope(gamma):
    value, pullback = jax.vjp(lambda x: function(x, gamma), p)
    return value, pullback(jnp.zeros_like(value).at[:, 0].set(1))

  values, slopes = _over([-0.9, -0.5, 0.5, 2.0, 10.0], value_and_slope)
  np.testing.assert_allclose(values, np.broadcast_to(p, values.shape), atol=1e-6)
  assert np.isfinite(slopes).all()


def test_binary_map_lies_between_its_two_temperature_maps():
  # Proposition 3 with T = 1/(γ+1), the corrected form.
  s, gammas = np.linspace(-15, 15, 301), np.array([0.5, 1.0, 2.0, 4.0])[:, None]
  s = s[s != 0]
  logits = np.stack([s, np.zeros_like(s)], 1).astype(np.float32)
  mapped = _over(gammas[:, 0], lambda gamma: focal_map.log_focal_map(logits, gamma)).astype(np.float64)
  log_odds = mapped[..., 0] - mapped[..., 1]
  low, high = (gammas + 1 - np.log(gammas + 1) / 2) * np.abs(s), (gammas + 1) * np.abs(s)
  assert np.all(low * (1 - 1e-5) < np.abs(log_odds)) and np.all(np.abs(log_odds) < high * (1 + 1e-5))
  np.testing.assert_array_equal(np.sign(log_odds), np.broadcast_to(np.sign(s), log_odds.shape))


def test_properized_focal_is_least_at_the_truth():
  truth = np.array([0.55, 0.3, 0.15], np.float32)
  others = np.log(truth) + 0.3 * np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)

  def risk(z, gamma):
    return jnp.sum(truth * losses.properized_focal(jnp.broadcast_to(z, (3, 3)), np.arange(3), gamma=gamma))

  def risks_and_slopes(gamma):
    return jax.vmap(jax.value_and_grad(risk), in_axes=(0, None))(np.concatenate([np.log(truth)[None], others]), gamma)

  risks, slopes = _over([0.0, 0.5, 2.0, 5.0, 10.0], risks_and_slopes)
  np.testing.assert_allclose(slopes[:, 0], 0, atol=2e-6)
  assert np.all(risks[:, 1:] > risks[:, :1])


@pytest.mark.parametrize(("call", "error", "message"), [
  (lambda: focal_map.focal_calibration_map(np.ones((2, 2)), -1.0), ValueError, r"gamma must be in \(-1, inf\): got"),
  (lambda: focal_map.inverse_focal_calibration_map(np.ones((2, 2), int), 1.0), TypeError, "probs must be floating"),
  (lambda: focal_map.focal_calibration_map(np.ones((2, 1)), 1.0), ValueError, "probs must have at least 2 classes"),
])
def test_mistakes_are_named(call, error, message):
  with pytest.raises(error, match=message):
    call()
