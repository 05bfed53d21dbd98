"""Data sets of arrays: the digits and the small Fashion-MNIST of this package, and a user's ``.npz`` files.

The file of a user holds images (``npz``), or tables, token ids and other arrays (``arrays``).
"""

import os
import pathlib

import numpy as np

from calib_jax import _checks as checks
from calib_jax._checks.registry import register
from calib_jax._system.errors import UserError, short
from calib_jax._system.files import read_npz
from calib_jax.training.data import image_folders, jpeg
from calib_jax.training.data.sources import SOURCES
from calib_jax.training.data.splits import Examples, Pool, checked, checked_labels, stratified


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

  The file holds ``images`` and ``labels``, and a stratified 20% becomes the test split, or it holds both of them
  for training and for test, such as ``images_train`` or ``train_images``. Images are uint8 ``[N, H, W, C]`` or
  ``[N, H, W]``, or a uint8 stream of JPEG bytes with ``offsets`` ``[N + 1]``. Labels are integers from 0, whose names
  ``class_names`` ``[K]``, or ``classes``, may hold. The path may be a folder of pictures by class, too; see
  ``image_folders``.
  """
  if os.path.isdir(path):
    parts, classes = image_folders.read(path)
    return _pool(path, parts, seed)._replace(classes=classes)
  parts = [_part(path, *arrays) for arrays in _split_arrays(path, ("images", "labels"), ("offsets",))]
  return _named(path, _pool(path, parts, seed))


@register(SOURCES)
def arrays(path: str, seed: int, *, standardize: bool = True) -> Pool:
  """Loads tables, token ids or other arrays from a file of ``numpy.savez``, without pickle.

  The file holds ``x`` ``[N, ...]`` of any shape and ``labels``, and a stratified 20% becomes the test split, or it
  holds both of them for training and for test, such as ``x_train`` or ``train_x``. Labels are integers from 0, whose
  names ``class_names`` ``[K]``, or ``classes``, may hold. Floats become float32, and are standardised by the mean and
  the deviation of each column (the last axis) in the training split if ``standardize``; booleans become 0 and 1, and
  are floats too. Integers become int32 and stay as they are: they are token ids or codes, which a model embeds. Save
  counts and grey levels as floats.
  """
  if os.path.isdir(path):
    raise UserError(f"{path} is a directory, and arrays are read from an .npz: a folder of pictures by class is read "
                    f"by --config.data.name=npz --config.data.path={path}.")
  parts = [_rows(path, *arrays) for arrays in _split_arrays(path, ("x", "labels"))]
  return _named(path, _pool(path, parts, seed, standardize=standardize))


def _rows(path: str, x: np.ndarray, labels: np.ndarray) -> Examples:
  if x.ndim == 0 or x.dtype.kind not in "biuf" or 0 in x.shape[1:]:
    raise UserError(f"{path}: x must be numbers of shape [N, ...], such as a table [N, columns] or token ids [N, T]: "
                    f"got {x.dtype} of shape {x.shape}.")
  x, is_integer = (x[:, None] if x.ndim == 1 else x), x.dtype.kind in "iu"
  if is_integer and x.size and (x.min() < -2**31 or x.max() >= 2**31):
    raise UserError(f"{path}: integers of x must fit in 32 bits: they go from {x.min()} to {x.max()}.")
  with np.errstate(over="ignore"):  # What becomes infinite in float32 is reported.
    rows = np.ascontiguousarray(x, np.int32 if is_integer else np.float32)
  finite = np.isfinite(rows).reshape(len(rows), -1).all(1)
  if not finite.all():
    row = int(finite.argmin())
    raise UserError(f"{path}: {np.sum(~finite)} of the {len(rows)} rows of x are not finite; the first is row {row}, "
                    f"counted from 0: {short(x[row].tolist())}. Fill in what is missing.")
  return Examples(rows, checked_labels(labels, len(rows), path))


def _split_arrays(path: str, names: tuple[str, str], optional: tuple[str, ...] = ()) -> list[list[np.ndarray | None]]:
  """Returns the arrays of a file by split, in the order of their names; None for one that is absent."""
  file = pathlib.Path(path)
  if path and not os.path.exists(file) and os.path.isdir(file.parent):
    near = checks.suggestion(file.name, [sibling.name for sibling in file.parent.glob("*.npz")])
    raise UserError(f"config key data.path: there is no file {short(path)}."
                    + (near or " Write it by numpy.savez, or give the path of another one: --config.data.path=FILE."))
  forms = [("{}",), ("{}_train", "{}_test"), ("train_{}", "test_{}")]
  arrays = read_npz(path, tuple(split.format(name) for form in forms for split in form for name in (*names, *optional)))
  complete = [form for form in forms if all(split.format(name) in arrays for split in form for name in names)]
  if len(complete) != 1:
    both = ", ".join(f"{name}_{split}" for split in ("train", "test") for name in names)
    raise UserError(f"{path} must hold {' and '.join(names)}, or {both}, and not both; it holds "
                    f"{', '.join(arrays) or 'none'} of these.")
  return [[arrays.get(split.format(name)) for name in (*names, *optional)] for split in complete[0]]


def _pool(path: str, parts: list[Examples], seed: int, **options) -> Pool:
  """Returns the training and the test split of a file, which may hold one split."""
  if len(parts) == 1:
    rest, part = stratified(parts[0].labels, 0.2, seed, salt=1)
    parts = [parts[0].take(rest), parts[0].take(part)]
  train, test = parts
  if train.images.shape[1:] != test.images.shape[1:] or train.images.dtype != test.images.dtype:
    raise UserError(f"{path}: training and test images or rows differ in shape or type: "
                    f"{train.images.dtype} {train.images.shape[1:]} and {test.images.dtype} {test.images.shape[1:]}.")
  return Pool(train, test, _num_classes(train.labels, test.labels, path), **options)


def _named(path: str, pool: Pool) -> Pool:
  """Returns a pool with the names of the classes that its file may hold, which go with all predictions."""
  for name, array in read_npz(path, ("class_names", "classes")).items():
    names = tuple(map(str, array.ravel().tolist()))
    if pool.classes not in (None, names):
      raise UserError(f"{path} holds class_names and classes, which differ: delete one of them.")
    if len(set(names)) != pool.num_classes or array.size != pool.num_classes:
      raise UserError(f"{path}: {name} must be {pool.num_classes} different names, one a class in the order of the "
                      f"labels: got {short(', '.join(names))}.")
    pool = pool._replace(classes=names)
  return pool


def _num_classes(train: np.ndarray, test: np.ndarray, path: str) -> int:
  """Returns the number of classes; a UserError if it is 1, or if a class has no training example."""
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
