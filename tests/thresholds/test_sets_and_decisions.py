"""Prediction sets against direct sums, and decisions under costs."""

import math

import jax
import numpy as np
import pytest

from calib_jax.thresholds import decision_threshold, means, net_benefit, prediction_sets


def _drawn(n, k=5, seed=0):
  rng = np.random.default_rng(seed)
  probs = rng.dirichlet(np.ones(k), n)
  return probs, (probs.cumsum(1) < rng.uniform(size=(n, 1))).sum(1).clip(0, k - 1)


def _score(p, k, method, penalty, rank):
  """The score of a class, and that of all more probable ones, from the formula."""
  if method == "lac":
    return 1 - p[k], math.inf
  if p[k] == 0:
    return math.inf, math.inf
  place, above, penalty = sum(p > p[k]) + 1, p[p > p[k]].sum(), penalty if method == "raps" else 0
  return above + p[k] + penalty * max(0, place - rank), above + penalty * max(0, place - 1 - rank)


@pytest.mark.parametrize(("method", "by_class", "coverage"), [
  ("lac", False, 0.8), ("lac", True, 0.5), ("aps", False, 0.8), ("raps", False, 0.8)])
def test_sets_are_those_of_the_formula(method, by_class, coverage):
  probs, labels = _drawn(200, 4)
  probs[:20] = 0.25  # Ties.
  rule = prediction_sets(probs, labels, coverage=coverage, method=method, by_class=by_class, penalty=0.3, rank=2)
  scores, above = np.array([[_score(p, k, method, 0.3, 2) for k in range(4)] for p in probs]).transpose(2, 0, 1)
  true = scores[np.arange(200), labels]
  for k in range(4):
    own = np.sort(true[labels == k] if by_class else true)
    quantile = own[math.ceil((len(own) + 1) * coverage) - 1]
    expected = (scores[:, k] <= quantile + 1e-9) | (above[:, k] < quantile - 1e-9)
    np.testing.assert_array_equal(rule(probs)[:, k], expected)


@pytest.mark.parametrize(("method", "by_class"), [("aps", False), ("raps", True)])
def test_coverage_over_draws_is_what_was_asked(method, by_class):
  covered = []
  for seed in range(200):
    probs, labels = _drawn(160, 3, seed)
    rule = prediction_sets(probs[:60], labels[:60], method=method, by_class=by_class, key=jax.random.key(seed))
    sets = rule(probs[60:], key=jax.random.key(seed + 1000))
    covered.append(sets[np.arange(100), labels[60:]].mean())
  mean, error = np.mean(covered), np.std(covered) / 200**0.5
  assert 0.9 - 3 * error < mean < (0.9 + (0.06 if by_class else 1 / 61) + 3 * error)


@pytest.mark.slow
def test_a_group_counts_once_and_a_row_of_a_new_one_is_covered():
  probs, labels = _drawn(200, 4)
  alone = prediction_sets(probs, labels)
  assert prediction_sets(probs, labels, groups=np.arange(200)).quantile == alone.quantile
  copies = np.repeat(np.arange(200), np.random.default_rng(0).integers(1, 9, 200))  # Of each row, as many as they like.
  copied = prediction_sets(probs[copies], labels[copies], groups=copies)
  assert copied.quantile == alone.quantile != prediction_sets(probs[copies], labels[copies]).quantile
  with pytest.warns(UserWarning, match="too few examples"):  # Two groups are too few for 90%.
    assert np.isinf(prediction_sets(probs[:80], labels[:80], groups=np.arange(80) // 40).quantile)
  covered = []
  for seed in range(120):  # The large groups are the hard ones.
    rng = np.random.default_rng(seed)
    hard = rng.uniform(size=240) < 0.3
    group = np.repeat(np.arange(240), np.where(hard, 12, 1))
    top = np.where(hard, 0.9, 0.6)[group] + 0.05 * rng.uniform(size=len(group))
    right = rng.uniform(size=len(group)) < np.where(hard, 0.5, 0.95)[group]
    probs = np.stack([top, 0.7 * (1 - top), 0.3 * (1 - top)], axis=1)
    labels, first = np.where(right, 0, rng.integers(1, 3, len(group))), group < 40
    held = prediction_sets(probs[first], labels[first], groups=group[first])(probs)[np.arange(len(group)), labels]
    covered.append(np.average(held[~first], weights=(1 / np.bincount(group))[group[~first]]))
  assert 0.9 - 3 * np.std(covered) / 120**0.5 < np.mean(covered) < 0.94


@pytest.mark.parametrize("method", ["aps", "raps"])
def test_sets_without_a_key_are_never_empty_and_hold_the_true_class_as_often_as_asked(method):
  """Of networks as they are, most of whose examples are sure; the sets of the surest are small."""
  covered = []
  for seed in range(100):
    rng = np.random.default_rng(seed)
    logits = 6 * rng.normal(size=(900, 10))
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    labels = (probs.cumsum(1) < rng.uniform(size=(900, 1))).sum(1).clip(0, 9)
    sets = prediction_sets(probs[:300], labels[:300], method=method)(probs[300:])
    assert sets.any(1).all() and sets[np.arange(600), probs[300:].argmax(1)].all()
    surest = np.argsort(-probs[300:].max(1))[:30]
    assert sets[surest].sum(1).mean() < 1.5
    covered.append(sets[np.arange(600), labels[300:]].mean())
  assert np.mean(covered) > 0.9 - 3 * np.std(covered) / 10


@pytest.mark.parametrize("key", [None, 3])
@pytest.mark.parametrize("method", ["lac", "aps", "raps"])
def test_equal_probabilities_are_treated_alike(method, key):
  key = None if key is None else jax.random.key(key)
  probs, labels = _drawn(300, 5)
  probs = np.round(probs, 1)
  probs[:, 0] += 1 - probs.sum(1)
  probs = np.abs(probs) / np.abs(probs).sum(1, keepdims=True)
  labels = np.where(np.take_along_axis(probs, labels[:, None], 1)[:, 0] > 0, labels, probs.argmax(1))
  sets = prediction_sets(probs, labels, method=method, key=key)(probs, key=key)
  for row, of_row in zip(probs, sets, strict=True):
    for p in np.unique(row):
      assert len(set(of_row[row == p].tolist())) == 1
  rule = prediction_sets(np.tile([0.5, 0.3, 0.2], (99, 1)), np.zeros(99, int), method=method)
  assert rule(np.array([[0.4, 0.4, 0.2]]))[0].tolist() == [method != "lac", method != "lac", False]


@pytest.mark.parametrize("method", ["aps", "raps"])
def test_a_forest_that_is_certain_has_one_class_and_true_classes_of_probability_0_are_said(method):
  certain = np.eye(3)[np.arange(99) % 3]
  with pytest.warns(UserWarning, match="the quantile of the scores is 1 or more, so that sets hold every class"):
    rule = prediction_sets(certain, np.arange(99) % 3, method=method)
  assert rule(certain).sum(1).tolist() == [1] * 99 and "the quantile of the scores is 1 or more" in str(rule)
  with pytest.warns(UserWarning, match="too many true classes have a probability near 0"):  # One in five is 0.
    rule = prediction_sets(certain, np.where(np.arange(99) % 5, np.arange(99) % 3, (np.arange(99) + 1) % 3),
                           method=method)
  assert rule(certain).all() and rule.quantile == math.inf


def test_too_few_examples_for_the_coverage_keep_every_class():
  probs, labels = _drawn(5, 3)
  with pytest.warns(UserWarning, match="there are too few examples for the coverage"):
    rule = prediction_sets(probs, labels)
  assert rule(probs).all() and rule.quantile == math.inf
  with pytest.warns(UserWarning, match="there are too few examples for the coverage"):
    one = prediction_sets(probs, np.zeros(5, int), coverage=0.5, by_class=True)
  assert np.isfinite(one.quantile).tolist() == [True, False, False]


def test_acts_have_the_lowest_expected_cost_and_money_is_counted_in_pairs():
  probs, labels = _drawn(4000, 3)
  costs = np.array([[0.0, 5.0, 9.0], [1.0, 0.0, 4.0], [2.0, 2.0, 0.0], [1.5, 1.5, 1.5]])
  decision = decision_threshold(probs, costs, labels)
  expected = [min(range(4), key=lambda a: sum(costs[a, k] * p[k] for k in range(3))) for p in probs]
  np.testing.assert_array_equal(decision.acts, expected)
  paid = np.array([costs[a, k] for a, k in zip(expected, labels, strict=True)])
  assert decision.cost == pytest.approx(paid.mean()) and abs(decision.cost - decision.expected) < 0.1
  always = np.array([[costs[a, k] for k in labels] for a in range(4)])
  np.testing.assert_allclose(decision.always, always.mean(1))
  np.testing.assert_allclose(decision.saved, (always - paid).mean(1))
  half = (-2 * math.log(0.05)) ** 0.5 * (always - paid).std(1) / 4000**0.5  # Of many values it is nearly normal.
  np.testing.assert_allclose(decision.saved_interval, decision.saved[:, None] + half[:, None] * [-1, 1], rtol=0.02)
  assert (decision.saved_interval[:, 0] > 0).all() and math.isnan(decision.cut)


def test_the_interval_of_a_mean_is_that_of_its_definition():
  """The ends are where the largest log(1 + λ (m - v)) of a fine grid of λ reaches -log(0.05) / n."""
  values = np.repeat([0.0, 1.0, 10.0], [60, 30, 3])
  mean, low, high = means.mean_interval(values, (0.0, 10.0))
  for end, bound in ((low, 0.0), (high, 10.0)):
    rates = np.linspace(0, 1 / (bound - end), 20_001)[:-1]
    assert np.log1p(rates * (end - values[:, None])).sum(0).max() == pytest.approx(-math.log(0.05), abs=1e-4)
  assert low < mean < high and mean == values.mean()


def test_the_interval_of_a_mean_at_the_edges():
  assert means.mean_interval(np.zeros(100), (0.0, 1.0))[2] == pytest.approx(1 - 0.05 ** (1 / 100))
  assert means.mean_interval(np.zeros(100), (0.0, 1.0))[:2] == (0.0, 0.0)
  assert means.mean_interval(np.full(9, 2.0), (2.0, 2.0)) == (2.0, 2.0, 2.0)
  values, groups = np.arange(40) % 4 / 1.0, np.repeat(np.arange(40), 5)
  copied = means.mean_interval(np.repeat(values, 5), (0.0, 5.0), groups=groups)
  assert copied == pytest.approx(means.mean_interval(values, (0.0, 5.0)))
  shifted = means.mean_interval(1e6 + 1e3 * values, (1e6, 1e6 + 5e3))
  assert shifted == pytest.approx(1e6 + 1e3 * np.array(means.mean_interval(values, (0.0, 5.0))), rel=1e-9)


@pytest.mark.parametrize(("miss", "n"), [(10.0, 100), (100.0, 1000)])
def test_intervals_of_costs_hold_the_true_cost_also_of_rare_dear_mistakes(miss, n):
  """In 300 draws of calibrated predictions, the exact values are in the intervals in 95%, by three standard errors."""
  rng, costs, misses = np.random.default_rng(0), np.array([[0.0, miss], [1.0, 0.0]]), np.zeros(3, int)
  p = rng.beta(0.5, 20, 200_000)
  act = p * miss > 1 - p
  expected = np.array([np.where(act, 1 - p, miss * p).mean(), (miss * p).mean(), (1 - p).mean()])
  for _ in range(300):
    p = rng.beta(0.5, 20, n)
    decision = decision_threshold(np.stack([1 - p, p], 1), costs, (rng.uniform(size=n) < p).astype(int))
    ends = np.array([decision.interval, *decision.saved_interval])
    truth = expected - [0, expected[0], expected[0]]
    misses += (truth < ends[:, 0]) | (truth > ends[:, 1])
  assert (misses <= 15 + 3 * (15 * 0.95) ** 0.5).all()


def test_a_cut_of_two_classes_is_where_costs_are_equal():
  costs = np.array([[0.0, 10.0], [1.0, 0.0]])
  decision = decision_threshold(np.array([[0.5, 0.5]]), costs)
  p = decision.cut
  assert costs[0] @ [1 - p, p] == pytest.approx(costs[1] @ [1 - p, p]) and math.isnan(decision.cost)
  assert math.isnan(decision_threshold(np.array([[0.5, 0.5]]), costs[::-1]).cut)  # Act 1 costs less below.
  assert math.isnan(decision_threshold(np.array([[0.5, 0.5]]), [[0.0, 1.0], [1.0, 1.5]]).cut)  # And never here.


def test_net_benefit_is_that_of_vickers_and_elkin():
  prob, labels = np.array([0.9, 0.6, 0.3, 0.3, 0.1]), np.array([1, 0, 1, 0, 0], bool)
  curve = net_benefit(prob, labels, [0.05, 0.3, 0.95])
  for t, model, every in zip(*curve[:3], strict=True):
    acts = prob >= t
    assert model == pytest.approx(np.mean(acts & labels) - np.mean(acts & ~labels) * t / (1 - t))
    assert every == pytest.approx(0.4 - 0.6 * t / (1 - t))
  assert (curve.low <= curve.model).all() and (curve.model <= curve.high).all()


@pytest.mark.parametrize(("call", "match"), [
  (lambda: prediction_sets(np.ones((2, 2)), np.zeros(2, int)), "sum to 1 in each row"),
  (lambda: prediction_sets(np.full((2, 2), 0.5), np.array([0, 2])), r"labels must be in \[0, 2\)"),
  (lambda: prediction_sets(np.full((2, 2), 0.5), np.zeros(2)), "labels must be integer"),
  (lambda: decision_threshold(np.full((2, 2), 0.5), np.ones((2, 3))), r"shape \[actions, 2\]"),
  (lambda: net_benefit([0.5, 2.0], [True, False], [0.5]), r"prob must be in \[0, 1\]"),
  (lambda: net_benefit([0.5, 0.2], [True, False], [1.0]), r"be in \(0, 1\)")])
def test_mistakes_are_named(call, match):
  with pytest.raises((TypeError, ValueError), match=match):
    call()
