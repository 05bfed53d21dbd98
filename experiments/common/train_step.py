"""One training step of the engine as a function, and random images for it, to time it."""

from collections.abc import Callable, Sequence
import functools

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import data
from calib_jax.training import best_model
from calib_jax.training.engine import layout, program


@functools.lru_cache(maxsize=1)
def images(number: int, shape: tuple[int, ...] = (32, 32, 3), num_classes: int = 100) -> data.Splits:
  """Returns random images of classes in turn; the other splits have the first 128 of those of the training split."""
  pixels = np.random.default_rng(0).integers(0, 256, (number, *shape), dtype=np.uint8)
  part = data.Examples(pixels, np.arange(number, dtype=np.int32) % num_classes)
  few = part.take(np.arange(min(number, 128)))
  return data.Splits(part, few, few, num_classes, np.full(shape[-1], 0.5, np.float32),
                     np.full(shape[-1], 0.25, np.float32))


def engine(config, splits: data.Splits, stage: int = 0, devices: Sequence[jax.Device] | None = None
           ) -> Callable[[], None]:
  """Returns a function that takes one step of a stage of the engine and waits for it.

  Args:
    config: the config of one seed.
    splits: the data; each step has the first examples of the training split.
    stage: the number of the stage.
    devices: the devices that share the batch; the first one by default.
  """
  return engine_and_features(config, splits, stage, devices)[0]


def engine_and_features(config, splits: data.Splits, stage: int = 0, devices: Sequence[jax.Device] | None = None
                        ) -> tuple[Callable[[], None], Callable[[], object] | None]:
  """The same, and a function that computes the features of the step; None unless the stage keeps features."""
  devices, size = devices or jax.devices()[:1], config.training.batch_size
  keys = jax.vmap(jax.random.key)(jnp.array([0]))
  built = program.build(config, [splits], [0], devices)
  carry = {"state": None}
  for part in built.stages[:stage + 1]:
    carry["state"] = part.start(carry["state"], keys)
  carry["state"] = layout.Layout.of(devices, config.training.parallel).everywhere(carry["state"])

  def shared(x):  # [devices, seeds, examples, ...].
    return x.reshape(len(devices), 1, size // len(devices), *x.shape[1:])

  batch = {"image": shared(splits.train.images[:size]), "label": shared(splits.train.labels[:size]),
           "mask": shared(np.ones(size, bool))}
  features = None
  if built.stages[stage].feature_step is not None:
    variables = jax.tree.map(jnp.copy, best_model.variables(carry["state"]))
    compute = functools.partial(built.stages[stage].feature_step, variables, batch)
    batch = batch | {"image": np.asarray(compute()["features"])[None]}
    features = lambda: jax.block_until_ready(compute())  # noqa: E731

  def step():
    carry["state"], measured = built.stages[stage].train_steps[0](carry["state"], batch, keys)
    jax.block_until_ready((carry["state"], measured))

  step()
  step()
  return step, features
