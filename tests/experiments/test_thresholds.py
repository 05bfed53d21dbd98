"""The study of selective thresholds: what it counts, and that the guide has its rows."""

import math

import pytest

from calib_jax.thresholds import Threshold
from experiments import thresholds
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


def test_the_table_of_the_guide_is_that_of_the_rows():
  assert thresholds.STUDY.page() in (ROOT / "docs" / "thresholds.md").read_text(encoding="utf-8")
