"""The audit of committed pages, which finds a cell that does not follow from its row."""

import pathlib
import re
import shutil

import pytest

from experiments import audit

RESULTS = pathlib.Path("experiments/results")


@pytest.mark.slow
def test_every_printed_cell_follows_from_the_rows():
  audited = [audit.audit(page) for page in sorted(RESULTS.glob("*.md"))]
  assert sum(checked for checked, _ in audited) > 5000 and [line for _, wrong in audited for line in wrong] == []


def test_guides_compare_by_means_or_by_what_is_shown():
  guides = {name: pathlib.Path(f"docs/{name}.md").read_text(encoding="utf-8") for name in audit.COMPARING}
  assert {name: found for name, text in guides.items() if (found := audit.unnamed(text))} == {}


def test_a_cell_that_does_not_follow_from_its_row_is_found(tmp_path):
  for suffix in (".md", ".csv"):
    shutil.copy(RESULTS / f"leaderboard_more_data_tiny_imagenet_resnet8{suffix}", tmp_path / f"page{suffix}")
  page = tmp_path / "page.md"
  checked, wrong = audit.audit(page)
  assert checked > 40 and wrong == []
  text = page.read_text(encoding="utf-8")
  line = next(line for line in text.splitlines() if line.startswith("| cross entropy | none |"))
  changed = re.sub(r"\d+\.\d\d\b", lambda accuracy: f"{float(accuracy[0]) + 0.02:.2f}", line, count=1)
  page.write_text(text.replace(line, changed), encoding="utf-8")
  assert len(audit.audit(page)[1]) == 1  # Of two units in its last place.
