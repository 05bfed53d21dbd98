"""The page on more data: the ranks that it compares."""

import re

from experiments.common import commands, ranking, rows
from experiments.leaderboard import more_data


def test_what_the_guide_says_of_more_data_is_in_the_rows():
  table = rows.texts(commands.RESULTS / "leaderboard_more_data_cifar10_jpeg_resnet8.csv")
  lines = "\n".join(more_data.findings(table))
  correlations = dict(re.findall(r"^- (.*): ([+-][\d.]+) over 9 methods", lines, re.MULTILINE))
  guide = (commands.ROOT / "docs" / "choose.md").read_text(encoding="utf-8")
  section = " ".join(guide.split("### Does this hold with more data?")[1].split("\n## ")[0].split())
  ece = "ECE %, equal width, norm 1"
  accuracy, before, log_loss, after, ece_after = (
    float(correlations[name]) for name in ("accuracy %", "NLL", "NLL after TS", ece, f"{ece} after TS"))
  assert f"(Spearman's correlation {accuracy:g} and {after:g})" in section
  assert f"after temperature scaling ({log_loss:g})" in section and f"log loss before it ({before:g})" in section
  assert f"ECE after it ({ece_after:g})" in section
  nll = ranking.means(table, "nll", "TS")
  assert set(sorted(nll, key=nll.get)[:2]) == {"SB-ECE", "MIT"} and "those of SB-ECE and MIT are the lowest" in section
