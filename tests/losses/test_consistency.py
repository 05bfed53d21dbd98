"""The Jensen-Shannon consistency against float64, at its bounds, masked, and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from calib_jax import losses

# Three views of 2 x 4 examples.
LOGITS = np.random.default_rng(0).normal(scale=3, size=(3, 2, 4, 5)).astype(np.float32)
EVERY = np.ones((2, 4), bool)
EPS = np.finfo(np.float32).eps


@jax.jit
def consistency(z, where):
  """The values and the gradient of their sum."""
  values, pullback = jax.vjp(lambda z: losses.jensen_shannon_consistency(z, where=where), z)
  return values, pullback(jnp.ones_like(values))[0]


def reference(z):
  p = special.softmax(z.astype(np.float64), axis=-1)
  mean = p.mean(0)
  return special.entr(mean).sum(-1) - special.entr(p).sum(-1).mean(0)  # H(m) less the mean of H(p).


def test_it_is_the_mean_divergence_from_the_mean_with_its_gradient():
  values, gradient = consistency(LOGITS, EVERY)
  np.testing.assert_allclose(values, reference(LOGITS), rtol=0, atol=20 * EPS)
  for direction in np.random.default_rng(1).normal(size=(5, *LOGITS.shape)):
    ends = [reference(LOGITS + step * direction) for step in (1e-5, -1e-5)]
    slopes = np.sum(gradient * direction, axis=(0, 3))
    np.testing.assert_allclose(slopes, (ends[0] - ends[1]) / 2e-5, rtol=0, atol=100 * EPS)
  np.testing.assert_array_equal(jax.jit(losses.jensen_shannon_consistency)(LOGITS), values)


def test_it_is_0_for_equal_views_and_log_v_for_disjoint_ones():
  np.testing.assert_allclose(consistency(np.broadcast_to(LOGITS[:1], LOGITS.shape), EVERY)[0], 0, atol=10 * EPS)
  for far in (1e4, np.inf):
    disjoint = np.where(np.eye(3, 5) > 0, 0.0, -far).astype(np.float32)[:, None, None]
    values = consistency(np.broadcast_to(disjoint, LOGITS.shape), EVERY)[0]
    np.testing.assert_allclose(values, np.log(3), rtol=4 * EPS)


def test_extreme_logits_and_masked_classes_are_finite_and_masked_examples_may_be_nan():
  z, where = LOGITS.copy(), np.arange(2)[:, None] < np.ones((2, 4))
  z[:, 0, 0, 1], z[1, 0, 1, 2], z[:, 0, 2] = -np.inf, -np.inf, 1e4 * z[:, 0, 2]
  z[:, 1] = np.nan
  values, gradient = consistency(z, where)
  np.testing.assert_allclose(values[0], reference(np.where(np.isinf(z), -1e30, z))[0], rtol=0, atol=20 * EPS)
  np.testing.assert_array_equal(values[1], 0)
  assert np.isfinite(gradient).all() and not gradient[:, 1].any() and gradient[:, 0].any()
  assert not gradient[:, 0, 0, 1].any() and gradient[1, 0, 1, 2] == 0
