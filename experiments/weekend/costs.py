"""How long a cell takes: by a step that was timed here or on such a card before, or else by counting operations."""

from collections.abc import Mapping
import math

import jax
from ml_collections import ConfigDict

from experiments.common import costs as passes
from experiments.common import counting, settings, timing
from experiments.common.train_step import engine, images

# Dense bfloat16 operations a second that the makers print, of all devices that one process uses.
CARDS = {"h100": 989e12, "h200": 989e12, "a100": 312e12, "a40": 150e12, "tpu-v4-8": 4 * 275e12, "tpu-v5e-8": 8 * 197e12,
         "cpu": 1e11}
SHARE = 0.12  # Of these that a step of a CIFAR network at batch 128 is taken to reach where it was not timed.
CALL = 5  # Steps of a call, when a step is timed.
OVERHEAD = 1.1  # Of compilation, checkpoints and evaluation, in units of the steps. An assumption.
# Seconds of a step by card and network, as they were timed with JAX 0.11.2 in November 2026.
_NAME = "{} (depth={}, dropout=0.0, dtype=bfloat16, image_size=0, post_activation=False, width={}), 32x32x3, batch {}"
TIMED = {"h100": {_NAME.format("preresnet56", 56, 1, 128): 4.92e-3,
                  _NAME.format("wide_resnet28_10", 28, 10, 512): 42.95e-3}}
# Training examples, the shape of an image, and the number of classes.
SETS = {"cifar10": (50_000, (32, 32, 3), 10), "cifar100": (50_000, (32, 32, 3), 100),
        "tiny_imagenet": (100_000, (64, 64, 3), 200), "digits": (1437, (8, 8, 1), 10)}


def network(config: ConfigDict) -> str:
  """Returns a name for what a step computes: but for losses, steps of the same name take the same time."""
  options = ", ".join(f"{key}={value}" for key, value in sorted(config.model.items()) if key not in ("name", "weights"))
  shape = "x".join(map(str, SETS[config.data.name][1]))
  return f"{config.model.name} ({options}), {shape}, batch {config.training.batch_size}"


def num_steps(config: ConfigDict) -> float:
  """Returns the training steps of a model in whole steps of its network; evaluations are forward passes."""
  training, examples = config.training, SETS[config.data.name][0] * (1 - config.data.validation_fraction)
  per_epoch = math.ceil(examples / training.batch_size)
  steps = training.num_steps or training.num_epochs * per_epoch
  epochs = steps / per_epoch
  validation = config.data.validation_fraction / (1 - config.data.validation_fraction) * per_epoch * passes.FORWARD
  return (steps * passes.training(settings.flat(config.to_dict()), epochs)
          + validation * (epochs // training.evaluate_every_epochs))


def step_seconds(config: ConfigDict, card: str, timed_here: Mapping[str, float]) -> tuple[float, bool]:
  """Returns the seconds of a step, and whether they were timed, here or on such a card."""
  timed = TIMED.get(card, {}) | timed_here
  if (name := network(config)) in timed:
    return timed[name], True
  operations = counting.step_operations(config.model, *SETS[config.data.name][1:], config.training.batch_size)
  return operations / (SHARE * CARDS[card]), False


def hours(config: ConfigDict, card: str, timed_here: Mapping[str, float]) -> tuple[float, bool]:
  """Returns the hours of one model of a config, and whether they follow from a step that was timed."""
  taken, is_timed = step_seconds(config, card, timed_here)
  return OVERHEAD * num_steps(config) * taken / 3600, is_timed


def measure(config: ConfigDict, repeats: int = 10) -> float:
  """Returns the seconds of a step on all local devices, in calls of ``CALL`` steps on random images.

  It is the median of ``repeats`` calls after two others.
  """
  splits = images(CALL * config.training.batch_size, *SETS[config.data.name][1:])
  step = engine(config, splits, devices=jax.local_devices(), count=CALL)
  return timing.compare(step, fewest=repeats)["seconds"] / CALL
