"""Accuracy and proper scores, and bootstrap intervals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics
from tests.metrics import references

RNG = np.random.default_rng(0)
SCORES = ("accuracy", "nll", "brier_score", "mean_entropy")


def _data(n, k):
  return RNG.dirichlet(np.ones(k) / 2, n).astype(np.float32), RNG.integers(0, k, n)


def test_scores_under_masks_equal_numpy_of_the_slice_and_leading_axes_are_flattened():
  probs, labels = _data(60, 5)
  probs[:2], labels[:2], labels[labels == 3] = np.eye(5)[1], (0, 1), 2  # Certain; and a class that is absent.
  where = np.arange(60) % 4 != 1

  @jax.jit
  @jax.vmap
  def scores(probs, labels, where):
    return {name: getattr(metrics, name)(probs, labels, where=where) for name in (*SCORES, "classwise_losses")}

  masks = np.stack([np.ones(60, bool), where, np.arange(60) == 7, np.zeros(60, bool)])
  masked = np.where(masks[..., None], probs, np.nan), np.where(masks, labels, 255)
  actual = scores(*(x.reshape(4, 4, 15, *x.shape[2:]) for x in (*masked, masks)))
  for i, keep in enumerate(masks[:3]):
    expected, y = references.scores(probs[keep], labels[keep]), labels[keep]
    for name in SCORES:
      np.testing.assert_allclose(actual[name][i], expected[name].mean(), rtol=1e-5, err_msg=name)
    expected = [expected["nll"][y == c].mean() if (y == c).any() else np.nan for c in range(5)]
    np.testing.assert_allclose(actual["classwise_losses"][i], expected, rtol=1e-5)
  assert all(actual[name][3] == 0 for name in SCORES) and np.isnan(actual["classwise_losses"][3]).all()


def test_the_top_label_of_ties_of_computed_probabilities_and_its_gradient():
  rng = np.random.default_rng(0)
  logits = rng.integers(0, 3, (400, 7)).astype(np.float32)  # Most rows tie for the top.
  labels = rng.integers(0, 7, 400)

  @jax.jit
  def of_logits(logits):  # Probabilities that are computed in the same program.
    return metrics.top_label(jax.nn.softmax(1.7 * logits), labels)

  confidence, correct = of_logits(logits)
  np.testing.assert_array_equal(correct, logits.argmax(1) == labels)
  np.testing.assert_allclose(confidence, np.exp(1.7 * logits.max(1)) / np.exp(1.7 * logits).sum(1), rtol=1e-6)
  mapped = jax.vmap(metrics.top_label)(jax.nn.softmax(logits).reshape(4, 100, 7), labels.reshape(4, 100))
  np.testing.assert_array_equal(mapped[1].reshape(-1), correct)
  slope = jax.grad(lambda p: jnp.sum(metrics.top_label(p, jnp.array([0]))[0]))(jnp.array([[0.2, 0.7, 0.1]]))
  np.testing.assert_array_equal(slope, [[0, 1, 0]])


READ_BY_ROW = (*SCORES, "expected_calibration_error", "maximum_calibration_error", "adaptive_calibration_error")


@pytest.mark.parametrize("name", READ_BY_ROW)
def test_large_numpy_arrays_are_read_in_pieces_to_the_same_value_and_refusals(name, monkeypatch):
  metric, (probs, labels) = getattr(metrics, name), _data(61, 5)
  where, weights = RNG.uniform(size=61) < 0.7, RNG.uniform(size=61).astype(np.float32)
  hidden = np.where(where[:, None], probs, np.nan)
  calls = [((probs, labels), {}), ((hidden, np.where(where, labels, 9)), {"where": where}),
           ((probs.astype(np.float64), labels.astype(np.int8)), {"weights": weights}),
           ((probs[:60].reshape(4, 15, 5), labels[:60].reshape(4, 15).astype(np.uint64)), {})]
  whole = [metric(*arrays, **options) for arrays, options in calls]
  monkeypatch.setattr("calib_jax.metrics.compiled.PIECE", 40)  # Eight rows.
  pieces = [metric(*arrays, **options) for arrays, options in calls]
  np.testing.assert_allclose(pieces, whole, rtol=1e-6)
  with pytest.raises(ValueError, match=r"probs must sum to 1 in each row: 1 of 61 rows does not; the first, row 57,"):
    metric(np.where(np.arange(61)[:, None] == 57, 0.3, probs).astype(np.float32), labels)
  with pytest.raises(ValueError, match=r"probs must be at least 0: 1 of 61 rows is not; the first, row 60, holds -0.5"):
    metric(np.where(np.arange(61)[:, None] == 60, [[-0.5, 1.5, 0, 0, 0]], probs).astype(np.float32), labels)
  with pytest.raises(ValueError, match="labels must be in .*: 1 of 61 rows is not; the first, row 3, holds 4294967296"):
    metric(probs, np.where(np.arange(61) == 3, 2**32, labels))


def test_the_top_label_of_a_large_numpy_array_is_that_of_its_pieces(monkeypatch):
  probs, labels = _data(60, 5)
  arrays = [(probs, labels), (probs.reshape(4, 15, 5).astype(np.float64), labels.reshape(4, 15))]
  whole = [metrics.top_label(*pair) for pair in arrays]
  monkeypatch.setattr("calib_jax.metrics.compiled.PIECE", 40)
  for pair, expected in zip(arrays, whole, strict=True):
    for a, b in zip(metrics.top_label(*pair), expected, strict=True):
      assert a.shape == b.shape and a.dtype == b.dtype and isinstance(a, jax.Array)
      np.testing.assert_array_equal(a, b)
  with pytest.raises(ValueError, match="labels must be in .*: 1 of 60 rows is not; the first, row 3, holds 9"):
    metrics.top_label(probs, np.where(np.arange(60) == 3, 9, labels))


def test_the_gradient_of_the_brier_score_is_that_of_its_formula():
  probs, labels = _data(9, 4)
  slope = jax.jit(jax.grad(lambda p: metrics.brier_score(p, labels)))(probs)
  np.testing.assert_allclose(slope, 2 * (probs - np.eye(4)[labels]) / 9, rtol=1e-6)


@pytest.mark.slow
def test_means_of_millions_keep_their_digits():
  probs = np.stack([np.full(2_000_000, 0.9), np.full(2_000_000, 0.1)], 1).astype(np.float32)
  labels = (RNG.uniform(size=2_000_000) < 0.3).astype(np.int32)
  np.testing.assert_allclose(metrics.nll(probs, labels), references.scores(probs, labels)["nll"].mean(), rtol=1e-6)


@pytest.mark.parametrize(("arguments", "error", "message"), [
  ((np.ones((3, 2)), np.zeros(2, int)), ValueError, r"got probs \(3, 2\) and labels \(2,\)"),
  ((np.ones((3, 2), int), np.zeros(3, int)), TypeError, "probs must be floating point: got dtype int"),
  ((np.ones((3, 2)), np.zeros(3)), TypeError, r"in \[0, 2\), which labels.astype\(int\) makes .*: got dtype float32"),
])
def test_mistakes_are_named(arguments, error, message):
  for metric in (metrics.accuracy, metrics.nll, metrics.brier_score, metrics.top_label,
                 metrics.expected_calibration_error):
    with pytest.raises(error, match=message):
      metric(*arguments)


def test_the_bootstrap_of_a_mean_is_its_normal_interval():
  x = RNG.normal(size=400).astype(np.float32)
  estimate, low, high = metrics.bootstrap(jnp.mean, x, key=jax.random.key(0), num_resamples=4000)
  half = 1.96 * x.std() / 20
  np.testing.assert_allclose(estimate, x.mean(), rtol=1e-5, atol=1e-7)
  np.testing.assert_allclose([estimate - low, high - estimate], half, rtol=0.08)
  _, narrow_low, narrow_high = metrics.bootstrap(jnp.mean, x, key=jax.random.key(0), num_resamples=4000, level=0.5)
  np.testing.assert_allclose(narrow_high - narrow_low, 2 * 0.6745 * x.std() / 20, rtol=0.08)


def test_the_bootstrap_depends_on_its_key_alone_and_resamples_arrays_together():
  values = RNG.normal(size=100).astype(np.float32)

  def mean_and_distance(a, b):
    """The distance is 0 if rows are resampled together."""
    return jnp.stack([jnp.mean(a), jnp.max(jnp.abs(a - b))])

  first, again, second = (np.array(metrics.bootstrap(mean_and_distance, values, values, key=jax.random.key(k),
                                                    num_resamples=99)) for k in (1, 1, 2))
  np.testing.assert_array_equal(first, again)
  assert first.shape == (3, 2) and not first[:, 1].any() and not second[:, 1].any()
  assert first[0, 0] == second[0, 0] and (first[1:, 0] != second[1:, 0]).all()
