"""Calibrators on saved predictions: a run's own splits fit and test, and a file is divided anew for each seed."""

import types

import numpy as np
import pytest

from calib_jax import calibrators, evaluation
from experiments.calibrators import recalibration
from experiments.common.rows import frame
from tests.calibrators.data import synthetic


def test_runs_and_files_are_calibrated_and_not_twice(tmp_path, capsys, monkeypatch):
  ended = types.SimpleNamespace(fit=lambda logits, labels: {"converged": np.asarray(False)},
                                apply=calibrators.get("identity").apply)
  monkeypatch.setitem(calibrators.CALIBRATORS, "ended", lambda: ended)
  monkeypatch.setattr(recalibration, "CALIBRATORS", {"TS": {"name": "temperature_scaling"}, "ended": {"name": "ended"}})
  (tmp_path / "run" / "predictions").mkdir(parents=True)
  splits = {(seed, split): synthetic(80, 3, seed=10 * seed + i)
            for seed in (3, 4) for i, split in enumerate(("validation", "test"))}
  for (seed, split), arrays in splits.items():
    evaluation.save(tmp_path / "run" / "predictions" / f"{split}_seed{seed}.npz", *arrays, classes=["a", "b", "c"],
                    train_counts=np.array([9, 9, 9]))
  evaluation.save(tmp_path / "=file|.npz", *synthetic(81, 3, seed=7))
  command = [str(tmp_path / "run"), str(tmp_path / "=file|.npz"), "--seeds=3", f"--workdir={tmp_path}"]
  recalibration.main(command)
  path = tmp_path / "calibrators_recalibration.csv"
  rows, before = frame(path).set_index(["calibrator", "predictions", "seed"]), path.read_bytes()
  assert len(rows) == 2 * (2 + 3) and (rows.converged["TS"] == 1).all() and (rows.converged["ended"] == 0).all()
  # The validation split of a run's first seed fits, and its test split tests; of a file, the halves of a permutation.
  logits, labels = synthetic(81, 3, seed=7)
  halves = [(logits[half], labels[half]) for half in np.array_split(np.random.default_rng(0).permutation(81), 2)]
  for name, (fit, test) in {"run": (splits[3, "validation"], splits[3, "test"]), "=file|": halves}.items():
    scaling = calibrators.temperature_scaling()
    log_probs = np.asarray(scaling.apply(scaling.fit(*fit), test[0]), np.float64)
    assert rows.nll["TS", name, 0] == pytest.approx(-log_probs[np.arange(len(test[1])), test[1]].mean(), rel=1e-4)
  assert path.with_suffix(".md").read_text(encoding="utf-8").count("(0% converged) |") == 2
  recalibration.main(command)
  assert path.read_bytes() == before
  evaluation.save(tmp_path / "=file|.npz", *synthetic(81, 3, seed=8))  # Other predictions under the same name.
  recalibration.main(command)
  assert len(frame(path)) == len(rows) + 6
  (tmp_path / "run/predictions/test_seed3.npz").unlink()
  with pytest.raises(SystemExit, match="run must be the directory of a run, with predictions of its validation"):
    recalibration.main(command)
