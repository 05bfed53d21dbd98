"""Which examples are in which batch: a pure function of seed, epoch and step, whatever the number of devices."""

from collections.abc import Iterator
import functools
import itertools
import math

import numpy as np

from calib_jax.data import streaming
from calib_jax.data.splits import Examples
from calib_jax.data.streaming import Stream


def num_examples(part: Examples | Stream) -> int:
  """How many examples a split has."""
  return len(part.index if isinstance(part, Stream) else part.labels)


def image_shape(part: Examples | Stream) -> tuple[int, int, int]:
  """Height, width and channels of a split's images, as a model sees them."""
  return (part.image_size, part.image_size, 3) if isinstance(part, Stream) else part.images.shape[1:]


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


def training_batches(part: Examples | Stream, first_step: int, *, batch_size: int, num_devices: int,
                     seed: int) -> Iterator[dict[str, np.ndarray]]:
  """The batches of global steps ``first_step``, ``first_step + 1``, …, without end."""
  options = {"batch_size": batch_size, "num_devices": num_devices, "seed": seed}
  if isinstance(part, Stream):
    return streaming.training_batches(part, first_step, **options)
  return (training_batch(part, step, **options) for step in itertools.count(first_step))


def in_order(part: Examples | Stream, batch_size: int, num_devices: int) -> Iterator[dict[str, np.ndarray]]:
  """Every example once, in the order of the split."""
  in_turn = streaming.in_order if isinstance(part, Stream) else _in_order
  return in_turn(part, batch_size, num_devices)


def _in_order(examples: Examples, batch_size: int, num_devices: int) -> Iterator[dict[str, np.ndarray]]:
  for start in range(0, len(examples.labels), batch_size):
    index = np.arange(start, min(start + batch_size, len(examples.labels)))
    yield sharded(examples, index, batch_size, num_devices)
