"""The page on more data: its settings, and the ranks that it compares."""

import argparse
import re

from experiments.common import commands, ranking, rows
from experiments.leaderboard import more_data


def test_methods_have_the_settings_of_the_leaderboard_and_the_second_value_where_it_has_none():
  assert more_data.setting("MIT") == {"augmentation.alpha": 0.5}
  options = argparse.Namespace(scale="tiny", data="", shrink=2)
  configs = {method.name: method.config() for method in more_data.methods(options)}
  assert list(configs) == list(more_data.NAMES)
  assert configs["MIT"].augmentation.alpha == 0.5
  assert configs["SB-ECE"].loss.secondary.name == "soft_binned_ece"
  assert [*(method.name for method in more_data.methods(argparse.Namespace(scale="tiny", data="x/tiny_imagenet.npz")))
          ] == list(more_data.MANY_CLASSES)


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
  assert set(sorted(nll, key=nll.get)[:2]) == {"SB-ECE", "MIT"} and "SB-ECE and MIT had the lowest log loss" in section
