"""Risk-coverage curves and ROC statistics against double loops, with ties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses, metrics
from tests.metrics import references

SIZES = (1, 2, 15, 100, 800)


def _scores(n, kind, seed=0):
  rng = np.random.default_rng(seed)
  scores = rng.normal(size=n)
  if kind == "ties":
    scores = np.round(scores)
  if kind == "equal":
    scores = np.zeros(n)
  if kind == "huge":
    scores = scores * 1e30
  return scores.astype(np.float32), rng.uniform(size=n) < 1 / (1 + np.exp(np.clip(scores, -5, 5)))


KINDS = ("mixed", "ties", "equal", "huge")


@pytest.mark.parametrize("kind", KINDS)
def test_risk_coverage_and_its_areas_equal_the_reference(kind):
  for n in SIZES:
    scores, wrong = _scores(n, kind)
    for risk in (wrong, np.random.default_rng(1).exponential(size=n).astype(np.float32)):
      curve, expected = metrics.risk_coverage_curve(scores, risk), references.risk_coverage(scores, risk)
      np.testing.assert_allclose(curve.risk, expected, rtol=2e-5, atol=1e-7)
      np.testing.assert_allclose(curve.coverage, np.arange(1, n + 1) / n, rtol=1e-6)
      np.testing.assert_allclose(metrics.aurc(scores, risk), expected.mean(), rtol=1e-5, atol=1e-7)
      best = references.risk_coverage(-risk.astype(np.float64), risk).mean()
      np.testing.assert_allclose(metrics.excess_aurc(scores, risk), expected.mean() - best, rtol=1e-4, atol=1e-6)


def test_aurc_is_the_harmonic_loss():
  rng = np.random.default_rng(0)
  logits, labels = rng.normal(size=(200, 5)).astype(np.float32), rng.integers(0, 5, 200)
  confidence = jax.nn.softmax(logits).max(axis=1)
  np.testing.assert_allclose(metrics.aurc(confidence, losses.cross_entropy(logits, labels)),
                             losses.aurc(logits, labels), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_roc_statistics_equal_the_reference(kind):
  for n in SIZES:
    for seed in range(3):
      scores, positives = _scores(n, kind, seed)
      np.testing.assert_allclose(metrics.auroc(scores, positives), references.auroc(scores, positives), rtol=1e-6)
      for tpr in (0.5, 0.95, 1.0):
        np.testing.assert_allclose(metrics.fpr_at_tpr(scores, positives, tpr=tpr),
                                   references.fpr_at_tpr(scores, positives, tpr), rtol=1e-6)


def test_the_rate_itself_reaches_the_target():
  positives = np.ones(21, bool)
  positives[-1] = False
  scores = np.arange(21, 0, -1).astype(np.float32)  # Nineteen of twenty positives are exactly 95%.
  scores[-1] = 2.5
  assert metrics.fpr_at_tpr(scores, positives) == 0


@pytest.mark.parametrize("metric", [metrics.auroc, metrics.fpr_at_tpr])
def test_one_class_alone_is_nan(metric):
  for value in (True, False):
    assert np.isnan(metric(np.arange(3.0, dtype=np.float32), np.full(3, value)))


def test_signed_zeros_tie():
  assert metrics.auroc(np.array([0.0, -0.0], np.float32), np.array([True, False])) == 0.5


@pytest.mark.parametrize("metric", [metrics.auroc, metrics.fpr_at_tpr, metrics.aurc, metrics.excess_aurc])
def test_what_does_not_count_changes_nothing(metric):
  scores, flags = _scores(60, "ties")
  where = np.arange(60) % 3 > 0
  masked = np.where(where, scores, np.nan)
  expected = metric(scores[where], flags[where])
  np.testing.assert_allclose(metric(masked, flags, where=where), expected, rtol=1e-5)
  shaped = metric(*(x.reshape(3, 4, 5) for x in (masked, flags)), where=where.reshape(3, 4, 5))
  np.testing.assert_allclose(shaped, expected, rtol=1e-5)
  stacked = jax.vmap(metric)(scores.reshape(2, 30), flags.reshape(2, 30))
  np.testing.assert_allclose(stacked, [metric(scores[:30], flags[:30]), metric(scores[30:], flags[30:])], rtol=1e-5)


def test_a_million_scores_keep_their_digits():
  scores, positives = _scores(1_000_000, "mixed")
  order = np.argsort(scores, kind="stable")
  rank = np.empty(len(scores))
  rank[order] = np.arange(1, len(scores) + 1)
  p = positives.sum()
  exact = (rank[positives].sum() - p * (p + 1) / 2) / (p * (len(scores) - p))
  tied = len(scores) - len(np.unique(scores))  # Few, so that their halves hardly matter.
  np.testing.assert_allclose(metrics.auroc(scores, positives), exact, atol=1e-6 + tied / len(scores)**1.9)
  wrong = positives[np.argsort(-scores, kind="stable")]
  expected = np.mean(np.cumsum(wrong) / np.arange(1, len(wrong) + 1))
  np.testing.assert_allclose(metrics.aurc(scores, positives), expected, rtol=1e-5)


@pytest.mark.parametrize(("call", "error", "message"), [
  (lambda: metrics.auroc(np.ones(3, np.float32), np.ones(3)), TypeError, "positives must be boolean: got dtype float"),
  (lambda: metrics.aurc(np.ones(3, np.float32), np.ones(4)), ValueError, r"risk must have the shape of the scores"),
  (lambda: metrics.aurc(np.ones(3, int), np.ones(3)), TypeError, "confidence must be floating point"),
  (lambda: metrics.cohens_d(jnp.ones(1), jnp.ones(3)), ValueError, "a must hold at least 2 values"),
  (lambda: metrics.within_subject_sem(jnp.ones(4)), ValueError, r"x must have shape \[subjects, conditions\]"),
  (lambda: metrics.within_subject_sem(jnp.ones((4, 1))), ValueError, "at least 2 conditions"),
])
def test_mistakes_are_named(call, error, message):
  with pytest.raises(error, match=message):
    call()


def test_statistics_equal_numpy():
  rng = np.random.default_rng(0)
  a, b = rng.normal(1, 2, 12), rng.normal(0, 3, 8)
  pooled = np.sqrt((11 * a.var(ddof=1) + 7 * b.var(ddof=1)) / 18)
  np.testing.assert_allclose(metrics.cohens_d(a, b), (a.mean() - b.mean()) / pooled, rtol=1e-5)
  np.testing.assert_allclose(metrics.sem(a), a.std(ddof=1) / np.sqrt(12), rtol=1e-5)
  x = rng.normal(size=(6, 4)) + 10 * rng.normal(size=(6, 1))
  rest = [[x[i, j] - x[i].mean() - x[:, j].mean() + x.mean() for j in range(4)] for i in range(6)]
  expected = np.sqrt(np.sum(np.square(rest)) / (5 * 3) / 6)
  np.testing.assert_allclose(metrics.within_subject_sem(x), expected, rtol=1e-4)
  shifted = metrics.within_subject_sem(x + 100 * np.arange(6)[:, None])
  np.testing.assert_allclose(shifted, expected, rtol=1e-3)  # What subjects differ by does not count.
