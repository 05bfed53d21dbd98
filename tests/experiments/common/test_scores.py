"""Scores of saved predictions: calibrators fitted to a part of the examples, shifted sets, and other tools' errors."""

import numpy as np
import pytest

from calib_jax import calibrators, evaluation
from experiments.common import scores
from tests.calibrators.data import synthetic

N, K = 300, 3
TS = {"name": "temperature_scaling"}


def _predictions(seed, scale=3.0):
  return evaluation.Predictions(*synthetic(N, K, scale=scale, seed=seed))


def _reference(log_probs, labels):
  """Accuracy, NLL and the ECE of 15 equal-width bins."""
  p = np.exp(np.asarray(log_probs, np.float64))
  p /= p.sum(1, keepdims=True)
  confidence, correct = p.max(1), p.argmax(1) == labels
  bins = np.minimum(np.ceil(confidence * 15).astype(int) - 1, 14)
  gaps = [abs(np.sum(correct[bins == b] - confidence[bins == b])) for b in range(15)]
  return correct.mean(), -np.mean(np.log(p[np.arange(len(p)), labels])), np.sum(gaps) / len(p)


def test_rows_have_the_scores_of_each_calibrator_on_clean_and_shifted_sets():
  validation, test, *shifted = ([_predictions(10 * s + seed, 1 + s) for seed in (0, 1)] for s in range(4))
  scored = scores.calibrated(validation, test, {"TS": TS}, {"shifted": shifted})
  assert [x[:2] for x in scored] == [(label, seed) for label in ("none", "TS") for seed in (0, 1)]
  for label, seed, row, left_out in scored:
    assert set(row) == {*scores.COLUMNS, *scores.SHIFTED}
    params = calibrators.temperature_scaling().fit(validation[seed].logits, validation[seed].labels)
    temperature = float(params["temperature"]) if label == "TS" else 1.0
    clean, *others = (_reference(x[seed].logits / temperature, x[seed].labels) for x in (test, *shifted))
    np.testing.assert_allclose([row[name] for name in ("accuracy", "nll", "ece")], clean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose([row[name] for name in scores.SHIFTED], np.mean(others, axis=0), rtol=1e-5, atol=1e-6)
    size = N // scores.BLOCKS
    last = np.delete(np.random.default_rng(0).permutation(N), np.s_[-size - N % scores.BLOCKS:N - N % scores.BLOCKS])
    without = _reference(test[seed].logits[last] / temperature, test[seed].labels[last])
    np.testing.assert_allclose([left_out[name][-1] for name in ("accuracy", "nll", "ece")], without, rtol=1e-5)
    assert "nll_shifted" not in left_out  # The labels are those of other images.
    # Confidences are of no bin's edge here, so that all tools with 15 bins of equal width agree.
    assert row["ece_torchmetrics"] == pytest.approx(row["ece"], rel=1e-5)


@pytest.mark.slow
def test_rows_have_the_noise_of_corrupted_images():
  test = _predictions(0)
  shifted = [test._replace(logits=test.logits * scale) for scale in (0.5, 2.0)]
  left_out = scores.calibrated([test], [test], {}, {"shifted": [[part] for part in shifted]})[0][3]
  order, size = np.random.default_rng(0).permutation(N), N // scores.BLOCKS
  for block, value in enumerate(left_out["nll_shifted"]):
    of_block = order[block * size:(block + 1) * size]
    losses = [_reference(np.delete(x.logits, of_block, 0), np.delete(x.labels, of_block))[1] for x in shifted]
    assert value == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.slow
def test_rows_say_how_well_confidence_tells_test_images_from_others():
  part, test, *outside = ([_predictions(seed, scale)] for seed, scale in ((0, 3.0), (1, 3.0), (2, 1.0), (3, 0.5)))
  row = scores.calibrated(part, test, {}, {"ood": outside})[0][2]
  inside, *others = (np.exp(logits).max(1) / np.exp(logits).sum(1) for (logits, *_), in (test, *outside))
  areas = [np.mean(inside[:, None] > x) for x in others]
  rates = [np.mean(x >= np.sort(inside)[int(0.05 * N)]) for x in others]
  assert row["auroc_ood"] == pytest.approx(np.mean(areas), abs=1e-5)
  assert row["fpr95_ood"] == pytest.approx(np.mean(rates), abs=0.01)
  assert not set(row) & {"ece_ood", *scores.SHIFTED}


@pytest.mark.slow
def test_a_calibrator_may_see_a_part_of_the_examples():
  part, test = [_predictions(0)], [_predictions(1)]
  few = scores.calibrated(part, test, {"few": {**TS, "num_examples": 50}})[-1][2]
  kept = np.random.default_rng(0).permutation(N)[:50]
  params = calibrators.temperature_scaling().fit(part[0].logits[kept], part[0].labels[kept])
  assert few["nll"] == pytest.approx(_reference(test[0].logits / float(params["temperature"]), test[0].labels)[1], 1e-5)
  whole = calibrators.temperature_scaling().fit(*part[0][:2])
  assert abs(float(whole["temperature"] / params["temperature"]) - 1) > 0.01
  assert not set(few) & set(scores.SHIFTED)


def test_a_calibrator_may_be_fitted_to_the_training_split():
  part, test, train = ([_predictions(seed, scale)] for seed, scale in ((0, 3.0), (1, 3.0), (2, 1.0)))
  row = scores.calibrated(part, test, {"TS": {**TS, "fitted_to": "train"}}, {"train": [train]})[-1][2]
  params = calibrators.temperature_scaling().fit(*train[0][:2])
  assert row["nll"] == pytest.approx(_reference(test[0].logits / float(params["temperature"]), test[0].labels)[1], 1e-5)
