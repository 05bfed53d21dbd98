"""Calibrators on saved predictions: a run's own splits fit and test, and a file is divided anew for each seed."""

import csv

import numpy as np
import pytest

from calib_jax import calibrators, evaluation
from experiments.calibrators import recalibration

METHODS = {name: recalibration.METHODS[name] for name in ("none", "TS (NLL)")}


def _predictions(seed, count=80, num_classes=3):
  rng = np.random.default_rng(seed)
  logits = 2 * rng.normal(size=(count, num_classes))
  p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  labels = (p.cumsum(1) > rng.uniform(size=(count, 1))).argmax(1)
  return (3 * logits).astype(np.float32), labels.astype(np.int32)


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Two runs, of seeds 3 and 4 and of seed 0, and a file of predictions."""
  monkeypatch.setattr(recalibration, "METHODS", METHODS)
  for name, seeds in (("two", (3, 4)), ("one", (0,))):
    (tmp_path / name / "predictions").mkdir(parents=True)
    for seed in seeds:
      for i, split in enumerate(("validation", "test")):
        evaluation.save(tmp_path / name / "predictions" / f"{split}_seed{seed}.npz", *_predictions((seed, i)),
                        classes=["a", "b", "c"], train_counts=np.array([9, 9, 9]))
  evaluation.save(tmp_path / "=file|.npz", *_predictions(7))
  return tmp_path


def _run(monkeypatch, folder, *names, options=()):
  monkeypatch.setattr("sys.argv", ["recalibration", f"--workdir={folder / 'out'}", *options,
                                   *(str(folder / name) for name in names)])
  recalibration.main()
  with open(folder / "out/results.csv", encoding="utf-8") as file:
    return list(csv.reader(file)), (folder / "out/results.md").read_text(encoding="utf-8")


def test_runs_and_files_are_calibrated(folder, monkeypatch, capsys):
  (head, *rows), table = _run(monkeypatch, folder, "two", "one", "=file|.npz", options=["--seeds=3"])
  assert head == ["predictions", "method", "seed", *recalibration.COLUMNS, "converged"]
  assert [row[:3] for row in rows] == [[name, method, str(seed)] for name, seeds in (
    ("two", 2), ("one", 1), ("'=file|", 3)) for method in METHODS for seed in range(seeds)]
  # The validation split of the first seed fits, and its test split tests.
  (fit, test), temperature = [_predictions((3, i)) for i in range(2)], calibrators.temperature_scaling()
  log_probs = np.asarray(temperature.apply(temperature.fit(*fit), test[0]), np.float64)
  nll = {row[1]: float(row[4]) for row in rows if (row[0], row[2]) == ("two", "0")}
  assert nll["TS (NLL)"] == pytest.approx(-log_probs[np.arange(len(test[1])), test[1]].mean(), rel=1e-4)
  assert nll["TS (NLL)"] < nll["none"]
  assert "one, 1 seed\n" in table and table.count(" ± ") == 2 * 2 * 3 and table in capsys.readouterr().out


def test_a_directory_without_predictions_is_one_sentence(folder, monkeypatch, capsys):
  (folder / "one/predictions/test_seed0.npz").unlink()
  with pytest.raises(SystemExit):
    _run(monkeypatch, folder, "one")
  assert "one must be the directory of a run, with predictions of its validation" in capsys.readouterr().err
