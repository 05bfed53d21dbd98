"""Figures 1 and 4 to 6 of Ni et al.: masks as NumPy draws them, and the means of the committed rows."""

import jax
import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

from experiments.common.commands import RESULTS
from experiments.papers.mac_cal import classifier_level_table, masks
from experiments.papers.mac_cal import figures as mac_cal_figures


def test_a_network_counts_once_in_the_means_over_networks():
  def table(task, **values):
    return pd.DataFrame([{"task": task, "method": method, "calibrator": calibrator, "seed": seed, "accuracy": 0.5,
                          "mce": 0.2, "adaptive": x} for method, seeds in values.items() for seed, x in enumerate(seeds)
                         for calibrator in ("none", "TS")])

  number, means = mac_cal_figures.averages([
    pd.concat([table("a", masked=(0.1, 0.3), focal=(0.1,)), table("b", masked=(0.5,), focal=(0.1,), mmce=(0.1,))]),
    table("", focal=(0.4,), masked=(0.4,))])
  assert number == 3 and list(means.index) == ["focal", "MaC-Cal"]  # MMCE is missing in two networks.
  assert dict(means.loc["MaC-Cal"]) == pytest.approx({"accuracy": 50, "mce": 20, "adaptive": (20 + 50 + 40) / 3})
  assert means.loc["focal", "adaptive"] == pytest.approx(20)


def test_curves_are_those_of_mixup_with_and_without_a_second_stage(tmp_path, capsys):
  table = classifier_level_table.read(RESULTS / "classifier_level_fashion_mnist_mlp.csv")
  curves = mac_cal_figures.mixed(table)
  assert {name: list(by_alpha.index) for name, by_alpha in curves.items()} == {
    "mixup": [0.2, 1, 4], "mixup + MaC-Cal": [0.2, 1, 4], "mixup + MaC-Cal, printed": [0.2, 1, 4], "MIT": [0.2, 1],
    "MIT + MaC-Cal": [0.2, 1]}
  values = table.query("first == 'mixup 1' and second == 'MaC-Cal' and calibrated == 'none'")["ece"]
  assert curves["mixup + MaC-Cal"].loc[1.0, ("ece", "mean")] == pytest.approx(values.mean())
  tables = RESULTS / "mac_cal_tables_fashion_mnist_mlp.csv"
  output = tmp_path / "figure.png"
  mac_cal_figures.main([f"--tables={tables}", f"--output={output}"])
  for path in (output, tmp_path / "figure_means.png"):
    assert path.read_bytes().startswith(b"\x89PNG")
  assert "hold the figures" in capsys.readouterr().out
  with pytest.raises(SystemExit):
    mac_cal_figures.main(["--tables=none.csv", f"--output={output}"])
  assert "none.csv is not there" in capsys.readouterr().err


def test_each_hundred_images_have_a_mask_of_their_own():
  rng = np.random.default_rng(0)
  features = rng.normal(size=(200, 5)).astype(np.float32)
  kernel, bias = np.ones((5, 3), np.float32), np.ones(3, np.float32)

  def logits(ratio):
    return np.asarray(masks.masked_logits(features, kernel, bias, ratio, jax.random.key(0)))

  np.testing.assert_allclose(logits(0.0), features @ kernel + bias, rtol=1e-5)
  masked = logits(0.4)
  drawn = [np.linalg.lstsq(features[i:i + 100], masked[i:i + 100] - bias, rcond=None)[0] for i in (0, 100)]
  for mask in drawn:
    np.testing.assert_allclose(mask, np.round(mask), atol=1e-5)
    assert {0, 1} == {*np.round(mask).ravel()}
  assert not np.allclose(*drawn)
  kernel, bias = np.ones((5, 2000), np.float32), np.zeros(2000, np.float32)
  dropped = masks.masked_logits(np.eye(100, 5, dtype=np.float32), kernel, bias, 0.3, jax.random.key(1))
  assert abs(1 - np.mean(dropped[:5]) - 0.3) < 5 * (0.3 * 0.7 / kernel.size)**0.5


def test_a_row_has_the_confidences_of_numpy():
  logits, labels = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32) * 2, np.arange(50) % 3
  row, probs = masks.measured(logits, labels), softmax(logits.astype(float), axis=1)
  assert float(row["confidence"]) == pytest.approx(100 * probs.max(1).mean(), abs=1e-3)
  assert float(row["accuracy"]) == pytest.approx(100 * (probs.argmax(1) == labels).mean(), abs=1e-3)
  assert sum(float(row[f"bin_{i}"]) for i in range(masks.BINS)) == pytest.approx(1)
  assert float(row["bin_19"]) == pytest.approx(np.mean(probs.max(1) >= 0.95))
