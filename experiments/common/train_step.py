"""Training steps of the engine as a function, and random images for them, to time them."""

from collections.abc import Callable, Sequence
import functools

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.training import averages, data
from calib_jax.training import config as run_config
from calib_jax.training.engine import feeding, layout, program, stages

SIZE = 128  # Examples of a batch.


def configured(*overrides: str):
  """Returns the config of plain cross entropy without a penalty, with other fields set."""
  options = ("loss.primary.name=cross_entropy", "loss.secondary.name=", f"training.batch_size={SIZE}",
             "optimizer.l2=0.0", "stage2.optimizer.l2=0.0", *overrides)
  return run_config.load("configs/digits_savuc.py", [f"--config.{o}" for o in options])


@functools.lru_cache(maxsize=1)
def images(number: int, shape: tuple[int, ...] = (32, 32, 3), num_classes: int = 100) -> data.Splits:
  """Returns random images of classes in turn; the other splits have the first 128 of those of the training split."""
  pixels = np.random.default_rng(0).integers(0, 256, (number, *shape), dtype=np.uint8)
  part = data.Examples(pixels, np.arange(number, dtype=np.int32) % num_classes)
  few = part.take(np.arange(min(number, 128)))
  return data.Splits(part, few, few, num_classes, np.full(shape[-1], 0.5, np.float32),
                     np.full(shape[-1], 0.25, np.float32))


def engine(config, splits: data.Splits, **options) -> Callable[[], None]:
  """Returns the first of the functions that ``engine_and_features`` returns."""
  return engine_and_features(config, splits, **options)[0]


def engine_and_features(config, splits: data.Splits, *, stage: int = 0, devices: Sequence[jax.Device] | None = None,
                        num_seeds: int = 1, count: int = 1, resident: bool = True
                        ) -> tuple[Callable[[], None], Callable[[], object] | None]:
  """Returns a function that takes ``count`` steps of a stage of the engine, and one that computes features to keep.

  A stage that takes one step a call, as when examples are not ``resident`` on the devices, needs several calls.
  """
  devices, seeds = devices or jax.devices()[:1], list(range(num_seeds))
  built = program.build(config, [splits] * num_seeds, seeds, devices)
  part, where = built.stages[stage], layout.Layout.of(devices, config.training.parallel)
  keys = where.everywhere(jax.vmap(jax.random.key)(jnp.array(seeds)))
  carry = {"state": None, "taken": 0}
  for before in built.stages[:stage + 1]:
    carry["state"] = before.start(carry["state"], keys)
  carry["state"] = where.everywhere(carry["state"])
  phases, features, size = part.plan.phases, None, part.plan.batch_size or config.training.batch_size
  if part.feature_step is not None:
    variables = jax.tree.map(jnp.copy, averages.variables(carry["state"]))
    _, batch = next(stages.batches(phases, 0, seeds, batch_size=size, **where.options()))
    features = lambda: jax.block_until_ready(part.feature_step(variables, batch))  # noqa: E731
    phases = feeding.on_features(phases, part.feature_step, variables, size, where)
  feed = feeding.Feed(phases, 0, seeds, where, batch_size=size, accumulation=config.training.accumulation_steps,
                      salt=part.number, most=count if part.loops else 1, **({} if resident else {"share": 0.0}))

  def step(number=count):
    end = carry["taken"] + number
    while carry["taken"] < end:
      chunk = feed.take(carry["taken"], end - carry["taken"])
      carry["state"], measured = part.train_steps[chunk.phase](carry["state"], chunk.batches, keys, chunk.examples,
                                                               chunk.count)
      carry["taken"] += chunk.count
    jax.block_until_ready((carry["state"], measured))

  step()
  step()
  return step, features
