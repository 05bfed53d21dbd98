"""The papers' tables, their cells in the order of published evidence per hour, and which of them fit.

A line of ``published.csv`` has a number as it is printed, in percent or, of a log-loss, in nats; the calibrator and the
column of our rows that it is compared with; the standard deviation over seeds or the standard error that is printed
beside it, if one is; and the number of seeds behind it. The ECE of Karandikar et al. has equal-mass bins and norm 2.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import functools
import pathlib
from typing import NamedTuple

from ml_collections import ConfigDict
import pandas as pd

from calib_jax._system.errors import UserError
from experiments.common import markdown, settings, sweep
from experiments.common import rows as row_files
from experiments.common.claims import FT, MC, RR, SC
from experiments.common.declaration import Experiment
from experiments.papers.focal_temperature import table as focal_temperature
from experiments.papers.mac_cal import tables as mac_cal
from experiments.papers.reweighted_risk import tables as reweighted_risk
from experiments.papers.soft_calibration import tables as soft_calibration
from experiments.weekend import costs


class Table(NamedTuple):
  """A table of a paper: its title, the experiment with its rows, the seeds that train, and what differs here."""

  title: str
  experiment: Experiment
  seeds: int
  note: str = ""


TABLES = {
  "focal_temperature": Table(f"{FT}, Table 1", focal_temperature.EXPERIMENT, 5),
  "soft_calibration": Table(
    f"{SC}, Table 1a", soft_calibration.EXPERIMENT, 3,
    "The paper tunes κ, T and β and does not print them; here they have the starting points of "
    "configs/soft_calibration.py, and nothing is tuned."),
  "reweighted_risk_cifar10": Table(f"{RR}, Table 1, CIFAR-10", reweighted_risk.EXPERIMENT, 3),
  "reweighted_risk_cifar100": Table(f"{RR}, Table 1, CIFAR-100", reweighted_risk.EXPERIMENT, 3),
  "mac_cal": Table(
    f"{MC}, Table 1", mac_cal.EXPERIMENT, 1,
    "MaC-Cal is the reading that lowers the ECE (experiments/results/new_heads.md). One seed has no interval."),
}


def published(table: str) -> pd.DataFrame:
  """Returns what a paper prints in a table; ``error`` is the standard error of the mean, missing if nothing is."""
  numbers = row_files.frame(pathlib.Path(__file__).with_name("published.csv"), text=("printed",))
  numbers["error"] = numbers.standard_error.fillna(numbers.deviation / numbers.seeds**0.5)
  return numbers[numbers.table == table]


class Cell(NamedTuple):
  """The models of a method on a task, and the numbers that a paper prints for them."""

  table: Table
  jobs: tuple[sweep.Job, ...]  # What trains them, each one model.
  numbers: pd.DataFrame  # What is printed.
  hours: float  # How long one of them takes.
  timed: bool  # Whether this follows from a step that was timed.
  stem: pathlib.Path  # The path of its experiment's files without what ends their names.

  def name(self) -> str:
    """Returns the name of the cell in messages."""
    return ", ".join(filter(None, self.jobs[0].method[:2]))

  def rows(self) -> list[row_files.Row]:
    """Returns the rows of the cell, of all shards that have written in the directory."""
    paths = [sweep.path_of(self.stem), *sorted(self.stem.parent.glob(f"{self.stem.name}_shard*of*.csv"))]
    declared = {job.declared for job in self.jobs}
    return [row for path in paths for row in row_files.read(path)
            if (row["task"], row["method"]) == self.jobs[0].method[:2] and row["declared"] in declared]

  def missing(self) -> list[sweep.Job]:
    """Returns the jobs that have no rows."""
    return sweep.without_rows(self.table.experiment, self.jobs, self.rows())


Planned = tuple[Cell, list[sweep.Job], int]  # A cell, its jobs without rows, and how many of these fit.


def cells(options: argparse.Namespace, timed_here: Mapping[str, float]) -> list[Cell]:
  """Returns the cells of a process, those with the most published evidence per hour first.

  The evidence of a cell is how many numbers the paper prints for it, times the models of ours that stand behind each.
  Ties stay in the order of the tables and their rows, of which cross entropy is the first.

  Args:
    options: those of the command: its tables, words that the names of cells hold, its shard, and so on.
    timed_here: the seconds of a step by network, as they were timed on a device like this one.

  Raises:
    UserError: if no name holds one of the words.
  """
  all_cells = []
  for name in options.tables:
    table, printed = TABLES[name], published(name)
    for method in table.experiment.methods(options):
      numbers = printed[printed.method == method.name]
      # At the tiny scale, which has no tasks, what is printed for the first one.
      numbers = numbers[numbers.task.isin([method.task] if method.task else numbers.task[:1])]
      if len(numbers):
        method = method._replace(config=functools.partial(_changed, method.config, options), search={}, trials={})
        jobs = tuple(sweep.jobs([method], options.seeds or table.seeds))
        hours, timed = costs.hours(jobs[0].config, options.card, timed_here)
        all_cells.append(Cell(table, jobs, numbers, hours, timed, sweep.stem_of(table.experiment, options)))
  named = [cell for cell in all_cells if not options.only or any(word in cell.name() for word in options.only)]
  if not named:
    raise UserError(f"--only: no cell of these tables has a name that holds {' or '.join(options.only)}.")
  index, number = options.shard or (1, 1)
  return sorted(named, key=lambda cell: -len(cell.numbers) / cell.hours)[index - 1::number]


def _changed(make: Callable[[], ConfigDict], options: argparse.Namespace) -> ConfigDict:
  return settings.changed(make(), {"model.dtype": options.dtype, "training.seeds_together": False,
                                    "evaluation.ood": ()})  # No published number that it compares needs other images.


def fitting(wanted: Sequence[Cell], hours: float) -> list[Planned]:
  """Returns the cells in order, with how many of their jobs without rows fit into some hours, long ones left out."""
  left, planned = hours, []
  for cell in wanted:
    missing, number = cell.missing(), 0
    while number < len(missing) and cell.hours <= left:
      left, number = left - cell.hours, number + 1
    planned.append((cell, missing, number))
  return planned


def text(planned: Sequence[Planned], options: argparse.Namespace) -> str:
  """Returns the plan as Markdown: what starts, in which order, and what it takes."""
  lines, by_table, estimated, whole, fit = [], {}, False, 0, 0.0
  for i, (cell, missing, number) in enumerate(planned, 1):
    hours = cell.hours * len(missing)
    state = "done" if not missing else "fits" if number == len(missing) else (
      f"{number} of {len(missing)} runs fit" if number else "does not fit")
    lines.append((i, cell.table.title, cell.name(), len(cell.jobs), len(cell.numbers),
                  f"{'' if cell.timed else '≈ '}{hours:.2f}", state))
    by_table[cell.table.title] = by_table.get(cell.table.title, 0.0) + hours
    estimated |= bool(missing) and not cell.timed
    whole, fit = whole + (number == len(missing)), fit + number * cell.hours
  basis = (f"≈ marks estimates: {costs.SHARE:.0%} of the {costs.CARDS[options.card] / 1e12:,.0f} T operations a second "
           f"of {options.card}, {options.dtype}. " if estimated else "All hours follow from steps that were timed. ")
  return (markdown.table(("", "table", "cell", "models", "printed numbers", "hours", ""), lines) + f"\n\n{basis}Hours: "
          + "; ".join(f"{title} {hours:.1f}" for title, hours in by_table.items())
          + f". In {options.hours:g} hours {whole} of {len(planned)} cells are whole, {fit:.1f} h.")
