"""Formulas of a row of logits: the top class, ties, and digits from the uniform distribution to one-hot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax._numerics.softmax import (
  entropy_and_divergence,
  label_odds,
  map_chunks,
  predicted,
  relative_to_top,
  sum_chunks,
)


def _reference(logits):
  """The top class, its odds, entropy and divergence of rows of float64, by sums over the other classes."""
  top = np.argmax(logits, axis=1)
  below = logits - logits.max(axis=1, keepdims=True)
  rest = np.sum(np.where(np.arange(logits.shape[1]) == top[:, None], 0, np.exp(below)), axis=1)
  p = np.exp(below) / (1 + rest[:, None])
  # log K - H = Σ p log(p K), and log(p_k K) = z_k - log mean exp z: by expm1, which cancels nothing.
  centred = below - np.log1p(np.mean(np.expm1(below), axis=1, keepdims=True))
  return top, np.log(rest), np.log1p(rest) - np.sum(p * below, axis=1), np.sum(p * centred, axis=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_odds_entropy_and_divergence_keep_their_digits_from_uniform_to_one_hot(dtype):
  scales = np.repeat([1e-6, 1e-3, 0.05, 0.3, 3.0, 10.0], 40)
  logits = (scales[:, None] * np.random.default_rng(0).normal(size=(240, 6))).astype(dtype)
  with jax.enable_x64(dtype == np.float64):
    top = predicted(logits)
    actual = jax.jit(lambda z: (top, label_odds(z, top), *entropy_and_divergence(z, top)))(logits)
    top, odds, entropy, divergence = (np.asarray(x) for x in actual)
    assert odds.dtype == entropy.dtype == divergence.dtype == dtype
  expected_top, expected_odds, expected_entropy, expected_divergence = _reference(logits.astype(np.float64))
  np.testing.assert_array_equal(top, expected_top)
  eps = np.finfo(dtype).eps
  np.testing.assert_allclose(odds, expected_odds, rtol=20 * eps, atol=20 * eps)
  np.testing.assert_allclose(entropy, expected_entropy, rtol=50 * eps)
  # The divergence is of second order in the logits, and the difference of sums of first order.
  bound = 50 * eps * expected_divergence + 200 * eps * np.minimum(scales, 1)
  assert np.all(np.abs(divergence - expected_divergence) <= bound)


def test_the_slope_of_the_entropy_keeps_its_digits_near_one_hot():
  logits = np.array([[0.0, -15.0, -30.0], [-40.0, 0.0, -41.0], [-80.0, -60.0, 0.0]], np.float32)
  actual = jax.jit(jax.grad(lambda z: jnp.sum(entropy_and_divergence(z, predicted(z))[0])))(logits)
  p = np.exp(logits.astype(np.float64)) / np.sum(np.exp(logits.astype(np.float64)), axis=1, keepdims=True)
  mean = np.sum(p * logits, axis=1, keepdims=True)
  others = p * (mean - logits)
  top = logits == 0  # Of the top class, dH/dz is minus the sum of the others', which keeps its digits in float64.
  expected = np.where(top, -np.sum(np.where(top, 0, others), axis=1, keepdims=True), others)
  np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_the_odds_of_a_label_keep_their_digits_at_the_top_in_ties_and_far_below():
  rows = np.array([[30.0, 0.0, -2.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1e-4, -1e-4], [50.0, 49.0, 0.0]],
                  np.float32)
  actual = jax.jit(label_odds)(np.repeat(rows, 3, axis=0), np.tile(np.arange(3), 5))
  expected = [np.log(np.sum(np.exp(np.delete(row, label) - row[label])))
              for row in rows.astype(np.float64) for label in range(3)]
  np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=2e-7)


def test_the_top_is_exactly_0_where_a_product_made_the_logits():
  x = np.random.default_rng(0).normal(size=(300, 7)).astype(np.float32)
  relative = jax.jit(lambda x, s: relative_to_top(x * s))
  for scale in np.exp(np.linspace(-3, 3, 20)).astype(np.float32):
    below = np.asarray(relative(x, scale))
    assert (np.sum(below == 0, axis=1) == 1).all() and (below <= 0).all()


@pytest.mark.parametrize(("count", "at_most"), [(7, 3), (1, 5)])
def test_chunks_give_what_single_rows_give_and_trace_the_function_once(count, at_most):
  rows = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32), jax.random.split(jax.random.key(0), count)
  traced = []

  def function(row):
    traced.append(row)
    return {"sum": jnp.sum(row[0]), "draw": row[0][:2] + jax.random.uniform(row[1])}

  actual = jax.jit(lambda rows: map_chunks(function, rows, at_most))(rows)
  assert len(traced) == 1 and actual["draw"].shape == (count, 2)
  np.testing.assert_allclose(actual["sum"], rows[0].astype(np.float64).sum(1), rtol=1e-5, atol=1e-6)
  expected = [row[:2] + jax.random.uniform(key) for row, key in zip(*rows, strict=True)]
  np.testing.assert_allclose(actual["draw"], expected, rtol=1e-6)
  # The copies that fill up the last chunk add nothing to a gradient.
  slope = jax.grad(lambda x: jnp.sum(map_chunks(lambda row: jnp.sum(row ** 2), x, at_most)))(rows[0])
  np.testing.assert_allclose(slope, 2 * rows[0], rtol=1e-6)


@pytest.mark.parametrize("at_most", [7, 24])
def test_a_sum_in_chunks_adds_each_row_once(at_most):
  rng = np.random.default_rng(0)
  x, labels, weights = rng.normal(size=(23, 3)), rng.integers(3, size=23), rng.uniform(size=23)

  def sums(rows, weights):
    x, labels = rows
    assert len(x) <= at_most
    picked = jnp.take_along_axis(x, labels[:, None], axis=1)[:, 0]
    return jnp.sum(weights * picked), jnp.sum(weights[:, None] * x, axis=0)

  actual = jax.jit(lambda *arrays: sum_chunks(sums, arrays[:2], arrays[2], at_most))(x, labels, weights)
  for part, expected in zip(actual, (weights @ x[np.arange(23), labels], weights @ x), strict=True):
    np.testing.assert_allclose(part, expected, rtol=1e-5)
