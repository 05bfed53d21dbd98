"""The leaderboard: every training method × every calibrator, on one data set, network and budget.

Run: python -m experiments.leaderboard --data=IMAGES.npz [--network=mlp] [--out=DIR] [--processes=2]

For each method one of three settings is chosen first, or of more if the best is the first or the last, by the rule of
experiments/common/tuning.py, with two seeds that are used for nothing else. Then each seed draws its own 4,000 images
to train on, and 2,000 to validate and to fit calibrators. `--network=mlp` learns its training images by heart and has
ten seeds; `resnet8` is convolutional and has five; `--seeds` changes the number. `--scale=paper` trains ResNet-50 on
CIFAR-10 as Zhou et al. 2025 do; `--data` is there the directory of the archive or of what TensorFlow Datasets prepared.
The command for the leaderboard that docs/results.md shows also writes its top there.
"""

import argparse
import functools

from experiments.common import scales, settings
from experiments.common.declaration import Experiment, Method
from experiments.leaderboard import figure, page
from experiments.leaderboard.methods import COMBINED, METHODS

CALIBRATORS = {
  "TS": {"name": "temperature_scaling"},
  "TS-SB-ECE": {"name": "temperature_scaling", "objective": "soft_binned_ece", "form": "bin"},
  "FTS": {"name": "focal_temperature_scaling"},
  "ETS": {"name": "ensemble_temperature_scaling"},
  "CTS": {"name": "class_temperature_scaling"},
  "TS + CLS": {"name": "classwise_loss_scaling", "base": "temperature_scaling"},
  "CTS + CLS": {"name": "classwise_loss_scaling", "base": "class_temperature_scaling"},
  "vector": {"name": "vector_scaling"},
  "structured vector": {"name": "structured_vector_scaling"},
  "structured matrix": {"name": "structured_matrix_scaling"},
  "Dirichlet": {"name": "dirichlet"},
  "beta": {"name": "beta_calibration"},
  "isotonic": {"name": "isotonic"},
  "histogram": {"name": "histogram_binning"},
}
# The same calibrators fitted to fewer examples; the labels end in the number.
SIZES = (100, 300, 1000)
OF_SIZES = ("TS", "structured vector", "structured matrix")
FITTED_TO_FEWER = {f"{label}, n = {n}": {**CALIBRATORS[label], "num_examples": n} for label in OF_SIZES for n in SIZES}


def methods(options: argparse.Namespace) -> list[Method]:
  """Returns the methods of a scale; those beyond the papers are the last."""
  base = scales.base(options)
  trials = scales.TRIALS | ({"num_seeds": 1} if options.scale == "tiny" else {})
  return [Method("", name, functools.partial(settings.changed, base, recipe.at(options.scale)), recipe.search,
                 trials if recipe.search else {}, one_at_a_time=len(recipe.search) > 1, members=recipe.members)
          for name, recipe in {**METHODS, **COMBINED}.items()]


EXPERIMENT = Experiment("leaderboard", "Leaderboard of training methods and calibrators, under one budget", methods,
                        CALIBRATORS | FITTED_TO_FEWER, arguments=scales.arguments, suffix=scales.suffix,
                        cost=page.cost_of, findings=page.findings, figure=figure.figure, shown=("none", "TS"),
                        also=page.write_top)
