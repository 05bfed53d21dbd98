"""The leaderboard: every training method × every calibrator, on one data set, network and budget.

Run: python -m experiments.leaderboard --data=IMAGES.npz [--network=mlp] [--out=DIR] [--processes=2]

For each method one of three settings is chosen first, by the rule of experiments/tuning.py, with two seeds that are
used for nothing else. Then each seed draws its own 4,000 images to train on, and 2,000 to validate and to fit
calibrators. `--network=mlp` learns its training images by heart and has ten seeds; `resnet8` is convolutional and has
five; `--seeds` changes the number. `--scale=paper` trains ResNet-50 on CIFAR-10 from TensorFlow Datasets as Zhou et al.
2025 do. The command for the leaderboard that README.md shows also writes its top there.
"""

import argparse
from collections.abc import Sequence
import functools
import pathlib
import sys

from ml_collections import ConfigDict

from calib_jax import config as run_config
from calib_jax._system.errors import UserError
from configs import common, reweighted_risk
from experiments import leaderboard_figure, leaderboard_page, rows, settings, sweep
from experiments.declaration import Experiment, Method
from experiments.training_methods import COMBINED, METHODS, Recipe

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
SHIFTS = ("shot_noise", "gaussian_blur", "contrast")  # Corruptions of the test images, at severity 5.
NETWORKS = {
  "mlp": {"model": {"name": "mlp", "hidden": (128, 128)}, "training.num_epochs": 20, "num_seeds": 10},
  "resnet8": {"model": {"name": "resnet8"}, "training.num_epochs": 20, "num_seeds": 5,
              "training.seeds_together": False, "data.shrink": 2},
}
TRIALS = {"seed": 100, "num_seeds": 2}  # The seeds that choose a setting.
TINY = {"data": {"name": "digits", "path": "", "validation_fraction": 0.25}, "num_seeds": 2, "training.num_steps": 12,
        "model": {"name": "mlp", "hidden": (8,)}, "training.batch_size": 512, "training.stage2_epochs": 2}
# Values that replace those of the methods at a scale.
SCALED = {"tiny": {"training.stage2_epochs": 2, "data.held_out_fraction": 0.5}, "laptop": {},
          "paper": {"training.stage2_epochs": 40, "augmentation": {"padding": 4, "flip": True}}}


def base(options: argparse.Namespace) -> ConfigDict:
  """Returns the config of plain cross entropy."""
  if options.scale == "paper":
    config = reweighted_risk.get_config("cifar10.resnet50").unlock()
    config.num_seeds = 5
    return run_config.complete(config).lock()
  if options.scale == "laptop" and not options.data:
    raise UserError("--data must name an .npz file of images, such as --data=fashion_mnist.npz.")
  config = run_config.complete(common.get_config().unlock())
  config.optimizer.learning_rate = 0.05
  config.training.evaluate_every_epochs = config.training.log_every_steps = 1000
  config.evaluation.calibrators = {}
  config.evaluation.corruptions, config.evaluation.severities = SHIFTS, (5,)
  return settings.changed(config.lock(), TINY if options.scale == "tiny" else {
    "data": {"name": "experiments.images:few", "path": options.data, "num_examples": 6000,
             "validation_fraction": 1 / 3}, **NETWORKS[options.network]})


def methods(options: argparse.Namespace) -> list[Method]:
  """Returns the methods of a scale; those beyond the papers are the last."""
  shared = functools.cache(lambda: base(options))

  def configured(recipe: Recipe) -> ConfigDict:
    return settings.changed(shared(), {
      key: {**value, **SCALED[options.scale].get(key, {})} if isinstance(value, dict) else
      SCALED[options.scale].get(key, value) for key, value in recipe.fields.items()})

  trials = {**TRIALS, "num_seeds": 1} if options.scale == "tiny" else TRIALS
  return [Method("", name, functools.partial(configured, recipe), recipe.search, trials if recipe.search else {})
          for name, recipe in {**METHODS, **COMBINED}.items()]


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the options of this experiment."""
  parser.add_argument("--data", default="", help="an .npz file of images, as docs/data_and_models.md describes it")
  parser.add_argument("--network", choices=list(NETWORKS), default="mlp")


def stem(options: argparse.Namespace) -> str:
  """Returns the name of the files, which holds that of the data and of the network."""
  if options.scale != "laptop":
    return f"leaderboard_{options.scale}"
  return f"leaderboard_{pathlib.Path(options.data).stem}_{options.network}"


EXPERIMENT = Experiment("leaderboard", "Every training method and every calibrator, under one budget", methods,
                        CALIBRATORS | FITTED_TO_FEWER, arguments=arguments, stem=stem,
                        findings=leaderboard_page.findings, figure=leaderboard_figure.figure, shown=("none", "TS"))


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs what is missing, and makes the page and, if the rows are those of README.md, the table there."""
  code, options = sweep.main(EXPERIMENT, arguments), sweep.parse(EXPERIMENT, arguments)
  path = sweep.path_of(options.out / stem(options))
  if path.resolve() == leaderboard_page.ROWS and not options.shard:
    leaderboard_page.write_top(rows.read(path))
  return code


if __name__ == "__main__":
  sys.exit(main())
