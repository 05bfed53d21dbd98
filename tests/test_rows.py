import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses
from calib_jax.rows import label_odds, predicted, reduce_rows, relative_to_top, row_statistics, sum_rows

OPTIONS = {"avuc": {"threshold": 0.5}, "adaptive_focal": losses.init_adaptive_focal()._asdict()}


def _reference(logits):
  """``RowStatistics`` of one row of float64, by sums over the classes other than the top."""
  top = int(np.argmax(logits))
  below = logits - logits[top]
  rest = np.sum(np.exp(np.delete(below, top)))
  p = np.exp(below) / (1 + rest)
  # log K - H = Σ p log(p K), and log(p_k K) = z_k - log mean exp z: by expm1, which cancels nothing.
  centred = below - np.log1p(np.mean(np.expm1(below)))
  return top, np.log(rest), np.log1p(rest) - np.sum(p * below), np.sum(p * centred), np.sum(p * below)


@pytest.mark.parametrize("shape", [(5,), (1, 2), (7, 3), (2, 3, 129)])
def test_reductions_together_are_those_apart(shape):
  rng = np.random.default_rng(0)
  x, i = rng.normal(size=shape).astype(np.float32), rng.integers(-9, 9, shape, dtype=np.int32)
  add, least, most = jax.lax.add, jax.lax.min, jax.lax.max
  for parts in (((add, 0, x),), ((least, 99, i),), ((add, 0, x), (add, 0, i)),
                ((most, -jnp.inf, x), (least, 99, i), (add, 0, x))):
    expected = [{add: np.sum, least: np.min, most: np.max}[f](a, axis=-1) for f, _, a in parts]

    def together(*operands, parts=parts):
      return reduce_rows(*((f, start, a) for (f, start, _), a in zip(parts, operands, strict=True)))

    operands = [jnp.asarray(a) for *_, a in parts]
    mapped = jax.vmap(together)(*(a[None] for a in operands))
    for found in (together(*operands), jax.jit(together)(*operands), [a[0] for a in mapped]):
      for a, b, (*_, operand) in zip(found, expected, parts, strict=True):
        assert a.dtype == operand.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
  weights = rng.normal(size=shape[:-1]).astype(np.float32)
  gradient = jax.grad(lambda x: jnp.sum(weights * sum_rows(x**2)))(x)
  np.testing.assert_allclose(gradient, 2 * weights[..., None] * x, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.05, 0.3, 3.0, 10.0])
def test_row_statistics_keep_their_digits_from_uniform_to_one_hot(scale, dtype):
  rng = np.random.default_rng(0)
  logits = (scale * rng.normal(size=(40, 6))).astype(dtype)
  with jax.enable_x64(dtype == np.float64):
    found = row_statistics(jnp.asarray(logits))
    assert found.odds.dtype == dtype
  expected = np.array([_reference(row) for row in logits.astype(np.float64)]).T
  np.testing.assert_array_equal(found.top, expected[0])
  eps = np.finfo(dtype).eps
  np.testing.assert_allclose(found.odds, expected[1], rtol=20 * eps, atol=20 * eps)
  np.testing.assert_allclose(found.entropy, expected[2], rtol=50 * eps)
  # The divergence is of second order in the logits: what of it is left beside sums of the first.
  np.testing.assert_allclose(found.divergence, expected[3], rtol=50 * eps, atol=200 * eps * min(scale, 1))
  np.testing.assert_allclose(found.mean, expected[4], rtol=50 * eps)


def test_the_odds_of_a_label_keep_their_digits_at_the_top_in_ties_and_far_below():
  rows = [[30.0, 0.0, -2.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1e-4, -1e-4], [50.0, 49.0, 0.0]]
  for row in np.array(rows, np.float32):
    for label in range(3):
      others = np.delete(row.astype(np.float64), label) - row[label]
      expected = np.log(np.sum(np.exp(others)))
      found = label_odds(jnp.asarray(row)[None], jnp.array([label]))[0]
      np.testing.assert_allclose(found, expected, rtol=1e-6, atol=2e-7)


def test_the_top_is_exactly_0_where_a_product_made_the_logits():
  x = np.random.default_rng(0).normal(size=(300, 7)).astype(np.float32)
  for scale in np.exp(np.linspace(-3, 3, 20)).astype(np.float32):
    relative = jax.jit(lambda x, s: relative_to_top(x * s))(x, scale)
    assert (np.sum(np.asarray(relative) == 0, axis=1) == 1).all() and (np.asarray(relative) <= 0).all()


@pytest.mark.parametrize("name", [*losses.PER_EXAMPLE, *losses.PER_BATCH])
def test_what_is_not_finite_is_not_hidden(name):
  loss = jax.jit(losses.get(name, **OPTIONS.get(name, {})))
  logits = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
  for bad in (np.nan, np.inf):
    logits[2, 3] = bad
    assert not np.isfinite(loss(logits, np.array([0, 1, 2, 3], np.int32))).all()


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
