"""Records from the file to the page: what is measured, against definitions in float64, what is left out, and apply."""

import csv
import json

import numpy as np
import pytest

from calib_jax import calibrators, evaluation, metrics
from calib_jax.cli import apply
from calib_jax.cli import evaluate as command
from calib_jax.evaluation import measures, subgroups
from tests.evaluation.predictions.data import TABLES, written
from tests.metrics import references

N = 240
RNG = np.random.default_rng(0)
CONFIDENCE = np.where(RNG.random(N) < 0.3, 1.0, np.round(RNG.beta(3, 2, N), 1)).astype(np.float32)
CORRECT = (RNG.random(N) < 0.15 + 0.5 * CONFIDENCE).astype(np.int32)


@pytest.fixture
def records(tmp_path):
  for name, rows in (("val.csv", slice(0, 120)), ("test.csv", slice(120, None))):
    with (tmp_path / name).open("w", newline="") as file:
      csv.writer(file).writerows([("task", "confidence", "correct"), *(
        (f"t{i % 12}", f"{c:g}", k) for i, (c, k) in enumerate(zip(CONFIDENCE[rows], CORRECT[rows], strict=True)))])
  return tmp_path


def _predictions(confidence=CONFIDENCE):
  probs = np.stack([1 - confidence, confidence], axis=1)
  logits = np.log(np.maximum(probs, np.finfo(np.float32).tiny))
  return evaluation.Predictions(logits, CORRECT, probs=probs, records=True)


def _run(folder, *arguments):
  return command.main([*(str(folder / x) if x.endswith(".csv") else x for x in arguments), "--num_resamples=20"])


def test_values_and_columns_are_those_of_the_confidence_and_the_outcome():
  values = evaluation.per_example([_predictions()])
  c, y = CONFIDENCE.astype(np.float64), CORRECT
  p = np.where(y == 1, c, 1 - c)
  np.testing.assert_array_equal(values.confidence[:, 0], CONFIDENCE)
  np.testing.assert_array_equal(values.correct[:, 0], y == 1)
  np.testing.assert_allclose(values.nll[:, 0], -np.log(np.maximum(p, np.finfo(np.float32).tiny)), rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(values.brier[:, 0], (c - y) ** 2, rtol=1e-5, atol=1e-7)
  with np.errstate(divide="ignore", invalid="ignore"):
    entropy = -np.nan_to_num(c * np.log(c)) - np.nan_to_num((1 - c) * np.log(1 - c))
  np.testing.assert_allclose(values.entropy[:, 0], entropy, rtol=1e-4, atol=1e-6)
  estimates = evaluation.measure({"a": values}, num_resamples=20)[0]["a"]
  assert estimates["accuracy"].value == pytest.approx(y.mean())
  assert estimates["ece"].value == pytest.approx(references.calibration_error(CONFIDENCE, y), rel=1e-4)
  assert estimates["aurc"].value == pytest.approx(references.risk_coverage(c, 1 - y).mean(), rel=1e-4)
  assert not {"classwise", "classwise_equal_mass"} & estimates.keys() and {"ks", "brier", "debiased"} < estimates.keys()


@pytest.mark.parametrize(("name", "says"), [
  pytest.param("isotonic", "the ranking stays but for ties.", marks=pytest.mark.slow),
  ("histogram_binning", "the ranking changes.")])
def test_the_first_line_says_what_becomes_of_the_ranking(name, says):
  part = _predictions()
  fitted = evaluation.fit([part], {name: calibrators.get(name)})
  results = evaluation.judge({"judge": evaluation.Model({"test": [part]}, fitted)}, num_resamples=20)
  assert results.verdict.first_line.startswith(f"Use {name}: log loss ")
  assert results.verdict.first_line.endswith(says)
  assert results.first[1].num_classes == 0 and "positive_class" not in {k for k, v in results.sections.items() if v}
  assert evaluation.note(results).startswith(f"test: N = {N}, records.")


def test_the_command_judges_records_and_writes_what_can_be_read_and_applied_again(records, no_figures, capsys):
  assert _run(records, "--fit", "val.csv", "--test", "test.csv", "--groups=task", "--save_probs",
              f"--out={records / 'out'}") == 0
  first, *_ = capsys.readouterr().out.strip().splitlines()
  assert first.startswith("Use platt: log loss") and "and the ranking stays." in first
  content = json.loads((records / "out/results.json").read_text())
  assert content["settings"]["sets"]["test"]["num_classes"] == 0 and not content["positive_class"]
  saved = evaluation.load(records / "out/probs/test_platt.npz")
  assert saved.records
  np.testing.assert_array_equal(saved.labels, CORRECT[120:])
  assert apply.main([f"--calibrator={records / 'out/calibrator.npz'}", f"--predictions={records / 'test.csv'}",
                     f"--out={records / 'new.csv'}"]) == 0
  assert capsys.readouterr().out.endswith("new.csv has the probabilities of 120 rows by platt.\n")
  with (records / "new.csv").open(newline="") as file:
    head, *rows = csv.reader(file)
  assert head == ["task", "correct", "confidence"]
  np.testing.assert_allclose([float(row[2]) for row in rows], saved.probs[:, 1], rtol=1e-5)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "npz", "parquet"])
def test_apply_needs_the_confidence_and_no_more(suffix, tmp_path, capsys):
  calibrator = calibrators.record_calibration("temperature_scaling")
  params = {name: np.float32(x) for name, x in (("temperature", 2), ("least", -3), ("most", 3), ("chance_share", 0.02))}
  calibrators.save(tmp_path / "c.npz", params, calibrator)
  path = written(tmp_path / f"new.{suffix}", {"score": CONFIDENCE, "task": np.array([f"t{i}" for i in range(N)])})
  options = [f"--calibrator={tmp_path / 'c.npz'}", f"--out={tmp_path / 'o.npz'}"]
  assert apply.main([f"--predictions={path}", *options]) == 0
  with np.load(tmp_path / "o.npz") as arrays:
    assert sorted(arrays) == ["confidence", "task"] and arrays["confidence"].shape == (N,)
    np.testing.assert_allclose(arrays["confidence"], np.exp(calibrator.apply(params, _predictions().logits))[:, 1],
                               rtol=1e-5)
  capsys.readouterr()
  for wrong, columns, message in (
      (calibrators.platt(), {"confidence": CONFIDENCE, "correct": CORRECT}, "holds records, and the calibrator was"),
      (calibrator, {"prob": CONFIDENCE}, "must have a confidence, because the calibrator was fitted to")):
    own = params if wrong.records else {"scale": np.ones(2, np.float32), "bias": np.zeros(2, np.float32)}
    calibrators.save(tmp_path / "c.npz", own, wrong)
    path = written(tmp_path / f"other.{suffix}", columns)
    assert apply.main([f"--predictions={path}", *options]) == 2
    assert suffix == "npz" or message in capsys.readouterr().err


def test_what_records_have_not_is_refused_in_a_sentence(records, capsys):
  (records / "classes.csv").write_text("prob,label\n0.5,1\n0.4,0\n")
  for arguments, message in (
      (["--test", "test.csv", "--task=binary"], "holds records, which have no classes: leave out --task=binary"),
      (["--test", "test.csv", "--task=multilabel"], "multi-label predictions have confidence"),
      (["--test", "test.csv", "--compare", "classes.csv"], "classes holds predictions of classes and test records"),
      (["--test", "test.csv", "--ood", "val.csv"], "records"),
      (["--test", "test.csv", "--columns=classwise"], "records have no classwise"),
      (["--fit", "val.csv", "--test", "test.csv", "--calibrators", "auto"], "records have a confidence and no")):
    assert _run(records, *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("kind", TABLES)
def test_graded_answers_count_by_their_credit(kind, tmp_path, capsys):
  credit = RNG.integers(0, 5, N) / 4
  path = written(tmp_path / f"graded.{kind}", {"confidence": CONFIDENCE.astype(float), "correct": credit,
                                                "task": np.arange(N) % 3})
  part = evaluation.load(path, by=["task"], say=print)
  assert f"{np.sum(credit % 1 > 0)} of its 240 answers are graded" in capsys.readouterr().out
  values = measures.per_example([part])
  row = measures.measure({0: values}, num_resamples=20)[0][0]
  assert values.num_units <= N == len(np.unique(part.groups))
  assert row["accuracy"].value == pytest.approx(credit.mean())
  assert row["ece"].value == pytest.approx(float(metrics.calibration_error(CONFIDENCE, credit.astype(np.float32))),
                                           rel=1e-5)
  c = np.clip(CONFIDENCE.astype(np.float64), np.finfo(np.float32).tiny, 1)
  wrong = np.maximum(1 - CONFIDENCE.astype(np.float64), np.finfo(np.float32).tiny)
  assert row["nll"].value == pytest.approx(np.mean(-credit * np.log(c) - (1 - credit) * np.log(wrong)), rel=1e-5)
  by_task = subgroups.measured(values, part.subgroups["task"], num_resamples=20)
  assert {name: x.accuracy for name, x in by_task.items()} == pytest.approx(
    {str(k): credit[k::3].mean() for k in range(3)})


def test_credits_with_weights_and_groups_are_weighted_means(tmp_path):
  credit, weights = np.array([0.5, 1, 0, 0.25]), np.array([1.0, 2, 1, 4])
  path = written(tmp_path / "graded.csv", {"confidence": np.full(4, 0.5), "correct": credit, "w": weights,
                                              "g": [1, 1, 2, 2]})
  part = evaluation.load(path, groups="g", weights="w")
  assert np.average(part.labels, weights=part.weights) == pytest.approx(np.average(credit, weights=weights))
  assert part.groups.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_cut_needs_answers_that_are_right_or_wrong(tmp_path, capsys):
  path = written(tmp_path / "graded.csv", {"confidence": CONFIDENCE, "correct": np.arange(N) % 3 / 2})
  assert command.main(["--fit", str(path), "--test", str(path), "--risk=0.1"]) == 2
  assert "has graded answers, which --risk cannot count: leave it out" in capsys.readouterr().err
  assert command.main(["--test", str(path), "--columns=aurc"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("grid", [2])
def test_p_values_of_credits_are_rarely_small_where_they_are_calibrated(grid, tmp_path):
  small = 0
  for seed in range(20):
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.2, 1, 60)
    credit = (rng.random((60, grid)) < confidence[:, None]).mean(1)
    part = evaluation.load(written(tmp_path / "graded.npz", {"confidence": confidence, "correct": credit}))
    small += measures.measure({0: measures.per_example([part])}, num_resamples=20)[0][0]["ece"].p_value <= 0.05
  assert small <= 2  # At 5%, three or more have a chance of 8%; the law of credits leaves less.


def test_models_whose_answers_have_other_credits_are_not_compared(tmp_path):
  parts = [evaluation.load(written(tmp_path / f"{i}.npz", {"confidence": CONFIDENCE, "correct": np.full(N, credit)}))
           for i, credit in enumerate((0.25, 0.5, 0.5))]
  results = evaluation.judge({str(i): evaluation.Model({"test": [part]}, {}) for i, part in enumerate(parts)},
                             num_resamples=20)
  pairs = {frozenset((row[0], other[0])) for row, other in results.first[1].differences}
  assert pairs == {frozenset("12")}
