"""Batches depend only on the seed, the epoch and the step, not on the number of devices."""

from collections.abc import Callable, Iterator
import functools
import itertools
import math
from typing import Any

import numpy as np

from calib_jax._checks.registry import register
from calib_jax._system.errors import UserError
from calib_jax.training.data import record_streams
from calib_jax.training.data.record_streams import Stream
from calib_jax.training.data.splits import Examples


def num_examples(part: Examples | Stream) -> int:
  """Returns the number of examples of a split."""
  return len(part.index if isinstance(part, Stream) else part.labels)


def image_shape(part: Examples | Stream) -> tuple[int, ...]:
  """Returns the shape of a split's images, ``(height, width, channels)``, or of its rows, as a model gets them."""
  return (part.image_size, part.image_size, 3) if isinstance(part, Stream) else part.images.shape[1:]


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
  """Returns the number of batches in one pass over the data; the last may hold fewer examples."""
  return math.ceil(num_examples / batch_size)


def divided(index: np.ndarray, batch_size: int, num_devices: int, host: tuple[int, int], accumulation: int = 1
            ) -> dict[str, np.ndarray]:
  """Returns this host's shares ``[num_devices, batches, n]`` of the batches of ``index``, and their ``mask``.

  Here n is ``batch_size / hosts / num_devices``. A short last batch is padded with example 0, where ``mask`` is False.
  A batch has ``accumulation`` equal parts. Hosts, and then devices, take contiguous shares of each part, in order, and
  a device stores its shares one after another.
  """
  padded = np.zeros(steps_per_epoch(len(index), batch_size) * batch_size, np.int32)
  padded[: len(index)] = index
  shares = np.arange(batch_size).reshape(accumulation, host[1], num_devices, -1)[:, host[0]]
  own = shares.swapaxes(0, 1).reshape(num_devices, 1, -1) + batch_size * np.arange(len(padded) // batch_size)[:, None]
  return {"index": padded[own], "mask": own < len(index)}


def sharded(examples: Examples, index: np.ndarray, batch_size: int, num_devices: int, host: tuple[int, int],
            accumulation: int = 1) -> dict[str, np.ndarray]:
  """Returns this host's share of one batch, as ``divided`` gives it, with its images and labels."""
  own = {key: x[:, 0] for key, x in divided(index, batch_size, num_devices, host, accumulation).items()}
  return {"image": examples.images[own["index"]], "label": examples.labels[own["index"]], "mask": own["mask"]}


# Orders of an epoch by name: each maps labels and a NumPy generator to the indices of the examples, in their order.
ORDERS: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {}


@register(ORDERS)
def shuffled(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Takes every example once, in random order."""
  return rng.permutation(len(labels))


@register(ORDERS)
def class_balanced(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Takes as many examples as there are, every class equally often; all of a class before one is repeated."""
  classes, counts = np.unique(labels, return_counts=True)
  wanted = np.full(len(classes), len(labels) // len(classes))
  wanted[rng.permutation(len(classes))[: len(labels) - wanted.sum()]] += 1
  taken = []
  for c, count, number in zip(classes, counts, wanted, strict=True):
    own = np.flatnonzero(labels == c)
    rounds = [rng.permutation(own) for _ in range(-(-number // count))]
    taken.append(np.concatenate([*rounds, own[:0]])[:number])
  return rng.permutation(np.concatenate(taken))


def training_batch(examples: Examples, step: int, *, batch_size: int, num_devices: int, seed: int,
                   host: tuple[int, int] = (0, 1), accumulation: int = 1, order: str = "shuffled",
                   salt: int = 0) -> dict[str, np.ndarray]:
  """Returns the batch of one step. The order of each epoch is cut into batches; the last may be short.

  Args:
    examples: the examples of a split.
    step: the step, counted from 0.
    batch_size: the number of examples of all hosts together.
    num_devices: the number of devices of this host.
    seed: the seed of the order, with ``salt`` and the number of the epoch.
    host: the index of this host, and the number of hosts.
    accumulation: the number of parts in which a step takes its batch.
    order: the name of the order of the examples in an epoch, one of ``ORDERS``.
    salt: a number that gives another order for the same seed.

  Returns:
    ``image``, ``label`` and ``mask``, each ``[num_devices, batch_size / hosts / num_devices, ...]``.
  """
  index = epoch_part(examples.labels, step, 1, batch_size=batch_size, seed=seed, order=order, salt=salt)
  return sharded(examples, index, batch_size, num_devices, host, accumulation)


def epoch_part(labels: np.ndarray, step: int, num_steps: int, *, batch_size: int, seed: int, order: str = "shuffled",
               salt: int = 0) -> np.ndarray:
  """Returns the indices of ``num_steps`` steps of an epoch from ``step`` on, for ``training_batch``."""
  epoch, position = divmod(step, steps_per_epoch(len(labels), batch_size))
  index = _order(labels.tobytes(), labels.dtype.str, order, (seed, epoch) + ((salt,) if salt else ()))
  return index[position * batch_size : (position + num_steps) * batch_size]


def training_batches(part: Examples | Stream, first_step: int, *, seed: int, order: str = "shuffled", salt: int = 0,
                     **options: Any) -> Iterator[dict[str, np.ndarray]]:
  """Yields the batches of steps ``first_step``, ``first_step + 1``, …, without end.

  Args:
    part: the examples of a split.
    first_step: the first step, counted from 0.
    seed: the seed of the order.
    order: the name of the order of the examples in an epoch, one of ``ORDERS``.
    salt: a number that gives another order for the same seed.
    **options: the other arguments of ``training_batch``.

  Returns:
    An iterator over batches as ``training_batch`` returns them.

  Raises:
    UserError: for a stream in another order than shuffled.
  """
  if isinstance(part, Stream):
    if order != "shuffled":
      raise UserError(f"images that are read as a stream can only be shuffled: the order {order!r} needs their labels, "
                      "which are read with them.")
    options = {"host": (0, 1), "accumulation": 1, **options}
    return record_streams.training_batches(part, first_step, seed=seed + 7919 * salt, **options)
  return (training_batch(part, step, seed=seed, order=order, salt=salt, **options)
          for step in itertools.count(first_step))


@functools.lru_cache(maxsize=4)
def _order(labels: bytes, dtype: str, order: str, draw: tuple[int, ...]) -> np.ndarray:
  """Returns the order of one epoch. The last orders are cached, because every batch of an epoch needs its order."""
  return ORDERS[order](np.frombuffer(labels, dtype), np.random.default_rng(draw))


def in_order(part: Examples | Stream, batch_size: int, num_devices: int,
             host: tuple[int, int] = (0, 1)) -> Iterator[dict[str, np.ndarray]]:
  """Yields this host's share of batches that hold every example once, in the order of the split.

  Args:
    part: the examples of the split.
    batch_size: the number of examples of all hosts together; the last batch is padded, where ``mask`` is False.
    num_devices: the number of devices of this host.
    host: the index of this host, and the number of hosts.

  Returns:
    An iterator over batches as ``training_batch`` returns them.
  """
  if isinstance(part, Stream):
    yield from record_streams.in_order(part, batch_size, num_devices, host)
    return
  for start in range(0, len(part.labels), batch_size):
    yield sharded(part, np.arange(start, min(start + batch_size, len(part.labels))), batch_size, num_devices, host)
