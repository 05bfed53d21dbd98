"""Intervals of samples with few errors, or few right answers, hold the truth, and show no gain by what was not seen."""

import numpy as np
import pytest
from scipy import stats

from calib_jax import calibrators, evaluation, metrics
from calib_jax.evaluation import few_errors
from calib_jax.evaluation.measures import measure, per_example
from calib_jax.evaluation.results import Interval
from calib_jax.evaluation.sections import detection
from calib_jax.evaluation.sections.class_groups import class_groups

ROW, OTHER = ("mine", "none"), ("mine", "TS")


def _values(confidence, right, num_classes=2, groups=None):
  """The values of examples whose other classes share what the confidence leaves."""
  labels = np.zeros(len(right), np.int32)
  rest = ((1 - confidence) / (num_classes - 1))[:, None]
  probs = np.where(np.arange(num_classes) == np.where(right, 0, 1)[:, None], confidence[:, None], rest)
  return per_example([evaluation.Predictions(np.log(probs).astype(np.float32), labels, groups=groups)])


def test_what_a_model_expects_of_a_right_and_a_wrong_answer_is_that_of_its_probabilities():
  rng = np.random.default_rng(0)
  probs = rng.dirichlet(np.ones(4), 50)
  values = per_example([evaluation.Predictions(np.log(probs).astype(np.float32), np.zeros(50, np.int32))])
  is_top = probs == probs.max(1, keepdims=True)
  actual, losses = few_errors.of_right_and_wrong(values), -probs * np.log(probs)
  assert actual["nll"] == pytest.approx([losses[x].sum() / probs[x].sum() for x in (is_top, ~is_top)], rel=1e-5)
  gap = probs.max(1)[:, None] - is_top
  assert actual["excess"] == pytest.approx([np.sum((probs * gap)[x]) / probs[x].sum() for x in (is_top, ~is_top)],
                                           rel=1e-5)


@pytest.mark.parametrize("groups", [None, np.arange(60)])
def test_sixty_right_answers_have_intervals_with_a_width_and_show_no_gain(groups):
  confidence = np.random.default_rng(0).uniform(0.96, 0.98, 60)
  rows = {ROW: _values(confidence, np.ones(60, bool), groups=groups),
          OTHER: _values(0.5 + confidence / 2, np.ones(60, bool), groups=groups)}
  tables, differences = measure(rows, num_resamples=100)
  row, change = tables[ROW], differences[OTHER, ROW]
  assert row["accuracy"].value == row["accuracy"].high == 1
  exact = stats.binomtest(60, 60).proportion_ci(0.95).low
  assert row["accuracy"].low == pytest.approx(exact) if groups is None else 0.9 < row["accuracy"].low < exact
  assert row["nll"].low < 0.0305 and row["nll"].high > 0.06 and row["ece"].p_value > 0.05 and row["ece"].low == 0
  assert row["ece"].high > 0.03 and row["ece_equal_mass_l2"].low == 0
  assert row["aurc"].high > 0.01 and row["excess_aurc"].high > 0.01 and row["classwise"].high > 0.03
  assert row["coverage_at_1"].low == 0 and row["coverage_at_1"].high == row["coverage_at_5"].high == 1
  assert change["nll"].estimate < 0 < change["nll"].high and change["ece"].low < 0 < change["ece"].high
  assert (change["accuracy"].low, change["accuracy"].high) == (0, 0)
  assert not {"aurc", "excess_aurc", "coverage_at_1", "coverage_at_5"} & set(change)


def test_the_exact_interval_of_three_errors_of_200_does_not_end_at_100_percent():
  row = measure({ROW: _values(np.full(200, 0.98), np.arange(200) >= 3)}, num_resamples=40)[0][ROW]["accuracy"]
  assert (row.low, row.high) == pytest.approx(tuple(stats.binomtest(197, 200).proportion_ci(0.95)))


def test_two_models_of_equal_predictions_may_differ_and_a_calibrator_of_one_may_not():
  values = _values(np.full(60, 0.97), np.arange(60) > 0)
  changes = measure({("a", "none"): values, ("a", "TS"): values, ("b", "none"): values}, num_resamples=40)[1]
  assert changes[("a", "TS"), ("a", "none")]["accuracy"].low == 0
  between = ("b", "none"), ("a", "none")
  of_two_and_two = 1.96 * (4 / 64 / 64) ** 0.5  # Two examples of each kind added to 60 that are equal.
  assert (changes[between]["accuracy"].low, changes[between]["accuracy"].high) == pytest.approx(
    (-of_two_and_two, of_two_and_two))


def test_classwise_errors_of_an_overconfident_model_hold_the_truth_where_few_errors_are_seen():
  # Without the errors that were not seen they do in 49 of 60 draws.
  held = 0
  for seed in range(30):
    rng = np.random.default_rng(seed)
    right, predicted = rng.uniform(size=60) < 0.97, rng.integers(0, 2, 60)
    probs = np.where(np.arange(2) == predicted[:, None], 0.99, 0.01)
    labels = np.where(right, predicted, 1 - predicted).astype(np.int32)
    values = per_example([evaluation.Predictions(np.log(probs).astype(np.float32), labels)])
    interval = measure({ROW: values}, num_resamples=40)[0][ROW]["classwise"]
    held += interval.low <= 0.02 <= interval.high  # Each class is off by 0.02 where it is predicted, and elsewhere.
  assert held >= 28, held


def test_the_aurc_is_the_mean_of_errors_times_the_weights_of_their_ranks():
  rng = np.random.default_rng(0)
  confidence, wrong = rng.integers(1, 30, 200) / 30, rng.uniform(size=200) < 0.3
  expected = metrics.aurc(confidence.astype(np.float32), ~wrong)
  assert np.mean(few_errors._rank_weights(confidence) * wrong) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(("number", "groups", "low"), [(367, None, 0), (368, None, 1), (736, np.arange(736) // 2, 1),
                                                       (734, np.arange(734) // 2, 0)])
def test_a_coverage_at_a_risk_is_shown_by_so_many_right_answers(number, groups, low):
  # 0.99^368 is the first power below 2.5%.
  values = _values(np.full(number, 0.995), np.ones(number, bool), groups=groups)
  assert measure({ROW: values}, num_resamples=20)[0][ROW]["coverage_at_1"].low == low


def test_of_two_classes_the_brier_score_of_a_right_and_a_wrong_answer_is_exact():
  c = np.random.default_rng(1).uniform(0.5, 1, 50)
  expected = np.sum(c * 2 * (1 - c) ** 2) / c.sum(), np.sum((1 - c) * 2 * c**2) / np.sum(1 - c)
  assert few_errors.of_right_and_wrong(_values(c, np.ones(50, bool)))["brier"] == pytest.approx(expected, rel=1e-5)


def test_a_calibration_error_is_the_mean_excess_and_what_bins_show_beside_it():
  values = _values(np.full(60, 0.97), np.ones(60, bool))
  expected = few_errors.of_right_and_wrong(values)["excess"]
  excess = few_errors.with_unseen(values.confidence[:, 0] - 1.0, *expected, values)
  assert excess.estimate == pytest.approx(-0.03, abs=1e-6) and excess.low < -0.03 and excess.high > 0
  error = evaluation.Estimate(0.08, 0.08, 0.07, 0.081)
  table = few_errors.of_row(dict.fromkeys(("accuracy", "nll", "brier", "ece"), error), values)
  assert table["ece"].low == 0
  assert table["ece"].high == pytest.approx(max(-excess.low, excess.high) + 0.05, abs=1e-6)


@pytest.mark.parametrize(("wrong", "groups", "sentence"), [
  (0, None, "60 examples without an error are too few to choose a calibrator by."),
  (1, None, "1 error among 60 examples is too few to choose a calibrator by."),
  (1, np.arange(60), "errors in 1 group of 60 are too few to choose a calibrator by.")])
def test_the_first_line_says_that_so_few_errors_choose_no_calibrator(wrong, groups, sentence):
  confidence, predicted = np.random.default_rng(0).uniform(0.96, 0.98, 60)[:, None], np.arange(60) % 2
  logits = np.log(np.where(np.arange(2) == predicted[:, None], confidence, 1 - confidence)).astype(np.float32)
  fit, test = (evaluation.Predictions(logits, np.where(np.arange(60) < k, 1 - predicted, predicted).astype(np.int32),
                                      groups=groups) for k in (1, wrong))
  fitted = evaluation.fit([fit], {"TS": calibrators.temperature_scaling()})
  results = evaluation.judge({"mine": evaluation.Model({"test": [test]}, fitted)}, num_resamples=100)
  assert results.verdict.first_line == f"Keep the model as it is: 60 examples show no miscalibration, and {sentence}"


def test_samples_with_more_errors_are_left_as_they_are():
  values = _values(np.full(150, 0.7), np.arange(150) % 5 > 0)
  assert not few_errors.are_few(values) and few_errors.of_row({"nll": 1}, values) == {"nll": 1}
  assert few_errors.are_few(_values(np.full(150, 0.7), np.arange(150) % 5 > 0, groups=np.arange(150) % 12))
  assert few_errors.are_few(_values(np.full(100, 0.7), np.arange(100) % 10 == 0))


@pytest.mark.parametrize(("accuracy", "stated", "number"), [(0.99, 0.99, 60), (0.97, 0.99, 100)])
def test_intervals_hold_the_truth(accuracy, stated, number):
  """In 93% of 60 draws or more, by three standard errors; before, those of the first case did in 54%."""
  c = np.linspace(stated - 0.004, stated + 0.004, number)
  truth = {"accuracy": accuracy, "nll": np.mean(-accuracy * np.log(c) - (1 - accuracy) * np.log(1 - c)),
           "brier": 2 * np.mean(accuracy * (1 - c) ** 2 + (1 - accuracy) * c**2), "ece": abs(stated - accuracy)}
  held = dict.fromkeys(truth, 0)
  for seed in range(60):
    right = np.random.default_rng(seed).uniform(size=number) < accuracy
    row = measure({ROW: _values(c, right)}, num_resamples=40)[0][ROW]
    for name, value in truth.items():
      held[name] += row[name].low - 1e-6 <= value <= row[name].high + 1e-6
  assert min(held.values()) >= 60 * 0.93 - 3 * (60 * 0.93 * 0.07) ** 0.5, held


def test_a_group_of_classes_that_is_always_right_has_intervals_with_a_width():
  rng, labels = np.random.default_rng(0), np.repeat(np.arange(3), 40)
  confidence = rng.uniform(0.96, 0.98, 120)
  right = (labels > 0) | (rng.uniform(size=120) < 0.7)
  predicted = np.where(right, labels, (labels + 1) % 3)
  probs = np.where(np.arange(3) == predicted[:, None], confidence[:, None], (1 - confidence[:, None]) / 2)
  values = per_example([evaluation.Predictions(np.log(probs).astype(np.float32), labels.astype(np.int32))])
  groups = class_groups({ROW: values}, np.array([1000, 100, 10]), num_resamples=40)[ROW]
  tail = groups["tail"]["accuracy"]
  assert (tail.low, tail.high) == pytest.approx(tuple(stats.binomtest(40, 40).proportion_ci(0.95)))
  assert groups["tail"]["ece"].low == 0 and groups["tail"]["nll"].high > 0.1
  errors = int((~right).sum())
  exact = stats.binomtest(40 - errors, 40).proportion_ci(0.95)
  assert (groups["head"]["accuracy"].low, groups["head"]["accuracy"].high) == pytest.approx(tuple(exact))


@pytest.mark.parametrize(("number", "shift"), [(10, 2.33), (40, 2.33), (40, 0.5)])
def test_intervals_of_the_auroc_hold_the_truth_where_sets_are_parted_by_chance(number, shift):
  truth, held, parted = stats.norm.cdf(shift / 2**0.5), 0, 0
  for seed in range(300):
    inside, outside = np.random.default_rng(seed).normal(size=(2, number)) + np.array([[shift], [0.0]])
    area = float(np.mean(inside[:, None] > outside))
    interval = detection._as_wide(Interval(area, area, area), "auroc", number, number)  # Without any resamples.
    held, parted = held + (interval.low <= truth <= interval.high), parted + (area == 1)
    assert 0 <= interval.low < interval.high <= 1
  assert held >= 300 * 0.93 - 2 and (parted > 0 or number > 10), (held, parted)


def test_a_share_of_no_false_alarms_has_its_exact_interval():
  interval = detection._as_wide(Interval(0.0, 0.0, 0.0), "fpr_at_95_tpr", 500, 30)
  assert (interval.low, interval.high) == pytest.approx(tuple(stats.binomtest(0, 30).proportion_ci(0.95)))
