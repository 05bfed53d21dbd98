"""The accuracy of records by persons' verdicts on some and a judge's on all, where there is a judge."""

from collections.abc import Mapping

import numpy as np

from calib_jax.evaluation.numbers import cell
from calib_jax.evaluation.predictions.fitting import Model
from calib_jax.evaluation.results import Interval, Results
from calib_jax.evaluation.sections import SECTIONS, Section, Table
from calib_jax.intervals.judged import judged_mean


def compute(results: Results, models: Mapping[str, Model]) -> dict[str, dict[str, Interval | float | int]]:
  """Computes the accuracy of each set of the first model by persons, by the judge, and by both."""
  content = {}
  for name, (part, *_) in next(iter(models.values())).sets.items():
    if (judged := part.judged) is None:
      continue
    correct, groups, n = part.labels == 1, judged.groups, len(part.labels)
    own, others = (None, None) if groups is None else (groups[:n], groups[n:])
    alone = judged_mean(correct, judged.known | True, judged.others[:0], groups=own,
                        groups_others=None if groups is None else own[:0])
    both = judged_mean(correct, judged.known, judged.others, groups=own, groups_others=others)
    content[name] = {"with_verdict": n, "others": len(judged.others), "agree": float((judged.known == correct).mean()),
                     "by_persons": Interval(*alone), "by_judge": float((judged.known.sum() + judged.others.sum()) / (
                       n + len(judged.others))), "by_both": Interval(*both)}
  return content


def table(content: Mapping[str, Mapping[str, Interval | float | int]], results: Results) -> Table:
  """Returns a row for each set."""
  rows = [[name, f"{x['with_verdict']:,}", f"{x['others']:,}", f"{100 * x['agree']:.1f}", f"{100 * x['by_judge']:.2f}",
           _text(x["by_persons"]), _text(x["by_both"])] for name, x in content.items()]
  return Table("Accuracy by persons and a judge. The last column follows the persons, and uses the judge's verdicts on "
               "the other answers",
               ["evaluated on", "with a person's verdict", "others", "judge agrees %", "by the judge %", "by persons %",
                "by both %"], rows)


def _text(share: Interval) -> str:
  """A share in percent, with its interval unless there are too few verdicts for one."""
  return cell(share, 100) if np.isfinite(share.low) else f"{100 * share.estimate:.2f}"


SECTIONS["judged"] = Section(compute, table, in_json=11, on_page=-4, in_text=True)
