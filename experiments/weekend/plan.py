"""The cells of a weekend in the order of published evidence per hour, and which of them fit."""

import argparse
from collections.abc import Callable, Mapping, Sequence
import functools
import pathlib
from typing import NamedTuple

from ml_collections import ConfigDict

from experiments.common import markdown, settings, sweep
from experiments.common import rows as row_files
from experiments.weekend import costs
from experiments.weekend.tables import TABLES, Number, Table, published


class Cell(NamedTuple):
  """A cell: the models of a method on a task, and the numbers that a paper prints for them.

  Attributes:
    table: the table that it stands in.
    jobs: what trains them, each one model.
    numbers: what is printed.
    hours: how long one of them takes.
    timed: whether this follows from a step that was timed.
    stem: the path of the files of the cell's experiment without what ends their names.
  """

  table: Table
  jobs: tuple[sweep.Job, ...]
  numbers: tuple[Number, ...]
  hours: float
  timed: bool
  stem: pathlib.Path

  @property
  def config(self) -> ConfigDict:
    """The config of its first model."""
    return self.jobs[0].config

  def name(self) -> str:
    """Returns the name of the cell in messages."""
    return ", ".join(filter(None, self.jobs[0].method[:2]))

  def rows(self) -> list[row_files.Row]:
    """Returns the rows of the cell, of all shards that have written in the directory."""
    paths = [sweep.path_of(self.stem), *sorted(self.stem.parent.glob(f"{self.stem.name}_shard*of*.csv"))]
    declared = {job.declared for job in self.jobs}
    return [row for path in paths for row in row_files.read(path)
            if (row["task"], row["method"]) == self.jobs[0].method[:2] and row["declared"] in declared]

  def missing(self, done: Sequence[row_files.Row] | None = None) -> list[sweep.Job]:
    """Returns the jobs that have none of the rows ``done``, by default those of ``rows()``."""
    return sweep.without_rows(self.table.experiment, self.jobs, self.rows() if done is None else done)


class Planned(NamedTuple):
  """A cell, its jobs without rows, and how many of these fit."""

  cell: Cell
  missing: list[sweep.Job]
  fitting: int

  def hours(self) -> float:
    """Returns how long the jobs without rows take."""
    return self.cell.hours * len(self.missing)


def cells(options: argparse.Namespace, timed_here: Mapping[str, float]) -> list[Cell]:
  """Returns the cells of the tables ``options.tables``, those with the most published evidence per hour first.

  The evidence of a cell is how many numbers the paper prints for it, times the models of ours that stand behind each.
  Ties stay in the order of the tables and their rows, of which cross entropy is the first.
  """
  all_cells = []
  for name in options.tables:
    table, printed = TABLES[name], published(name)
    for method in table.experiment.methods(options):
      # At the tiny scale, which has no tasks, what is printed for the first one.
      numbers = next((numbers for (task, row), numbers in printed.items()
                      if row == method.name and method.task in ("", task)), ())
      if numbers:
        method = method._replace(config=functools.partial(_changed, method.config, options), search={}, trials={})
        jobs = tuple(sweep.jobs([method], options.seeds or table.seeds))
        all_cells.append(Cell(table, jobs, numbers, *costs.hours(jobs[0].config, options.card, timed_here),
                              sweep.stem_of(table.experiment, options)))
  return sorted(all_cells, key=lambda cell: -len(cell.numbers) / cell.hours)


def _changed(make: Callable[[], ConfigDict], options: argparse.Namespace) -> ConfigDict:
  return settings.changed(make(), {"model.dtype": options.dtype, "training.seeds_together": False,
                                    "evaluation.ood": ()})  # No published number that it compares needs other images.


def fitting(wanted: Sequence[Cell], hours: float) -> list[Planned]:
  """Returns the cells in order, with how many of their jobs without rows fit into some hours.

  A job that does not fit is left out, and smaller ones after it may still fit.
  """
  left, planned = hours, []
  for cell in wanted:
    missing, number = cell.missing(), 0
    while number < len(missing) and cell.hours <= left:
      left, number = left - cell.hours, number + 1
    planned.append(Planned(cell, missing, number))
  return planned


def text(planned: Sequence[Planned], options: argparse.Namespace) -> str:
  """Returns the plan as Markdown: what starts, in which order, and what it takes."""
  lines, by_table = [], {}
  for i, of_cell in enumerate(planned, 1):
    cell, missing, number = of_cell
    state = "done" if not missing else "fits" if number == len(missing) else (
      f"{number} of {len(missing)} runs fit" if number else "does not fit")
    lines.append((i, cell.table.title, cell.name(), len(cell.jobs), len(cell.numbers),
                  f"{'' if cell.timed else '≈ '}{of_cell.hours():.2f}", state))
    by_table[cell.table.title] = by_table.get(cell.table.title, 0.0) + of_cell.hours()
  estimated = any(not cell.timed for cell, missing, _ in planned if missing)
  basis = (f"≈ marks estimates: {costs.SHARE:.0%} of the {costs.CARDS[options.card] / 1e12:,.0f} T operations a second "
           f"of {options.card}, {options.dtype}. " if estimated else "All hours follow from steps that were timed. ")
  return "\n".join([
    markdown.table(("", "table", "cell", "models", "printed numbers", "hours", ""), lines), "",
    basis + "Hours: " + "; ".join(f"{title} {hours:.1f}" for title, hours in by_table.items())
    + f". In {options.hours:g} hours {sum(number == len(missing) for _, missing, number in planned)} of "
    f"{len(planned)} cells are whole, {sum(number * cell.hours for cell, _, number in planned):.1f} h."])
