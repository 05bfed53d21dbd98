"""The Jensen-Shannon consistency against float64, at its bounds, masked, and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from calib_jax import losses

LOGITS = np.random.default_rng(0).normal(scale=3, size=(3, 2, 4, 5))  # Three views of 2 x 4 examples.
EPS = np.finfo(np.float32).eps


def reference(z):
  p = special.softmax(z, axis=-1)
  mean = p.mean(0)
  entropy = special.entr(mean).sum(-1) - special.entr(p).sum(-1).mean(0)  # H(m) less the mean of H(p).
  np.testing.assert_allclose(special.rel_entr(p, mean).sum(-1).mean(0), entropy, atol=1e-14)
  return entropy


@pytest.mark.parametrize("views", [2, 3])
def test_it_is_the_mean_divergence_from_the_mean(views):
  z = LOGITS[:views].astype(np.float32)
  actual = losses.jensen_shannon_consistency(z)
  assert actual.shape == (2, 4)
  np.testing.assert_allclose(actual, reference(z.astype(np.float64)), rtol=0, atol=20 * EPS)
  np.testing.assert_allclose(jax.jit(losses.jensen_shannon_consistency)(z), actual, rtol=0, atol=20 * EPS)
  np.testing.assert_allclose(losses.jensen_shannon_consistency(z[::-1]), actual, rtol=0, atol=20 * EPS)


def test_it_is_0_for_equal_views_and_log_v_for_disjoint_ones():
  same = jnp.broadcast_to(jnp.asarray(LOGITS[0], jnp.float32), (3, 2, 4, 5))
  np.testing.assert_allclose(losses.jensen_shannon_consistency(same), 0, atol=10 * EPS)
  for far in (1e4, np.inf):
    disjoint = jnp.where(jnp.eye(3) > 0, 0.0, -far)[:, None]
    np.testing.assert_allclose(losses.jensen_shannon_consistency(disjoint), [np.log(3)], rtol=4 * EPS)


def test_extreme_logits_and_masked_classes_are_finite_and_masked_examples_may_be_nan():
  z = LOGITS.astype(np.float32)
  z[:, 0, 0, 1], z[1, 0, 1, 2], z[:, 0, 2] = -np.inf, -np.inf, 1e4 * z[:, 0, 2]
  expected = reference(np.where(np.isinf(z), -1e30, z).astype(np.float64))
  where = np.ones((2, 4), bool)
  where[1] = False
  z[:, 1] = np.nan

  def masked(z):
    return losses.jensen_shannon_consistency(z, where=where)

  np.testing.assert_allclose(masked(z)[0], expected[0], rtol=0, atol=20 * EPS)
  np.testing.assert_array_equal(masked(z)[1], 0)
  grads = np.asarray(jax.grad(lambda z: jnp.sum(masked(z)))(jnp.asarray(z)))
  assert np.isfinite(grads).all() and not grads[:, 1].any() and grads[:, 0].any()
  assert not grads[:, 0, 0, 1].any() and grads[1, 0, 1, 2] == 0


def test_its_gradient_is_that_of_differences():
  z, step = LOGITS[:, 0].astype(np.float32).astype(np.float64), 1e-5
  actual = jax.jit(jax.grad(lambda z: jnp.sum(losses.jensen_shannon_consistency(z))))(jnp.asarray(z, jnp.float32))
  for index in np.ndindex(*z.shape):
    moved = np.zeros_like(z)
    moved[index] = step
    slope = (reference(z + moved).sum() - reference(z - moved).sum()) / (2 * step)
    np.testing.assert_allclose(actual[index], slope, rtol=0, atol=30 * EPS)


def test_mistakes_are_named():
  with pytest.raises(ValueError, match=r"logits must be \[V, ..., K\], with at least one view on.*\(5,\)"):
    losses.jensen_shannon_consistency(jnp.zeros(5))
  with pytest.raises(ValueError, match=r"with at least one view on the first axis: got shape \(0, 2, 5\)"):
    losses.jensen_shannon_consistency(jnp.zeros((0, 2, 5)))
  with pytest.raises(TypeError, match="logits must be floating point"):
    losses.jensen_shannon_consistency(jnp.zeros((3, 2, 5), jnp.int32))
  with pytest.raises(ValueError, match="where"):
    losses.jensen_shannon_consistency(jnp.zeros((3, 2, 5)), where=jnp.ones(3, bool))
