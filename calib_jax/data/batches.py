"""Which examples are in which batch: a pure function of seed, epoch and step, whatever the number of devices."""

from collections.abc import Iterator
import functools
import math

import numpy as np

from calib_jax.data.splits import Examples


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
  """Batches in one pass over the data, the last, partial one included."""
  return math.ceil(num_examples / batch_size)


def sharded(examples: Examples, index: np.ndarray, batch_size: int, num_devices: int) -> dict[str, np.ndarray]:
  """The examples at ``index`` as arrays ``[num_devices, batch_size / num_devices, ...]``.

  A short batch is padded with example 0, which ``mask`` marks as False.
  """
  padded = np.zeros(batch_size, index.dtype)
  padded[: len(index)] = index
  mask = np.arange(batch_size) < len(index)
  batch = {"image": examples.images[padded], "label": examples.labels[padded], "mask": mask}
  return {key: x.reshape(num_devices, -1, *x.shape[1:]) for key, x in batch.items()}


@functools.lru_cache(maxsize=2)
def epoch_order(num_examples: int, seed: int, epoch: int) -> np.ndarray:
  """The order of one epoch, drawn from ``(seed, epoch)`` alone."""
  return np.random.default_rng((seed, epoch)).permutation(num_examples)


def training_batch(examples: Examples, step: int, *, batch_size: int, num_devices: int,
                   seed: int) -> dict[str, np.ndarray]:
  """The batch of global step ``step``: each epoch's order is cut into batches, the last of which may be short."""
  epoch, position = divmod(step, steps_per_epoch(len(examples.labels), batch_size))
  order = epoch_order(len(examples.labels), seed, epoch)
  return sharded(examples, order[position * batch_size : (position + 1) * batch_size], batch_size, num_devices)


def in_order(examples: Examples, batch_size: int, num_devices: int) -> Iterator[dict[str, np.ndarray]]:
  """Every example once, in the order of the split."""
  for start in range(0, len(examples.labels), batch_size):
    index = np.arange(start, min(start + batch_size, len(examples.labels)))
    yield sharded(examples, index, batch_size, num_devices)
