"""Zhou et al. 2025, Algorithm 1: which reading of the selective-risk loss trains a convolutional network.

Run: python -m experiments.papers.reweighted_risk.readings --images=cifar10.npz [--num_epochs=10] [--out=DIR]

A ResNet-8 learns all images by the paper's recipe for CIFAR-10 (configs/reweighted_risk.py: batch norm, crops and
flips, a weight decay of 5e-4, a rate of 0.1 that falls three times, κ = 0.9, ν = 0.1), in fewer epochs. The readings
are the variants of `losses.selective_risk`: "no gradient" is "stopped". "released" has no row with negative entropy,
the default of that code, which is a constant there: it is cross entropy times 0.733. The model of the lowest validation
loss predicts, as in the paper; the columns of the training set say whether this hides a collapse. Two small networks
with convolutions, of which one has no batch norm, say whether it is batch norm that makes a clamped gradient train.
"""

import argparse
from collections.abc import Mapping, Sequence
import functools
import sys

import flax.linen as nn
import jax
from ml_collections import ConfigDict

from calib_jax.training import config as run_config
from calib_jax.training import models
from configs import reweighted_risk
from experiments.common import settings, sweep
from experiments.common.declaration import Experiment, Method

READINGS: dict[str, Mapping[str, object]] = {
  "no gradient": {},
  "clamped": {"loss.primary.variant": "clamped"},
  "printed": {"loss.primary.variant": "printed"},
  **{f"released, {score}": {"loss.primary.variant": "released", "loss.primary.confidence": score}
     for score in ("msp", "margin")},
}
ON_SMALL = ("clamped",)  # The readings that the small networks have.


class PlainCNN(models.Backbone):
  """``simple_cnn`` without batch norm: biases stand in its place."""

  channels: Sequence[int] = (32, 64)

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool = False, mask: jax.Array | None = None) -> models.Features:
    """Maps images ``[N, H, W, C]`` to pooled features."""
    for i, width in enumerate(self.channels, start=1):
      if i > 1:
        x = nn.max_pool(x, (2, 2), (2, 2))
      x = nn.relu(nn.Conv(width, (3, 3), dtype=self.dtype, kernel_init=nn.initializers.he_normal(),
                          name=f"group{i}_conv")(x))
    return models.Features.pooled(x)


NETWORKS = {  # The config's model, by the name of the table.
  "": dict(name="resnet8", dtype="float32"),
  "CNN": dict(name="simple_cnn", dtype="float32"),
  "CNN without batch norm": dict(name="experiments.papers.reweighted_risk.readings:PlainCNN", dtype="float32"),
}


def methods(options: argparse.Namespace) -> list[Method]:
  """Returns cross entropy and each reading, by the same recipe, and some of them with small networks."""
  declared = []
  for task in NETWORKS:
    declared.append(Method(task, "cross entropy", functools.partial(_config, options, task, "cross_entropy", {})))
    declared += [Method(task, name, functools.partial(_config, options, task, "selective_risk_no_gradient", fields))
                 for name, fields in READINGS.items() if not task or name in ON_SMALL]
  return declared


def _config(options: argparse.Namespace, task: str, loss: str, fields: Mapping[str, object]) -> ConfigDict:
  config = reweighted_risk.get_config(f"cifar10.resnet50.{loss}").unlock()
  config.data = dict(name="npz", path=options.images, dir="", validation_fraction=0.1)
  config.model = NETWORKS[task]
  if options.scale == "tiny":
    config.data = dict(name="digits", path="", dir="", validation_fraction=0.25)
    config.model = dict(name="mlp", hidden=(8,), dtype="float32")
  config.num_seeds = 1
  config.training.update(num_epochs=options.num_epochs, select_after_epochs=options.num_epochs // 5)
  config.evaluation.update(calibrators={}, predict_train=True)
  return settings.changed(run_config.complete(config).lock(), fields)


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the options of this experiment."""
  parser.add_argument("--images", default="", help="an .npz file of images, as docs/data_and_models.md describes it")
  parser.add_argument("--num_epochs", type=int, default=10)


EXPERIMENT = Experiment(
  "papers.reweighted_risk.readings", "Zhou et al. 2025, Algorithm 1: the readings of the loss", methods, {},
  ("accuracy_train", "accuracy", "nll", "ece"), arguments=arguments)

if __name__ == "__main__":
  sys.exit(sweep.main(EXPERIMENT))
