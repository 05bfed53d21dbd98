"""The experiment on calibration-set sizes skips what is finished and rebuilds its table and figure."""

import numpy as np

from experiments import calibration_set_size as experiment
from tests.calibrators.data import synthetic


def test_a_finished_experiment_only_rebuilds_its_table(tmp_path, monkeypatch):
  monkeypatch.setattr(experiment, "SIZES", (40, 80))
  monkeypatch.setattr(experiment, "METHODS", ("identity", "temperature_scaling", "vector_scaling"))
  logits, labels = synthetic(200, 3)
  np.savez(tmp_path / "net.npz", logits=logits, labels=labels)
  command = [str(tmp_path / "net.npz"), "--num_seeds=2", f"--workdir={tmp_path}"]
  experiment.main(command)
  path = tmp_path / "calibration_set_size.csv"
  first, table = path.read_bytes(), path.with_suffix(".md").read_text(encoding="utf-8")
  rows = experiment.read(path)
  assert len(rows) == 12 and path.with_suffix(".png").stat().st_size > 10_000
  excess = [float(a["nll"]) - float(b["nll"]) for a, b in zip(rows[:2], rows[4:6], strict=True)]
  mean, error = experiment.means(rows, "nll")["net", "identity", 40]
  np.testing.assert_allclose([mean, error], [np.mean(excess), np.std(excess, ddof=1) / np.sqrt(2)], rtol=1e-6)
  lines = path.read_text().splitlines(keepends=True)
  path.write_text("".join(lines[:-1]))  # One run is lost, and only that one runs again.
  experiment.main(command)
  assert path.read_bytes() == first and path.with_suffix(".md").read_text(encoding="utf-8") == table
