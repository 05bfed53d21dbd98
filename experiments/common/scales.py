"""What the leaderboard and the papers' tables train at the scales tiny, laptop and paper: data, networks, sizes."""

import argparse
from collections.abc import Mapping
import os
import pathlib

from ml_collections import ConfigDict

from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from configs import common, reweighted_risk
from experiments.common import settings

TRIALS = {"seed": 100, "num_seeds": 2}  # The seeds that choose a setting.
SHIFTS = ("shot_noise", "gaussian_blur", "contrast")  # Corruptions of the test images, at severity 5.
NETWORKS = {
  "mlp": {"model": {"name": "mlp", "hidden": (128, 128)}, "training.num_epochs": 20, "num_seeds": 10},
  "resnet8": {"model": {"name": "resnet8"}, "training.num_epochs": 20, "num_seeds": 5,
              "training.seeds_together": False, "data.shrink": 2},
}
# How pages name the images of a file and the networks.
NAMES = {"fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "cifar10_jpeg": "CIFAR-10 (JPEG)",
         "tiny_imagenet": "Tiny ImageNet", "mlp": "MLP", "resnet8": "ResNet-8"}
TINY = {"data": {"name": "digits", "path": "", "validation_fraction": 0.25}, "num_seeds": 2, "training.num_steps": 12,
        "model": {"name": "mlp", "hidden": (8,)}, "training.batch_size": 512}
# Values that replace those of the methods at a scale.
SCALED = {"tiny": {"schedule.stage2_epochs": 2, "schedule.stage2_batch_size": 0, "data.held_out_fraction": 0.5},
          "laptop": {}, "paper": {"augmentation": {"padding": 4, "flip": True}}}


def base(options: argparse.Namespace) -> ConfigDict:
  """Returns the config of plain cross entropy."""
  if options.scale == "paper":
    config = reweighted_risk.get_config("cifar10.resnet50").unlock()
    config.num_seeds = 5
    return settings.changed(run_config.complete(config).lock(), directory(options))
  if options.scale == "laptop" and not options.data:
    raise UserError("--data must name an .npz file of images, such as --data=fashion_mnist.npz.")
  config = run_config.complete(common.get_config().unlock())
  config.optimizer.learning_rate = 0.05
  config.training.evaluate_every_epochs = config.training.log_every_steps = 1000
  config.evaluation.calibrators = {}
  config.evaluation.corruptions, config.evaluation.severities = SHIFTS, (5,)
  return settings.changed(config.lock(), TINY if options.scale == "tiny" else {
    "data": {"name": "experiments.common.images:few", "path": options.data, "num_examples": 6000,
             "validation_fraction": 1 / 3}, **NETWORKS[options.network]})


def directory(options: argparse.Namespace) -> dict[str, object]:
  """Returns the field of the directory of the data sets at paper scale, which ``--data`` names there."""
  if not options.data:
    return {}
  if not os.path.isdir(os.path.expanduser(options.data)):
    raise UserError("with --scale=paper --data must name a directory that holds the archives of the data sets, what "
                    "`python -m calib_jax.training.data prepare` makes of them, or the data sets of TensorFlow Datasets"
                    f": got {options.data}.")
  return {"data.dir": options.data}


def scaled(fields: Mapping[str, object], values: Mapping[str, object]) -> dict[str, object]:
  """Returns the fields of a method with the values that replace them at a scale, such as those of ``SCALED``."""
  return {key: {**value, **values.get(key, {})} if isinstance(value, dict) else values.get(key, value)
          for key, value in fields.items()}


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the options that choose the images and the network at laptop scale."""
  parser.add_argument("--data", default="", help="an .npz file of images; with --scale=paper the directory of the data "
                      "sets (docs/data_and_models.md describes both)")
  parser.add_argument("--network", choices=list(NETWORKS), default="mlp")


def suffix(options: argparse.Namespace) -> str:
  """Returns the end of the names of an experiment's files: the scale, or the images and the network."""
  return options.scale if options.scale != "laptop" else f"{pathlib.Path(options.data).stem}_{options.network}"


def named(images: str, network: str) -> str:
  """Returns how the title of a page names the images of a file and a network."""
  images = pathlib.Path(images).stem
  return f"{NAMES.get(images, images)}, {NAMES.get(network, network)}"


def described(end: str) -> str:
  """Returns what a ``suffix`` stands for: the images and the network; "" if it names none.

  >>> described("cifar10_jpeg_resnet8"), described("my_images_mlp"), described("laptop")
  ('CIFAR-10 (JPEG), ResNet-8', 'my_images, MLP', '')
  """
  images, _, network = end.rpartition("_")
  return named(images, network) if images and network in NETWORKS else ""
