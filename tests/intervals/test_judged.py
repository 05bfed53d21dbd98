"""The accuracy by persons on some answers and a judge on all, against its formula and where the truth is known."""

import numpy as np
import pytest

from calib_jax.intervals.judged import judged_mean


def _drawn(rng, n, m, accuracy, agreement, of_group=1):
  """Answers of groups, whose chances of being right differ, and what a judge says of them."""
  group = np.repeat(np.arange((n + m) // of_group), of_group)
  chance = accuracy if of_group == 1 else rng.beta(20 * accuracy, 20 * (1 - accuracy), group[-1] + 1)[group]
  correct = rng.random(n + m) < chance
  judged = np.where(rng.random(n + m) < agreement, correct, ~correct)
  return correct[:n], judged[:n], judged[n:], group


def test_the_estimate_weighs_what_persons_say_by_how_often_the_judge_accepts():
  correct, judged, others, _ = _drawn(np.random.default_rng(0), 100, 900, 0.7, 0.8)
  q = np.mean(np.concatenate([judged, others]))
  expected = q * correct[judged].mean() + (1 - q) * correct[~judged].mean()
  mean = judged_mean(correct, judged, others)
  assert mean.estimate == pytest.approx(expected) and mean.low < expected < mean.high
  # A judge that accepts all says nothing, and without others its verdicts change nothing.
  every = np.ones(100, bool)
  assert judged_mean(correct, every, np.ones(900, bool)).estimate == pytest.approx(correct.mean())
  assert judged_mean(correct, judged, others[:0]).estimate == pytest.approx(correct.mean())
  # A judge that is never wrong leaves the chance of the draw: both sides are about as wide as by persons alone.
  perfect, alone = judged_mean(correct, correct, others[:0]), judged_mean(correct, every, others[:0])
  for a, b in ((perfect.high - perfect.estimate, alone.high - alone.estimate),
               (perfect.estimate - perfect.low, alone.estimate - alone.low)):
    assert 0.9 < a / b < 1.25
  # The numbers of groups of one answer each change nothing.
  alone = judged_mean(correct, judged, others, groups=np.arange(100), groups_others=np.arange(100, 1000))
  np.testing.assert_allclose(alone, mean, rtol=0.02)


def test_thin_and_extreme_verdicts_have_no_interval_or_one_that_is_no_point():
  right = np.ones(19, bool)
  assert np.isnan(judged_mean(right, right, right)[1:]).all()
  assert np.isnan(judged_mean(np.ones(90, bool), np.ones(90, bool), right, groups=np.arange(90) // 9,
                              groups_others=100 + np.arange(19)).low)
  low, high = judged_mean(np.ones(50, bool), np.ones(50, bool), np.ones(900, bool))[1:]
  assert 0.9 < low < 0.97 and high == 1
  # Nobody has looked at what the judge does not accept: it may be right or wrong.
  mean = judged_mean(np.ones(50, bool), np.ones(50, bool), np.arange(100) < 50)
  assert mean.low < 0.7 and mean.high > 0.95


@pytest.mark.parametrize(("n", "accuracy", "agreement", "of_group"), [
  (50, 0.8, 0.9, 1), (200, 0.95, 0.98, 1), (200, 0.6, 0.6, 1), (200, 0.8, 0.85, 4), (40, 0.5, 1.0, 1)])
def test_intervals_hold_the_truth_and_a_good_judge_makes_them_shorter(n, accuracy, agreement, of_group):
  rng, held, widths = np.random.default_rng(1), 0, []
  for _ in range(400):
    correct, judged, others, group = _drawn(rng, n, 1600, accuracy, agreement, of_group)
    groups = {} if of_group == 1 else {"groups": group[:n], "groups_others": group[n:]}
    both = judged_mean(correct, judged, others, **groups)
    alone = judged_mean(correct, np.ones(n, bool), others[:0], **groups | (
      {"groups_others": group[:0]} if groups else {}))
    held += both.low <= accuracy <= both.high
    widths.append((both.high - both.low) / (alone.high - alone.low))
  assert held / 400 > 0.95 - 3 * (0.95 * 0.05 / 400) ** 0.5
  assert np.mean(widths) < (0.85 if agreement >= 0.85 else 1.03)
