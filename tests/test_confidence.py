"""Confidence scores against their definitions, their ranges, ties and vertices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import confidence
from calib_jax.rows import predicted


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


def test_the_top_class_is_found_where_the_scores_are_computed_in_the_same_program():
  logits = np.random.default_rng(0).normal(size=(400, 5)).astype(np.float32)
  scaled = jax.jit(lambda z, t: predicted(z / t))
  for t in np.exp(np.linspace(-3, 3, 30)).astype(np.float32):
    np.testing.assert_array_equal(scaled(logits, t), logits.argmax(1))
  mixed = jax.jit(lambda z, a, b: predicted(z * a[None, :] + b[None, :]))
  a, b = (np.random.default_rng(s).normal(size=5).astype(np.float32) for s in (1, 2))
  exact = (logits * a).astype(np.float64) + b
  clear = np.diff(np.sort(exact, 1)[:, -2:], axis=1)[:, 0] > 1e-5
  np.testing.assert_array_equal(np.asarray(mixed(logits, a, b))[clear], exact.argmax(1)[clear])


def test_ties_go_to_the_lowest_index_also_in_a_batch_of_batches():
  tied = np.array([[[1.0, 1.0, 0.0], [0.0, 2.0, 2.0]], [[3.0, 3.0, 3.0], [-1e4, 1e4, 1e4]]], np.float32)
  for found in (predicted(tied), jax.vmap(predicted)(tied), jax.jit(predicted)(tied)):
    np.testing.assert_array_equal(found, [[0, 1], [0, 1]])
