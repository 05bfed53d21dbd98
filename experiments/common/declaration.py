"""What an experiment is: methods, calibrators, columns, and a figure; ``sweep`` runs it."""

import argparse
from collections.abc import Callable, Mapping, Sequence
import pathlib
from typing import NamedTuple

from ml_collections import ConfigDict
import pandas as pd

from experiments.common.comparison import Cost


class Method(NamedTuple):
  """One way to train: a row of the table for each calibrator."""

  task: str  # The table that it stands in, such as the data set and the network; "" if there is one.
  name: str
  config: Callable[[], ConfigDict]  # Makes the config of all seeds.
  search: Mapping[str, Sequence] = {}  # The values to try on the validation split, by field.
  trials: Mapping[str, object] = {}  # The fields of the config in which tuning differs, such as the seeds.
  one_at_a_time: bool = False  # Whether one field is tuned after another, and not all combinations are tried.
  # The number of networks of each seed, whose mean predicts. They share the images of the seed, and differ in their
  # initial weights and the order of examples.
  members: int = 1
  # Whether its rows say how well the confidence tells the test images from ``evaluation.ood``; those columns are empty
  # if it has no such sets.
  detects: bool = False


class Experiment(NamedTuple):
  """A declaration of an experiment."""

  name: str  # Of its module in ``experiments``: ``python -m experiments.NAME`` runs it.
  title: str
  methods: Callable[[argparse.Namespace], Sequence[Method]]  # Of the scale that the options say.
  calibrators: Mapping[str, Mapping[str, object]]  # Sections by label.
  # Columns of the table, among ``scores.COLUMNS`` and ``scores.MORE``.
  columns: tuple[str, ...] = ("accuracy", "nll", "brier", "ece", "ece_equal_mass_l2")
  shown: tuple[str, ...] | None = None  # The calibrators in the table; None for all.
  arguments: Callable[[argparse.ArgumentParser], object] = lambda parser: None  # Adds options to the command.
  suffix: Callable[[argparse.Namespace], str] = lambda options: options.scale  # The end of the names of its files.
  cost: Cost | None = None  # Maps a row to what its method costs to train and to predict, which stands beside it.
  findings: Callable[[pd.DataFrame, str], list[str]] = lambda rows, name: []  # The Markdown before the table.
  figure: Callable[[pd.DataFrame, pathlib.Path], object] | None = None
  # Writes what else the rows give; its path is that of the files without their suffix.
  also: Callable[[pd.DataFrame, pathlib.Path], object] = lambda rows, stem: None

  def files(self) -> str:
    """Returns the beginning of the names of its files, such as ``mac_cal_tables``."""
    return self.name.removeprefix("papers.").replace(".", "_")
