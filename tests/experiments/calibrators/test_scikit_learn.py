"""The comparison with scikit-learn: what it measures, and its intervals."""

import numpy as np
from scipy import stats

from experiments.calibrators import scikit_learn


def test_rows_of_a_pair_have_every_way_to_calibrate_and_the_page_is_made_from_them(monkeypatch):
  kept = (scikit_learn.BASELINE, "temperature, scikit-learn", "temperature_scaling")
  monkeypatch.setattr(scikit_learn, "CALIBRATED", {name: scikit_learn.CALIBRATED[name] for name in kept})
  rows = [{key: str(value) for key, value in row.items()}
          for split in (0, 1) for row in scikit_learn.measured("iris", "naive Bayes", split)]
  losses = {(row["calibrated"], row["split"]): float(row["log_loss"]) for row in rows}
  # Both minimise the same log loss of the same scores.
  for split in "01":
    np.testing.assert_allclose(losses["temperature_scaling", split], losses["temperature, scikit-learn", split],
                               rtol=1e-3)
  text = scikit_learn.page(rows)
  assert "1 pairs of a data set and a classifier, 2 splits" in text and text.count("\n| ") == 4


def test_intervals_of_overlapping_halves_are_wider_than_those_of_means():
  differences = np.array([0.1, 0.2, 0.4, 0.3])
  mean, low, high = (float(x) for x in scikit_learn.interval(differences).replace("[", "").replace("]", "").replace(
    ",", "").split())
  half = stats.t.ppf(0.975, 3) * np.sqrt((1 / 4 + 1) * np.var(differences, ddof=1))
  np.testing.assert_allclose([mean, low, high], [0.25, 0.25 - half, 0.25 + half], atol=1e-4)
