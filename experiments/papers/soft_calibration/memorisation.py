"""Interleaved training where the network memorises its training set (Karandikar et al. 2021, Appendix B and Table 3).

Run: python -m experiments.papers.soft_calibration.memorisation [--images=IMAGES.npz] [--num_examples=5000] [--out=DIR]

An over-parameterised network (784-512-512-10 on Fashion-MNIST) trains on few examples until it knows them by heart. Its
calibration error on them then tends to 0, so a soft calibration loss on the same examples has no effect; on examples
that the primary loss does not train on it can have one. Joint and interleaved training are compared with plain cross
entropy, five seeds each. The weight of a secondary loss (joint), or the rate of the second phase (interleaved), is
chosen on the validation splits of other seeds, by the rule of experiments/common/tuning.py. Without `--images` the data
are scikit-learn's digits.
"""

import argparse
from collections.abc import Mapping
import functools
import pathlib
import sys

from ml_collections import ConfigDict
import pandas as pd

from calib_jax.training import config as run_config
from experiments.common import comparison, ranking, settings, sweep, tuning
from experiments.common.declaration import Experiment, Method

TUNED = {"joint": {"loss.weight": tuning.WEIGHTS[:3]}, "interleaved": {"schedule.secondary_rate": tuning.RATES}}
TRIALS = {"seed": 100, "num_seeds": 3}
NUM_VALIDATION = 5000


def methods(options: argparse.Namespace) -> list[Method]:
  """Returns plain cross entropy, and each secondary loss in each schedule."""
  every_method = [Method("", "cross entropy", functools.partial(_config, options, {}))]
  for name, values in tuning.SECONDARY.items():
    for schedule, search in TUNED.items():
      fields = {"loss.secondary": {"name": name, **values}, "loss.weight": 1.0, "schedule.name": schedule,
                "data.held_out_fraction": 0.1}
      every_method.append(Method("", f"{schedule} {name}", functools.partial(_config, options, fields),
                                 search, TRIALS))
  return every_method


def _config(options: argparse.Namespace, fields: Mapping[str, object]) -> ConfigDict:
  size = {"model.hidden": (512, 512), "training.num_epochs": options.num_epochs}
  if options.scale == "tiny":
    size = {"model.hidden": (8,), "training.num_epochs": 2, "training.batch_size": 64}
  if options.images:
    number = options.num_examples + NUM_VALIDATION
    size["data"] = {"name": "experiments.common.images:few", "path": options.images, "num_examples": number,
                    "validation_fraction": NUM_VALIDATION / number}
  return settings.changed(run_config.load("configs/digits_savuc.py", []), {
    "loss.primary": {"name": "cross_entropy"}, "loss.secondary": {"name": ""}, "compare_with_cross_entropy": False,
    "training.evaluate_every_epochs": 1000, "evaluation.predict_train": True, **size, **fields})


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the options of this experiment."""
  parser.add_argument("--images", default="", help="an .npz of images and labels; scikit-learn's digits by default")
  parser.add_argument("--num_examples", type=int, default=5000, help="the number of training examples of --images")
  parser.add_argument("--num_epochs", type=int, default=60)


def findings(rows: pd.DataFrame, name: str = "") -> list[str]:
  """Returns the strengths that were chosen, and the ECE of each method less that of cross entropy, on test images."""
  del name
  chosen, ece = comparison.chosen(rows), ranking.of_methods(rows, "ece", "none")
  plain = ece.pop("cross entropy", None)
  lines = [f"- {name}, {comparison.settings(chosen[name])}: {comparison.paired(by_seed, plain).text(2, 100)}"
           for name, by_seed in (ece.items() if plain else ())]
  return [f"Test ECE less that of cross entropy, in points, with 95% intervals {comparison.population(rows)}:", "",
          *lines] if lines else []


def suffix(options: argparse.Namespace) -> str:
  """Returns the end of the names of the files: the scale, or that of the images."""
  return pathlib.Path(options.images).stem if options.images and options.scale == "laptop" else options.scale


EXPERIMENT = Experiment(
  "papers.soft_calibration.memorisation", "Karandikar et al. 2021, Table 3: memorisation", methods,
  {"TS": {"name": "temperature_scaling"}}, ("accuracy_train", "ece_train", "accuracy", "ece", "nll"),
  arguments=arguments, suffix=suffix, findings=findings)

if __name__ == "__main__":
  sys.exit(sweep.main(EXPERIMENT))
