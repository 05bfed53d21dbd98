"""Streams of data sets that do not fit in memory: Grain reads JPEG records of TensorFlow Datasets and decodes them.

The seed and the position in the run determine which record is read and its random numbers. So step k reads the same
examples, cropped and mirrored in the same way, from whichever step a run continues, and with any number of threads or
processes.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
import sys
from typing import Any, NamedTuple

import numpy as np

from calib_jax._system.errors import UserError, printable
from calib_jax.training.data import jpeg
from calib_jax.training.data.corruptions import corrupt

# The usual means and standard deviations of ImageNet's training images.
MEAN, STD = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)

_AHEAD = 8  # The number of batches that are decoded at a time, each by a thread.


class Stream(NamedTuple):
  """A split of records ``{"image": JPEG bytes, "label": class}``; ``index`` lists the split's records."""

  records: Sequence[Any]
  index: np.ndarray
  image_size: int
  num_workers: int
  source: str
  corruption: str = ""
  severity: int = 1

  def take(self, index: np.ndarray) -> "Stream":
    """Returns the records at positions ``index`` of this split, in that order."""
    return self._replace(index=self.index[index])


class StreamPool(NamedTuple):
  """What a streamed data set provides; see ``Pool``."""

  train: Stream
  test: Stream
  num_classes: int


def part_size(number: int, fraction: float) -> int:
  """The size of a part that is a ``fraction`` of so many examples; a UserError if the part or the rest is empty."""
  size = round(fraction * number)
  if not 0 < size < number:
    raise UserError(f"a fraction of {fraction:g} of {number} examples leaves an empty split: choose one nearer 0.5.")
  return size


def split(train: Stream, fraction: float, seed: int, *, salt: int = 0) -> tuple[Stream, Stream]:
  """Splits a stream into ``(rest, part)`` at random. It is not stratified, because that would read every label."""
  size = part_size(len(train.index), fraction)
  order = np.random.default_rng((seed, salt)).permutation(len(train.index))
  return train.take(np.sort(order[size:])), train.take(np.sort(order[:size]))


def labels(stream: Stream) -> np.ndarray:
  """Returns the labels ``[N]`` of a split. It reads every record, which takes minutes for ImageNet, and says so."""
  print(f"reading {len(stream.index):,} records of {printable(stream.source)} for their labels",
        file=sys.stderr, flush=True)
  with ThreadPoolExecutor() as pool:
    return np.fromiter(pool.map(lambda number: stream.records[int(number)]["label"], stream.index), np.int32)


def random_crop(picture: Any, rng: np.random.Generator, size: int) -> np.ndarray:
  """Crops 8 to 100% of the area with an aspect ratio from 3/4 to 4/3, resizes to ``size``, mirrors half of the time."""
  from PIL import Image

  width, height = picture.size
  for _ in range(10):
    area, shape = width * height * rng.uniform(0.08, 1), np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
    w, h = np.sqrt(area * shape), np.sqrt(area / shape)
    if w <= width and h <= height:
      left, top = rng.uniform(0, width - w), rng.uniform(0, height - h)
      break
  else:
    w = h = min(width, height)
    left, top = (width - w) / 2, (height - h) / 2
  image = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + w, top + h)))
  return image[:, ::-1] if rng.uniform() < 0.5 else image


def centre_crop(picture: Any, size: int) -> np.ndarray:
  """Crops the middle 7/8 of the shorter side and resizes it to ``size``, such as 224 of 256 pixels."""
  from PIL import Image

  width, height = picture.size
  side = min(width, height) * 7 / 8
  left, top = (width - side) / 2, (height - side) / 2
  return np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side)))


def training_batches(stream: Stream, first_step: int, *, batch_size: int, num_devices: int, seed: int,
                     host: tuple[int, int], accumulation: int = 1) -> Iterator[dict[str, np.ndarray]]:
  """Yields batches from ``first_step`` on, without end. Every epoch is shuffled; a batch may span two epochs."""
  import grain

  def example(number, rng):
    picture, label = _opened(stream, number)
    return {"image": random_crop(picture, rng, stream.image_size), "label": np.int32(label), "mask": np.bool_(True)}

  # A million epochs stand for an endless data set, which Grain cannot divide into batches of one.
  numbers = grain.MapDataset.source(stream.index).seed(seed).shuffle().repeat(10**6).random_map(example)
  parts = numbers.batch(batch_size // host[1] // accumulation)
  shares = parts[first_step * accumulation * host[1] + host[0]::host[1]].batch(accumulation)
  return _read(shares, stream.num_workers, num_devices)


def in_order(stream: Stream, batch_size: int, num_devices: int,
             host: tuple[int, int]) -> Iterator[dict[str, np.ndarray]]:
  """Yields every example once, in the order of the split; a short last batch is padded, where ``mask`` is False."""
  import grain

  def example(number):
    if number < 0:
      return {"image": np.zeros((stream.image_size, stream.image_size, 3), np.uint8), "label": np.int32(0),
              "mask": np.bool_(False)}
    picture, label = _opened(stream, number)
    image = centre_crop(picture, stream.image_size)
    if stream.corruption:
      image = corrupt(image[None], stream.corruption, stream.severity, seed=int(number))[0]
    return {"image": image, "label": np.int32(label), "mask": np.bool_(True)}

  padded = np.concatenate([stream.index, np.full(-len(stream.index) % batch_size, -1)])
  shares = grain.MapDataset.source(padded).map(example).batch(batch_size // host[1])[host[0]::host[1]].batch(1)
  return _read(shares, stream.num_workers, num_devices)


def _opened(stream: Stream, number: int):
  record = stream.records[int(number)]
  return jpeg.picture(record["image"], int(number), stream.source), record["label"]


def _read(batches, num_workers: int, num_devices: int) -> Iterator[dict[str, np.ndarray]]:
  from absl import flags
  import grain

  if num_workers and not flags.FLAGS.is_parsed():
    raise UserError("config key data.num_workers: the processes of Grain read absl's flags, which are not parsed in "
                    "this program: call absl.flags.FLAGS.mark_as_parsed() first, as main.py does, or set it to 0.")
  numbered = batches.to_iter_dataset(grain.ReadOptions(num_threads=_AHEAD, prefetch_buffer_size=_AHEAD))
  if num_workers:
    numbered = numbered.mp_prefetch(grain.MultiprocessingOptions(num_workers))
  iterator = iter(numbered)
  try:
    for batch in iterator:
      yield {key: _by_device(x, num_devices) for key, x in batch.items()}
  finally:
    iterator.close()


def _by_device(x: np.ndarray, num_devices: int) -> np.ndarray:
  """Reshapes ``[parts, examples, ...]`` to each device's share of every part, ``[num_devices, parts * share, ...]``."""
  x = x.reshape(len(x), num_devices, -1, *x.shape[2:]).swapaxes(0, 1)
  return x.reshape(num_devices, -1, *x.shape[3:])
