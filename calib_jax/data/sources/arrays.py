"""Data sets of arrays: the digits and the small Fashion-MNIST of this package, and a user's ``.npz`` files."""

import os
import pathlib

import numpy as np

from calib_jax import _checks as checks
from calib_jax._checks.registry import register
from calib_jax._system.errors import UserError, short
from calib_jax._system.files import read_npz
from calib_jax.data import jpeg
from calib_jax.data.sources import SOURCES
from calib_jax.data.splits import Examples, Pool, checked, stratified


@register(SOURCES)
def digits(seed: int) -> Pool:
  """Loads scikit-learn's 1,797 handwritten digits, 8x8, in 10 classes; a stratified 20% is for test.

  They come from a file of this package, because importing scikit-learn takes longer than all else at a run's start.
  """
  raw = _embedded("digits")
  # Scikit-learn's pixels are from 0 to 16; they are scaled to 0 to 255.
  everything = Examples(np.round(raw["images"] * (255 / 16)).astype(np.uint8)[..., None],
                        raw["labels"].astype(np.int32))
  rest, test = stratified(everything.labels, 0.2, seed, salt=1)
  return Pool(everything.take(rest), everything.take(test), 10)


@register(SOURCES)
def fashion_mnist_small() -> Pool:
  """Loads 4,000 training and 4,000 test images of Fashion-MNIST, 28x28, in 10 classes, from a file of this package.

  ``data/embedded/README.md`` has their origin, their licence and how they were drawn.
  """
  arrays = _embedded("fashion_mnist_small")
  train, test = (checked(arrays[f"{split}_images"], arrays[f"{split}_labels"], "fashion_mnist_small")
                 for split in ("train", "test"))
  return Pool(train, test, 10, tuple(map(str, arrays["class_names"])))


def _embedded(name: str) -> dict[str, np.ndarray]:
  """Returns the arrays of a file of this package; ``embedded/README.md`` has their origins and licences."""
  return read_npz(str(pathlib.Path(__file__).parents[1] / "embedded" / f"{name}.npz"))


@register(SOURCES)
def npz(path: str, seed: int) -> Pool:
  """Loads a user's arrays from a file of ``numpy.savez``, without pickle.

  The file holds ``images`` and ``labels``, of which a stratified 20% become the test split, or it holds both of them
  for training and for test, such as ``images_train`` or ``train_images``. Images are uint8 ``[N, H, W, C]`` or
  ``[N, H, W]``, or a uint8 stream of JPEG bytes with ``offsets`` ``[N + 1]``. Labels are integers from 0.
  """
  file = pathlib.Path(path)
  if path and not os.path.exists(file) and os.path.isdir(file.parent):
    near = checks.suggestion(file.name, [sibling.name for sibling in file.parent.glob("*.npz")])
    raise UserError(f"config key data.path: there is no file {short(path)}."
                    + (near or " Write it by numpy.savez, or give the path of another one: --config.data.path=FILE."))
  names = ("images", "labels", "offsets")
  forms = [("{}",), ("{}_train", "{}_test"), ("train_{}", "test_{}")]
  arrays = read_npz(path, tuple(split.format(name) for form in forms for split in form for name in names))
  complete = [form for form in forms if all(split.format(name) in arrays for split in form for name in names[:2])]
  if len(complete) != 1:
    raise UserError(f"{path} must hold images and labels, or images_train, labels_train, images_test, labels_test, and "
                    f"not both; it holds {', '.join(arrays) or 'none'} of these.")
  parts = [_part(path, *(arrays.get(split.format(name)) for name in names)) for split in complete[0]]
  if len(parts) == 1:
    rest, part = stratified(parts[0].labels, 0.2, seed, salt=1)
    parts = [parts[0].take(rest), parts[0].take(part)]
  train, test = parts
  if train.images.shape[1:] != test.images.shape[1:]:
    raise UserError(f"{path}: training and test images differ in shape: "
                    f"{train.images.shape[1:]} and {test.images.shape[1:]}.")
  return Pool(train, test, _num_classes(train.labels, test.labels, path))


def _num_classes(train: np.ndarray, test: np.ndarray, path: str) -> int:
  """Returns the number of classes.

  Raises:
    UserError: if it is 1, or if a class has no training example.
  """
  num_classes = int(max(train.max(), test.max())) + 1
  if num_classes < 2:
    raise UserError(f"{path}: every label is 0; a classifier needs at least two classes.")
  classes = np.unique(train)
  if len(classes) < num_classes:
    absent = next((i for i, label in enumerate(classes) if label != i), len(classes))
    raise UserError(f"{path}: labels go up to {num_classes - 1:,}, but there is no example of class {absent:,} to "
                    "train on: number the classes from 0 without gaps.")
  return num_classes


def _part(path: str, images: np.ndarray, labels: np.ndarray, offsets: np.ndarray | None) -> Examples:
  if offsets is not None:
    images = jpeg.decode(jpeg.slices(images, offsets, path), path)
  return checked(images, labels, path)
