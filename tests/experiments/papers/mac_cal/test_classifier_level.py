"""The experiment on classifier-level methods fits heads on features, goes on where it stopped, and pairs by seed."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from experiments.common import rows
from experiments.common.commands import RESULTS
from experiments.papers.mac_cal import classifier_level as experiment
from experiments.papers.mac_cal import classifier_level_figure, classifier_level_table


@pytest.mark.slow
def test_it_appends_rows_skips_what_is_finished_and_keeps_q(tmp_path, capsys):
  rng, labels = np.random.default_rng(0), np.arange(400) % 3
  images = rng.integers(0, 100, (400, 4, 4, 1), dtype=np.uint8)
  images[np.arange(400), labels] += 120
  path = tmp_path / "tiny.npz"
  np.savez(path, train_images=images, train_labels=labels, test_images=images[:60], test_labels=labels[:60])
  command = [f"--data={path}", f"--workdir={tmp_path}", "--num_train=32", "--num_validation=15", "--num_epochs=2",
             "--stage2_epochs=2", "--batch_size=16", "--num_seeds=2", "--only", "vanilla",
             "--heads", "TST", "+ classifier restructure", "MaC-Cal, printed"]
  experiment.main([*command, "--limit=2"])
  experiment.main([*command, "--limit=2"])
  results = rows.read(tmp_path / "classifier_level_tiny_mlp.csv")
  assert [(row["second"], row["calibrated"], row["seed"]) for row in results] == [
    (second, calibrated, seed)
    for second in ("", "TST", "+ classifier restructure", "MaC-Cal, printed")
    for seed in "01" for calibrated in ("none", "temperature")]
  assert all(np.isfinite(float(row[name])) for row in results for name in classifier_level_table.MEASURED)
  of_q = rows.read(tmp_path / "classifier_level_tiny_mlp_q.csv")
  assert [(row["second"], row["epoch"], row["seed"]) for row in of_q] == [
    ("MaC-Cal, printed", epoch, seed) for epoch in "012" for seed in "01"]  # Where q is fixed there are no rows.
  assert {row["q"] for row in of_q if row["epoch"] == "0"} == {"0.5000"} and len({row["q"] for row in of_q}) > 2
  page = tmp_path / "classifier_level_tiny_mlp.md"
  text = page.read_text(encoding="utf-8")
  assert "| MaC-Cal, printed | " in text and (
    "Made by `python -m experiments.papers.mac_cal.classifier_level --data=tiny.npz --num_train=32 --num_validation=15 "
    "--num_epochs=2 --stage2_epochs=2 --num_seeds=2 --batch_size=16`.") in text
  page.unlink()
  experiment.main(command)
  assert page.read_text(encoding="utf-8") == text
  assert "vanilla, TST: " in capsys.readouterr().out


def test_differences_are_paired_by_seed_and_to_the_same_first_stage():
  def row(first, second, seed, ece):
    return {"first": first, "second": second, "calibrated": "none", "seed": seed, "q": np.nan, "temperature": 1.0,
            **dict.fromkeys(classifier_level_table.MEASURED, 50.0), "ece": ece}

  plain, mixed, fitted = (10.0, 13.0, 17.0), (4.0, 5.0, 9.0), (3.0, 3.5, 9.5)
  table = [row(first, second, seed, ece) for first, second, values in (
    ("vanilla", "", plain), ("mixup 1", "", mixed), ("mixup 1", "MaC-Cal", fitted)) for seed, ece in enumerate(values)]
  lines = classifier_level_table.page(pd.DataFrame(table[::-1]), "").splitlines()
  for label, values, reference in (("mixup 1", mixed, plain), ("mixup 1, MaC-Cal", fitted, mixed)):
    difference = np.subtract(values, reference)
    half = scipy.stats.t.interval(0.95, 2, scale=scipy.stats.sem(difference))[1]
    line, = [line for line in lines if line.startswith(f"| {label} |")]
    assert f"| {np.mean(values):.2f} ({difference.mean():+.2f} ± {half:.2f}) |" in line
  assert "| vanilla | 50.00 | 50.000 | 13.33 |" in "\n".join(lines)


@pytest.mark.parametrize("shape", [(6, 6, 3), (4, 4, 1), (8, 8, 1)])
def test_other_images_get_the_shape_of_the_own_ones(shape):
  for channels in (1, 3):
    grey = np.full((2, 4, 4, channels), 77, np.uint8)
    np.testing.assert_array_equal(experiment.like(grey, shape), np.full((2, *shape), 77))


def test_every_setting_has_a_config_that_can_work():
  options = experiment.parser().parse_args(["--data=none.npz"])
  assert len(set(experiment.settings())) == len(experiment.settings())
  for first in {setting.first for setting in experiment.settings()}:
    experiment.configured(options, *experiment.MODELS["mlp"][0], *experiment.FIRST[first])
  for second in experiment.HEADS:
    assert experiment.second_config(options, second).head.name in ("two_stage", "variational", "masked")


def test_curves_of_q_are_those_that_change():
  curves = classifier_level_figure.curves(RESULTS / "classifier_level_fashion_mnist_mlp_q.csv")
  assert curves["MaC-Cal"].shape == (10, 101) and all(np.ptp(x) > 0 for x in curves.values())
