"""Figures 2, 5 and 7 to 9 of Karandikar et al.: bars and curves are means of the rows, errors as NumPy's."""

import numpy as np
import pandas as pd
import pytest

from experiments.common import rows, settings
from experiments.common.commands import RESULTS
from experiments.papers.soft_calibration import figures, severities

TABLES = RESULTS / "soft_calibration_tables_fashion_mnist_mlp.csv"


def test_bars_are_means_over_seeds_with_their_standard_errors():
  table = pd.DataFrame([{"method": method, "calibrator": calibrator, "seed": seed, "accuracy": 0.8,
                         "ece_equal_mass_l2": ece} for method, calibrator, values in (
                           ("focal+mmce", "none", (0.1, 0.3)), ("focal", "none", (0.2,)), ("focal", "TS", (0.9,)),
                           ("brier", "none", (0.7,))) for seed, ece in enumerate(values)])
  bars = figures.bars(table, "focal")
  assert list(bars.index) == ["", "mmce"]
  np.testing.assert_allclose(bars, [(20, 0, 80), (20, 10, 80)], atol=1e-9)


def _rows():
  rng = np.random.default_rng(0)
  errors = rng.uniform(0, 0.2, (2, 2, 3, 2, 2))  # Methods, calibrators, severities, corruptions, seeds.
  errors[:, :, 0, 1] = np.nan
  return errors, pd.DataFrame([
    {"method": method, "calibrator": calibrator, "seed": seed, "severity": severity,
     "corruption": corruption if severity else "none", "accuracy": 0.8, "ece_equal_mass_l2": value}
    for i, method in enumerate(("cross_entropy", "focal")) for j, calibrator in enumerate(("none", "TS"))
    for severity in range(3) for k, corruption in enumerate(("fog", "snow")) for seed in range(2)
    if np.isfinite(value := errors[i, j, severity, k, seed])])


def test_curves_are_means_over_corruptions_with_the_error_of_differences_between_curves():
  errors, table = _rows()
  curves = [("cross_entropy", "none"), ("focal", "none"), ("cross_entropy", "TS")]
  severity, means, sem = figures.lines(figures.by_severity(table), curves)
  x = 100 * np.stack([errors[0, 0], errors[1, 0], errors[0, 1]]).mean(-1)  # [curves, severities, corruptions].
  assert severity == [0, 1, 2]
  np.testing.assert_allclose(means[:, 1:], x[:, 1:].mean(-1))
  np.testing.assert_allclose(means[:, 0], x[:, 0, 0])
  residual = x[:, 1].T - x[:, 1].T.mean(1, keepdims=True) - x[:, 1].T.mean(0) + x[:, 1].mean()
  assert np.isnan(sem[0]) and sem[1] == pytest.approx(np.sqrt((residual**2).sum() / 2 / 2), rel=1e-4)


def test_only_methods_whose_settings_were_chosen_anew_are_trained_again(tmp_path, monkeypatch):
  trained = []
  monkeypatch.setattr(severities, "trained", lambda config, folder: trained.append(config) or config)
  monkeypatch.setattr(severities, "measured", lambda config, name, parts: [
    {"method": name, "config": settings.digest(config), "corruption": part[0]} for part in parts])
  arguments = ["--data=fashion_mnist.npz", f"--out={tmp_path}", "--only", "focal+mmce"]
  path = tmp_path / f"{figures.NAME}_fashion_mnist_mlp.csv"
  for number, digest in ((1, None), (1, None), (2, "of other settings")):
    if digest:
      rows.write(path, [row | {"config": digest} for row in rows.read(path)])
    severities.main(arguments)
    assert len(trained) == number and len(rows.read(path)) == 16
  assert {row["config"] for row in rows.read(path)} == {settings.digest(trained[0])}


@pytest.mark.slow
def test_both_figures_are_drawn(tmp_path, capsys):
  path = RESULTS / f"{figures.NAME}_fashion_mnist_mlp.csv"
  figures.main([f"--out={tmp_path}"])
  assert "hold the figures" in capsys.readouterr().out
  for name in (f"{TABLES.stem}_figure_5.png", f"{path.stem}.png"):
    assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
  with pytest.raises(SystemExit):
    figures.main(["--tables=none.csv"])
  assert "none.csv is not there" in capsys.readouterr().err
