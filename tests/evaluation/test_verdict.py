"""The verdict accuses calibrated models rarely, and intervals of class-wise errors hold the truth."""

import numpy as np

from calib_jax import evaluation
from calib_jax.evaluation import decisions
from calib_jax.evaluation.measures import class_gaps, measure, per_example
from calib_jax.evaluation.verdict import verdict


def _values(confidence, correct, predicted):
  return evaluation.Values(confidence.astype(np.float32), correct, *[confidence] * 3, predicted, {})


def test_a_calibrated_model_is_called_miscalibrated_in_at_most_5_percent():
  # Many predictions are nearly certain. Tests at 5% each, with the spread of the sample alone, said so in 23%.
  rng, num_hits, repeats, num_redraws = np.random.default_rng(0), 0, 200, 79
  for _ in range(repeats):
    logits = 12 * rng.normal(size=(300, 10))
    probs = np.exp(logits - logits.max(1, keepdims=True))
    confidence = (probs / probs.sum(1, keepdims=True)).max(1, keepdims=True).astype(np.float32)
    outcomes = rng.uniform(size=(300, 1 + num_redraws)) < confidence
    bins = np.ceil(confidence[:, 0] * 15).astype(int)
    errors = sum(abs((confidence - outcomes)[bins == j].sum(0)) for j in range(16))
    p_value = np.mean(errors >= errors[0] * (1 - 1e-5))
    values = _values(confidence, outcomes[:, :1], logits.argmax(1)[:, None])
    estimate = evaluation.Estimate(0.05, 0.04, 0.03, 0.06, 0.02, p_value, [0.05])
    row = evaluation.Row({"ece": estimate}, values.excess(), values)
    sets = {"test": evaluation.EvaluatedSet(300, 10, 1, rows={("a", "none"): row})}
    sentences = verdict(evaluation.Results(15, 79, sets, {"a": {}}))
    num_hits += len(sentences) > 1 or not sentences[0].startswith("No miscalibration can be shown")
  assert num_hits <= 0.05 * repeats + 2 * (0.05 * 0.95 * repeats) ** 0.5, num_hits


def test_predictions_that_are_right_without_exception_are_not_called_underconfident():
  # Of 60 predictions of each class with a confidence of 97%, 1.8 would be wrong; none is wrong in 16% of samples.
  confidence = np.random.default_rng(0).uniform(0.965, 0.975, (120, 1))
  all_right = _values(confidence, np.ones((120, 1), bool), np.arange(120)[:, None] % 2)
  assert decisions.miscalibrated_classes(class_gaps(all_right, 2)).size == 0
  assert decisions.side(all_right.excess()) == 0
  five_seeds = _values(*(np.repeat(x, 5, 1) for x in (confidence, all_right.correct, all_right.predicted)))
  assert decisions.miscalibrated_classes(class_gaps(five_seeds, 2)).size == 0
  assert decisions.side(five_seeds.excess()) == 0
  none_right = _values(confidence, np.zeros((120, 1), bool), np.arange(120)[:, None] % 2)
  assert decisions.miscalibrated_classes(class_gaps(none_right, 2)).size == 2
  assert decisions.side(none_right.excess()) == 1


def test_twenty_groups_of_equal_rows_are_seldom_called_over_or_underconfident():
  # At a third of 5%. By the spread of the groups alone it was 5.4%: where few groups are wrong, none may be.
  rng, accused, groups = np.random.default_rng(0), 0, np.repeat(np.arange(20), 10)
  for _ in range(300):
    confidence = 1 / (1 + np.exp(-np.abs(2 * (1 + rng.normal(size=20)))))
    correct = rng.uniform(size=20) < confidence
    confidence, correct = (x[groups, None] for x in (confidence.astype(np.float32), correct))
    values = evaluation.Values(confidence, correct, *[confidence] * 3, np.zeros((200, 1), np.int32), {}, groups)
    accused += decisions.side(decisions.corrected(values.excess(), decisions.TESTS)) != 0
  assert accused <= 6


def test_intervals_of_class_wise_errors_hold_the_truth_with_few_examples_a_class():
  # With 30 examples a class the intervals that subtract an estimate of the bias held the 0 of this model in no sample.
  rng, repeats, held = np.random.default_rng(0), 30, 0
  for _ in range(repeats):
    logits = 2 * rng.normal(size=(300, 10))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (probs.cumsum(1) > rng.uniform(size=(300, 1))).argmax(1)
    values = per_example([evaluation.Predictions(logits.astype(np.float32), labels.astype(np.int32))], num_redraws=80)
    estimates = measure({0: values}, num_resamples=20)[0][0]
    held += estimates["classwise"].low == 0
    assert estimates["classwise"].low <= estimates["classwise"].estimate <= estimates["classwise"].high
  assert held >= 25  # At 97.5%, fewer have a chance of 1e-4.
