"""The experiment on memorisation: it tunes, trains and scores the training set, too."""

import json

import numpy as np
import pytest

from experiments.common import rows, sweep
from experiments.papers.soft_calibration import memorisation

EXPERIMENT = memorisation.EXPERIMENT


@pytest.mark.usefixtures("no_figures")
@pytest.mark.slow
def test_it_tunes_trains_and_measures_training_and_test_sets(tmp_path, monkeypatch):
  monkeypatch.setattr(memorisation, "TUNED", {"interleaved": {"schedule.secondary_rate": (0.1, 0.3)}})
  monkeypatch.setattr(memorisation, "TRIALS", {"seed": 100, "num_seeds": 1})
  command = ["--scale=tiny", f"--out={tmp_path}", "--seeds=2", "--only", "cross entropy", "interleaved soft_avuc"]
  assert sweep.main(EXPERIMENT, command) == 0
  results = rows.read(tmp_path / "soft_calibration_memorisation_tiny.csv")
  assert [(row["method"], row["calibrator"], row["seed"]) for row in results] == [
    (method, calibrator, seed) for method in ("cross entropy", "interleaved soft_avuc")
    for calibrator in ("none", "TS") for seed in "01"]
  assert all(np.isfinite(float(row[column])) for row in results for column in EXPERIMENT.columns)
  rate = json.loads(results[-1]["chosen"])["schedule.secondary_rate"]
  page = (tmp_path / "soft_calibration_memorisation_tiny.md").read_text(encoding="utf-8")
  assert rate in json.loads(results[-1]["tried"])["schedule.secondary_rate"]
  assert f"- interleaved soft_avuc, secondary rate {rate}: " in page
  assert "| train accuracy %° | train ECE %° |" in page


def test_images_are_drawn_by_the_seed_and_validated_on_as_many_for_any_number(tmp_path):
  pixels, labels = np.zeros((40, 4, 4, 1), np.uint8), np.arange(40) % 2
  np.savez(tmp_path / "images.npz", train_images=pixels, train_labels=labels, test_images=pixels, test_labels=labels)
  options = sweep.parse(EXPERIMENT, [f"--images={tmp_path}/images.npz", "--num_examples=2000", "--num_epochs=3"])
  configs = [method.config() for method in EXPERIMENT.methods(options)]
  assert len({str(config) for config in configs}) == 5 and {config.training.num_epochs for config in configs} == {3}
  data = configs[0].data
  assert data.num_examples * (1 - data.validation_fraction) == pytest.approx(2000)
