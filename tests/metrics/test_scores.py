"""Accuracy and proper scores, and bootstrap intervals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics

RNG = np.random.default_rng(0)


def _data(n, k):
  return RNG.dirichlet(np.ones(k) / 2, n).astype(np.float32), RNG.integers(0, k, n)


@pytest.mark.parametrize(("n", "k"), [
  (1, 2), (1, 1000), (2, 3), (2, 100), (7, 3), (15, 10), (15, 1000), (100, 2), (100, 100), (500, 10), (5000, 3),
  (5000, 1000), (100_000, 2), (100_000, 100)])
def test_scores_equal_numpy(n, k):
  probs, labels = _data(n, k)
  wide = probs.astype(np.float64)
  chosen = wide[np.arange(n), labels]
  np.testing.assert_allclose(metrics.accuracy(probs, labels), np.mean(wide.argmax(1) == labels), rtol=1e-6)
  np.testing.assert_allclose(metrics.nll(probs, labels), -np.log(np.maximum(chosen, 2.0**-126)).mean(), rtol=1e-5)
  np.testing.assert_allclose(metrics.brier_score(probs, labels), ((wide - np.eye(k)[labels])**2).sum(1).mean(),
                             rtol=1e-5)
  confidence, correct = metrics.top_label(probs, labels)
  np.testing.assert_array_equal(confidence, probs.max(1))
  np.testing.assert_array_equal(correct, probs.argmax(1) == labels)


def test_classwise_losses_and_entropy_equal_numpy():
  probs, labels = _data(60, 5)
  probs[0], labels[labels == 3] = np.eye(5)[1], 2
  where = np.arange(60) % 4 != 1
  wide = probs.astype(np.float64)
  loss = -np.log(np.maximum(wide[np.arange(60), labels], 2.0**-126))
  for keep, options in ((np.ones(60, bool), {}), (where, {"where": where})):
    expected = [loss[keep & (labels == c)].mean() if c != 3 else np.nan for c in range(5)]
    masked = np.where(keep[:, None], probs, np.nan)
    np.testing.assert_allclose(metrics.classwise_losses(masked, labels, **options), expected, rtol=1e-5)
    entropy = -np.sum(wide[keep] * np.log(np.where(wide[keep] > 0, wide[keep], 1)), axis=1).mean()
    np.testing.assert_allclose(metrics.mean_entropy(masked, labels, **options), entropy, rtol=1e-5)


GOOD = np.full((6, 2), 0.5, np.float32)


@pytest.mark.parametrize(("row", "value", "labels", "message"), [
  (2, (np.nan, 0.5), 0, "probs must be finite: 1 of 6 do not; the first, row 2, holds nan"),
  (0, (-0.5, 1.5), 0, "probs must be at least 0: 1 of 6 do not; the first, row 0, holds -0.5"),
  (5, (0.5, 0.25), 0, "probs must sum to 1 in each row: 1 of 6 do not; the first, row 5, sums to 0.75"),
  (0, (0.5, 0.5), 2, r"labels must be in \[0, 2\): 6 of 6 do not; the first, row 0, holds 2"),
  (0, (0.5, 0.5), -1, "holds -1"),
])
def test_validate_says_what_is_wrong_and_where(row, value, labels, message):
  probs = GOOD.copy()
  probs[row] = value
  metrics.validate(GOOD.reshape(2, 3, 2), np.ones((2, 3), int))
  with pytest.raises(ValueError, match=message):
    metrics.validate(probs, np.full(6, labels))


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.nll, metrics.brier_score])
def test_where_equals_slicing_and_leading_axes_are_flattened(metric):
  probs, labels = _data(24, 4)
  where = np.arange(24) % 4 != 0
  masked, wrong = np.where(where[:, None], probs, np.nan), np.where(where, labels, 255)
  expected = metric(probs[where], labels[where])
  np.testing.assert_allclose(metric(masked, wrong, where=where), expected, rtol=1e-6)
  shaped = masked.reshape(2, 3, 4, 4), wrong.reshape(2, 3, 4), where.reshape(2, 3, 4)
  np.testing.assert_allclose(jax.jit(lambda p, y, w: metric(p, y, where=w))(*shaped), expected, rtol=1e-6)
  assert metric(masked, wrong, where=np.zeros(24, bool)) == 0
  stacked = jax.vmap(metric)(probs.reshape(2, 12, 4), labels.reshape(2, 12))
  np.testing.assert_allclose(stacked, [metric(probs[:12], labels[:12]), metric(probs[12:], labels[12:])], rtol=1e-6)


def test_certain_and_wrong_is_finite():
  probs = jnp.array([[1.0, 0.0]])
  np.testing.assert_allclose(metrics.nll(probs, jnp.array([1])), 126 * np.log(2), rtol=1e-6)
  assert metrics.brier_score(probs, jnp.array([1])) == 2


def test_means_of_millions_keep_their_digits():
  probs = np.stack([np.full(2_000_000, 0.9), np.full(2_000_000, 0.1)], 1).astype(np.float32)
  labels = (RNG.uniform(size=2_000_000) < 0.3).astype(np.int32)
  chosen = probs.astype(np.float64)[np.arange(2_000_000), labels]
  np.testing.assert_allclose(metrics.nll(probs, labels), -np.log(chosen).mean(), rtol=1e-6)


@pytest.mark.parametrize(("arguments", "error", "message"), [
  ((np.ones((3, 2)), np.zeros(2, int)), ValueError, r"got probs \(3, 2\) and labels \(2,\)"),
  ((np.ones((3, 2), int), np.zeros(3, int)), TypeError, "probs must be floating point: got dtype int"),
  ((np.ones((3, 2)), np.zeros(3)), TypeError, r"labels must be integers in \[0, 2\): got dtype float32"),
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


def test_the_bootstrap_covers_the_true_accuracy():
  covered = 0
  for seed in range(200):
    correct = (np.random.default_rng(seed).uniform(size=150) < 0.8).astype(np.float32)
    _, low, high = metrics.bootstrap(jnp.mean, correct, key=jax.random.key(seed), num_resamples=300)
    covered += bool(low <= 0.8 <= high)
  assert 180 <= covered <= 199  # 95% of 200 is 190; the percentile interval of a proportion falls a little short.


def test_the_bootstrap_depends_on_its_key_alone_and_resamples_arrays_together():
  probs, labels = _data(100, 3)
  first, again, other = (metrics.bootstrap(metrics.accuracy, probs, labels, key=jax.random.key(k), num_resamples=99)
                         for k in (1, 1, 2))
  assert first == again and first != other
  same = metrics.bootstrap(lambda a, b: jnp.max(jnp.abs(a - b)), probs, probs, key=jax.random.key(0), num_resamples=9)
  assert same == (0, 0, 0)
  estimate, low, high = metrics.bootstrap(lambda a: jnp.stack([jnp.mean(a), jnp.max(a)]), probs[:, 0],
                                          key=jax.random.key(0), num_resamples=50)
  assert estimate.shape == low.shape == high.shape == (2,)


def test_bootstrap_mistakes_are_named():
  with pytest.raises(ValueError, match="arrays must share their first axis"):
    metrics.bootstrap(jnp.mean, np.ones(3), np.ones(4), key=jax.random.key(0))
  with pytest.raises(ValueError, match=r"level must be in \(0, 1\)"):
    metrics.bootstrap(jnp.mean, np.ones(3), key=jax.random.key(0), level=1.0)
