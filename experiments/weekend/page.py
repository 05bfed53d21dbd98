"""Our numbers beside the published ones, as a line when a cell ends, and on one page."""

import argparse
from collections.abc import Sequence
import math
from typing import NamedTuple

from scipy import stats

from experiments.common import comparison, rows, sweep
from experiments.weekend import plan
from experiments.weekend.tables import Number


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
    printed = f"{number.mean:g}" + ("" if number.error is None else f" ± {number.error:.{digits}f}")
    if not math.isfinite(self.difference):
      return [printed, self.ours, "", ""]
    interval = "" if math.isnan(self.half) else (f" [{self.difference - self.half:+.{digits}f}, "
                                                 f"{self.difference + self.half:+.{digits}f}]")
    holds = "" if math.isnan(self.half) else "yes" if abs(self.difference) <= self.half else "no"
    return [printed, self.ours, f"{self.difference:+.{digits}f}{interval}", holds]


def compared(found: Sequence[rows.Row], numbers: Sequence[Number]) -> list[Compared]:
  """Returns each published number beside ours.

  The interval of the difference has two independent parts, which add up as squares: that of ours over seeds and test
  images (``comparison.paired``), and, where the paper prints a deviation, Student's of its mean. Half of the last place
  that is printed is added at both ends, because the published number is rounded.

  Args:
    found: the rows of a cell.
    numbers: what is printed for it.
  """
  pairs = []
  for number in numbers:
    scale = 1 if number.column in comparison.DIGITS else 100
    by_seed = next((x for (_, _, calibrator), x in comparison.values(found, number.column).items()
                    if calibrator == number.calibrator), None)
    if by_seed:
      apart = comparison.paired(by_seed, dict.fromkeys(by_seed, number.mean / scale))
      half = scale * (apart.high - apart.mean)
      if number.error is not None and number.seeds > 1:
        half = math.hypot(half, number.error * stats.t.ppf((1 + comparison.LEVEL) / 2, number.seeds - 1))
      pairs.append(Compared(number, comparison.cell(by_seed, number.column), scale * apart.mean,
                            half + number.unit / 2))
  return pairs


def lines(cell: plan.Cell, found: Sequence[rows.Row]) -> list[str]:
  """Returns the rows of the Markdown table of a cell."""
  return ["| " + " | ".join([cell.table.title, cell.name(), f"{comparison.heading(x.number.column)}, "
                             f"{x.number.calibrator}", *x.cells()]) + " |" for x in compared(found, cell.numbers)]


HEADING = ("| table | cell | number, calibrator | published | ours | difference, 95% | holds 0 |", "|---" * 7 + "|")


def page(planned: Sequence[tuple[plan.Cell, Sequence[sweep.Job], int]], options: argparse.Namespace,
         failures: Sequence[str] = ()) -> str:
  """Returns the page in Markdown: what is done, beside what is published, and what is not."""
  done, rest, notes = [], [], []
  for cell, missing, _ in planned:
    found = cell.rows(options)
    done += lines(cell, found)
    if missing:
      rest.append(f"{cell.table.title}: {cell.name()}, {len(missing)} of {len(cell.jobs)} runs, "
                  f"{'' if cell.measured else '≈ '}{cell.hours_of(missing):.2f} h")
    if found:
      notes += [note for note in (cell.table.note,) if note and note not in notes]
  everything = [row for cell, _, _ in planned for row in cell.rows(options)]
  head = ["# The papers' tables beside ours", ""]
  if options.scale != "paper":
    head += [f"At --scale={options.scale} the networks and data are small: these numbers say only that everything "
             "runs.", ""]
  if everything:
    devices = ", ".join(dict.fromkeys(row["device"] for row in everything))
    seconds = {(row["task"], row["method"], row["config"]): float(row["seconds"]) for row in everything}
    versions = ", ".join(dict.fromkeys(f"JAX {row['jax']}" for row in everything))
    dates = sorted({row["date"] for row in everything})
    head += [f"`python -m experiments.weekend`, {len(seconds)} runs, {sum(seconds.values()) / 3600:.1f} h on "
             f"{devices}, {options.dtype}, {versions}, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}. Ours are "
             f"means ± standard errors {comparison.population(everything)}; published ones ± the standard error of "
             "their mean, where the paper prints a deviation. The difference is ours minus theirs, with a 95% "
             "interval, of which our part needs two seeds, and which allows for the rounding of what is printed. One "
             "that does not hold 0 is a disagreement; one that does says how large a disagreement could hide in it.",
             "", *notes, *[""] * bool(notes)]
  body = [*HEADING, *done] if done else ["No cell is done."]
  end = ["", "## Not done", "", *(f"- {line}" for line in rest)] if rest else []
  failed = ["", "## Failed", "", *(f"- {line}" for line in failures)] if failures else []
  return "\n".join([*head, *body, *end, *failed]) + "\n"
