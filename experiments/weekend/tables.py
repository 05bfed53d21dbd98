"""The tables of a weekend: whose rows they have, and the numbers that the papers print for them."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from experiments.common.claims import FT, MC, RR, SC
from experiments.common.declaration import Experiment
from experiments.papers.focal_temperature import table as focal_temperature
from experiments.papers.mac_cal import tables as mac_cal
from experiments.papers.reweighted_risk import tables as reweighted_risk
from experiments.papers.soft_calibration import tables as soft_calibration
from experiments.weekend import published


class Number(NamedTuple):
  """A number that a paper prints, in percent, or in nats for the log-loss.

  Attributes:
    calibrator: the calibrator in our rows.
    column: the column in our rows.
    mean: the number.
    error: the standard error of the mean, from what is printed beside it; None if nothing is.
    seeds: the number of seeds behind it.
    unit: the last place to which the mean is printed, in its unit: it is rounded by at most half of that.
  """

  calibrator: str
  column: str
  mean: float
  error: float | None = None
  seeds: int = 1
  unit: float = 0.01


class Table(NamedTuple):
  """A table of a paper.

  Attributes:
    title: the paper, and the table in it.
    experiment: the declaration whose methods are its rows.
    seeds: how many are trained.
    numbers: what the paper prints, by the task and the method of our rows.
    note: a sentence on what differs from the paper.
  """

  title: str
  experiment: Experiment
  seeds: int
  numbers: Mapping[tuple[str, str], tuple[Number, ...]]
  note: str = ""


def _unit(place: tuple[str, str]) -> float:
  """Returns the last place of a number of a calibrator and a column, where accuracies have one decimal."""
  return 0.1 if place[1] == "accuracy" else 0.01


def _focal_temperature() -> Table:
  places = (("none", "accuracy"), ("TS by log loss", "nll"), ("TS by ECE", "adaptive"), ("FTS by log loss", "nll"),
            ("FTS by ECE", "adaptive"))
  return Table(f"{FT}, Table 1", focal_temperature.EXPERIMENT, 5, {
    (f"{data}, resnet50", loss): tuple(Number(*place, mean, deviation / 5**0.5, 5, _unit(place))
                                       for place, (mean, deviation) in zip(places, numbers, strict=True))
    for (data, loss), numbers in published.FOCAL_TEMPERATURE.items()})


def _soft_calibration() -> Table:
  places = (("none", "accuracy"), ("none", "ece_equal_mass_l2"), ("TS", "ece_equal_mass_l2"))
  return Table(f"{SC}, Table 1a", soft_calibration.EXPERIMENT, 3, {
    ("cifar100, wide_resnet28_10", loss): tuple(Number(*place, *pair, 10, _unit(place))
                                                for place, pair in zip(places, numbers, strict=True))
    for loss, numbers in published.SOFT_CALIBRATION.items()},
    "The paper tunes κ, T and β and does not print them; here they have the starting points of "
    "configs/soft_calibration.py, and nothing is tuned.")


def _reweighted_risk(data: str) -> Table:
  title = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}[data]
  return Table(f"{RR}, Table 1, {title}", reweighted_risk.EXPERIMENT, 3, {
    (f"{data}, {network}", loss): (Number("none", "accuracy", accuracy, None, 3), Number("none", "ece", ece, None, 3))
    for (of_data, network), columns in published.REWEIGHTED_RISK.items() if of_data == data
    for loss, accuracy, ece in zip(published.REWEIGHTED_RISK_LOSSES, *columns, strict=True)})


def _mac_cal() -> Table:
  return Table(f"{MC}, Table 1", mac_cal.EXPERIMENT, 1, {
    (f"{data}, {network}", loss): (Number("none", "ece", ece),)
    for loss, numbers in published.MAC_CAL.items()
    for (data, network), ece in zip(published.MAC_CAL_TASKS, numbers, strict=True)},
    "MaC-Cal is the reading that lowers the ECE (experiments/results/new_heads.md). One seed has no interval.")


TABLES: dict[str, Callable[[], Table]] = {
  "focal_temperature": _focal_temperature,
  "soft_calibration": _soft_calibration,
  "reweighted_risk_cifar10": lambda: _reweighted_risk("cifar10"),
  "reweighted_risk_cifar100": lambda: _reweighted_risk("cifar100"),
  "mac_cal": _mac_cal,
}
