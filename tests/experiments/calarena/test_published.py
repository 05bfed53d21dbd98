"""The rule of recommended calibrators: its rows, its table, and what the library follows."""

import re

import pandas as pd
import pytest

from calib_jax import calibrators
from experiments.calarena import published


def test_gains_are_means_over_the_models_of_a_data_set(tmp_path):
  folder = tmp_path / "tiny-binary"
  folder.mkdir()
  for name, losses in {"TS": (0.5, 0.4), "Beta": (0.45, 0.43)}.items():
    pd.DataFrame({"dataset": "d", "model": ["a", "b"], "cal_size": 600, f"{name}_logloss": losses}).to_csv(
      folder / f"{name}.csv", index=False)
  row, = published.gains(tmp_path).to_dict("records")
  assert row == {"benchmark": "tiny-binary", "dataset": "d", "classes": 2, "cal_size": 600, "Beta": 10.0}


@pytest.mark.slow
def test_the_table_of_the_page_is_that_of_the_rows_and_the_library_follows_it(monkeypatch):
  rows = pd.read_csv(published.ROWS)
  text = published.table(rows)
  assert text in published.ROWS.with_suffix(".md").read_text(encoding="utf-8")
  for line in text.splitlines()[2:]:
    classes, sizes, _, halves, *_ = (cell.strip() for cell in line.strip("|").split("|"))
    name, share = re.match(r"`(\w+)` (\d+)%", halves).groups()
    if int(share) >= 75 and "or more" in sizes:
      n, k = (int(re.match(r"[\d,]+", cell)[0].replace(",", "")) for cell in (sizes, classes))
      assert name in {c.name for c in calibrators.recommended(n, k).values()}
  monkeypatch.setattr(published, "DIVISIONS", 20)
  worse = published.table(rows.assign(Spline=-rows.Spline))
  assert "`spline_calibration` 100%" in text and "`spline_calibration` 100%" not in worse
