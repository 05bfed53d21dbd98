"""Calibration by subgroup, such as by task, where the predictions have subgroups."""

from collections.abc import Iterator, Mapping
import itertools
from typing import Any

import numpy as np

from calib_jax.evaluation.numbers import cell
from calib_jax.evaluation.predictions.fitting import UNCALIBRATED, Model
from calib_jax.evaluation.results import Results
from calib_jax.evaluation.sections import SECTIONS, Section, Table
from calib_jax.evaluation.subgroups import ClassGaps, Subgroup, measured

MOST = 30  # Subgroups of a row that tables show.
Content = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Subgroup]]]]  # By set, array, row and name.


def compute(results: Results, models: Mapping[str, Model]) -> dict[str, dict[str, dict[str, dict[str, Subgroup]]]]:
  """Measures the subgroups of each row, by set and by the name of the array that tells them apart."""
  content: dict[str, dict[str, dict[str, dict[str, Subgroup]]]] = {}
  for set_name, evaluated in results.measured.items():
    for key, row in evaluated.rows.items():
      for by, subgroups in (row.values.subgroups or {}).items():
        content.setdefault(set_name, {}).setdefault(by, {})[results.row_name(key)] = measured(
          row.values, subgroups, num_bins=results.num_bins, num_resamples=results.num_resamples)
  return content


def tables(content: Content, results: Results) -> Iterator[Table]:
  """Yields a table for each array that tells subgroups apart: of each set the recommended row, and none calibrated."""
  shown = _shown(results)
  for by in dict.fromkeys(by for of_set in content.values() for by in of_set):
    rows = [[set_name, row, name, f"{x.num_examples:,}", f"{100 * x.accuracy:.2f}", f"{100 * x.ece:.2f}",
             f"{100 * x.floor:.2f}", _p_text(x.p_value), cell(x.offset, 100),
             "" if x.offset_of_others is None else cell(x.offset_of_others, 100), _p_text(x.worse_p_value)]
            for set_name, of_set in content.items() for row in shown
            for name, x in itertools.islice(of_set.get(by, {}).get(row, {}).items(), MOST)]
    number = max(len(x) for of_set in content.values() for x in of_set.get(by, {}).values())
    yield Table(
      f"By {by}, {f'the worst {MOST} of {number}' if number > MOST else 'the worst first'}. The offset is the mean "
      "confidence minus the accuracy. Both p are corrected for the number of subgroups (Holm): of the ECE of a "
      "calibrated model, and of an offset that is no further from 0 than that of the other examples together",
      ["evaluated on", "row", by, "examples", "accuracy %", "ECE %", "noise floor %", "p", "offset, points",
       "that of the others together", "p of no worse than they are"], rows, first=True)


def _p_text(p_value: float | None) -> str:
  return "" if p_value is None else "≤ 0.001" if p_value <= 0.001 else f"{p_value:.3f}"


def _shown(results: Results) -> list[str]:
  """Returns the names of the rows that are shown: the recommended one, and none calibrated."""
  model, label = results.verdict.row
  return list(dict.fromkeys(results.row_name((model, x)) for x in (label, UNCALIBRATED)))


def figure(content: Content, results: Results, curves: Any) -> Any:
  """Draws the offsets of the subgroups of the first set, by the first array, without calibration and as recommended."""
  by, of_rows = next(iter(next(iter(content.values())).items()))
  names = sorted(next(iter(of_rows.values())))
  gaps = {}
  for row, subgroups in ((row, of_rows[row]) for row in reversed(_shown(results))):
    offsets = [subgroups[name].offset for name in names]
    count = np.array([subgroups[name].num_units for name in names])
    error = np.array([(x.high - x.low) / 2 / 1.96 for x in offsets])
    gaps[row] = ClassGaps(np.array([x.estimate for x in offsets]), error, count, count / count.sum())
  axes = curves.class_gaps_plot(gaps, names)
  axes.set_ylabel(by)
  return axes


def finding(content: Content, results: Results) -> str:
  """Says which subgroup of the recommended row is the worst."""
  by, of_rows = next(iter(next(iter(content.values())).items()))
  row, subgroups = next((row, of_rows[row]) for row in _shown(results))
  name, worst = next(iter(subgroups.items()))
  return (f"by {by}, the worst of {row} is {name}, {'over' if worst.offset.estimate > 0 else 'under'}confident by "
          f"{100 * abs(worst.offset.estimate):.1f} points.")


SECTIONS["subgroups"] = Section(
  compute, tables, in_json=9, on_page=-2, figure=figure, figure_place=45, finding=finding, in_text=True,
  caption="Mean confidence minus accuracy of each subgroup with 95% intervals, the largest first. Right of 0, "
          "predictions are overconfident.")
