"""Figures 1 and 4 to 6 of Ni et al.: masks as NumPy draws them, and the means of the committed rows."""

import re

import jax
import numpy as np
import pytest
from scipy.special import softmax

from experiments.common import rows
from experiments.common.commands import RESULTS
from experiments.papers.mac_cal import figures as mac_cal_figures
from experiments.papers.mac_cal import masks


def test_bars_are_means_over_seeds_and_the_best_under_shift_is_the_first():
  found = [{"task": "", "method": method, "calibrator": calibrator, "seed": seed, "ece": ece, "ece_shifted": shifted}
           for method, calibrator, seed, ece, shifted in (
             ("masked", "none", "0", "0.1", "0.3"), ("masked", "none", "1", "0.2", "0.5"),
             ("masked", "TS", "0", "0", "0"), ("focal", "none", "0", "0.2", "0.2"),
             ("part: masked retraining", "none", "0", "0", "0"))]
  shifted = mac_cal_figures.shifted(found)
  assert list(shifted) == ["focal", "MaC-Cal"]
  assert shifted["MaC-Cal"]["ece"] == pytest.approx((15, 5))
  assert shifted["MaC-Cal"]["ece_shifted"][0] == pytest.approx(40)
  assert np.isnan(shifted["focal"]["ece"][1])


def test_a_network_counts_once_in_the_means_over_networks():
  def table(task, **values):
    return [{"task": task, "method": method, "calibrator": calibrator, "seed": str(seed), "accuracy": "0.5",
             "mce": "0.2", "adaptive": str(x)} for method, seeds in values.items() for seed, x in enumerate(seeds)
            for calibrator in ("none", "TS")]

  number, found = mac_cal_figures.averages([
    [*table("a", masked=(0.1, 0.3), focal=(0.1,)), *table("b", masked=(0.5,), focal=(0.1,), mmce=(0.1,))],
    table("", focal=(0.4,), masked=(0.4,))])
  assert number == 3 and list(found) == ["focal", "MaC-Cal"]  # MMCE is missing in two networks.
  assert found["MaC-Cal"] == pytest.approx({"accuracy": 50, "mce": 20, "adaptive": (20 + 50 + 40) / 3})
  assert found["focal"]["adaptive"] == pytest.approx(20)


def test_means_of_heads_are_over_networks_that_have_them():
  def level(**errors):
    return [{"first": first, "second": second, "calibrated": calibrated, "seed": str(seed), "accuracy": "50",
             "mce": "20", "adaptive_ece": str(x)} for second, values in errors.items() for seed, x in enumerate(values)
            for first, calibrated in (("vanilla", "none"), ("vanilla", "temperature"), ("mixup 1", "none"))]

  number, found = mac_cal_figures.averages_of_heads([level(TST=(1, 3), **{"MaC-Cal": (1,)}), level(TST=(6,))])
  assert number == 2 and found == {"TST": {"accuracy": 50, "mce": 20, "adaptive": pytest.approx(4)}}


def test_curves_are_those_of_mixup_with_and_without_a_second_stage(tmp_path, capsys):
  found = rows.read(RESULTS / "classifier_level_fashion_mnist_mlp.csv")
  curves = mac_cal_figures.mixed(found)
  assert {name: list(by_alpha) for name, by_alpha in curves.items()} == {
    "mixup": [0.2, 1, 4], "mixup + MaC-Cal": [0.2, 1, 4], "mixup + MaC-Cal, printed": [0.2, 1, 4], "MIT": [0.2, 1],
    "MIT + MaC-Cal": [0.2, 1]}
  values = [float(row["ece"]) for row in found if (row["first"], row["second"], row["calibrated"]) == (
    "mixup 1", "MaC-Cal", "none")]
  assert curves["mixup + MaC-Cal"][1.0]["ece"][0] == pytest.approx(np.mean(values))
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
  found = [np.linalg.lstsq(features[i:i + 100], masked[i:i + 100] - bias, rcond=None)[0] for i in (0, 100)]
  for mask in found:
    np.testing.assert_allclose(mask, np.round(mask), atol=1e-5)
    assert {0, 1} == {*np.round(mask).ravel()}
  assert not np.allclose(*found)
  kernel, bias = np.ones((5, 2000), np.float32), np.zeros(2000, np.float32)
  dropped = masks.masked_logits(np.eye(100, 5, dtype=np.float32), kernel, bias, 0.3, jax.random.key(1))
  assert abs(1 - np.mean(dropped[:5]) - 0.3) < 5 * (0.3 * 0.7 / kernel.size)**0.5


def test_a_row_has_the_confidences_of_numpy_and_the_page_is_made_from_the_rows():
  logits, labels = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32) * 2, np.arange(50) % 3
  row, probs = masks.measured(logits, labels), softmax(logits.astype(float), axis=1)
  assert float(row["confidence"]) == pytest.approx(100 * probs.max(1).mean(), abs=1e-3)
  assert float(row["accuracy"]) == pytest.approx(100 * (probs.argmax(1) == labels).mean(), abs=1e-3)
  assert sum(float(row[f"bin_{i}"]) for i in range(masks.BINS)) == pytest.approx(1)
  assert float(row["bin_19"]) == pytest.approx(np.mean(probs.max(1) >= 0.95))
  path = RESULTS / "mac_cal_masks_fashion_mnist_mlp.csv"
  text = path.with_suffix(".md").read_text(encoding="utf-8")
  assert masks.page(rows.read(path), re.search(r"Made by `(.*?)`", text)[1], path.stem) == text
