"""All images of CIFAR-10 at 32 x 32: what the five papers' losses and calibrators do at one real scale.

Run: python -m experiments.full_size --data=cifar10.npz [--num_epochs=20] [--only WORD ...] [--out=DIR]

A PreResNet-20 learns 45,000 images by one recipe: SGD, rate 0.1 falling as a cosine, weight decay 5e-4, batches of 128,
crops and flips. Losses have the values that their papers print, or what was chosen on the leaderboard of 6,000 smaller
images. MaC-Cal trains its head on a network of cross entropy, which is its first stage, as Algorithm 1 has it. A run
takes an hour on two idle cores; a command that was stopped goes on where it was.
"""

import argparse
import functools
import sys

from ml_collections import ConfigDict
import pandas as pd

from calib_jax.training import config as run_config
from configs import mac_cal, reweighted_risk
from configs.recipes import primary, sgd
from experiments.common import commands, comparison, markdown, scales, settings, sweep
from experiments.common.declaration import Experiment, Method
from experiments.leaderboard.experiment import CALIBRATORS
from experiments.leaderboard.methods import COMBINED

NETWORK = "preresnet20"
_ZHOU = reweighted_risk.losses("cifar10", "preresnet56")
# The paper of each method, as docs/METHODS.md shortens it, and what it changes of cross entropy.
METHODS = {
  "cross entropy": {},
  "focal + S-AvUC, interleaved": {**COMBINED["focal + S-AvUC, interleaved"].fields, "schedule.secondary_rate": 0.3},
  "selective risk, released, msp": _ZHOU["selective_risk"],
  "dual focal": _ZHOU["dual_focal"],
  "focal": primary("focal", gamma=3.0),
  "GenCE": primary("generative_cross_entropy"),
  "MaC-Cal": mac_cal.losses("cifar10", "resnet50")["masked"],
}
SHOWN = ("TS", "FTS", "TS + CLS", "CTS + CLS")
SUMMARY = (("accuracy", "none"), ("nll", "none"), ("ece", "none"), ("nll", "TS"), ("ece", "TS"))


def methods(options: argparse.Namespace) -> list[Method]:
  """Returns cross entropy and the other methods, by the same recipe."""
  base = _config(options)
  return [Method("", name, functools.partial(settings.changed, base, fields)) for name, fields in METHODS.items()]


def _config(options: argparse.Namespace) -> ConfigDict:
  config = sgd("npz", "preresnet", options.num_epochs, 128, 5e-4)
  config.data.path = options.data
  config.model.update(depth=20, block="basic")
  if options.scale == "tiny":
    config.data = dict(name="digits", path="", dir="", validation_fraction=0.25)
    config.model = dict(name="mlp", hidden=(8,), dtype="float32")
    config.augmentation = dict(name="none")
    config.training.batch_size = 64
  config.optimizer.warmup_epochs = 1
  config.evaluation.update(calibrators={}, recommended=False)
  return run_config.complete(config).lock()


def findings(rows: pd.DataFrame, name: str = "") -> list[str]:
  """Returns the lines of Markdown before the table: intervals over test images, before and after calibration."""
  del name
  if rows["seed"].nunique() > 1:
    return []  # The table has errors over seeds.
  by_column = {column: comparison.values(rows, column) for column in ("accuracy", "nll", "ece")}
  names = [method for method in METHODS if ("", method, "none") in by_column["nll"]]
  cells = [[method, *(_interval(column, by_column[column]["", method, calibrator]) for column, calibrator in SUMMARY)]
           for method in names]
  changes = [[method, calibrator, *(_interval(column, *(by_column[column]["", method, x] for x in (calibrator, "TS")))
                                    for column in ("nll", "ece"))] for method in names for calibrator in SHOWN[1:]]
  floors = 100 * rows["floor"].astype(float)
  return markdown.filled("full_size.md.jinja", cells=cells, changes=changes,
                         floors=f"{floors.min():.1f} to {floors.max():.1f}",
                         missing=[name for name in METHODS if name not in names]).splitlines()


def _interval(column: str, *pair: comparison.BySeed) -> str:
  """A value, or the difference of two, with its interval over test images."""
  scale, digits = comparison.unit(column)
  value, low, high = (f"{scale * x:{'+' * (len(pair) > 1)}.{digits}f}" for x in comparison.of_one_seed(*pair))
  return f"{value} [{low}, {high}]"


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the options of this experiment."""
  parser.add_argument("--data", default="", help="an .npz file of images, as docs/data_and_models.md describes it")
  parser.add_argument("--num_epochs", type=commands.count, default=20)
  parser.set_defaults(network=NETWORK)


EXPERIMENT = Experiment(
  "full_size", "CIFAR-10 at its full size", methods, {label: CALIBRATORS[label] for label in SHOWN},
  ("accuracy", "nll", "brier", "ece", "ece_equal_mass_l2", "aurc"), arguments=arguments, findings=findings,
  suffix=scales.suffix)

if __name__ == "__main__":
  sys.exit(sweep.main(EXPERIMENT))
