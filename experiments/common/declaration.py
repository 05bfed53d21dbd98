"""What an experiment is: methods, calibrators, columns, and a figure; ``sweep`` runs it."""

import argparse
from collections.abc import Callable, Mapping, Sequence
import pathlib
from typing import NamedTuple

from ml_collections import ConfigDict
import pandas as pd

from experiments.common.comparison import Cost


class Method(NamedTuple):
  """One way to train: a row of the table for each calibrator.

  Attributes:
    task: the table that it stands in, such as the data set and the network; "" if there is one.
    name: its name in the table.
    config: makes the config of all seeds.
    search: the values to try on the validation split, by field; empty for none.
    trials: the fields of the config in which tuning differs, such as the seeds.
    one_at_a_time: whether one field is tuned after another, and not all combinations are tried.
    members: the number of networks of each seed, whose mean predicts. They share the images of the seed, and differ in
      their initial weights and the order of examples.
    detects: whether its rows say how well the confidence tells the test images from ``evaluation.ood``; those columns
      are empty if it has no such sets.
  """

  task: str
  name: str
  config: Callable[[], ConfigDict]
  search: Mapping[str, Sequence] = {}
  trials: Mapping[str, object] = {}
  one_at_a_time: bool = False
  members: int = 1
  detects: bool = False


class Experiment(NamedTuple):
  """A declaration of an experiment.

  Attributes:
    name: the name of its module in ``experiments``: ``python -m experiments.NAME`` runs it.
    title: the title of its page.
    methods: maps the options of the command to the methods of its scale.
    calibrators: the sections of the calibrators by label.
    columns: the columns of the table, among ``scores.COLUMNS`` and ``scores.MORE``.
    shown: the calibrators in the table; None for all.
    arguments: adds options of its own to the command.
    suffix: maps the options to the end of the names of its files.
    cost: maps a row to what its method costs to train and to predict, which stands beside it; None for no such columns.
    findings: maps the rows and the name of the page to the lines of Markdown before the table.
    figure: draws the rows in a file.
    also: writes what else the rows give, with the path of the files without their suffix.
  """

  name: str
  title: str
  methods: Callable[[argparse.Namespace], Sequence[Method]]
  calibrators: Mapping[str, Mapping[str, object]]
  columns: tuple[str, ...] = ("accuracy", "nll", "brier", "ece", "ece_equal_mass_l2")
  shown: tuple[str, ...] | None = None
  arguments: Callable[[argparse.ArgumentParser], object] = lambda parser: None
  suffix: Callable[[argparse.Namespace], str] = lambda options: options.scale
  cost: Cost | None = None
  findings: Callable[[pd.DataFrame, str], list[str]] = lambda rows, name: []
  figure: Callable[[pd.DataFrame, pathlib.Path], object] | None = None
  also: Callable[[pd.DataFrame, pathlib.Path], object] = lambda rows, stem: None

  def files(self) -> str:
    """Returns the beginning of the names of its files, such as ``mac_cal_tables``."""
    return self.name.removeprefix("papers.").replace(".", "_")
