"""The study of selective thresholds: what it counts, and that the guide has its rows."""

import math

import numpy as np
import pytest

from calib_jax.thresholds import Threshold
from experiments import threshold_fits, thresholds
from experiments.common import studies
from experiments.common.commands import ROOT


@pytest.mark.parametrize(("cut", "broken", "coverage"), [(0.0, 1.0, 1.0), (math.nan, 0.0, 0.0)])
def test_a_cut_that_accepts_everything_breaks_a_low_risk_and_none_breaks_nothing(cut, broken, coverage, monkeypatch):
  monkeypatch.setattr(thresholds, "REPEATS", 3)
  monkeypatch.setattr(thresholds, "selective_threshold", lambda *arrays, **options: Threshold(cut, 0, 0, 0, 0, 0))
  row, = thresholds._measured("two classes", "calibrated", 100, 0.01)
  assert (row["broken"], row["reached"], row["coverage"]) == pytest.approx((broken, broken, coverage))
  # A calibrated model with confidences (1 + b) / 2, b of Beta(4, 1): above t the mean risk is (1 - E[b | b > t]) / 2.
  t = next(t / 1e4 for t in range(10_000) if 0.5 * (1 - 0.8 * (1 - (t / 1e4)**5) / (1 - (t / 1e4)**4)) <= 0.01)
  assert row["best"] == pytest.approx(1 - t**4, abs=0.01)


def test_a_calibrator_that_knows_nothing_has_no_cut_out_of_fold_and_sets_and_costs_are_counted(monkeypatch, tmp_path):
  for module in (thresholds, threshold_fits):
    monkeypatch.setattr(module, "REPEATS", 3)
  monkeypatch.setattr(thresholds, "SPLITS", 2)
  monkeypatch.setitem(threshold_fits.FITS, "half", lambda odds, labels: lambda new: np.full(new.shape, 0.6))
  assert [(row["broken"], row["coverage"]) for row in threshold_fits.measured("half", 100)] == [(0, 0)] * 3
  monkeypatch.setitem(threshold_fits.SUBGROUPS, "two", (0.5, (2.7, 0.8)))  # Odds of both signs: half are right enough.
  assert all(row["broken"] < 0.5 and 0.2 < row["coverage"] < 0.75 for row in threshold_fits.measured("two", 600))
  row, = thresholds._costs(10, 50)
  assert all(row[name] == 1 for name in ("cost", "less_than_never", "less_than_always"))
  np.savez(tmp_path / "mine.npz", logits=np.tile(np.log([[0.7, 0.3]]), (400, 1)), labels=np.arange(400) % 10 > 6)
  study = thresholds.sets_study([tmp_path / "mine.npz"])
  rows = study.measured("mine", "lac")
  assert [row["temperature"] for row in rows] == pytest.approx([1, 1, 1], abs=0.3)
  assert all(row["size"] == 2 and row["coverage"] == 1 for row in rows)  # 30% errors need both classes in each set.


def test_the_coverage_of_sets_is_that_of_the_law(monkeypatch):
  """Sets with the classes that the rule is made to have, of predictions of two classes."""
  monkeypatch.setattr(thresholds, "REPEATS", 2)
  monkeypatch.setattr(thresholds, "prediction_sets", lambda *arrays, **options: lambda probs, key: np.tile(
    [True, False], (len(probs), 1)))
  marginal, *_, by_class = thresholds._coverage("two classes", "calibrated", 50)
  # Predictions are class 0 in 1/3 and right in 90%: confidences are (1 + b) / 2, b of Beta(4, 1).
  assert marginal["coverage"] == pytest.approx(0.9 / 3 + 0.1 * 2 / 3, abs=1e-3)
  assert (by_class["coverage"], marginal["set_size"], marginal["error"]) == pytest.approx((0, 1, 0))


def test_the_tables_of_both_pages_are_those_of_the_rows(monkeypatch):
  pages = {}
  monkeypatch.setattr(studies.Study, "run", lambda study: None)
  monkeypatch.setattr(studies, "write_text", lambda path, text: pages.update({path: text}))
  thresholds.main([])
  assert pages == {path: path.read_text(encoding="utf-8") for path in (ROOT / "docs/thresholds.md", thresholds.PAGE)}
