"""Our numbers beside the published ones, as a table when a cell ends, and on one page."""

import argparse
from collections.abc import Sequence
import math
from typing import Any

import pandas as pd
from scipy import stats

from experiments.common import comparison, markdown, rows
from experiments.weekend.plan import Cell

HEADINGS = ("table", "cell", "number, calibrator", "published", "ours", "difference, 95%", "holds 0")


def difference(by_seed: comparison.BySeed, number: Any) -> tuple[float, float]:
  """Returns ours minus the published number, in its unit, and half the width of its 95% interval, or nan.

  The squares of two independent parts add up: ours over seeds and test images, and Student's of a printed deviation.
  Half of the last place that is printed is added at both ends.
  """
  scale = 1 if number.column in comparison.DIGITS else 100
  change = comparison.paired(by_seed, dict.fromkeys(by_seed, float(number.printed) / scale))
  half = scale * (change.high - change.mean)
  if number.seeds > 1 and not math.isnan(number.error):
    half = math.hypot(half, number.error * stats.t.ppf((1 + comparison.LEVEL) / 2, number.seeds - 1))
  return scale * change.mean, half + 10.0 ** -len(number.printed.partition(".")[2]) / 2


def compared(of_cell: Sequence[rows.Row], numbers: pd.DataFrame) -> list[list[str]]:
  """Returns the cells of a table below all but two of ``HEADINGS``, a line a printed number that has rows of ours."""
  lines = []
  for number in numbers.itertuples():
    by_seed = next((x for (_, _, calibrator), x in comparison.values(of_cell, number.column).items()
                    if calibrator == number.calibrator), None)
    if by_seed:
      middle, half = difference(by_seed, number)
      digits = min(comparison.DIGITS.get(number.column, 2), 3)
      low, change, high = (f"{x:+.{digits}f}" for x in (middle - half, middle, middle + half))
      lines.append([f"{comparison.heading(number.column)}, {number.calibrator}",
                    number.printed + ("" if math.isnan(number.error) else f" ± {number.error:.{digits}f}"),
                    comparison.cell(by_seed, number.column), *(
                      ["", ""] if not math.isfinite(middle) else [change, ""] if math.isnan(half) else
                      [f"{change} [{low}, {high}]", "yes" if abs(middle) <= half else "no"])])
  return lines


def table(cells: Sequence[tuple[Cell, Sequence[rows.Row]]]) -> str:
  """Returns the Markdown table of cells and their rows; "" if none has rows."""
  lines = [[cell.table.title, cell.name(), *line] for cell, of_cell in cells
           for line in compared(of_cell, cell.numbers)]
  return markdown.table(HEADINGS, lines) if lines else ""


def page(cells: Sequence[Cell], options: argparse.Namespace, failures: Sequence[str] = ()) -> str:
  """Returns the page in Markdown: what is done, beside what is published, and what is not."""
  with_rows = [(cell, cell.rows()) for cell in cells]
  done = pd.DataFrame([row for _, of_cell in with_rows for row in of_cell])
  notes = dict.fromkeys(cell.table.note for cell, of_cell in with_rows if cell.table.note and of_cell)
  rest = [f"{cell.table.title}: {cell.name()}, {len(missing)} of {len(cell.jobs)} runs, "
          f"{'' if cell.timed else '≈ '}{cell.hours * len(missing):.2f} h"
          for cell in cells if (missing := cell.missing())]
  parts = ["# The papers' tables beside ours"]
  if options.scale != "paper":
    parts.append(f"At --scale={options.scale} the networks and data are small: these numbers say only that everything "
                 "runs.")
  if len(done):
    seconds = done.groupby(["task", "method", "config"]).seconds.last().astype(float)
    devices, versions = (", ".join(done[name].unique()) for name in ("device", "jax"))
    dates = " to ".join(dict.fromkeys((done.date.min(), done.date.max())))
    parts.append(
      f"`python -m experiments.weekend`, {len(seconds)} runs, {seconds.sum() / 3600:.1f} h on {devices}, "
      f"{options.dtype}, JAX {versions}, {dates}. Ours are means ± standard errors "
      f"{comparison.population(done)}; published ones ± the standard error of their mean, where the paper prints a "
      "deviation. The difference is ours minus theirs, with a 95% interval, of which our part needs two seeds, and "
      "which allows for the rounding of what is printed. One that does not hold 0 is a disagreement; one that does "
      "says how large a disagreement could hide in it.")
  parts += [*notes, table(with_rows) or "No cell is done."]
  for title, lines in (("Not done", rest), ("Failed", failures)):
    parts += [f"## {title}", "\n".join(f"- {line}" for line in lines)] if lines else []
  return "\n\n".join(parts) + "\n"
