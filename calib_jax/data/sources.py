"""Data sets by name: digits, ``.npz`` files, TensorFlow Datasets, folders, mixtures, and what is made of them."""

from collections.abc import Callable
import functools
import inspect
import logging
import os
import pathlib
import socket
import urllib.parse

import numpy as np

from calib_jax.data import jpeg, streaming
from calib_jax.data.batches import image_shape
from calib_jax.data.corruptions import corrupt
from calib_jax.data.mixture import gaussian_mixture
from calib_jax.data.splits import Examples, Pool, Splits, checked, long_tailed, stratified, with_validation
from calib_jax.errors import UserError
from calib_jax.files import read_npz

# Named sets of TensorFlow Datasets whose images share one size, so that they fit in memory as one uint8 array.
TFDS_NAMES = ("cifar10", "cifar100", "fashion_mnist", "kmnist", "mnist", "svhn_cropped")


def digits(*, seed: int, **_) -> Pool:
  """Scikit-learn's 1,797 handwritten digits, 8x8, 10 classes: a stratified 20% for test."""
  from sklearn.datasets import load_digits

  raw = load_digits()
  # Ink from 0 to 16, as the share of 255.
  everything = Examples(np.round(raw.images * (255 / 16)).astype(np.uint8)[..., None], raw.target.astype(np.int32))
  rest, test = stratified(everything.labels, 0.2, seed, salt=1)
  return Pool(everything.take(rest), everything.take(test), 10)


def npz(*, path: str, seed: int, **_) -> Pool:
  """A user's own arrays, from a file of ``numpy.savez``, read without pickle.

  Either ``images`` and ``labels``, of which a stratified 20% become the test split, or both of them twice, with
  ``_train`` and ``_test`` after or before the names (``train_images`` …). Images are uint8 ``[N, H, W, C]`` or
  ``[N, H, W]``, or a uint8 stream of JPEG bytes with ``offsets`` ``[N + 1]``; labels are integers from 0.
  """
  names = ("images", "labels", "offsets")
  forms = [("{}",), ("{}_train", "{}_test"), ("train_{}", "test_{}")]
  arrays = read_npz(path, tuple(split.format(name) for form in forms for split in form for name in names))
  for form in forms:
    if all(split.format(name) in arrays for split in form for name in names[:2]):
      parts = [_part(path, *(arrays.get(split.format(name)) for name in names)) for split in form]
      break
  else:
    raise UserError(f"{path} must hold images and labels, or images_train, labels_train, images_test, labels_test; "
                    f"of these it holds {', '.join(arrays) or 'none'}.")
  if len(parts) == 1:
    rest, part = stratified(parts[0].labels, 0.2, seed, salt=1)
    parts = [parts[0].take(rest), parts[0].take(part)]
  train, test = parts
  if train.images.shape[1:] != test.images.shape[1:]:
    raise UserError(f"{path}: training and test images differ in shape: "
                    f"{train.images.shape[1:]} and {test.images.shape[1:]}.")
  num_classes = int(max(train.labels.max(), test.labels.max())) + 1
  if num_classes < 2:
    raise UserError(f"{path}: every label is 0; a classifier needs at least two classes.")
  found = np.unique(train.labels)
  if len(found) < num_classes:
    absent = np.flatnonzero(found != np.arange(len(found)))[:1]
    absent = absent[0] if len(absent) else len(found)
    raise UserError(f"{path}: labels go up to {num_classes - 1:,}, but there is no example of class {absent:,} to "
                    "train on: number the classes from 0 without gaps.")
  return Pool(train, test, num_classes)


def _part(path: str, images: np.ndarray, labels: np.ndarray, offsets: np.ndarray | None) -> Examples:
  if offsets is not None:
    images = jpeg.decode(jpeg.slices(images, offsets, path), path)
  return checked(images, labels, path)


def tfds(name: str, *, dir: str, **_) -> Pool:
  """A named data set of TensorFlow Datasets, downloaded and prepared under ``dir`` where it is not there yet."""
  (train, test), num_classes = _from_tfds(name, dir, ["train", "test"])
  return Pool(train, test, num_classes)


def cifar10_corrupted(*, dir: str, corruption: str, severity: int, **_) -> Pool:
  """CIFAR-10 with the published corrupted images as its test split: ``data.corruption`` at ``data.severity``."""
  if not corruption:
    raise UserError("config key data.corruption must name the corruption of cifar10_corrupted, such as brightness.")
  pool = tfds("cifar10", dir=dir)
  # TensorFlow Datasets calls two of them by other names.
  name = {"glass_blur": "frosted_glass_blur", "elastic_transform": "elastic"}.get(corruption, corruption)
  (test,), _ = _from_tfds(f"cifar10_corrupted/{name}_{severity}", dir, ["test"])
  return pool._replace(test=test)


def _from_tfds(name: str, dir: str, splits: list[str]) -> tuple[list[Examples], int]:
  try:
    import tensorflow_datasets
  except ImportError as error:
    raise UserError(f"data set {name!r} needs TensorFlow Datasets, which is not installed: "
                    "pip install 'calib-jax[data]'.") from error
  folder = os.path.expanduser(dir)
  logging.getLogger("absl").setLevel(logging.ERROR)  # It warns of every folder that is not there yet.
  try:
    builder = tensorflow_datasets.builder(name, data_dir=folder, try_gcs=False)
  except ValueError as error:
    raise UserError(f"TensorFlow Datasets has no {name!r}.") from error
  if not builder.is_prepared():
    try:
      # Without a network the download would retry for minutes.
      socket.getaddrinfo(urllib.parse.urlparse(builder.info.homepage).hostname, 443)
      builder.download_and_prepare()
    except Exception as error:  # Whatever stops a download, the mend is the same.
      raise UserError(
        f"data set {name!r} is not prepared in {builder.data_dir} and could not be downloaded there "
        f"({type(error).__name__}): prepare it on a machine with a network by `tfds build {name} --data_dir={folder}` "
        "and copy that folder here, or point --config.data.dir at a folder that has it.") from error
  try:
    arrays = tensorflow_datasets.as_numpy(builder.as_dataset(split=splits, batch_size=-1))
  except Exception as error:
    raise UserError(f"data set {name!r} in {builder.data_dir} cannot be read ({type(error).__name__}: "
                    f"{str(error).splitlines()[0]}): delete that folder and prepare it again.") from error
  return ([checked(part["image"], part["label"], builder.data_dir) for part in arrays],
          builder.info.features["label"].num_classes)


def tiny_imagenet(*, dir: str, **_) -> Pool:
  """Tiny ImageNet from its folder, ``dir`` or ``dir/tiny-imagenet-200``; its validation images are the test split.

  Classes are in the order of ``wnids.txt``; 64x64 RGB, greyscale ones made RGB.
  """
  folder = pathlib.Path(dir).expanduser()
  if not (folder / "wnids.txt").is_file():
    folder = folder / "tiny-imagenet-200"
  try:
    classes = {wnid: i for i, wnid in enumerate((folder / "wnids.txt").read_text().split())}
    train = [(path, i) for wnid, i in classes.items()
             for path in sorted((folder / "train" / wnid / "images").glob("*.JPEG"))]
    lines = (folder / "val" / "val_annotations.txt").read_text().splitlines()
    test = [(folder / "val" / "images" / name, classes[wnid]) for name, wnid in (line.split()[:2] for line in lines)]
    parts = [checked(jpeg.decode([path.read_bytes() for path, _ in part], str(folder)), np.array([i for _, i in part]),
                     str(folder)) for part in (train, test)]
  except (OSError, KeyError, ValueError, IndexError) as error:
    raise UserError(f"tiny_imagenet needs the unpacked tiny-imagenet-200 (wnids.txt, train, val), which {folder} is "
                    f"not ({type(error).__name__}: {error}): unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip "
                    "and point --config.data.dir at it.") from error
  return Pool(*parts, len(classes))


SOURCES: dict[str, Callable[..., "Pool | streaming.StreamPool"]] = {
  "digits": digits, "npz": npz, **{name: functools.partial(tfds, name) for name in TFDS_NAMES},
  "cifar10_corrupted": cifar10_corrupted, "tiny_imagenet": tiny_imagenet, "gaussian_mixture": gaussian_mixture,
  "imagenet2012": streaming.imagenet2012,
}


def _long_tail(source: Callable[..., Pool]) -> Callable[..., Pool]:
  """``source`` with an option ``imbalance_ratio``, by which its training classes thin out (see ``long_tailed``)."""
  def thinned(*, seed: int, imbalance_ratio: float = 0.1, **options) -> Pool:
    pool = source(seed=seed, **options)
    labels = streaming.labels(pool.train) if isinstance(pool, streaming.StreamPool) else pool.train.labels
    return pool._replace(train=pool.train.take(long_tailed(labels, pool.num_classes, imbalance_ratio, seed)))

  given = inspect.signature(source).parameters
  ratio = inspect.signature(thinned).parameters["imbalance_ratio"]
  thinned.__signature__ = inspect.Signature([*list(given.values())[:-1], ratio, given["_"]])
  return thinned


SOURCES |= {f"{name}_lt": _long_tail(source) for name, source in SOURCES.items()}


def load(name: str, *, seed: int, validation_fraction: float, dir: str = "~/tensorflow_datasets", path: str = "",
         corruption: str = "", severity: int = 1, **options) -> Splits:
  """The data set ``name`` with its splits, all of it a function of the arguments.

  ``validation_fraction`` is of what is left after test, stratified. ``corruption`` at ``severity`` is of the test
  split. ``options`` are the source's own, such as ``imbalance_ratio`` of ``cifar10_lt``.

  >>> splits = load("digits", seed=0, validation_fraction=0.25)
  >>> [len(part.labels) for part in (splits.train, splits.validation, splits.test)]
  [1078, 360, 359]
  """
  if name not in SOURCES:
    raise UserError(f"data.name must be one of {', '.join(SOURCES)}: got {name!r}.")
  pool = SOURCES[name](seed=seed, dir=dir, path=path, corruption=corruption, severity=severity, **options)
  if isinstance(pool, streaming.StreamPool):
    train, validation = streaming.split(pool.train, validation_fraction, seed)
    return Splits(train, validation, pool.test, pool.num_classes, streaming.MEAN, streaming.STD)
  if corruption and not name.startswith("cifar10_corrupted"):
    test = pool.test._replace(images=corrupt(pool.test.images, corruption, severity, seed=seed))
    pool = pool._replace(test=test)
  return with_validation(pool, validation_fraction, seed)


def out_of_distribution(name: str, like: Splits, *, seed: int = 0, dir: str = "~/tensorflow_datasets", path: str = "",
                        **options) -> np.ndarray:
  """The test images of data set ``name``, for a model of ``like``'s classes to be unsure of: SVHN's for CIFAR's, say.

  Grey images become RGB where ``like``'s are. UserError where images differ in size, or do not fit in memory.
  """
  if name not in SOURCES:
    raise UserError(f"an out-of-distribution set must be one of {', '.join(SOURCES)}: got {name!r}.")
  pool = SOURCES[name](seed=seed, dir=dir, path=path, corruption="", severity=1, **options)
  wanted = image_shape(like.test)
  if isinstance(pool, streaming.StreamPool):
    raise UserError(f"{name} is too large to be an out-of-distribution set.")
  images = pool.test.images
  if images.shape[-1] == 1 and wanted[-1] == 3:
    images = images.repeat(3, axis=-1)
  if images.shape[1:] != wanted:
    raise UserError(f"images of {name} have the shape {images.shape[1:]}, those of the model's own data {wanted}.")
  return images
