"""The study of calibrators of records: that the guide has its rows, and what these say of the default."""

from calib_jax import calibrators
from experiments import judged, monitoring, records, upper_bound
from experiments.common.commands import RESULTS, ROOT
from experiments.common.rows import frame


def test_the_table_of_the_page_is_that_of_the_rows():
  for study in (judged.STUDY, records.STUDY):
    assert study.page() in (RESULTS / f"{study.name}.md").read_text(encoding="utf-8")
  for study in (upper_bound.STUDY, monitoring.STUDY):
    assert study.page() in (ROOT / "docs" / "at_most.md").read_text(encoding="utf-8")


def test_the_default_is_within_1_percent_of_the_best_in_90_percent_of_draws():
  (default,) = calibrators.recommended(800, 2, records=True).values()
  rows = frame(records.STUDY.path)
  within = rows[rows.calibrator == default.options["base"].name].groupby("size").within.mean()
  assert list(within.index) == list(records.SIZES) and (within >= 0.9).all(), within
