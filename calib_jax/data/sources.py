"""Data sets by name: the embedded digits, a user's own ``.npz``, and TensorFlow Datasets."""

from collections.abc import Callable
import logging
import os
import socket
import urllib.parse

import numpy as np

from calib_jax.data.splits import Examples, Splits, checked, stratified, with_validation
from calib_jax.errors import UserError
from calib_jax.files import read_npz

# Named sets of TensorFlow Datasets whose images share one size, so that they fit in memory as one uint8 array.
TFDS_NAMES = ("cifar10", "cifar100", "fashion_mnist", "kmnist", "mnist", "svhn_cropped")


def digits(*, validation_fraction: float, seed: int, **_) -> Splits:
  """Scikit-learn's 1,797 handwritten digits, 8x8, 10 classes: 20% for test, the rest split further, all stratified.

  ``validation_fraction`` is of what is left after test: 0.25 gives 60/20/20.
  """
  from sklearn.datasets import load_digits

  raw = load_digits()
  # Ink from 0 to 16, as the share of 255.
  everything = Examples(np.round(raw.images * (255 / 16)).astype(np.uint8)[..., None], raw.target.astype(np.int32))
  rest, test = stratified(everything.labels, 0.2, seed, salt=1)
  return with_validation(everything.take(rest), everything.take(test), 10, validation_fraction, seed)


def npz(*, path: str, validation_fraction: float, seed: int, **_) -> Splits:
  """A user's own arrays, from a file of ``numpy.savez``, read without pickle.

  Either ``images_train, labels_train, images_test, labels_test``, or ``images, labels``, of which a stratified 20%
  become the test split. Images are uint8 ``[N, H, W, C]`` or ``[N, H, W]``; labels integers from 0.
  """
  whole, given = ("images", "labels"), ("images_train", "labels_train", "images_test", "labels_test")
  arrays = read_npz(path, whole + given)
  if arrays.keys() >= set(whole):
    everything = checked(arrays["images"], arrays["labels"], path)
    rest, part = stratified(everything.labels, 0.2, seed, salt=1)
    train, test = everything.take(rest), everything.take(part)
  elif arrays.keys() >= set(given):
    train = checked(arrays["images_train"], arrays["labels_train"], path)
    test = checked(arrays["images_test"], arrays["labels_test"], path)
    if train.images.shape[1:] != test.images.shape[1:]:
      raise UserError(f"{path}: training and test images differ in shape: "
                      f"{train.images.shape[1:]} and {test.images.shape[1:]}.")
  else:
    raise UserError(f"{path} must hold {' and '.join(whole)}, or {', '.join(given)}; "
                    f"of these it holds {', '.join(arrays) or 'none'}.")
  num_classes = int(max(train.labels.max(), test.labels.max())) + 1
  if num_classes < 2:
    raise UserError(f"{path}: every label is 0; a classifier needs at least two classes.")
  return with_validation(train, test, num_classes, validation_fraction, seed)


def tfds(*, name: str, dir: str, validation_fraction: float, seed: int, **_) -> Splits:
  """A named data set of TensorFlow Datasets, downloaded and prepared under ``dir`` where it is not there yet."""
  try:
    import tensorflow_datasets
  except ImportError as error:
    raise UserError(f"data set {name!r} needs TensorFlow Datasets, which is not installed: "
                    "pip install 'calib-jax[data]'.") from error
  folder = os.path.expanduser(dir)
  logging.getLogger("absl").setLevel(logging.ERROR)  # It warns of every folder that is not there yet.
  builder = tensorflow_datasets.builder(name, data_dir=folder, try_gcs=False)
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
    arrays = tensorflow_datasets.as_numpy(builder.as_dataset(split=["train", "test"], batch_size=-1))
  except Exception as error:
    raise UserError(f"data set {name!r} in {builder.data_dir} cannot be read ({type(error).__name__}: "
                    f"{str(error).splitlines()[0]}): delete that folder and prepare it again.") from error
  train, test = (checked(part["image"], part["label"], builder.data_dir) for part in arrays)
  num_classes = builder.info.features["label"].num_classes
  return with_validation(train, test, num_classes, validation_fraction, seed)


SOURCES: dict[str, Callable[..., Splits]] = {"digits": digits, "npz": npz, **dict.fromkeys(TFDS_NAMES, tfds)}


def load(name: str, *, seed: int, validation_fraction: float, dir: str = "~/tensorflow_datasets",
         path: str = "") -> Splits:
  """The data set ``name`` with its splits, all of it a function of the arguments.

  >>> splits = load("digits", seed=0, validation_fraction=0.25)
  >>> [len(part.labels) for part in (splits.train, splits.validation, splits.test)]
  [1078, 360, 359]
  """
  if name not in SOURCES:
    raise UserError(f"data.name must be one of {', '.join(SOURCES)}: got {name!r}.")
  return SOURCES[name](name=name, seed=seed, validation_fraction=validation_fraction, dir=dir, path=path)
