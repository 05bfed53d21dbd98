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


def sharded(examples: Examples, index: np.ndarray, batch_size: int, num_devices: int, host: tuple[int, int],
            accumulation: int = 1) -> dict[str, np.ndarray]:
  """The examples of this host's share of ``index`` as arrays ``[num_devices, batch_size / hosts / num_devices, ...]``.

  A short batch is padded with example 0, which ``mask`` marks as False. Hosts, and then devices, take contiguous shares
  in their order: of each of the ``accumulation`` equal parts of the batch, which lie one after another on a device.
  """
  padded = np.zeros(batch_size, index.dtype)
  padded[: len(index)] = index
  shares = np.arange(batch_size).reshape(accumulation, host[1], num_devices, -1)[:, host[0]]
  own = shares.swapaxes(0, 1).reshape(-1)
  batch = {"image": examples.images[padded[own]], "label": examples.labels[padded[own]], "mask": own < len(index)}
  return {key: x.reshape(num_devices, -1, *x.shape[1:]) for key, x in batch.items()}


@functools.lru_cache(maxsize=2)
def epoch_order(num_examples: int, seed: int, epoch: int) -> np.ndarray:
  """The order of one epoch, drawn from ``(seed, epoch)`` alone."""
  return np.random.default_rng((seed, epoch)).permutation(num_examples)


def training_batch(examples: Examples, step: int, *, batch_size: int, num_devices: int, seed: int,
                   host: tuple[int, int] = (0, 1), accumulation: int = 1) -> dict[str, np.ndarray]:
  """The batch of global step ``step``: each epoch's order is cut into batches, the last of which may be short.

  ``batch_size`` is of all hosts together; ``host`` is which of how many takes its share, on ``num_devices`` of its own.
  """
  epoch, position = divmod(step, steps_per_epoch(len(examples.labels), batch_size))
  order = epoch_order(len(examples.labels), seed, epoch)
  index = order[position * batch_size : (position + 1) * batch_size]
  return sharded(examples, index, batch_size, num_devices, host, accumulation)


def training_batches(part: Examples | Stream, first_step: int, *, batch_size: int, num_devices: int, seed: int,
                     host: tuple[int, int] = (0, 1), accumulation: int = 1) -> Iterator[dict[str, np.ndarray]]:
  """The batches of global steps ``first_step``, ``first_step + 1``, …, without end; see ``training_batch``."""
  options = {"batch_size": batch_size, "num_devices": num_devices, "seed": seed, "host": host,
             "accumulation": accumulation}
  if isinstance(part, Stream):
    return streaming.training_batches(part, first_step, **options)
  return (training_batch(part, step, **options) for step in itertools.count(first_step))


def in_order(part: Examples | Stream, batch_size: int, num_devices: int,
             host: tuple[int, int] = (0, 1)) -> Iterator[dict[str, np.ndarray]]:
  """Every example once, in the order of the split; of each batch, this host's share."""
  if isinstance(part, Stream):
    yield from streaming.in_order(part, batch_size, num_devices, host)
    return
  for start in range(0, len(part.labels), batch_size):
    yield sharded(part, np.arange(start, min(start + batch_size, len(part.labels))), batch_size, num_devices, host)
