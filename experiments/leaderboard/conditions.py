"""What the rankings of the leaderboard depend on: the size of the calibration set, corruption, and the tool."""

from collections.abc import Callable, Sequence
import re

import numpy as np
from scipy import stats

from experiments.common import comparison, ranking, scores
from experiments.common.rows import Row


def findings(rows: Sequence[Row], cost: Callable[[str], Sequence[str]]) -> list[str]:
  """Returns the lines of Markdown of the three sections; those that the rows have nothing for are left out.

  Args:
    rows: the rows of the leaderboard.
    cost: maps a method to the texts of what it costs to train and to predict.
  """
  sections = (_sizes(rows), _shifts(rows, cost), _conventions(rows))
  return [line for section in sections if section for line in [*section, ""]]


def sizes(rows: Sequence[Row]) -> dict[str, tuple[str, int]]:
  """Returns the labels of calibrators that are fitted to fewer examples, each with its calibrator and the number."""
  labels = dict.fromkeys(row["calibrator"] for row in rows)
  return {label: (found[1], int(found[2])) for label in labels if (found := re.fullmatch(r"(.+), n = (\d+)", label))}


def by_size(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, float]]]:
  """Returns the NLL by calibrator, by the number n of examples that it is fitted to, and by seed.

  It is the mean over the methods that neither diverged nor collapsed. The numbers ascend; the last is "all".
  """
  rows = ranking.trained(rows)
  fewer, found = sizes(rows), {}
  labels = {**fewer, **{label: (label, 0) for label, _ in fewer.values()}}
  for label, (calibrator, n) in sorted(labels.items(), key=lambda item: item[1][1] or np.inf):
    by_method = ranking.of_methods(rows, "nll", label)
    names, values = ranking.table(by_method)
    seeds = [seed for seed in by_method[names[0]] if all(seed in by_seed for by_seed in by_method.values())]
    found.setdefault(calibrator, {})[str(n or "all")] = dict(zip(seeds, values.mean(axis=1).tolist(), strict=True))
  return found


def _sizes(rows: Sequence[Row]) -> list[str]:
  found = by_size(rows)
  if not found:
    return []
  numbers = list(next(iter(found.values())))
  lines = ["## How many examples a calibrator needs", "",
           "NLL after calibrators that are fitted to n of the validation examples: means over all methods, ± the "
           "standard error over seeds, on the same test images. Bold: lower than every other of its column, by 95% "
           "intervals of the differences of the same seeds.", "",
           f"| calibrated by | {' | '.join(n if n == 'all' else f'n = {n}' for n in numbers)} |",
           "|---" * (1 + len(numbers)) + "|"]
  for label, by_number in found.items():
    cells = []
    for n, values in by_number.items():
      text = comparison.cell(values, "nll")
      others = [found[other][n] for other in found if other != label]
      cells.append(f"**{text}**" if all(comparison.paired(values, other).high < 0 for other in others) else text)
    lines.append(f"| {label} | {' | '.join(cells)} |")
  return lines


def _shifts(rows: Sequence[Row], cost: Callable[[str], Sequence[str]]) -> list[str]:
  if scores.SHIFTED[0] not in rows[0]:
    return []
  shown = [("accuracy_shifted", "none"), ("nll_shifted", "none"), ("ece_shifted", "none"), ("nll_shifted", "TS"),
           ("ece_shifted", "TS")]
  found = [ranking.of_methods(rows, *pair) for pair in shown]
  clean, names = ranking.of_methods(rows, "ece", "none"), ranking.table(found[1])[0]
  tau = stats.kendalltau(*([np.mean([*x[name].values()]) for name in names] for x in (clean, found[2]))).statistic
  lines = ["## On corrupted images", "",
           "Means over three corruptions of the test images (shot noise, Gaussian blur and contrast, at severity 5), ± "
           "the standard error over seeds, on the same test images. Calibrators are fitted to clean images. The "
           f"rankings of methods by their ECE on clean and on corrupted images have Kendall's τ = {tau:.2f}.", "",
           f"| trained with | {' | '.join(comparison.COST_HEADINGS)} | accuracy % | NLL | ECE % | NLL after TS | ECE % "
           "after TS |", "|---" * 8 + "|"]
  for name in sorted(names, key=lambda name: np.mean([*found[1][name].values()])):
    cells = [comparison.cell(values[name], column.removesuffix("_shifted"))
             for (column, _), values in zip(shown, found, strict=True)]
    lines.append(f"| {name} | {' | '.join([*cost(name), *cells])} |")
  return lines


def by_convention(rows: Sequence[Row], calibrator: str) -> dict[str, dict[str, float]]:
  """Returns the calibration error of each method, its mean over seeds, by convention; after one calibrator."""
  columns = {"guo": "ece", "soft_calibration": "ece_equal_mass_l2",
             **{name: column for column, name in scores.CONVENTIONS.items()}}
  return {name: {method: float(np.mean([*by_seed.values()])) for method, by_seed in ranking.of_methods(
    rows, column, calibrator).items()} for name, column in columns.items() if column in rows[0]}


def _conventions(rows: Sequence[Row]) -> list[str]:
  lines = ["## Does the winner depend on the tool?", "",
           "The method of the lowest calibration error by other tools (`metrics.CONVENTIONS`), and Kendall's τ "
           "of that ranking of all methods with the one by `guo` (15 equal-width bins, norm 1).", "",
           "| tool | lowest as trained | ECE % | τ | lowest after TS | ECE % | τ |", "|---" * 7 + "|"]
  found = [by_convention(rows, calibrator) for calibrator in ("none", "TS")]
  for name in found[0]:
    cells = [name]
    for errors in found:
      values, reference = errors[name], errors["guo"]
      finite = [method for method in values if np.isfinite([values[method], reference[method]]).all()]
      lowest = min(finite, key=values.get)
      tau = stats.kendalltau([values[method] for method in finite], [reference[method] for method in finite]).statistic
      cells += [lowest, f"{100 * values[lowest]:.2f}", f"{tau:.2f}"]
    lines.append(f"| {' | '.join(cells)} |")
  return lines
