"""How often the interval of the accuracy by persons and a judge holds the truth, and how much shorter it is.

Run: python -m experiments.judged

Of each kind, n answers have a person's verdict and 2,000 others a judge's alone; the answers of a group are right with
one probability, which is drawn from a beta law. In the end the table of results/judged.md is written. Everything takes
a minute on one CPU core.
"""

import itertools
import zlib

import numpy as np
import pandas as pd

from calib_jax.intervals.judged import judged_mean
from experiments.common import commands, markdown, studies

DRAWS, OTHERS = 2000, 2000
SIZES, ACCURACIES, AGREEMENTS, GROUPS = (20, 60, 200), (0.5, 0.8, 0.95, 0.99), (0.6, 0.9, 0.98), (1, 4)


def _measured(size: int, accuracy: float, agreement: float, of_group: int) -> list[dict[str, object]]:
  """How often the intervals by both and by persons alone hold the accuracy, and the ratio of their mean widths."""
  rng = np.random.default_rng(zlib.crc32(f"{size} {accuracy} {agreement} {of_group}".encode()))
  n = size * of_group
  group = np.repeat(np.arange(size + OTHERS // of_group), of_group)
  groups = {"groups": group[:n], "groups_others": group[n:]} if of_group > 1 else {}
  none = groups and {"groups": group[:n], "groups_others": group[:0]}
  held, widths = np.zeros(2), np.zeros(2)
  for _ in range(DRAWS):
    chance = accuracy if of_group == 1 else rng.beta(20 * accuracy, 20 * (1 - accuracy), group[-1] + 1)[group]
    correct = rng.random(len(group)) < chance
    judged = np.where(rng.random(len(group)) < agreement, correct, ~correct)
    for i, (known, others, of) in enumerate(((judged[:n], judged[n:], groups), (np.ones(n, bool), judged[:0], none))):
      mean = judged_mean(correct[:n], known, others, **of)
      held[i] += mean.low <= accuracy <= mean.high
      widths[i] += mean.high - mean.low
  return [{"draws": DRAWS, "both": held[0] / DRAWS, "persons": held[1] / DRAWS, "width": widths[0] / widths[1]}]


def _table(rows: pd.DataFrame) -> str:
  """In how many percent intervals hold the truth, and in brackets their width relative to those by persons alone."""
  cells = (100 * rows.both).map("{:.1f}".format) + rows.width.map(" ({:.2f})".format)
  table = rows.assign(cell=cells).set_index(["of_group", "accuracy", "agreement", "size"]).cell
  lines = [[of_group, f"{100 * accuracy:g}", f"{100 * agreement:g}", *(
    table[of_group, accuracy, agreement, size] for size in SIZES)]
    for of_group, accuracy, agreement in itertools.product(GROUPS, ACCURACIES, AGREEMENTS)]
  head = ["answers a group", "accuracy %", "judge agrees %", *(f"{size} with a verdict" for size in SIZES)]
  return markdown.table(head, lines)


STUDY = studies.Study("judged", ("size", "accuracy", "agreement", "of_group"), list(itertools.product(
  SIZES, ACCURACIES, AGREEMENTS, GROUPS)), _measured, _table)


if __name__ == "__main__":
  studies.in_docs("experiments.judged", __doc__, commands.RESULTS / "judged.md", STUDY)
