"""The experiment on selective risk trains every kind of setting, goes on where it stopped, and writes a table."""

import numpy as np
import pytest

from experiments.common import scales
from experiments.common.commands import RESULTS
from experiments.papers.reweighted_risk import training as experiment


@pytest.mark.slow
def test_it_appends_a_row_a_seed_skips_what_is_finished_and_writes_the_table(tmp_path, capsys):
  rng, labels = np.random.default_rng(0), np.arange(60) % 3
  images = rng.integers(0, 100, (60, 4, 4, 1), dtype=np.uint8)
  images[np.arange(60), labels] += 120
  path = tmp_path / "tiny.npz"
  np.savez(path, train_images=images, train_labels=labels, test_images=images[:30], test_labels=labels[:30])
  command = [f"--data={path}", f"--workdir={tmp_path}", "--num_train=32", "--num_epochs=2", "--batch_size=16",
             "--num_seeds=2", "--starts", "warm", "ramp", "--weights", "printed"]
  experiment.main([*command, "--limit=3"])
  experiment.main([*command, "--limit=1"])
  rows = experiment.read(tmp_path / "selective_risk_tiny_mlp.csv")
  assert [(row["loss"], row["start"], row["seed"]) for row in rows] == [
    (loss, start, seed) for loss, start in (("cross_entropy", ""), ("aurc", ""), ("selective_risk", "warm"),
                                            ("selective_risk", "ramp")) for seed in "01"]
  assert all(np.isfinite(float(row[name])) for row in rows for name in experiment.MEASURED)
  table = (tmp_path / "selective_risk_tiny_mlp.md").read_text(encoding="utf-8")
  assert table.count("\n") == 10 and "| selective_risk | msp | 0.01 | 0.25 | epoch | printed | warm |" in table
  assert "1/3 cross_entropy: accuracy" in capsys.readouterr().out


def test_the_table_says_how_many_seeds_diverged():
  row = {**experiment.Setting("cross_entropy")._asdict(), "accuracy": "50", "nll": "2", "ece": "3"}
  rows = [{**row, "seed": "0"}, {**row, "seed": "1", "accuracy": "10", "ece": "nan", "nll": "87"}]
  table = experiment.table(rows, "")
  assert "| 30.0 ± 20.0 | 2.000 (1 of 2 diverged) | 3.0 (1 of 2 diverged) |" in table


def test_logits_that_are_not_finite_have_an_accuracy_alone():
  logits = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [np.inf, 0.0]], np.float32)
  found = experiment.measured(logits, np.array([0, 0, 0, 0]))
  assert found["accuracy"] == 75 and np.isnan([found["nll"], found["ece"]]).all()
  found = experiment.measured(logits[:3], np.array([0, 0, 0]))
  assert found["nll"] == pytest.approx(np.mean(np.log1p(np.exp([-2.0, 1.0, -3.0]))), rel=1e-5)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("selective_risk_*.md")), ids=lambda path: path.stem)
def test_a_committed_page_is_made_from_its_rows(path):
  network = scales.described(path.stem.removeprefix("selective_risk_"))
  assert experiment.table(experiment.read(path.with_suffix(".csv")), network) == path.read_text(encoding="utf-8")
