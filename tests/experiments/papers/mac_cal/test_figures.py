"""Figures 5 and 6 of Ni et al. show the means of the committed rows."""

import numpy as np
import pytest

from experiments.common import rows
from experiments.common.commands import RESULTS
from experiments.papers.mac_cal import figures as mac_cal_figures


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
  mac_cal_figures.main([f"--tables={tables}", f"--mixup={RESULTS / 'classifier_level_fashion_mnist_mlp.csv'}",
                        f"--output={output}"])
  assert output.read_bytes().startswith(b"\x89PNG") and "holds the figure" in capsys.readouterr().out
  with pytest.raises(SystemExit):
    mac_cal_figures.main(["--tables=none.csv", f"--output={output}"])
  assert "none.csv is not there" in capsys.readouterr().err
