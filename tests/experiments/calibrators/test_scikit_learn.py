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


def test_intervals_over_overlapping_splits_cover_the_true_difference():
  """Two scales of a linear classifier's log-odds; the truth is the mean over all samples of this size."""
  rng = np.random.default_rng(0)
  differences = []
  for _ in range(200):
    y = rng.integers(0, 2, 100)
    x = rng.normal(size=(100, 3)) + 1.5 * np.outer(y, [1, 0, 0])
    splits = [rng.permutation(100).reshape(2, 50) for _ in range(5)]
    differences.append([_loss(x, y, *split, 0.5) - _loss(x, y, *split, 1.0) for split in splits])
  ends = [[float(number) for number in re.findall(r"[-+][.\d]+", scikit_learn.interval(pd.Series(row)))[1:]]
          for row in differences]
  assert np.mean([low <= np.mean(differences) <= high for low, high in ends]) > 0.95


def _loss(x, y, train, test, scale):
  means = [x[train][y[train] == c].mean(0) for c in (0, 1)]
  w = np.linalg.solve(np.cov(np.concatenate([x[train][y[train] == c] - means[c] for c in (0, 1)]).T),
                      means[1] - means[0])
  scores = scale * (x[test] @ w - w @ (means[0] + means[1]) / 2)
  return np.mean(np.logaddexp(0, scores) - y[test] * scores)
