"""Calibrators on saved predictions: a run's own splits fit and test, and a file is divided anew for each seed."""

import types

import numpy as np
import pytest

from calib_jax import calibrators, evaluation
from experiments.calibrators import recalibration
from experiments.common import rows, sweep

LABELS = ("TS (NLL)", "isotonic")
EXPERIMENT = recalibration.EXPERIMENT._replace(calibrators={name: recalibration.CALIBRATORS[name] for name in LABELS})


def _predictions(seed, count=80, num_classes=3):
  rng = np.random.default_rng(seed)
  logits = 2 * rng.normal(size=(count, num_classes))
  p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  labels = (p.cumsum(1) > rng.uniform(size=(count, 1))).argmax(1)
  return (3 * logits).astype(np.float32), labels.astype(np.int32)


@pytest.fixture
def folder(tmp_path):
  """Two runs, of seeds 3 and 4 and of seed 0, and a file of predictions."""
  for name, seeds in (("two", (3, 4)), ("one", (0,))):
    (tmp_path / name / "predictions").mkdir(parents=True)
    for seed in seeds:
      for i, split in enumerate(("validation", "test")):
        evaluation.save(tmp_path / name / "predictions" / f"{split}_seed{seed}.npz", *_predictions((seed, i)),
                        classes=["a", "b", "c"], train_counts=np.array([9, 9, 9]))
  evaluation.save(tmp_path / "=file|.npz", *_predictions(7))
  return tmp_path


def _run(folder, *names, options=()):
  code = sweep.main(EXPERIMENT, [*options, f"--out={folder / 'out'}", *(str(folder / name) for name in names)])
  return code, folder / "out" / "calibrators_recalibration_laptop.csv"


def _nll(name, method, log_probs, labels, actual):
  values = {(row["task"], row["calibrator"], row["seed"]): float(row["nll"]) for row in actual}
  expected = -np.asarray(log_probs, np.float64)[np.arange(len(labels)), labels].mean()
  assert values[name, method, "0"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_runs_and_files_are_calibrated_and_not_twice(folder, capsys):
  code, path = _run(folder, "two", "one", "=file|.npz", options=["--seeds=3"])
  actual = rows.read(path)
  assert code == 0 and [(row["task"], row["calibrator"], row["seed"]) for row in actual] == [
    (name, label, str(seed)) for name, seeds in (("two", 2), ("one", 1), ("_file_", 3)) for label in ("none", *LABELS)
    for seed in range(seeds)]
  assert all(np.isfinite(float(row[name])) for row in actual for name in EXPERIMENT.columns)
  temperature = calibrators.temperature_scaling()
  # The validation split of a run's first seed fits, and its test split tests; of a file, the halves of a permutation.
  fit, test = (_predictions((3, i)) for i in range(2))
  _nll("two", "TS (NLL)", temperature.apply(temperature.fit(*fit), test[0]), test[1], actual)
  logits, labels = _predictions(7)
  first, second = np.array_split(np.random.default_rng(0).permutation(80), 2)
  params = temperature.fit(logits[first], labels[first])
  _nll("_file_", "TS (NLL)", temperature.apply(params, logits[second]), labels[second], actual)
  text = path.with_suffix(".md").read_text(encoding="utf-8")
  assert "## two" in text and "|  | isotonic | " in text and "converged %" in text
  before = path.read_bytes()
  capsys.readouterr()
  assert _run(folder, "two", "one", "=file|.npz", options=["--seeds=3"]) == (0, path) and path.read_bytes() == before
  assert "[1/" not in capsys.readouterr().out
  evaluation.save(folder / "=file|.npz", *_predictions(8))  # Other predictions under the same name.
  _run(folder, "two", "one", "=file|.npz", options=["--seeds=3"])
  assert "[1/1] _file_" in capsys.readouterr().out and len(rows.read(path)) == len(actual)


def test_a_fit_that_ended_before_its_tolerance_is_counted(folder, monkeypatch):
  ended = types.SimpleNamespace(fit=lambda logits, labels: {"converged": np.asarray(False)},
                                apply=calibrators.get("identity").apply)
  monkeypatch.setitem(calibrators.CALIBRATORS, "ended", lambda: ended)
  code, path = (sweep.main(EXPERIMENT._replace(calibrators={"ended": {"name": "ended"}}),
                           [f"--out={folder / 'out'}", str(folder / "one")]),
                folder / "out" / "calibrators_recalibration_laptop.csv")
  assert code == 0 and [(row["calibrator"], row["converged"]) for row in rows.read(path)] == [
    ("none", "1"), ("ended", "0")]


def test_a_directory_without_predictions_is_one_sentence(folder, capsys):
  (folder / "one/predictions/test_seed0.npz").unlink()
  assert _run(folder, "one")[0] == 2
  assert "one must be the directory of a run, with predictions of its validation" in capsys.readouterr().err
