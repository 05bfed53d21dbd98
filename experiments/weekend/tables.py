"""The tables of a weekend: whose rows they have, and the numbers that the papers print for them (``published.csv``).

A line of ``published.csv`` has a number as it is printed, in percent or, of a log-loss, in nats; the calibrator and the
column of our rows that it is compared with; the standard deviation over seeds or the standard error that is printed
beside it, if one is; and the number of seeds behind it. The ECE of Karandikar et al. has equal-mass bins and norm 2.
"""

import csv
import pathlib
from typing import NamedTuple

from experiments.common.claims import FT, MC, RR, SC
from experiments.common.declaration import Experiment
from experiments.papers.focal_temperature import table as focal_temperature
from experiments.papers.mac_cal import tables as mac_cal
from experiments.papers.reweighted_risk import tables as reweighted_risk
from experiments.papers.soft_calibration import tables as soft_calibration

PUBLISHED = pathlib.Path(__file__).with_name("published.csv")


class Number(NamedTuple):
  """A number that a paper prints, in percent, or in nats for the log-loss.

  Attributes:
    calibrator: the calibrator in our rows.
    column: the column in our rows.
    printed: the number as it is printed.
    error: the standard error of the mean, from what is printed beside it; None if nothing is.
    seeds: the number of seeds behind it.
  """

  calibrator: str
  column: str
  printed: str
  error: float | None = None
  seeds: int = 1

  @property
  def mean(self) -> float:
    """The number."""
    return float(self.printed)

  @property
  def unit(self) -> float:
    """The last place to which it is printed: it is rounded by at most half of that."""
    return 10.0 ** -len(self.printed.partition(".")[2])


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


def published(table: str) -> dict[tuple[str, str], tuple[Number, ...]]:
  """Returns what a paper prints in a table, by the task and the method of our rows."""
  numbers: dict[tuple[str, str], tuple[Number, ...]] = {}
  with PUBLISHED.open(encoding="utf-8", newline="") as file:
    for line in csv.DictReader(file):
      if line["table"] == table:
        seeds, error = int(line["seeds"]), None
        if line["standard_error"]:
          error = float(line["standard_error"])
        elif line["deviation"]:
          error = float(line["deviation"]) / seeds**0.5
        place = line["task"], line["method"]
        number = Number(line["calibrator"], line["column"], line["printed"], error, seeds)
        numbers[place] = (*numbers.get(place, ()), number)
  return numbers
