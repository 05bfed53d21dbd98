"""The focal calibration map against Eq. 1 in float64, its inverse, and the propositions of the paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from calib_jax import focal_map, losses

# With the exponent traced, one compilation serves them all.
MAP, INVERSE = jax.jit(focal_map.focal_calibration_map), jax.jit(focal_map.inverse_focal_calibration_map)
ODDS, LOG_MAP = jax.jit(focal_map.inverse_log_odds), jax.jit(focal_map.log_focal_map)
GAMMAS = [-0.5, -0.1, 0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0]


def _map(q, gamma):
  """Eq. 1 of Komisarenko & Kull 2024, as printed."""
  terms = 1 / ((1 - q)**gamma * (gamma * np.log(q) / (1 - q) - 1 / q))
  return terms / terms.sum(-1, keepdims=True)


def _probs(k, scale=2.0, n=50, seed=0):
  z = scale * np.random.default_rng(seed).normal(size=(n, k))
  p = np.exp(z - z.max(1, keepdims=True))
  return p / p.sum(1, keepdims=True)


@pytest.mark.parametrize("gamma", [-0.9, *GAMMAS])
@pytest.mark.parametrize("k", [2, 3, 10, 1000])
def test_map_and_inverse_equal_the_printed_formula(gamma, k):
  p = _probs(k)
  mapped = MAP(p.astype(np.float32), gamma)
  np.testing.assert_allclose(mapped, _map(p, gamma), rtol=2e-5, atol=2e-7)
  inverse = INVERSE(mapped, gamma)
  np.testing.assert_allclose(inverse.sum(1), 1, rtol=1e-6)
  tolerance = 1e-6 if -0.9 < gamma <= 3 else 2e-5
  np.testing.assert_allclose(MAP(inverse, gamma), mapped, atol=tolerance)


@pytest.mark.parametrize("gamma", [-0.95, *GAMMAS])
@pytest.mark.parametrize("scale", [0.1, 5.0, 40.0, 1e4])
def test_the_inverse_in_log_space_is_right_for_any_logits(gamma, scale):
  logits = (scale * np.random.default_rng(1).normal(size=(100, 5))).astype(np.float32)
  log_q = -jax.nn.softplus(-ODDS(logits, gamma))
  np.testing.assert_allclose(jnp.exp(log_q).sum(1), 1, rtol=2e-6)
  np.testing.assert_allclose(jnp.exp(LOG_MAP(log_q, gamma)), jax.nn.softmax(logits), atol=2e-6)


def test_binary_map_is_proposition_2():
  q = np.linspace(0.001, 0.999, 97)
  for gamma in GAMMAS:
    odds = ((1 - q) / q)**gamma * ((1 - q) - gamma * q * np.log(q)) / (q - gamma * (1 - q) * np.log(1 - q))
    found = focal_map.binary_focal_calibration_map(q.astype(np.float32), gamma)
    np.testing.assert_allclose(found, 1 / (1 + odds), rtol=1e-4, atol=1e-6)


def test_vertices_ties_and_their_gradients():
  slopes = {f: jax.jit(jax.grad(lambda x, gamma, f=f: jnp.sum(f(x, gamma)[:, 0]))) for f in (MAP, INVERSE)}
  for gamma in (-0.9, -0.5, 0.5, 2.0, 10.0):
    for p in ([1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]):
      p = jnp.array([p])
      for function, slope in slopes.items():
        np.testing.assert_allclose(function(p, gamma), p, atol=1e-6)
        assert np.isfinite(slope(p, gamma)).all()


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 4.0])
def test_binary_map_lies_between_its_two_temperature_maps(gamma):
  # Proposition 3 with T = 1/(γ+1), the corrected form.
  s = np.linspace(-15, 15, 301)
  s = s[s != 0]
  logits = jnp.asarray(np.stack([s, np.zeros_like(s)], 1), jnp.float32)
  mapped = np.asarray(focal_map.log_focal_map(logits, gamma), np.float64)
  log_odds = mapped[:, 0] - mapped[:, 1]
  low, high = (gamma + 1 - np.log(gamma + 1) / 2) * np.abs(s), (gamma + 1) * np.abs(s)
  assert np.all(low * (1 - 1e-5) < np.abs(log_odds)) and np.all(np.abs(log_odds) < high * (1 + 1e-5))
  np.testing.assert_array_equal(np.sign(log_odds), np.sign(s))


@pytest.mark.parametrize("gamma", [0.3, 2.0, 8.0])
def test_the_map_raises_the_top_probability_and_keeps_the_order(gamma):
  p = _probs(6).astype(np.float32)
  mapped = np.asarray(focal_map.focal_calibration_map(p, gamma))
  assert np.all(mapped.max(1) >= p.max(1) - 1e-6)
  np.testing.assert_array_equal(np.argsort(mapped, 1), np.argsort(p, 1))
  # Of two classes, a negative exponent lowers the top; of more, the paper claims nothing, nor is it always so.
  binary = np.linspace(0.5, 1, 51, dtype=np.float32)
  assert np.all(focal_map.binary_focal_calibration_map(binary, -0.4) <= binary + 1e-6)


@pytest.mark.parametrize("gamma", [0.5, 2.0, 5.0])
def test_what_minimises_the_expected_focal_loss_maps_to_the_truth(gamma):
  truth = np.array([0.55, 0.3, 0.15])

  def risk(z):
    log_q = z - np.log(np.exp(z).sum())
    return -np.sum(truth * (1 - np.exp(log_q))**gamma * log_q)

  q = np.exp(optimize.minimize(risk, np.zeros(3), tol=1e-12).x)
  found = focal_map.focal_calibration_map((q / q.sum()).astype(np.float32), gamma)
  np.testing.assert_allclose(found, truth, atol=1e-4)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 5.0, 10.0])
def test_properized_focal_is_proper_and_its_gradient_right(gamma):
  truth = jnp.array([0.55, 0.3, 0.15])

  @jax.jit
  def risk(z):
    return jnp.sum(truth * losses.properized_focal(jnp.broadcast_to(z, (3, 3)), jnp.arange(3), gamma=gamma))

  slope = jax.jit(jax.grad(risk))
  np.testing.assert_allclose(slope(jnp.log(truth)), 0, atol=2e-6)
  for seed in range(3):
    z = jnp.log(truth) + 0.3 * jax.random.normal(jax.random.key(seed), (3,))
    assert risk(z) > risk(jnp.log(truth))
    gradient, steps = slope(z), 1e-2 * np.eye(3, dtype=np.float32)
    slopes = [(risk(z + d) - risk(z - d)) / 2e-2 for d in steps]
    np.testing.assert_allclose(gradient, slopes, atol=2e-3)


def test_properized_focal_equals_focal_at_the_inverse_and_holds_at_huge_logits():
  p, loss = _probs(4, 1.5), jax.jit(losses.properized_focal, static_argnames="gamma")
  labels = np.arange(50) % 4
  for gamma in (0.5, 2.0, 6.0):
    # The reference inverse: each class's w is monotone, so q follows from one unknown sum, found by bisection.
    for row, y in zip(p[:8], labels[:8], strict=True):
      def w_inverse(target, g=gamma):
        return optimize.brentq(lambda s: _log_w(s, g) - target, -200, 200)

      total = optimize.brentq(lambda t, r=row: sum(1 / (1 + np.exp(-w_inverse(np.log(v) + t))) for v in r) - 1, -50, 50)
      q = 1 / (1 + np.exp(-w_inverse(np.log(row[y]) + total)))
      found = loss(np.log(row)[None].astype(np.float32), np.array([y]), gamma=gamma)
      np.testing.assert_allclose(found[0], -(1 - q)**gamma * np.log(q), rtol=2e-5)
  logits, labels = jnp.array([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [0.0, 0.0, 0.0]]), jnp.array([0, 0, 1])
  value, gradient = jax.jit(jax.value_and_grad(lambda z: jnp.sum(losses.properized_focal(z, labels))))(logits)
  # With two classes left, log p_y = -2e4 is (γ + 1) log-odds below: q's odds are e^(-2e4) w-weighted, loss about 2e4.
  assert np.isfinite(value) and np.isfinite(gradient).all() and 6e3 < value < 2.1e4


def _log_w(s, gamma):
  log_q, log_not = -np.logaddexp(0, -s), -np.logaddexp(0, s)
  rest = np.exp(log_not)
  ratio = 1 - rest / 2 if rest < 1e-9 else -np.exp(log_q) * log_q / rest
  return log_q - gamma * log_not - np.log1p(gamma * ratio)


@pytest.mark.parametrize(("call", "error", "message"), [
  (lambda: focal_map.focal_calibration_map(jnp.ones((2, 2)), -1.0), ValueError, r"gamma must be in \(-1, inf\): got"),
  (lambda: focal_map.inverse_focal_calibration_map(jnp.ones((2, 2), int), 1.0), TypeError, "probs must be floating"),
  (lambda: focal_map.focal_calibration_map(jnp.ones((2, 1)), 1.0), ValueError, "probs must have at least 2 classes"),
  (lambda: losses.properized_focal(jnp.ones((2, 3)), jnp.zeros(2, int), gamma=-0.1), ValueError, "gamma must be in"),
])
def test_mistakes_are_named(call, error, message):
  with pytest.raises(error, match=message):
    call()
