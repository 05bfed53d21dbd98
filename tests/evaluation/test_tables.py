"""Tables: metrics of the right predictions, averaged over seeds or severities, against their definitions in float64."""

import re

import jax
import numpy as np
from scipy import special

from calib_jax import calibrators, evaluation, metrics
from calib_jax.evaluation import measures
from calib_jax.evaluation.sections.severity import by_severity
from tests.evaluation.data import N, predictions
from tests.metrics import references

PARTS = ("nll_calibration", "nll_refinement")


def _by_definition(logits, labels, num_bins):
  p = special.softmax(logits.astype(np.float64), axis=1)
  scores = references.scores(p, labels)
  n, confidence, correct = len(p), p.max(1), scores["accuracy"]
  risk, best = (references.risk_coverage(score, ~correct) for score in (confidence, correct))
  coverage = {f"coverage_at_{percent}": np.max(np.flatnonzero(np.append(0, risk) <= percent / 100), initial=0) / n
              for percent in (1, 5)}
  return {"accuracy": correct.mean(), "nll": scores["nll"].mean(), "brier": scores["brier_score"].mean(),
          "entropy": scores["mean_entropy"].mean(), "ece": references.calibration_error(confidence, correct, num_bins),
          "ece_equal_mass_l2": references.calibration_error(confidence, correct, num_bins, "equal_mass", norm=2),
          "aurc": risk.mean(), "excess_aurc": (risk - best).mean(),
          "classwise": references.classwise_calibration_error(p, labels, num_bins),
          "classwise_equal_mass": references.classwise_calibration_error(p, labels, num_bins, "equal_mass"), **coverage}


def test_rows_are_means_over_seeds_of_the_definitions():
  test = [predictions(2), predictions(0.5, rng=np.random.default_rng(1))]
  row = evaluation.evaluate({"none": test}, num_bins=7, num_resamples=50)["none"]
  by_definition = [_by_definition(part.logits, part.labels, 7) for part in test]
  assert list(row) == [name for name in evaluation.COLUMNS if name not in ("sweep", "smooth", *PARTS)]
  for name in by_definition[0]:
    cell, expected = row[name], [numbers[name] for numbers in by_definition]
    np.testing.assert_allclose(cell.per_seed, expected, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(cell.value, np.mean(expected), rtol=1e-4)
    assert cell.low <= cell.estimate <= cell.high and (cell.low < cell.high or name == "coverage_at_1")
    if cell.floor is not None:
      assert cell.estimate < cell.value and cell.floor > 0  # The bias of the sample is subtracted.
    else:
      np.testing.assert_allclose(cell.estimate, cell.value, rtol=1e-6)


def test_the_parts_of_the_log_loss_are_those_of_the_metric():
  """With its draws and folds, here of examples in groups; of two seeds they are the mean."""
  part = predictions(2.5)._replace(groups=np.arange(N, dtype=np.int32) // 2)
  seeds = part, predictions(0.5)._replace(groups=part.groups)
  probs = [np.exp(calibrators.identity().apply({}, x.logits)) for x in seeds]
  expected = [dict(zip(PARTS, metrics.calibration_refinement(
    p, part.labels, key=jax.random.key(0), num_resamples=40, groups=part.groups)[1:], strict=True)) for p in probs]
  rows = {len(parts): evaluation.per_example(parts, num_redraws=2, metrics_on_request=PARTS)
          for parts in (seeds[:1], seeds)}
  actual = measures.loss_parts(rows, key=jax.random.key(0), num_resamples=40)
  for name in PARTS:
    estimate, of_seeds = actual[1][name], [float(x[name].estimate) for x in expected]
    interval = estimate.estimate, estimate.low, estimate.high
    np.testing.assert_allclose(interval, expected[0][name], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(actual[2][name].per_seed, of_seeds, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(actual[2][name].value, np.mean(of_seeds), rtol=1e-3, atol=1e-5)
  # Fewer examples or groups than folds have none.
  assert measures.removed_losses([evaluation.Predictions(part.logits[:4], part.labels[:4])]) is None
  few = evaluation.Predictions(part.logits[:8], part.labels[:8], groups=part.groups[:8])
  assert measures.removed_losses([few]) is None
  assert evaluation.per_example(seeds[:1], num_redraws=2).removed is None


def test_no_printed_interval_lacks_its_estimate():
  # Calibrated, overconfident, underconfident, certain and right but once, always wrong, and undecided.
  labels = np.arange(N) % 3
  certain = np.eye(3, dtype=np.float32)[labels] * 30
  parts = {"calibrated": predictions(1), "over": predictions(6), "under": predictions(0.2),
           "certain": evaluation.Predictions(certain, np.where(np.arange(N) == 0, 1, labels)),
           "wrong": evaluation.Predictions(certain, (labels + 1) % 3),
           "undecided": evaluation.Predictions(np.zeros((N, 3), np.float32), labels)}
  results = evaluation.judge({name: evaluation.Model({"test": [part]}, {}) for name, part in parts.items()},
                             num_resamples=100)
  rows = evaluation.to_rows(results)
  cells = re.findall(r"(\d+\.\d+) \[(\d+\.\d+), (\d+\.\d+)\]", evaluation.markdown(rows))
  assert len(rows) == 1 + len(parts) and len(cells) >= 4 * len(parts)
  for estimate, low, high in np.array(cells, float):
    assert low <= estimate <= high


def test_the_error_of_a_severity_is_the_mean_over_corruptions_of_rows_that_have_all_of_them():
  a, b, short = ("m", "none"), ("m", "TS"), ("m", "VS")
  errors = {"test": {a: 0.1, b: 0.2, short: 0.3}, "fog_1": {a: 0.2, b: 0.1, short: 0.1}, "snow_1": {a: 0.6, b: 0.3},
            "fog_3": {a: 0.5, b: 0.5}, "other": {a: 9, b: 9}}
  levels = by_severity(errors, "test")
  assert set(levels) == {a, b} and [levels[row][0].mean for row in (a, b)] == [0.1, 0.2]
  np.testing.assert_allclose([levels[row][1].mean for row in (a, b)], [0.4, 0.2], rtol=1e-6)
  # Differences 0.1 and 0.3: half of their standard error, as two rows share it.
  np.testing.assert_allclose([levels[row][1].within_subject_sem for row in (a, b)], np.std([0.1, 0.3], ddof=1) / 2,
                             rtol=1e-5)
  assert list(levels[a]) == [0, 1, 3] and levels[a][1].num_corruptions == 2
  assert np.isnan(levels[b][3].within_subject_sem) and levels[b][3].mean == 0.5
  assert by_severity({"test": errors["test"]}, "test") == {}
