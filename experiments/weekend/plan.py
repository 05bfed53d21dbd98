"""The cells of a weekend in the order of published evidence per hour, and which of them fit."""

import argparse
from collections.abc import Callable, Mapping, Sequence
import functools
import pathlib
from typing import NamedTuple

from ml_collections import ConfigDict

from experiments.common import rows, settings, sweep
from experiments.common.declaration import Method
from experiments.weekend import costs
from experiments.weekend.tables import TABLES, Number, Table


class Cell(NamedTuple):
  """A cell: the models of a method on a task, and the numbers that a paper prints for them.

  Attributes:
    table: the table that it stands in.
    jobs: what trains them.
    config: the config of the first of them.
    numbers: what is printed.
    hours: how long all of them take.
    measured: whether this follows from a step that was measured.
    together: how many models train in the same steps (``costs.together``).
  """

  table: Table
  jobs: tuple[sweep.Job, ...]
  config: ConfigDict
  numbers: tuple[Number, ...]
  hours: float
  measured: bool
  together: int = 1

  @property
  def method(self) -> Method:
    """What the cell trains."""
    return self.jobs[0].method

  @property
  def num_seeds(self) -> int:
    """The number of models."""
    return sum(len(job.seeds) for job in self.jobs)

  def name(self) -> str:
    """Returns the name of the cell in messages."""
    return ", ".join(filter(None, (self.method.task, self.method.name)))

  def stem(self, options: argparse.Namespace) -> pathlib.Path:
    """Returns the path of the files of the cell's experiment without what ends their names."""
    return sweep.stem_of(self.table.experiment, options)

  def rows(self, options: argparse.Namespace) -> list[rows.Row]:
    """Returns the rows of the cell, of all shards that have written in the directory."""
    stem = self.stem(options)
    paths = [sweep.path_of(stem), *sorted(stem.parent.glob(f"{stem.name}_shard*of*.csv"))]
    declared = {job.declared for job in self.jobs}
    return [row for path in paths for row in rows.read(path)
            if (row["task"], row["method"]) == self.method[:2] and row["declared"] in declared]

  def missing(self, options: argparse.Namespace) -> list[sweep.Job]:
    """Returns the jobs that have no rows yet."""
    return sweep.without_rows(self.table.experiment, self.jobs, self.rows(options))

  def hours_of(self, wanted: Sequence[sweep.Job]) -> float:
    """Returns how long some of its jobs take."""
    return self.hours * sum(len(job.seeds) for job in wanted) / self.num_seeds


def cells(options: argparse.Namespace, measured: Mapping[str, float]) -> list[Cell]:
  """Returns the cells of the tables ``options.tables``, those with the most published evidence per hour first.

  The evidence of a cell is how many numbers the paper prints for it, times the models of ours that stand behind each.
  Ties stay in the order of the tables and their rows, of which cross entropy is the first.
  """
  found = []
  for name in options.tables:
    table = TABLES[name]()
    for method in table.experiment.methods(options):
      if numbers := _numbers(table, method):
        found.append(_cell(table, method, numbers, options, measured))
  return sorted(found, key=lambda cell: -len(cell.numbers) * cell.num_seeds / cell.hours)


def _cell(table: Table, method: Method, numbers: tuple[Number, ...], options: argparse.Namespace,
          measured: Mapping[str, float]) -> Cell:
  """Returns the cell of a method.

  A job is known by its declaration, in which every model trains alone, so that rows count however they were trained.
  """
  method = method._replace(config=functools.partial(_changed, method.config, options), search={}, trials={})
  jobs = tuple(sweep.jobs([method], options.seeds or table.seeds))
  config, seeds = jobs[0].config, tuple(seed for job in jobs for seed in job.seeds)
  number = len(seeds) if method.members == 1 and costs.together(config, len(seeds), measured) else 1
  if number > 1:
    jobs = (jobs[0]._replace(config=settings.changed(config, {"training.seeds_together": True}), seeds=seeds),)
  cost, is_measured = costs.hours(config, len(seeds), options.card, measured, number)
  return Cell(table, jobs, jobs[0].config, numbers, cost, is_measured, number)


def _changed(make: Callable[[], ConfigDict], options: argparse.Namespace) -> ConfigDict:
  return settings.changed(make(), {"model.dtype": options.dtype, "training.seeds_together": False,
                                    "evaluation.ood": ()})  # No published number that it compares needs other images.


def _numbers(table: Table, method: Method) -> tuple[Number, ...]:
  """Returns what is printed for a method; at the tiny scale, which has no tasks, what is printed for the first one."""
  return next((numbers for (task, name), numbers in table.numbers.items()
               if name == method.name and method.task in ("", task)), ())


def fitting(wanted: Sequence[Cell], options: argparse.Namespace) -> list[tuple[Cell, list[sweep.Job], int]]:
  """Returns for each cell, in order, its jobs without rows, and how many of these fit into ``options.hours``.

  A job that does not fit is left out, and smaller ones after it may still fit.
  """
  left, found = options.hours, []
  for cell in wanted:
    missing, number = cell.missing(options), 0
    for job in missing:
      if cell.hours_of([job]) <= left:
        left, number = left - cell.hours_of([job]), number + 1
    found.append((cell, missing, number))
  return found


def text(planned: Sequence[tuple[Cell, Sequence[sweep.Job], int]], options: argparse.Namespace) -> str:
  """Returns the plan as Markdown: what starts, in which order, and what it takes."""
  lines = ["| | table | cell | models | printed numbers | hours | |", "|---" * 7 + "|"]
  for i, (cell, missing, number) in enumerate(planned, 1):
    state = "done" if not missing else "fits" if number == len(missing) else (
      f"{number} of {len(missing)} runs fit" if number else "does not fit")
    sign = "" if cell.measured else "≈ "
    lines.append(f"| {i} | {cell.table.title} | {cell.name()} | {cell.num_seeds}"
                 f"{' together' if cell.together > 1 else ''} | {len(cell.numbers)} | "
                 f"{sign}{cell.hours_of(missing):.2f} | {state} |")
  return "\n".join([*lines, "", summary(planned, options)])


def summary(planned: Sequence[tuple[Cell, Sequence[sweep.Job], int]], options: argparse.Namespace) -> str:
  """Returns the hours of each table as a sentence, and what fits."""
  by_table: dict[str, float] = {}
  for cell, missing, _ in planned:
    by_table[cell.table.title] = by_table.get(cell.table.title, 0.0) + cell.hours_of(missing)
  fits = sum(cell.hours_of(missing[:number]) for cell, missing, number in planned)
  whole = sum(number == len(missing) for _, missing, number in planned)
  estimated = any(not cell.measured for cell, missing, _ in planned if missing)
  basis = (f"≈ marks estimates: {costs.SHARE:.0%} of the {costs.CARDS[options.card] / 1e12:,.0f} T operations a second "
           f"of {options.card}, {options.dtype}. " if estimated else "All hours follow from steps that were measured. ")
  return (basis + "Hours: " + "; ".join(f"{title} {hours:.1f}" for title, hours in by_table.items())
          + f". In {options.hours:g} hours {whole} of {len(planned)} cells are whole, {fits:.1f} h.")
