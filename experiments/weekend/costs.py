"""How long a cell takes: an estimate by counting operations, until the step is measured on the device at hand."""

from collections.abc import Mapping
import functools
import math
import statistics
import time

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import numpy as np

from calib_jax import data, models
from experiments.common import costs as passes
from experiments.common import counting, settings
from experiments.common.train_step import engine

# Dense bfloat16 operations a second that the makers print, of all devices that one process uses.
CARDS = {"h100": 989e12, "h200": 989e12, "a100": 312e12, "a40": 150e12, "tpu-v4-8": 4 * 275e12, "tpu-v5e-8": 8 * 197e12,
         "cpu": 1e11}
SHARE = 0.12  # Of these that a step of a CIFAR network at batch 128 is taken to reach. An assumption, not measured.
SMALL = 7e11  # Operations of a step below which a network is taken not to fill the device. An assumption.
OVERHEAD = 1.1  # Of compilation, checkpoints and evaluation, in units of the steps. An assumption.
# Training examples, the shape of an image, and the number of classes.
SETS = {"cifar10": (50_000, (32, 32, 3), 10), "cifar100": (50_000, (32, 32, 3), 100),
        "tiny_imagenet": (100_000, (64, 64, 3), 200), "digits": (1437, (8, 8, 1), 10)}


def network(config: ConfigDict, num_models: int = 1) -> str:
  """Returns a name for what a step of some models computes; steps of the same name take the same time.

  Their losses differ, which takes a few percent.
  """
  options = ", ".join(f"{key}={value}" for key, value in sorted(config.model.items()) if key not in ("name", "weights"))
  shape = "x".join(map(str, SETS[config.data.name][1]))
  return (f"{config.model.name} ({options}), {shape}, batch {config.training.batch_size}"
          + (f", {num_models} models" if num_models > 1 else ""))


def is_small(config: ConfigDict) -> bool:
  """Returns whether a step of one model has fewer operations than ``SMALL``."""
  return forward_operations(config) / passes.FORWARD * config.training.batch_size < SMALL


def together(config: ConfigDict, num_models: int, measured: Mapping[str, float]) -> bool:
  """Returns whether some models of a network train in the same steps, each with weights and batches of its own.

  Those of a network that ``is_small`` do, unless it was measured that one after another is at least as fast: XLA makes
  grouped convolutions of those of several models, which not every device computes well.
  """
  if num_models == 1 or not is_small(config):
    return False
  alone, at_once = (measured.get(network(config, number)) for number in (1, num_models))
  return alone is None or at_once is None or at_once < num_models * alone


def forward_operations(config: ConfigDict) -> float:
  """Returns the operations of the forward pass of one image, as XLA counts them before it compiles the program."""
  options = {key: value for key, value in config.model.items() if key != "dtype"}
  return _operations(tuple(sorted(options.items())), *SETS[config.data.name][1:])


@functools.lru_cache(maxsize=64)
def _operations(options: tuple, shape: tuple[int, ...], num_classes: int) -> float:
  model = models.get(num_classes=num_classes, **dict(options))
  image = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
  variables = jax.eval_shape(lambda key, x: model.init(key, x, train=False), jax.random.key(0), image)
  return counting.operations(lambda v, x: model.apply(v, x, train=False), variables, image)


def num_steps(config: ConfigDict) -> float:
  """Returns the number of training steps of a model, in units of whole steps of its network.

  ``passes.training`` says what a second stage, sharpness and several views of an image cost; evaluations of the
  validation split count as forward passes.
  """
  training, examples = config.training, SETS[config.data.name][0] * (1 - config.data.validation_fraction)
  per_epoch = math.ceil(examples / training.batch_size)
  steps = training.num_steps or training.num_epochs * per_epoch
  epochs = steps / per_epoch
  validation = config.data.validation_fraction / (1 - config.data.validation_fraction) * per_epoch * passes.FORWARD
  return (steps * passes.training(settings.flat(config.to_dict()), epochs)
          + validation * (epochs // training.evaluate_every_epochs))


def step_seconds(config: ConfigDict, card: str, measured: Mapping[str, float], num_models: int = 1
                 ) -> tuple[float, bool]:
  """Returns the seconds of a step divided by the number of models that it trains, and whether they were measured.

  Args:
    config: the config.
    card: one of ``CARDS``, for networks that were not measured.
    measured: seconds by the name of the ``network``.
    num_models: how many models train in the same step.
  """
  if (name := network(config, num_models)) in measured:
    return measured[name] / num_models, True
  return forward_operations(config) / passes.FORWARD * config.training.batch_size / (SHARE * CARDS[card]), False


def hours(config: ConfigDict, seeds: int, card: str, measured: Mapping[str, float], num_models: int = 1
          ) -> tuple[float, bool]:
  """Returns the hours of ``seeds`` models of a config, of which ``num_models`` train in the same steps.

  It also returns whether they follow from a measured step.
  """
  seconds, is_measured = step_seconds(config, card, measured, num_models)
  return seeds * OVERHEAD * num_steps(config) * seconds / 3600, is_measured


def measure(config: ConfigDict, num_models: int = 1, repeats: int = 10) -> float:
  """Returns the seconds of a step of some models on all local devices, the median of some after two others.

  Images are random. Networks with other losses than that of ``config`` take the same time up to a few percent
  (docs/benchmarks.md).
  """
  _, shape, num_classes = SETS[config.data.name]
  size = config.training.batch_size
  rng, labels = np.random.default_rng(0), np.arange(size, dtype=np.int32) % num_classes
  part = data.Examples(rng.integers(0, 256, (size, *shape), dtype=np.uint8), labels)
  splits = data.Splits(part, part, part, num_classes, np.full(shape[-1], 0.5, np.float32),
                       np.full(shape[-1], 0.25, np.float32))
  step, taken = engine(config, splits, devices=jax.local_devices(), num_models=num_models), []
  for _ in range(repeats):
    started = time.perf_counter()
    step()
    taken.append(time.perf_counter() - started)
  return statistics.median(taken)
