"""Examples, and splits of them that depend only on the labels and a seed."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from calib_jax._system.errors import UserError
from calib_jax.training.data import record_streams
from calib_jax.training.data.record_streams import Stream

CHANNELS = (1, 3, 4)  # As many channels pictures have.
COUNTED = 2**17  # Pixels that are counted at a time.


class Examples(NamedTuple):
  """Images uint8 ``[N, H, W, C]`` and their labels int32 ``[N]``, on the host.

  In place of images there may be rows of a table, float32 ``[N, ...]``, or integers such as token ids, int32
  ``[N, ...]``.
  """

  images: np.ndarray
  labels: np.ndarray

  def take(self, index: np.ndarray) -> "Examples":
    """Returns the examples at ``index``, in its order."""
    return Examples(self.images[index], self.labels[index])


class Pool(NamedTuple):
  """What a data set provides: examples to train and validate on, examples to test on, and the classes.

  ``classes`` has the names of the classes, or is None if they have none. ``standardize`` says whether float32 inputs
  are standardised by the mean and deviation of each column, the last axis, in the training split; images always are,
  by channel, and integers never.
  """

  train: Examples
  test: Examples
  num_classes: int
  classes: tuple[str, ...] | None = None
  standardize: bool = True


class EvaluationSet(NamedTuple):
  """Examples to evaluate on, and how they relate to the training data (``kind``)."""

  examples: "Examples | Stream"
  kind: str = "in_distribution"  # Or "shifted", or "out_of_distribution".


class Splits(NamedTuple):
  """A data set: disjoint splits, the number of classes, and the mean and deviation of ``train / 255`` by channel.

  Of inputs that are not uint8 they are the columns', or 0 and 1 if nothing is standardised. Splits that do not
  fit in memory are streams (see ``record_streams``). ``others`` has more sets to evaluate on, by name, and ``classes``
  the names of the classes, or None.
  """

  train: Examples | Stream
  validation: Examples | Stream
  test: Examples | Stream
  num_classes: int
  mean: np.ndarray
  std: np.ndarray
  others: Mapping[str, EvaluationSet] = {}
  classes: tuple[str, ...] | None = None

  def part(self, name: str) -> "Examples | Stream":
    """Returns the examples of a split or of another set, by name."""
    return self.others[name].examples if name in self.others else getattr(self, name)


def stratified(labels: np.ndarray, fraction: float, seed: int, *, salt: int = 0) -> tuple[np.ndarray, np.ndarray]:
  """Splits examples in two, stratified by class.

  The numbers of examples of the classes are rounded so that they add up to ``round(fraction * N)``, with the largest
  remainders rounded up.

  Args:
    labels: ``[N]`` integers.
    fraction: the fraction of the examples in ``part``.
    seed: the seed of the draw.
    salt: a number that gives another draw for the same seed.

  Returns:
    Ascending indices ``(rest, part)``.

  Raises:
    UserError: if either side would be empty.
  """
  classes, counts = np.unique(labels, return_counts=True)
  size = record_streams.part_size(len(labels), fraction)
  rng = np.random.default_rng((seed, salt))
  share = fraction * counts
  take = np.floor(share).astype(int)
  order = np.argsort(take - share, kind="stable")
  take[order[: size - take.sum()]] += 1
  part = [rng.permutation(np.flatnonzero(labels == c))[:t] for c, t in zip(classes, take, strict=True)]
  part = np.sort(np.concatenate(part))
  return np.setdiff1d(np.arange(len(labels)), part), part


def held_out(examples: Examples | Stream, fraction: float, seed: int) -> tuple[Examples | Stream, Examples | Stream]:
  """Splits training examples for the two phases of interleaved training.

  The split is stratified, except for streams, whose labels are not in memory.

  Args:
    examples: the training examples.
    fraction: the fraction that is held out.
    seed: the seed of the draw.

  Returns:
    ``(majority, held-out part)``.

  Raises:
    UserError: if either side would be empty.
  """
  if not isinstance(examples, Examples):
    return record_streams.split(examples, fraction, seed, salt=4)
  rest, part = stratified(examples.labels, fraction, seed, salt=4)
  return examples.take(rest), examples.take(part)


def long_tailed(labels: np.ndarray, num_classes: int, ratio: float, seed: int) -> np.ndarray:
  """Draws a long-tailed subset: ``n_0 * ratio**(i / (num_classes - 1))`` examples of class i, rounded down.

  Here n_0 is the size of class 0. This is Eq. 16 of Jung et al. 2023, who draw the subset before they split off the
  validation examples. With their ratio of 0.1, CIFAR-10 keeps 20,431 of 50,000 examples.

  Args:
    labels: ``[N]`` integers.
    num_classes: the number of classes.
    ratio: the size of the last class divided by the size of class 0.
    seed: the seed of the draw.

  Returns:
    Ascending indices of the subset.

  Raises:
    UserError: if a class has fewer examples than that, or would have none.
  """
  checked_number("data.imbalance_ratio", ratio, 1e-6, 1)
  have = np.bincount(labels, minlength=num_classes)
  wanted = np.floor(have[0] * ratio ** (np.arange(num_classes) / max(num_classes - 1, 1)) + 1e-9).astype(int)
  for c in np.flatnonzero((wanted > have) | (wanted == 0))[:1]:
    raise UserError(f"data.imbalance_ratio {ratio:g} would take {wanted[c]:,} of the {have[c]:,} examples of class "
                    f"{c}: choose a ratio that takes at least one and at most all of them.")
  rng = np.random.default_rng((seed, 5))
  subset = [rng.permutation(np.flatnonzero(labels == c))[:n] for c, n in enumerate(wanted)]
  return np.sort(np.concatenate(subset))


def with_validation(pool: Pool, fraction: float, seed: int) -> Splits:
  """Splits off validation examples, and measures the channels; a class with none to train on is a UserError."""
  rest, part = stratified(pool.train.labels, fraction, seed)
  validation, train = pool.train.take(part), pool.train.take(rest)
  for c, count in enumerate(np.bincount(pool.train.labels)):
    if count == 1 or (count and not (train.labels == c).any()):
      raise UserError(f"class {c} has {count} example{'s' if count > 1 else ''} to train and validate on: "
                      f"too few for a data.validation_fraction of {fraction:g}.")
  mean, std = _moments(train.images, pool.standardize)
  return Splits(train, validation, pool.test, pool.num_classes, mean.astype(np.float32), std.astype(np.float32),
                classes=pool.classes)


def _moments(inputs: np.ndarray, standardize: bool) -> tuple[np.ndarray, np.ndarray]:
  """Returns the mean and the deviation of each channel of images, divided by 255, or of each column of a table."""
  pixels = inputs.reshape(-1, inputs.shape[-1])
  if inputs.dtype != np.uint8:
    if not standardize or not np.issubdtype(inputs.dtype, np.floating):
      return np.zeros(pixels.shape[1]), np.ones(pixels.shape[1])
    mean = pixels.mean(0, dtype=np.float64)
    std = np.sqrt(np.square(pixels - mean).mean(0))
    # A constant column is divided by 1; rounding may give it a tiny deviation.
    return mean, np.where(std > 1e-6 * np.abs(mean), std, 1.0)
  # Sums over a histogram of pixel values are exact, and need no copy of the images: NumPy counts a copy of int64, so
  # that some pixels at a time take 1 MB in place of eight times a channel.
  histogram = np.zeros((pixels.shape[1], 256), np.int64)
  for start in range(0, len(pixels), COUNTED):
    for channel, counts in zip(pixels[start:start + COUNTED].T, histogram, strict=True):
      counts += np.bincount(channel, minlength=256)
  value = np.arange(256) / 255
  mean = histogram @ value / len(pixels)
  std = np.sqrt(histogram @ value**2 / len(pixels) - mean**2)
  # A constant channel is divided by 1, which leaves it at 0 after the mean is subtracted.
  return mean, np.where(std > 1e-6, std, 1.0)


def checked(images: np.ndarray, labels: np.ndarray, source: str) -> Examples:
  """Returns ``Examples`` of arrays; a UserError about their ``source`` if a shape, dtype or label is wrong."""
  if images.ndim == 3:
    images = images[..., None]
  if images.ndim != 4 or images.dtype != np.uint8 or 0 in images.shape[1:]:
    raise UserError(f"{source}: images must be uint8 of shape [N, H, W, C] or [N, H, W], "
                    f"not {images.dtype} of shape {images.shape}.{_as_uint8(images)}")
  height, channels = images.shape[1], images.shape[3]
  if height in CHANNELS and channels not in CHANNELS:
    raise UserError(f"{source}: images of shape {images.shape} are channels first, as PyTorch has them, and must be "
                    "[N, H, W, C]: save images.transpose(0, 2, 3, 1).")
  return Examples(images, checked_labels(labels, len(images), source))


def _as_uint8(images: np.ndarray) -> str:
  """How to make uint8 of floats, for a message, or nothing."""
  if not images.size or images.dtype.kind != "f":
    return ""
  low, high = float(np.min(images)), float(np.max(images))
  if low >= 0 and high <= 1:
    return " They are floats in [0, 1]: save numpy.rint(255 * images).astype(numpy.uint8)."
  if low >= 0 and high <= 255:
    return " They are floats from 0 to 255: save numpy.rint(images).astype(numpy.uint8)."
  return f" They are floats from {low:.3g} to {high:.3g}: save the pixels before they are normalised, from 0 to 255."


def checked_labels(labels: np.ndarray, number: int, source: str) -> np.ndarray:
  """Returns the labels of ``number`` examples as int32; a UserError about their ``source`` if anything is wrong."""
  if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or len(labels) != number:
    raise UserError(f"{source}: labels must be integers of shape [{number}], one for each image or row, "
                    f"not {labels.dtype} of shape {labels.shape}.")
  if len(labels) == 0 or labels.min() < 0 or labels.max() >= 2**31:
    raise UserError(f"{source}: labels must be class numbers from 0 to {2**31 - 1:,}, and there must be at least one.")
  return labels.astype(np.int32)


def checked_number(key: str, value: float, low: float, high: float) -> None:
  """Raises a UserError that names the config key if ``value`` is not in [low, high]."""
  if not low <= value <= high:
    raise UserError(f"config key {key} must be in [{low:g}, {high:g}]: got {value:g}.")
