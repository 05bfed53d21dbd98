"""Calibration errors by the severity of corruptions, of sets such as ``fog_1`` and ``snow_1``."""

from collections.abc import Mapping
import dataclasses
import math
import re
from typing import Any

import numpy as np

from calib_jax import metrics
from calib_jax.evaluation.predictions.fitting import Model
from calib_jax.evaluation.results import Results, RowKey
from calib_jax.evaluation.sections import SECTIONS, Section, Table

CORRUPTED = re.compile(r"(.+)_([1-5])")
MOST_LINES = 7  # Rows of the figure.


@dataclasses.dataclass(frozen=True)
class Level:
  """The debiased ECE at one severity, the mean over corruptions."""

  mean: float  # The mean.
  # The standard error of differences between rows (corruptions are the subjects), nan if there is one corruption or
  # one row.
  within_subject_sem: float = math.nan
  num_corruptions: int = 0  # The number of corruptions; 0 for the test set.


def compute(results: Results, models: Mapping[str, Model]) -> dict[str, dict[int, Level]]:
  """Averages the debiased ECE of each row by severity."""
  errors = {name: {row: measured.estimates["ece"].estimate for row, measured in evaluated.rows.items()}
            for name, evaluated in results.measured.items()}
  return results.named(by_severity(errors, results.first[0]))


def by_severity(errors: Mapping[str, Mapping[RowKey, float]], test_set: str) -> dict[RowKey, dict[int, Level]]:
  """Averages errors over corruptions by row and severity, 0 of ``test_set``, of rows that have all corrupted sets."""
  sets: dict[int, list[str]] = {}
  for name in errors:
    match = CORRUPTED.fullmatch(name)
    if match and name != test_set:
      sets.setdefault(int(match[2]), []).append(name)
  rows = [row for row in errors[test_set] if all(row in errors[name] for names in sets.values() for name in names)]
  levels = {row: {0: Level(errors[test_set][row])} for row in rows} if sets else {}
  for severity in sorted(sets):
    values = np.array([[errors[name][row] for row in rows] for name in sets[severity]], np.float32)
    error = float(metrics.within_subject_sem(values)) if min(values.shape) > 1 else math.nan
    for row, mean in zip(rows, values.mean(0), strict=True):
      levels[row][severity] = Level(float(mean), error, len(values))
  return levels


def table(content: Mapping[str, Mapping[int, Level]], results: Results) -> Table:
  """Returns the debiased ECE by the severity of corruptions."""
  severities = list(next(iter(content.values())))
  rows = [[row, *(_with_error(levels[severity]) for severity in severities)] for row, levels in content.items()]
  return Table("debiased ECE % by severity: mean over corruption types ± within-subject standard error",
               ["row", *(f"severity {severity}" if severity else "test set" for severity in severities)], rows)


def _with_error(level: Level) -> str:
  error = "" if math.isnan(level.within_subject_sem) else f" ± {100 * level.within_subject_sem:.2f}"
  return f"{100 * level.mean:.2f}{error}"


def figure(content: Mapping[str, Mapping[int, Level]], results: Results, curves: Any) -> Any:
  """Draws the levels of the first rows."""
  return curves.severity_plot({
    row: {severity: (level.mean, level.within_subject_sem) for severity, level in levels.items()}
    for row, levels in list(content.items())[:MOST_LINES]})


def finding(content: Mapping[str, Mapping[int, Level]], results: Results) -> str:
  """Says how the debiased ECE of the first rows changes from the test set to the highest severity."""
  lines = []
  for row, levels in list(content.items())[:MOST_LINES]:
    (_, first), *_, (severity, last) = levels.items()
    lines.append(f"{row} {100 * first.mean:.1f}% and {100 * last.mean:.1f}%")
  return f"debiased ECE on the test set and at severity {severity}: {'; '.join(lines)}."


SECTIONS["severity"] = Section(
  compute, table, in_json=4, on_page=3, figure=figure, figure_place=60, finding=finding,
  caption="Debiased ECE against the severity of corruptions: means over corruption types with within-subject standard "
          "errors, if there are several types and rows.")
