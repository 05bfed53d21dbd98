"""CIFAR-10, CIFAR-100 and Tiny ImageNet in the archives that their authors publish, and the latter unpacked.

An archive is read if it has the SHA-256 of the published one, or one that the user says, and never unpacked on the
disk. CIFAR's archives hold pickles, which may name nothing but NumPy's arrays.
"""

from collections.abc import Callable
import functools
import hashlib
import io
import os
import pathlib
import pickle
import tarfile
from typing import NamedTuple
import zipfile
import zlib

import numpy as np

from calib_jax._system.errors import UserError, short
from calib_jax._system.files import check_regular, read_bytes, write_npz
from calib_jax.training.data import jpeg
from calib_jax.training.data.splits import Examples, Pool, checked

_LARGEST_PICTURE = 2**20  # Bytes of a picture of Tiny ImageNet; they have a few thousand.
_LARGEST_LIST = 2**24
LARGEST_BATCH = 2**28  # Bytes of a file of CIFAR; the largest has 155 million.
FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}  # What archives unpack to.
_LISTS = ("wnids.txt", "val/val_annotations.txt")  # Of Tiny ImageNet: its classes, and its test pictures'.
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error, ValueError, KeyError, IndexError,
            RuntimeError, NotImplementedError, MemoryError)


class Published(NamedTuple):
  """An archive: its file's name, its SHA-256 and the function that reads it."""

  file: str
  sha256: str
  open: Callable[[pathlib.Path], Pool]


def read(name: str, path: str | os.PathLike[str], trusted: str = "") -> Pool:
  """Reads a data set, one of ``ARCHIVES``; the pictures for validation of Tiny ImageNet are the test split.

  An archive whose SHA-256 is not the one ``trusted``, by default the published archive's, is a UserError, and so is
  one that lacks a member or holds what is not read.
  """
  digest, expected = sha256(path), (trusted or ARCHIVES[name].sha256).lower()
  if digest != expected:
    whose = "--sha256 says that it has" if trusted else "the published archive has"
    raise UserError(f"{path} has the SHA-256 {digest}, and {whose} {expected}: download it again, or if you trust this "
                    f"one: python -m calib_jax.training.data prepare {path} --sha256={digest}.")
  return _read(name, pathlib.Path(path), ARCHIVES[name].open)


def unpacked_tiny_imagenet(folder: pathlib.Path) -> Pool:
  """Reads the unpacked Tiny ImageNet from ``folder`` or ``folder/tiny-imagenet-200``, as its archive is read."""
  if not (folder / "wnids.txt").is_file():
    folder = folder / "tiny-imagenet-200"
  if not all((folder / name).is_file() for name in _LISTS):
    raise UserError(f"tiny_imagenet needs the unpacked tiny-imagenet-200 ({', '.join(_LISTS)}, train) or its archive, "
                    f"and {folder} is neither: unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip, or put it into "
                    "a folder as it is, and point --config.data.dir at that.")
  names = [path.relative_to(folder).as_posix() for path in (folder / "train").glob("*/images/*.JPEG")]
  return _read("tiny_imagenet", folder, lambda folder: _pictures(
    folder, names, lambda name, most: read_bytes(folder / name, most)))


def unpacked_cifar(name: str, folder: pathlib.Path) -> Pool | None:
  """Reads the folder that an archive of CIFAR unpacks to, as torchvision leaves it in ``folder``; None without it.

  Its files are read as the archive's are, as pickles that may name nothing but NumPy's arrays; a picture or a
  label that was changed is not noticed. ``batches.meta`` may be missing.
  """
  place = next((path for path in (folder / FOLDERS[name], folder) if path.is_dir() and (
    path / ARCHIVES[name].open.keywords["test"]).is_file()), None)
  if place is None:
    return None

  def load(place):
    options = ARCHIVES[name].open.keywords
    files = {file: place / file for file in (*options["train"], options["test"], options["meta"])}
    return _cifar_members({file: read_bytes(path, LARGEST_BATCH) for file, path in files.items()
                           if file != options["meta"] or path.is_file()}, **options)

  return _read(name, place, load)


def _read(name: str, path: pathlib.Path, load: Callable[[pathlib.Path], Pool]) -> Pool:
  try:
    pool = load(path)
  except _DAMAGED as error:
    reason = next(iter(str(error).splitlines()), "")[:200] or type(error).__name__
    raise UserError(f"{path} cannot be read as the archive of {name} ({reason}): download it again.") from error
  for part in (pool.train, pool.test):
    if part.labels.max() >= pool.num_classes:
      raise UserError(f"{path} has the label {part.labels.max():,}, and names {pool.num_classes:,} classes.")
  return pool


def prepare(name: str, path: str | os.PathLike[str], out: pathlib.Path, trusted: str = "") -> Pool:
  """Writes a data set as an ``.npz`` that is mapped into memory when read; what ``read`` refuses, it does, too."""
  pool = read(name, path, trusted)
  try:
    write_npz(out, train_images=pool.train.images, train_labels=pool.train.labels, test_images=pool.test.images,
              test_labels=pool.test.labels, class_names=np.array(pool.classes))
  except OSError as error:
    out.with_suffix(out.suffix + ".tmp").unlink(missing_ok=True)
    raise UserError(f"{out} cannot be written ({error.strerror}).") from error
  return pool


def sha256(path: str | os.PathLike[str]) -> str:
  """Returns the SHA-256 of a regular file in hexadecimal digits."""
  check_regular(path)
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _cifar(path: pathlib.Path, train: tuple[str, ...], test: str, labels: str, meta: str, names: str) -> Pool:
  """Reads the members of a CIFAR archive, which are pickles by their names."""
  with tarfile.open(path, "r:gz") as archive:  # In the order of the archive, because gzip cannot go back.
    content = {pathlib.PurePosixPath(member.name).name: archive.extractfile(member).read()
               for member in archive if member.isreg()}
  if meta not in content:
    raise ValueError(f"it has no {meta}")
  return _cifar_members(content, train, test, labels, meta, names)


def _cifar_members(content: dict[str, bytes], train: tuple[str, ...], test: str, labels: str, meta: str, names: str
                   ) -> Pool:
  """Reads CIFAR from its pickles by name; without ``meta`` classes have no names."""
  if missing := {*train, test} - content.keys():
    raise ValueError(f"it has no {', '.join(sorted(missing))}")
  read = {name: _unpickled(content[name], name) for name in (*train, test, meta) if name in content}
  batches = [_batch(read[name], labels, name) for name in (*train, test)]
  examples = Examples(*(np.concatenate(arrays) for arrays in zip(*batches[:-1], strict=True)))
  if meta not in read:
    return Pool(examples, batches[-1], int(max(part.labels.max() for part in (examples, batches[-1]))) + 1)
  classes = read[meta].get(names.encode())
  if not isinstance(classes, list) or not all(isinstance(x, bytes) for x in classes):
    raise ValueError(f"{meta} has no list of {names}")
  return Pool(examples, batches[-1], len(classes), tuple(x.decode("latin1") for x in classes))


class _Unpickler(pickle.Unpickler):
  """An unpickler that imports nothing, and knows no names but those that NumPy's arrays need."""

  def find_class(self, module: str, name: str) -> object:
    """Returns what a name stands for."""
    reconstruct = np.zeros(0).__reduce__()[0]
    known = {"numpy.ndarray": np.ndarray, "numpy.dtype": np.dtype, "numpy.core.multiarray._reconstruct": reconstruct,
             "numpy._core.multiarray._reconstruct": reconstruct}
    if f"{module}.{name}" not in known:
      raise ValueError(f"it names {short(f'{module}.{name}')}, which is not read because it could run code")
    return known[f"{module}.{name}"]


def _unpickled(content: bytes, name: str) -> dict[bytes, object]:
  """Returns the dict of a pickle that Python 2 wrote; a ValueError says what is wrong with the member ``name``."""
  try:
    value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
  except Exception as error:  # A damaged pickle raises exceptions of many types.
    raise ValueError(f"{name} is no pickle of arrays: {error}") from error
  if not isinstance(value, dict):
    raise ValueError(f"{name} holds no dict")
  return value


def _batch(batch: dict[bytes, object], labels: str, name: str) -> Examples:
  images, numbers = batch.get(b"data"), batch.get(labels.encode())
  if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != 3072:
    raise ValueError(f"{name} has no data of uint8 [N, 3072]")
  if not isinstance(numbers, list) or not all(type(x) is int and 0 <= x < 2**31 for x in numbers):
    raise ValueError(f"{name} has no list of {labels}")
  return checked(images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(numbers, np.int32), name)


def _tiny_imagenet(path: pathlib.Path) -> Pool:
  with zipfile.ZipFile(path) as archive:
    by_name = {info.filename.removeprefix("tiny-imagenet-200/"): info for info in archive.infolist()}

    def read_member(name, most):
      if (info := by_name[name]).file_size > most:
        raise ValueError(f"{info.filename[:100]} has more than {most:,} bytes")
      return archive.read(info)

    return _pictures(path, list(by_name), read_member)


def _pictures(path: pathlib.Path, names: list[str], read_file: Callable[[str, int], bytes]) -> Pool:
  """Returns Tiny ImageNet, in the order of ``wnids.txt``, class and name, of files that ``read_file`` returns."""
  lists = [read_file(name, _LARGEST_LIST).decode().splitlines() for name in _LISTS]
  wnids, annotations = ([line.strip() for line in lines if line.strip()] for lines in lists)
  classes = {wnid: i for i, wnid in enumerate(wnids)}
  if len(classes) < len(wnids):
    raise ValueError("wnids.txt has a class twice")
  pictures = sorted(name for name in names if name.startswith("train/") and name.endswith(".JPEG"))
  train = sorted(((name, classes[name.split("/")[1]]) for name in pictures if name.split("/")[1] in classes),
                 key=lambda pair: pair[1])
  test = [(f"val/images/{name}", classes[wnid]) for name, wnid in (line.split()[:2] for line in annotations)]
  if not train or not test:
    raise ValueError("it has no pictures")
  parts = [checked(jpeg.decode([read_file(name, _LARGEST_PICTURE) for name, _ in files], str(path)),
                   np.array([label for _, label in files], np.int32), str(path)) for files in (train, test)]
  return Pool(*parts, len(wnids), tuple(wnids))


# The SHA-256 of CIFAR are those that Keras (tf.keras.datasets) and torchvision's prototype data sets verify. The CIFAR
# page publishes the MD5 of the same files, c58f30108f718f92721af3b95e74349a and eb9058c3a382ffc7106e4002c42a8d85. The
# authors of Tiny ImageNet publish no hash: this one stands in several public repositories, for the file of 248,100,043
# bytes whose MD5 loaders for PyTorch check, 90528d7ca1a48142e341f4ef8d21d0de.
ARCHIVES = {
  "cifar10": Published("cifar-10-python.tar.gz", "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                       functools.partial(_cifar, train=tuple(f"data_batch_{i}" for i in range(1, 6)), test="test_batch",
                                         labels="labels", meta="batches.meta", names="label_names")),
  "cifar100": Published("cifar-100-python.tar.gz", "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                        functools.partial(_cifar, train=("train",), test="test", labels="fine_labels", meta="meta",
                                          names="fine_label_names")),
  "tiny_imagenet": Published("tiny-imagenet-200.zip",
                             "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821", _tiny_imagenet),
}
