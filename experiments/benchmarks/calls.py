"""Several training steps in one call of the engine, beside one a call and beside steps and a scan written by hand.

A time is that of one step. What is compared takes the same number of steps in turn: the engine with the batch of each
call from the host, as streams are read; with examples that stay on the device, one step a call and all in one call; and
``jax.lax.scan`` over as many hand-written steps.
"""

import argparse
from collections.abc import Callable, Mapping
import functools

import jax

from calib_jax.training import config as run_config
from experiments.benchmarks.arrays import Rows
from experiments.benchmarks.steps import by_hand
from experiments.common import timing
from experiments.common.train_step import engine, images

SIZE = 128  # Examples of a batch.
MLP = ("model.name=mlp", "model.hidden=(256, 256)")
SECOND = ("schedule.cache_features=true", *MLP)
# By what is timed: the shape of an image, the steps of a call, and the fields of its config.
NETWORKS: dict[str, tuple[tuple[int, ...], int, tuple[str, ...]]] = {
  "the demo's network": ((28, 28, 1), 50, MLP),
  "linear head on cached features": ((28, 28, 1), 50, ("schedule.name=classifier_retraining", *SECOND)),
  "two-stage head on cached features": ((28, 28, 1), 50, ("schedule.name=two_stage", "head.name=two_stage", *SECOND)),
  # The arithmetic of the linear head, which has no scan by hand.
  "softmax regression on 256 numbers": ((16, 16, 1), 50, ("model.name=mlp", "model.hidden=()")),
  "ResNet-8": ((28, 28, 1), 5, ("model.name=resnet8",)),
  "PreResNet-56, bfloat16": ((32, 32, 3), 50, ("model.name=preresnet56", "model.dtype=bfloat16"))}
SLOW = {"cpu": ("PreResNet-56, bfloat16",)}  # What is left out on a device.


def configured(*overrides: str):
  """Returns the config of plain cross entropy without a penalty, with other fields set."""
  options = ("loss.primary.name=cross_entropy", "loss.secondary.name=", f"training.batch_size={SIZE}",
             "optimizer.l2=0.0", "stage2.optimizer.l2=0.0", *overrides)
  return run_config.load("configs/digits_savuc.py", [f"--config.{o}" for o in options])


def repeated(step: Callable[[], None], times: int) -> Callable[[], None]:
  """Returns a function that calls ``step`` so many times."""
  return lambda: [step() for _ in range(times)]


def measure(network: str, kind: str, steps: int, budget: float) -> Mapping[str, object]:
  """Times one way to take some steps of a network beside its floor."""
  shape, _, fields = NETWORKS[network]
  config, splits, stage = configured(*fields), images(steps * SIZE, shape, 10), int("cached" in network)
  take = functools.partial(engine, config, splits, stage=stage)
  floor = repeated(take(resident=False) if stage else by_hand(config, splits), steps)
  ways = {"a batch a call": lambda: repeated(take(resident=False), steps),
          "a step a call": lambda: repeated(functools.partial(take(count=steps), 1), steps),
          "all in a call": lambda: take(count=steps),
          "all in a call, three seeds": lambda: take(count=steps, num_seeds=3),
          "a scan by hand": lambda: by_hand(config, splits, scan=steps)}
  values = timing.compare(ways[kind](), floor, budget)
  return {"steps": steps, "ms a step": 1e3 * values["seconds"] / steps,
          **{name: values[name] for name in ("to floor", "by processor")}}


def rows(options: argparse.Namespace) -> Rows:
  """Times each way to take steps, of the networks that the device is fast enough for."""
  names = [name for name in NETWORKS if name not in SLOW.get(jax.default_backend(), ())]
  kinds = ("a batch a call", "a step a call", "all in a call", "all in a call, three seeds", "a scan by hand")
  tiny = options.scale == "tiny"
  return {f"{name}, {kind}": functools.partial(measure, name, kind, 2 if tiny else NETWORKS[name][1], options.budget)
          for name in (names[:2] if tiny else names) for kind in kinds
          if not ("cached" in name and kind in ("a scan by hand", "a batch a call"))}
