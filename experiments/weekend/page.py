"""Our numbers beside the published ones, as a table when a cell ends, and on one page."""

import argparse
from collections.abc import Sequence
import math
from typing import NamedTuple

from scipy import stats

from experiments.common import comparison, markdown, rows
from experiments.weekend.plan import Cell
from experiments.weekend.tables import Number

HEADINGS = ("table", "cell", "number, calibrator", "published", "ours", "difference, 95%", "holds 0")


class Compared(NamedTuple):
  """A published number beside ours, in its unit.

  Attributes:
    number: the published one.
    ours: our mean and its standard error, as text.
    difference: ours minus the published one.
    half: half the width of its 95% interval; nan if nothing says how ours vary.
  """

  number: Number
  ours: str
  difference: float
  half: float

  def cells(self) -> list[str]:
    """Returns the cells of a table."""
    number, digits = self.number, min(comparison.DIGITS.get(self.number.column, 2), 3)
    printed = number.printed + ("" if number.error is None else f" ± {number.error:.{digits}f}")
    if not math.isfinite(self.difference):
      return [printed, self.ours, "", ""]
    difference = f"{self.difference:+.{digits}f}"
    if math.isnan(self.half):
      return [printed, self.ours, difference, ""]
    low, high = self.difference - self.half, self.difference + self.half
    return [printed, self.ours, f"{difference} [{low:+.{digits}f}, {high:+.{digits}f}]",
            "yes" if low <= 0 <= high else "no"]


def compared(of_cell: Sequence[rows.Row], numbers: Sequence[Number]) -> list[Compared]:
  """Returns each published number beside ours.

  The interval of the difference has two independent parts, which add up as squares: that of ours over seeds and test
  images (``comparison.paired``), and, where the paper prints a deviation, Student's of its mean. Half of the last place
  that is printed is added at both ends, because the published number is rounded.

  Args:
    of_cell: the rows of a cell.
    numbers: what is printed for it.
  """
  pairs = []
  for number in numbers:
    scale = 1 if number.column in comparison.DIGITS else 100
    by_seed = next((x for (_, _, calibrator), x in comparison.values(of_cell, number.column).items()
                    if calibrator == number.calibrator), None)
    if by_seed:
      difference = comparison.paired(by_seed, dict.fromkeys(by_seed, number.mean / scale))
      half = scale * (difference.high - difference.mean)
      if number.error is not None and number.seeds > 1:
        half = math.hypot(half, number.error * stats.t.ppf((1 + comparison.LEVEL) / 2, number.seeds - 1))
      pairs.append(Compared(number, comparison.cell(by_seed, number.column), scale * difference.mean,
                            half + number.unit / 2))
  return pairs


def table(cells: Sequence[tuple[Cell, Sequence[rows.Row]]]) -> str:
  """Returns the Markdown table of cells and their rows; "" if none has rows."""
  lines = [[cell.table.title, cell.name(), f"{comparison.heading(x.number.column)}, {x.number.calibrator}", *x.cells()]
           for cell, of_cell in cells for x in compared(of_cell, cell.numbers)]
  return markdown.table(HEADINGS, lines) if lines else ""


def page(cells: Sequence[Cell], options: argparse.Namespace, failures: Sequence[str] = ()) -> str:
  """Returns the page in Markdown: what is done, beside what is published, and what is not."""
  with_rows = [(cell, cell.rows()) for cell in cells]
  done = [row for _, of_cell in with_rows for row in of_cell]
  notes = dict.fromkeys(cell.table.note for cell, of_cell in with_rows if cell.table.note and of_cell)
  rest = [f"{cell.table.title}: {cell.name()}, {len(missing)} of {len(cell.jobs)} runs, "
          f"{'' if cell.timed else '≈ '}{cell.hours * len(missing):.2f} h"
          for cell, of_cell in with_rows if (missing := cell.missing(of_cell))]
  parts = ["# The papers' tables beside ours"]
  if options.scale != "paper":
    parts.append(f"At --scale={options.scale} the networks and data are small: these numbers say only that everything "
                 "runs.")
  if done:
    seconds = {(row["task"], row["method"], row["config"]): float(row["seconds"]) for row in done}
    devices, versions, dates = (dict.fromkeys(row[name] for row in done) for name in ("device", "jax", "date"))
    parts.append(
      f"`python -m experiments.weekend`, {len(seconds)} runs, {sum(seconds.values()) / 3600:.1f} h on "
      f"{', '.join(devices)}, {options.dtype}, {', '.join(f'JAX {version}' for version in versions)}, "
      f"{' to '.join(dict.fromkeys((min(dates), max(dates))))}. Ours are means ± standard errors "
      f"{comparison.population(done)}; published ones ± the standard error of their mean, where the paper prints a "
      "deviation. The difference is ours minus theirs, with a 95% interval, of which our part needs two seeds, and "
      "which allows for the rounding of what is printed. One that does not hold 0 is a disagreement; one that does "
      "says how large a disagreement could hide in it.")
  parts += [*notes, table(with_rows) or "No cell is done."]
  for title, lines in (("Not done", rest), ("Failed", failures)):
    parts += [f"## {title}", "\n".join(f"- {line}" for line in lines)] if lines else []
  return "\n\n".join(parts) + "\n"
