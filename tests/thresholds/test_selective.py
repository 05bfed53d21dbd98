"""Selective thresholds: against a direct reading of the procedure, at the edges, and their guarantee by simulation."""

import math

from mapie.risk_control import methods as mapie
import ml_dtypes
import numpy as np
import pytest
from scipy import stats

from calib_jax.thresholds import check_threshold, selective, selective_threshold


def _fallback(confidence, loss, risk, error):
  """The procedure step by step, in exact binomial arithmetic: the lowest accepted cut and its number, or None."""
  ends = [(cut, int(np.sum(confidence >= cut))) for cut in sorted(set(confidence), reverse=True)]
  number = 1
  while True:
    fewest = math.log(error / number) / math.log(1 - risk)
    starts = [fewest * 2**i for i in range(64) if fewest * 2**i <= len(loss)]
    if len(starts) <= number:
      break
    number = len(starts)
  if not starts:
    return None
  targets, step = [*starts], starts[0]
  while step < len(loss):
    targets.append(step)
    step *= selective.STEP
  targets.append(len(loss))
  tested = sorted({next(n for _, n in ends if n >= target - 1e-9) for target in targets})
  begins = [next(n for n in tested if n >= start - 1e-9) for start in starts]
  carried, lowest = 0.0, None
  for n in tested:
    level = carried + error / number * begins.count(n)
    cut = next(cut for cut, m in ends if m == n)
    carried = level if stats.binom.cdf(loss[confidence >= cut].sum(), n, risk) <= level else 0.0
    lowest = (cut, n) if carried else lowest
  return lowest


@pytest.mark.parametrize("seed", range(6))
def test_the_cut_is_that_of_the_procedure(seed):
  rng = np.random.default_rng(seed)
  n, risk = int(rng.integers(1, 8000)), (0.02, 0.05, 0.2)[seed % 3]
  confidence = rng.beta(8, 1, n) if seed % 2 else np.round(rng.beta(8, 1, n), 1 + seed % 4)
  correct = rng.uniform(size=n) < confidence
  order = rng.permutation(n)
  actual = selective_threshold(confidence[order], correct[order], risk=risk)
  expected = _fallback(confidence, ~correct, risk, 0.05)
  assert actual == selective_threshold(confidence, correct, risk=risk) or math.isnan(actual.cut)
  if expected is None:
    assert math.isnan(actual.cut) and actual.coverage == 0
  else:
    accepted = confidence >= expected[0]
    assert actual[1:4] == pytest.approx((expected[1] / n, np.mean(~correct[accepted]), risk))
    rest = confidence[~accepted]  # The cut is a short decimal that accepts the same.
    assert (rest.max() if len(rest) else -1) < actual.cut <= expected[0]


def test_p_values_are_those_of_mapie():
  n, losses = np.array([60.0, 200.0, 1000.0]), np.array([1.0, 3.3, 70.0])
  expected = mapie.compute_hoeffding_bentkus_p_value(losses / n, n, 0.05)
  np.testing.assert_allclose(selective._p_values(n, losses, 0.05, "hoeffding_bentkus"), np.ravel(expected), rtol=1e-10)


@pytest.mark.parametrize(("confidence", "correct", "cut"), [
  (np.full(100, 0.9), np.ones(100, bool), 0.9), (np.full(100, 0.9), np.zeros(100, bool), math.nan),
  (np.array([0.9]), np.array([True]), math.nan), (np.repeat([1.0, 0.5], 100), np.repeat([True, False], 100), 1.0),
  (np.linspace(-1e30, 1e30, 100), np.ones(100, bool), -1e30)])
def test_edges(confidence, correct, cut):
  threshold = selective_threshold(confidence, correct)
  assert threshold.cut == cut or (math.isnan(threshold.cut) and math.isnan(cut))
  assert not math.isnan(cut) or (threshold.coverage == 0 and "no cut is shown to have ≤ 5% errors" in str(threshold))


def test_each_group_counts_once():
  rng = np.random.default_rng(0)
  confidence, correct = rng.beta(20, 1, 500), rng.uniform(size=500) < 0.98
  alone = selective_threshold(confidence, correct, method="hoeffding_bentkus")
  copied = selective_threshold(np.repeat(confidence, 5), np.repeat(correct, 5), groups=np.repeat(np.arange(500), 5))
  assert copied == alone._replace(counts_groups=True) and alone.coverage > 0.5
  assert str(copied).endswith(f"errors (95% sure, each group counts once): cut {selective.written(alone.cut)}")
  # Ten copies of the rows that are wrong change nothing, and neither does a row that is cut off.
  sizes, groups = np.where(correct, 1, 10), np.arange(500)
  unequal = [np.repeat(x, sizes) for x in (confidence, correct, groups)]
  assert selective_threshold(*unequal[:2], groups=unequal[2])._replace(coverage=alone.coverage) == copied
  lower = [np.append(x, y) for x, y in zip(unequal, (0.0, False, 499), strict=True)]
  assert selective_threshold(*lower[:2], groups=lower[2]).cut == copied.cut
  assert selective_threshold(confidence, correct, groups=np.arange(500)) == selective_threshold(confidence, correct)
  assert selective_threshold(confidence, correct, groups=np.zeros(500, int)).coverage == 0
  # One large group of the less confident half does not take the cut of the others away.
  half = np.where(confidence < np.median(confidence), 0, np.arange(1, 501))
  assert selective_threshold(confidence, correct, groups=half).coverage > 0.2


def test_sums_over_groups_are_those_of_every_cut():
  rng = np.random.default_rng(3)
  loss, groups = rng.uniform(size=40), rng.integers(0, 7, 40)
  numbers, sums = selective._of_groups(loss, groups)
  for n in range(1, 41):
    means = [loss[:n][groups[:n] == g].mean() for g in np.unique(groups[:n])]
    assert numbers[n - 1] == len(means) and sums[n - 1] == pytest.approx(sum(means))


@pytest.mark.parametrize("kind", ["overconfident", "ties", "groups", "large groups are wrong"])
def test_the_guarantee_holds(kind):
  """The exact risk of the cut is above the asked one in at most 5% of 400 draws, by three standard errors."""
  rng, wrong = np.random.default_rng(0), 0
  grid = np.round(np.linspace(0, 1, 2001), 4)  # Confidences are of this grid, so that risks are exact.
  mass = np.diff(stats.beta(10, 1).cdf(np.append(grid, 1.0005).clip(0, 1)), prepend=0)[1:]
  grid = np.round(grid, 1 if kind == "ties" else 4)
  right = grid**1.5 if kind == "overconfident" else grid
  for _ in range(400):
    index = rng.choice(len(grid), 400, p=mass / mass.sum())
    correct, groups = rng.uniform(size=400) < right[index], None
    if "groups" in kind:
      groups = np.repeat(np.arange(400), 2 if kind == "groups" else np.where(correct, 1, 30))
      index, correct = index[groups], correct[groups]
    cut = selective_threshold(grid[index], correct, groups=groups).cut
    accepted = grid >= cut
    wrong += not math.isnan(cut) and np.sum(mass[accepted] * (1 - right[accepted])) > 0.05 * np.sum(mass[accepted])
  assert wrong <= 400 * 0.05 + 3 * (400 * 0.05 * 0.95) ** 0.5


def test_a_stored_cut_is_tested_exactly():
  confidence, correct = np.repeat([0.9, 0.1], [200, 100]), np.arange(300) >= 18
  check = check_threshold(0.5, confidence, correct)
  assert check.accepted == 200 and check.risk == 0.09
  assert check.p_value == pytest.approx(stats.binomtest(18, 200, 0.05, "greater").pvalue)
  assert (check.low, check.high) == pytest.approx(tuple(stats.binomtest(18, 200).proportion_ci(0.95)))
  assert check_threshold(2.0, confidence, correct)[2:] == (0.0, 1.0, 1.0)
  assert check_threshold(0.5, confidence, np.zeros(300, bool))[1::2] == (1.0, 1.0)
  groups = np.repeat(np.arange(300), 5)
  copied = check_threshold(0.5, np.repeat(confidence, 5), np.repeat(correct, 5), groups=groups)
  assert (copied.accepted, copied.risk) == (1000, check.risk)
  assert copied.low < check.low + 0.02 and copied.high > check.high - 0.02 and copied.p_value >= check.p_value
  assert check_threshold(0.5, confidence, correct, groups=np.arange(300)) == check
  rng, exceeded, holds = np.random.default_rng(0), 0, 0
  for _ in range(400):  # Large groups are the wrong ones, and 5% of the groups are wrong.
    wrong = rng.uniform(size=100) < 0.05
    groups = np.repeat(np.arange(100), np.where(wrong, 20, 1))
    check = check_threshold(0.5, np.full(len(groups), 0.9), ~wrong[groups], groups=groups)
    exceeded, holds = exceeded + (check.p_value <= 0.05), holds + (check.low <= 0.05 <= check.high)
  assert exceeded <= 0.05 * 400 + 13 and holds >= 0.95 * 400 - 13


@pytest.mark.parametrize(("change", "match"), [
  ({"confidence": np.array([0.5, np.nan])}, "confidence must be finite.*row 1"),
  ({"correct": np.array([1, 2])}, r"correct must be in \[0, 1\].*row 1, holds 2"),
  ({"correct": np.array([0.5, 1.0])}, "method='hoeffding_bentkus'"), ({"confidence": np.zeros((2, 1))}, r"shape \[N\]"),
  ({"confidence": np.zeros(3)}, "must have the shape of correct"),
  ({"confidence": np.zeros(0), "correct": np.zeros(0)}, "N of at least 1"), ({"groups": np.zeros(2)}, "groups must be"),
  ({"risk": 0.0}, "risk must be in"), ({"method": "exact"}, "method must be one of")])
def test_mistakes_are_named(change, match):
  with pytest.raises(ValueError, match=match):
    selective_threshold(**{"confidence": np.array([0.5, 0.6]), "correct": np.array([True, False]), **change})


STATED = np.round(np.arange(0.05, 1.0, 0.01), 2)
DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_printed_cut_accepts_what_was_accepted(dtype):
  """Round trips of stated confidences: chosen in one type, printed, parsed, and compared in any type."""
  rng = np.random.default_rng(0)
  for lowest in STATED:
    confidence = rng.choice(STATED, 400)
    correct = confidence >= lowest - 1e-9  # All errors are below it, so that the cut is there.
    confidence = np.append(confidence, np.full(300, lowest))
    correct = np.append(correct, np.ones(300, bool))
    threshold = selective_threshold(confidence.astype(dtype), correct, risk=0.05)
    accepted = threshold.coverage * len(confidence)
    given = float(str(threshold).rpartition(" ")[2])
    assert given == threshold.cut
    for other in (dtype, np.float64) if dtype in (np.float32, np.float64) else (dtype,):
      text = np.array([float(f"{c:.2f}") for c in confidence], other)  # As a CSV has them.
      assert check_threshold(given, text, correct).accepted == round(accepted), (lowest, threshold)
    if dtype in (np.float32, np.float64):
      assert threshold.cut in STATED and np.mean(confidence >= threshold.cut) == pytest.approx(threshold.coverage)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_stated_cut_is_compared_in_the_type_of_the_confidences(dtype):
  for cut in STATED:
    confidence = STATED.astype(dtype)
    check = check_threshold(cut, confidence, np.ones(len(STATED), bool))
    assert check.accepted == (confidence >= np.asarray(cut).astype(dtype)).sum()
    if dtype in (np.float32, np.float64):
      assert check.accepted == (cut <= STATED).sum()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_shortest_decimal_lies_between_two_confidences(dtype):
  rng = np.random.default_rng(1)
  for scale in (1e-6, 1e-3, 1.0, 1e3):
    for value, gap in zip(scale * rng.normal(size=300), 10.0 ** rng.uniform(-9, 0, 300), strict=True):
      value = float(dtype(value))
      below = float(np.nextafter(dtype(value), dtype(-np.inf))) if gap < 1e-7 else float(dtype(value - scale * gap))
      cut = selective.shortest(value, below, np.dtype(dtype))
      assert below < float(dtype(cut)) <= value and float(selective.written(cut)) == cut
  assert selective.shortest(1.0, -math.inf, np.dtype(np.float32)) == 1.0 and selective.written(1.0) == "1"
  assert selective.shortest(0.0, -math.inf, np.dtype(np.float32)) == 0.0
