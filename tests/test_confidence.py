"""Confidence scores against their definitions, their ranges, ties and vertices."""

import jax
import numpy as np
import pytest
from scipy import special

from calib_jax import confidence


@pytest.mark.parametrize("k", [2, 3, 100])
def test_scores_equal_their_definitions_and_stay_in_range(k):
  probs = np.random.default_rng(0).dirichlet(np.ones(k) / 2, 20).astype(np.float32)
  probs = np.concatenate([np.full((1, k), 1 / k), np.eye(k)[:1], probs]).astype(np.float32).reshape(2, 11, k)
  ordered = np.sort(probs.astype(np.float64), axis=-1)
  expected = {"msp": ordered[..., -1], "margin": ordered[..., -1] - ordered[..., -2],
              "negative_entropy": -special.entr(probs.astype(np.float64)).sum(-1)}
  actual = jax.jit(lambda p: {name: confidence.get(name)(p) for name in expected})(probs)
  for name, values in expected.items():
    np.testing.assert_allclose(actual[name], values, rtol=1e-5, atol=1e-6)
    low, high = confidence.score_range(name, k)
    assert np.all(actual[name] >= low - 1e-5) and np.all(actual[name] <= high + 1e-6)
    np.testing.assert_allclose(actual[name][0, :2], [low, high], atol=1e-6)  # The uniform distribution and a vertex.


def test_gradients_at_ties_and_vertices_are_those_of_the_lowest_index():
  scores = (confidence.msp, confidence.margin, confidence.negative_entropy)
  slopes = jax.jit(lambda p: [jax.grad(f)(p) for f in scores])
  msp, margin, _ = slopes(np.full(3, 1 / 3, np.float32))
  np.testing.assert_array_equal([msp, margin], [[1, 0, 0], [1, -1, 0]])
  assert np.isfinite(slopes(np.array([1, 0, 0], np.float32))).all()


def test_a_function_is_its_own_score_and_mistakes_are_named():
  assert confidence.get(np.max) is np.max
  assert confidence.score_range(confidence.margin, 7) == (0.0, 1.0)
  with pytest.raises(ValueError, match="confidence must be one of 'msp', 'margin', 'negative_entropy': got 'msq'"):
    confidence.get("msq")
  with pytest.raises(ValueError, match="the range of .* is not known: give score_range=.low, high., or use one of"):
    confidence.score_range(np.max, 3)
  with pytest.raises(TypeError, match="probs must be floating point"):
    confidence.msp(np.ones(3, int))
