"""The comparison with scikit-learn: what it measures, and its intervals."""

import re

import numpy as np
import pandas as pd
from scipy import stats

from experiments.calibrators import scikit_learn
from experiments.common.rows import frame


def test_rows_of_a_pair_have_every_way_to_calibrate_and_the_page_is_made_from_them(tmp_path, monkeypatch):
  kept = (scikit_learn.BASELINE, "temperature, scikit-learn", "temperature_scaling")
  monkeypatch.setattr(scikit_learn, "CALIBRATED", {name: scikit_learn.CALIBRATED[name] for name in kept})
  monkeypatch.setattr(scikit_learn, "DATA", ("iris",))
  monkeypatch.setattr(scikit_learn, "CLASSIFIERS", {"naive Bayes": scikit_learn.CLASSIFIERS["naive Bayes"]})
  arguments = ["--splits=2", f"--workdir={tmp_path}"]
  assert scikit_learn.main(arguments) == 0
  path = tmp_path / "scikit_learn.csv"
  rows, text, page = frame(path), path.read_text(), path.with_suffix(".md").read_text(encoding="utf-8")
  path.write_text("".join(text.splitlines(keepends=True)[:-len(kept)]))  # The second split is lost, and runs again.
  assert scikit_learn.main(arguments) == 0
  assert frame(path).drop(columns="seconds").equals(rows.drop(columns="seconds"))
  losses = rows.pivot(index="split", columns="calibrated", values="log_loss")
  # Both minimise the same log loss of the same scores.
  np.testing.assert_allclose(losses["temperature_scaling"], losses["temperature, scikit-learn"], rtol=1e-3)
  assert "1 pairs of a data set and a classifier, 2 splits" in page and page.count("\n| ") == 4


def test_intervals_of_overlapping_halves_are_wider_than_those_of_means():
  differences = pd.Series([0.1, 0.2, 0.4, 0.3])
  mean, low, high = (float(x) for x in re.sub(r"[\[\],]", "", scikit_learn.interval(differences)).split())
  half = stats.t.ppf(0.975, 3) * np.sqrt((1 / 4 + 1) * differences.var())
  np.testing.assert_allclose([mean, low, high], [0.25, 0.25 - half, 0.25 + half], atol=1e-4)
