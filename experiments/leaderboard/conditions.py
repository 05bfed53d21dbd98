"""What the rankings of the leaderboard depend on: the size of the calibration set, corruption, and the tool."""

from collections.abc import Mapping, Sequence
import re

import numpy as np
import pandas as pd
from scipy import stats

from experiments.common import comparison, ranking, scores


def sizes(rows: pd.DataFrame) -> dict[str, tuple[str, int]]:
  """Returns the labels of calibrators that are fitted to fewer examples, each with its calibrator and the number."""
  matches = {label: re.fullmatch(r"(.+), n = (\d+)", label) for label in rows["calibrator"].unique()}
  return {label: (match[1], int(match[2])) for label, match in matches.items() if match}


def by_size(rows: pd.DataFrame) -> dict[str, dict[str, comparison.BySeed]]:
  """Returns the NLL by calibrator, number of examples and seed, over methods that neither diverged nor collapsed."""
  rows = ranking.trained(rows)
  fewer, by_label = sizes(rows), {}
  nll = rows.astype({"nll": float}).pivot(index="seed", columns=["calibrator", "method"], values="nll")
  labels = {**fewer, **{label: (label, 0) for label, _ in fewer.values()}}
  for label, (calibrator, n) in sorted(labels.items(), key=lambda item: item[1][1] or np.inf):
    means = nll[label].dropna(axis=1).mean(axis=1)
    by_label.setdefault(calibrator, {})[str(n or "all")] = comparison.BySeed(means)
  return by_label


def size_table(rows: pd.DataFrame) -> tuple[list[str], list[list[str]]] | None:
  """Returns the headings and cells of ``by_size``; None without such rows."""
  by_label = by_size(rows)
  if not by_label:
    return None
  lines = []
  for label, by_number in by_label.items():
    others = [other for other in by_label if other != label]
    lowest = [all(comparison.paired(values, by_label[other][n]).high < 0 for other in others)
              for n, values in by_number.items()]
    texts = [comparison.cell(values, "nll") for values in by_number.values()]
    lines.append([label, *(f"**{text}**" if best else text for text, best in zip(texts, lowest, strict=True))])
  return ["calibrated by", *(n if n == "all" else f"n = {n}" for n in next(iter(by_label.values())))], lines


def shift_table(rows: pd.DataFrame, costs_of: Mapping[str, Sequence[str]]) -> tuple[float, list[list[str]]] | None:
  """Returns Kendall's τ of the ranks by ECE on clean and corrupted images, and the cells; None without such rows."""
  if scores.SHIFTED[0] not in rows:
    return None
  shown = [("accuracy_shifted", "none"), ("nll_shifted", "none"), ("ece_shifted", "none"), ("nll_shifted", "TS"),
           ("ece_shifted", "TS")]
  columns = [ranking.of_methods(rows, *pair) for pair in shown]
  clean, nll, names = ranking.means(rows, "ece", "none"), columns[1], ranking.table(columns[1])[0]
  tau = stats.kendalltau([clean[name] for name in names], [columns[2][name].mean for name in names]).statistic
  return tau, [[name, *costs_of[name], *(comparison.cell(values[name], column.removesuffix("_shifted"))
                                         for (column, _), values in zip(shown, columns, strict=True))]
               for name in sorted(names, key=lambda name: nll[name].mean)]


def by_convention(rows: pd.DataFrame, calibrator: str) -> dict[str, dict[str, float]]:
  """Returns the calibration error of each method, its mean over seeds, by convention; after one calibrator."""
  columns = {"guo": "ece", "soft_calibration": "ece_equal_mass_l2",
             **{name: column for column, name in scores.CONVENTIONS.items()}}
  return {name: ranking.means(rows, column, calibrator) for name, column in columns.items() if column in rows}


def convention_table(rows: pd.DataFrame) -> list[list[str]]:
  """Returns for each convention its lowest method, this error, and Kendall's τ with ``guo``; then after TS."""
  lines: dict[str, list[str]] = {}
  for calibrator in ("none", "TS"):
    errors = pd.DataFrame(by_convention(rows, calibrator))
    for name in errors:
      finite = errors[np.isfinite(errors[[name, "guo"]]).all(axis=1)]
      tau = stats.kendalltau(finite[name], finite["guo"]).statistic
      lines.setdefault(name, [name]).extend([finite[name].idxmin(), f"{100 * finite[name].min():.2f}", f"{tau:.2f}"])
  return list(lines.values())
