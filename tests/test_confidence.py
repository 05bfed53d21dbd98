"""Confidence scores against their definitions, their ranges, ties and vertices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import confidence


@pytest.mark.parametrize("k", [2, 3, 100])
def test_scores_equal_their_definitions_and_stay_in_range(k):
  probs = np.random.default_rng(0).dirichlet(np.ones(k) / 2, (4, 5)).astype(np.float32)
  ordered = np.sort(probs.astype(np.float64), axis=-1)
  positive = np.maximum(probs.astype(np.float64), 1e-300)
  expected = {"msp": ordered[..., -1], "margin": ordered[..., -1] - ordered[..., -2],
              "negative_entropy": (positive * np.log(positive)).sum(-1)}
  for name, values in expected.items():
    found = confidence.get(name)(probs)
    np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-6)
    low, high = confidence.score_range(name, k)
    assert np.all(found >= low - 1e-5) and np.all(found <= high + 1e-6)
    vertex, uniform = (confidence.get(name)(p) for p in (jnp.eye(k)[0], jnp.full(k, 1 / k)))
    np.testing.assert_allclose([uniform, vertex], [low, high], atol=1e-6)


def test_gradients_at_ties_and_vertices_are_those_of_the_lowest_index():
  for function, expected in ((confidence.msp, [1, 0, 0]), (confidence.margin, [1, -1, 0])):
    np.testing.assert_array_equal(jax.grad(function)(jnp.full(3, 1 / 3)), expected)
    assert np.isfinite(jax.grad(function)(jnp.array([1.0, 0.0, 0.0]))).all()
  assert np.isfinite(jax.grad(confidence.negative_entropy)(jnp.array([1.0, 0.0, 0.0]))).all()


def test_a_function_is_its_own_score_and_mistakes_are_named():
  assert confidence.get(jnp.max) is jnp.max
  assert confidence.score_range(confidence.margin, 7) == (0.0, 1.0)
  with pytest.raises(ValueError, match="confidence must be one of 'msp', 'margin', 'negative_entropy': got 'msq'"):
    confidence.get("msq")
  with pytest.raises(ValueError, match="whose range is for you to give"):
    confidence.score_range(jnp.max, 3)
  with pytest.raises(TypeError, match="probs must be floating point"):
    confidence.msp(jnp.ones(3, int))
