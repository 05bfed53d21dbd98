"""Risk-coverage curves and ROC statistics against double loops, with ties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from calib_jax import metrics
from calib_jax.metrics import formulas
from tests.metrics import references
from tests.metrics.data import batch

SIZES = (1, 2, 15, 300)


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
def test_risk_coverage_and_its_areas_equal_the_reference_under_masks(kind):
  samples = []
  for n in SIZES:
    scores, wrong = _scores(n, kind)
    samples += [(scores, wrong), (scores, np.random.default_rng(1).exponential(size=n).astype(np.float32))]
  data = [batch(samples[i::2], SIZES[-1]) for i in (0, 1)]  # Risks that are bools, and floats.
  for i, arrays in enumerate(data):
    curves, areas, excesses = _curves(*arrays)
    for (scores, risk), *curve, area, excess in zip(samples[i::2], *curves, areas, excesses, strict=True):
      expected, n = references.risk_coverage(scores, risk), len(scores)
      coverage, mean_risk = (np.asarray(x) for x in curve)
      np.testing.assert_allclose(mean_risk[:n], expected, rtol=2e-5, atol=1e-7)
      np.testing.assert_allclose(coverage[:n], np.arange(1, n + 1) / n, rtol=1e-6)
      assert np.isnan(coverage[n:]).all() and np.isnan(mean_risk[n:]).all()
      np.testing.assert_allclose(area, expected.mean(), rtol=1e-5, atol=1e-7)
      best = references.risk_coverage(-risk.astype(np.float64), risk).mean()
      np.testing.assert_allclose(excess, expected.mean() - best, rtol=1e-4, atol=1e-6)


@jax.jit
@jax.vmap
def _curves(scores, risk, where):
  return [metric(scores, risk=risk, where=where) for metric in (metrics.risk_coverage_curve, metrics.aurc,
                                                                metrics.excess_aurc)]


def test_the_second_argument_says_what_is_correct():
  """Of four predictions the least confident is wrong: the risks are 0, 0, 0 and 1/4, and no ordering has a lower area.

  ``1 - correct`` as the risk gives the same, also where rows are ignored and have weights.
  """
  confidence, correct = np.array([0.9, 0.8, 0.7, 0.6], np.float32), np.array([1, 1, 1, 0])
  for right in (correct, correct.astype(bool)):
    assert metrics.aurc(confidence, right) == 0.0625
  np.testing.assert_array_equal(metrics.risk_coverage_curve(confidence, correct).risk, [0, 0, 0, 0.25])
  assert metrics.excess_aurc(confidence, correct) == 0
  counts = {"where": np.array([True, False, True, True]), "weights": np.array([2.0, 3.0, 1.0, 1.5])}
  assert metrics.aurc(1 - confidence, correct, **counts) == metrics.aurc(1 - confidence, risk=1 - correct, **counts) > 0


RATES = (0.6, 0.95, 1.0)


@jax.jit
@jax.vmap
def _roc(scores, positives, where):
  rates = [metrics.fpr_at_tpr(scores, positives, tpr=tpr, where=where) for tpr in RATES]
  return metrics.auroc(scores, positives, where=where), jnp.stack(rates)


# One class alone has neither area nor rate; zeros of both signs tie; nineteen of twenty positives are exactly 95%, and
# fifteen of 25 exactly 60%, although float32 has 25 · 0.6 above 15.
SPECIAL = [*((np.arange(3, dtype=np.float32), np.full(3, value)) for value in (True, False)),
           (np.array([0.0, -0.0], np.float32), np.array([True, False])),
           (np.append(np.arange(21, 1, -1), 2.5).astype(np.float32), np.arange(21) < 20),
           (np.append(np.arange(26, 1, -1), 11.5).astype(np.float32), np.arange(26) < 25)]


@pytest.mark.parametrize("kind", KINDS)
def test_roc_statistics_equal_the_reference_under_masks(kind):
  samples = [*(_scores(n, kind, seed) for n in SIZES for seed in range(3)), *SPECIAL]
  for (scores, positives), area, rates in zip(samples, *_roc(*batch(samples, SIZES[-1])), strict=True):
    np.testing.assert_allclose(area, references.auroc(scores, positives), rtol=1e-6)
    expected = [references.fpr_at_tpr(scores, positives, tpr) for tpr in RATES]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


def test_the_fewest_examples_of_a_share_are_those_of_whole_numbers():
  totals, percent = np.arange(1, 5001)[None], np.array([1, 5, 29, 57, 60, 95, 99, 100])[:, None]
  for module in (np, jnp):
    fewest = formulas.fewest(module.asarray(totals), module.asarray(percent / 100, np.float32))
    np.testing.assert_array_equal(fewest, -(-percent * totals // 100))


@pytest.mark.slow
def test_a_million_scores_keep_their_digits():
  scores, positives = _scores(1_000_000, "mixed")
  p = positives.sum()
  exact = (stats.rankdata(scores)[positives].sum() - p * (p + 1) / 2) / (p * (len(scores) - p))
  np.testing.assert_allclose(metrics.auroc(scores, positives), exact, atol=1e-6)
  wrong = positives[np.argsort(-scores, kind="stable")]
  expected = np.mean(np.cumsum(wrong) / np.arange(1, len(wrong) + 1))
  np.testing.assert_allclose(metrics.aurc(scores, risk=positives), expected, rtol=1e-5)


@pytest.mark.parametrize(("call", "error", "message"), [
  (lambda: metrics.auroc(np.ones(3, np.float32), np.ones(3)), TypeError, "positives must be boolean: got dtype float"),
  (lambda: metrics.aurc(np.ones(3, np.float32), np.ones(4)), ValueError,
   r"correct must have the shape of confidence: got confidence \(3,\) and correct \(4,\)"),
  (lambda: metrics.aurc(np.ones(3, np.float32), risk=np.ones(4)), ValueError,
   r"risk must have the shape of confidence: got confidence \(3,\) and risk \(4,\)"),
  (lambda: metrics.aurc(np.ones(3, int), np.ones(3)), TypeError, "confidence must be floating point"),
  (lambda: metrics.aurc(np.ones(3, np.float32), np.array([0.0, 1.0, 1.3])), ValueError,
   r"correct must be bools, zeros and ones, or credits in \[0, 1\] \(a loss of each example is passed as risk=, .*: "
   "1 of 3 rows is not; the first, row 2, holds 1.3"),
  (lambda: metrics.excess_aurc(np.ones(3, np.float32)), TypeError, "give either correct, .* or risk=.*: got neither"),
  (lambda: metrics.risk_coverage_curve(np.ones(1, np.float32), [1], risk=[0.0]), TypeError, "give either .*: got both"),
  (lambda: metrics.fpr_at_tpr(np.ones(3, np.float32), np.ones(3, bool), tpr=2.0), ValueError, r"tpr must be in \(0, 1"),
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
