"""CIFAR-10, CIFAR-100 and Tiny ImageNet in the archives that their authors publish.

An archive is read from its beginning to its end, never unpacked on the disk. Its members are limited in size before
they are read, its checksums are verified, and the pickles of CIFAR are read as plain values (``plain_pickle``).
"""

from collections.abc import Callable, Iterator
import gzip
import hashlib
import os
import pathlib
import tarfile
from typing import BinaryIO, NamedTuple
import zipfile
import zlib

import numpy as np

from calib_jax._system import plain_pickle
from calib_jax._system.errors import UserError
from calib_jax._system.files import check_regular, write
from calib_jax.data import jpeg
from calib_jax.data.splits import Examples, Pool, checked

_LARGEST_TAR = 2**28  # Bytes of all members of a CIFAR archive, decompressed; the published ones have 186 million.
_LARGEST_PICTURE = 2**20  # Bytes of a picture of Tiny ImageNet; they have a few thousand.
_LARGEST_LIST = 2**24
_BLOCK = 2000  # Pictures that are decoded at once.
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error, ValueError, KeyError, IndexError,
            RuntimeError, NotImplementedError, MemoryError)


class Part(NamedTuple):
  """Examples whose images are made in blocks, one after another, so that not all of them need be in memory."""

  shape: tuple[int, ...]  # [N, H, W, C].
  labels: np.ndarray
  blocks: Callable[[], Iterator[np.ndarray]]


class Contents(NamedTuple):
  """What an archive holds."""

  train: Part
  test: Part
  classes: tuple[str, ...]


class Archive(NamedTuple):
  """An archive: its file's name, its SHA-256 and how it is opened, within which time the parts can be read."""

  file: str
  sha256: str
  open: Callable[[pathlib.Path], Contents]


def read(name: str, path: str | os.PathLike) -> Pool:
  """Reads a data set from its archive.

  Args:
    name: one of ``ARCHIVES``.
    path: the archive.

  Returns:
    The examples; those of validation of Tiny ImageNet are the test split.

  Raises:
    UserError: if the archive is missing, damaged, lacks a member, or holds what is not read.
  """
  contents = _opened(name, path)
  parts = []
  for part in contents[:2]:
    images = np.empty(part.shape, np.uint8)
    for start, block in _blocks(part, path):
      images[start:start + len(block)] = block
    parts.append(checked(images, part.labels, str(path)))
  return Pool(*parts, len(contents.classes), contents.classes)


def prepare(name: str, path: str | os.PathLike, out: pathlib.Path) -> Contents:
  """Writes a data set as an ``.npz`` of plain arrays, block by block; returns what it holds.

  The file has ``train_images``, ``train_labels``, ``test_images``, ``test_labels`` and ``class_names``, and appears
  only once it is complete. Its arrays are not compressed, so that images are mapped into memory when they are read.

  Raises:
    UserError: as ``read`` does.
  """
  contents = _opened(name, path)

  def fill(file: BinaryIO) -> None:
    with zipfile.ZipFile(file, "w") as archive:
      for split, part in (("train", contents.train), ("test", contents.test)):
        with archive.open(f"{split}_images.npy", "w", force_zip64=True) as member:
          np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": part.shape})
          for _, block in _blocks(part, path):
            member.write(np.ascontiguousarray(block).data)
        with archive.open(f"{split}_labels.npy", "w") as member:
          np.lib.format.write_array(member, part.labels, allow_pickle=False)
      with archive.open("class_names.npy", "w") as member:
        np.lib.format.write_array(member, np.array(contents.classes), allow_pickle=False)

  try:
    write(out, fill)
  except BaseException as error:
    out.with_suffix(out.suffix + ".tmp").unlink(missing_ok=True)
    if isinstance(error, OSError):
      raise UserError(f"{out} cannot be written ({error.strerror}).") from error
    raise
  return contents


def sha256(path: str | os.PathLike) -> str:
  """Returns the SHA-256 of a regular file in hexadecimal digits."""
  check_regular(path)
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _opened(name: str, path: str | os.PathLike) -> Contents:
  check_regular(path)
  try:
    contents = ARCHIVES[name].open(pathlib.Path(path))
  except _DAMAGED as error:
    reason = next(iter(str(error).splitlines()), "")[:200] or type(error).__name__
    raise UserError(f"{path} cannot be read as the archive of {name} ({reason}): download it again.") from error
  for part in contents[:2]:
    if part.labels.max() >= len(contents.classes):
      raise UserError(f"{path} has the label {part.labels.max():,}, and names {len(contents.classes):,} classes.")
  return contents


def _blocks(part: Part, path: str | os.PathLike) -> Iterator[tuple[int, np.ndarray]]:
  """Yields the blocks of images and where each begins; an error of what reads them becomes a UserError."""
  start, blocks = 0, part.blocks()
  while start < part.shape[0]:
    try:
      block = next(blocks)
    except _DAMAGED as error:
      raise UserError(f"{path} is damaged ({error}): download it again.") from error
    if block.shape[1:] != part.shape[1:]:
      raise UserError(f"{path}: images {start:,} and on have the shape {block.shape[1:]}, the first {part.shape[1:]}.")
    yield start, block
    start += len(block)


class _Limited:
  """A stream that raises an error after so many bytes."""

  def __init__(self, stream: BinaryIO, most: int):
    """Reads at most ``most`` bytes of ``stream``."""
    self.stream, self.left = stream, most

  def read(self, size: int) -> bytes:
    """Reads at most ``size`` bytes."""
    content = self.stream.read(size)
    self.left -= len(content)
    if self.left < 0:
      raise ValueError("it holds more than the published archive")
    return content


def _cifar(train: tuple[str, ...], test: str, labels: str, meta: str, names: str, path: pathlib.Path) -> Contents:
  """Reads the members of a CIFAR archive, which are pickles by their names."""
  wanted, content = {*train, test, meta}, {}
  with gzip.open(path) as decompressed:
    stream = _Limited(decompressed, _LARGEST_TAR)
    with tarfile.open(fileobj=stream, mode="r|") as archive:
      for member in archive:
        if member.isreg() and (name := pathlib.PurePosixPath(member.name).name) in wanted:
          if member.issparse() or member.size > _LARGEST_TAR:  # A sparse member may claim any size.
            raise ValueError(f"{name} claims {member.size:,} bytes")
          content[name] = archive.extractfile(member).read()
    while stream.read(2**20):  # The checksum of gzip is at its end.
      pass
  if missing := wanted - content.keys():
    raise ValueError(f"it has no {', '.join(sorted(missing))}")
  read = {name: plain_pickle.read_dict(content.pop(name), f"{path}: {name}") for name in sorted(wanted)}
  classes = read[meta].get(names)
  if not isinstance(classes, list) or not all(isinstance(x, bytes | str) for x in classes):
    raise ValueError(f"{meta} has no list of {names}")
  parts = [_concatenated([_batch(read[name], labels, name) for name in of_split]) for of_split in (train, (test,))]
  return Contents(*parts, tuple(x.decode("latin1") if isinstance(x, bytes) else x for x in classes))


def _batch(batch: dict[str, object], labels: str, name: str) -> Examples:
  images, numbers = batch.get("data"), batch.get(labels)
  if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != 3072:
    raise ValueError(f"{name} has no data of uint8 [N, 3072]")
  if not isinstance(numbers, list) or not all(type(x) is int and 0 <= x < 2**31 for x in numbers):
    raise ValueError(f"{name} has no list of {labels}")
  return checked(images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(numbers, np.int32), name)


def _concatenated(parts: list[Examples]) -> Part:
  labels = np.concatenate([part.labels for part in parts])
  return Part((len(labels), 32, 32, 3), labels, lambda: iter([part.images for part in parts]))


def _cifar10(path: pathlib.Path) -> Contents:
  return _cifar(tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "labels", "batches.meta", "label_names",
                path)


def _cifar100(path: pathlib.Path) -> Contents:
  return _cifar(("train",), "test", "fine_labels", "meta", "fine_label_names", path)


def _tiny_imagenet(path: pathlib.Path) -> Contents:
  with zipfile.ZipFile(path) as archive:
    by_name = {info.filename.removeprefix("tiny-imagenet-200/"): info for info in archive.infolist()}
    listed = {name: _zip_member(archive, by_name[name], _LARGEST_LIST).decode().splitlines()
              for name in ("wnids.txt", "val/val_annotations.txt")}
  train, test = tiny_imagenet_files([line for line in listed["wnids.txt"] if line.strip()],
                                    listed["val/val_annotations.txt"], list(by_name))
  parts = []
  for files in (train, test):
    infos = [by_name[name] for name, _ in files]
    first = next(_decoded(path, infos[:1]))
    parts.append(Part((len(files), *first.shape[1:]), np.array([label for _, label in files], np.int32),
                      lambda infos=infos: _decoded(path, infos)))
  return Contents(*parts, tuple(line.strip() for line in listed["wnids.txt"] if line.strip()))


def tiny_imagenet_files(wnids: list[str], annotations: list[str], names: list[str]
                        ) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
  """Returns the pictures to train and to test on, in their order, with their labels.

  Args:
    wnids: the lines of ``wnids.txt``, whose order is that of the classes.
    annotations: the lines of ``val/val_annotations.txt``.
    names: the files of the data set, such as ``train/n1/images/n1_0.JPEG``.

  Raises:
    ValueError: if a class is there twice, or there are no pictures.
    KeyError: if a picture has no known class.
  """
  classes = {wnid.strip(): i for i, wnid in enumerate(wnids)}
  if len(classes) < len(wnids):
    raise ValueError("wnids.txt has a class twice")
  pictures = sorted(name for name in names if name.startswith("train/") and name.endswith(".JPEG"))
  train = sorted(((name, classes[name.split("/")[1]]) for name in pictures if name.split("/")[1] in classes),
                 key=lambda pair: pair[1])  # A stable order: by class, and then by name.
  test = [(f"val/images/{name}", classes[wnid]) for name, wnid in (line.split()[:2] for line in annotations)]
  if not train or not test:
    raise ValueError("it has no pictures")
  return train, test


def _zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> bytes:
  if info.file_size > most:
    raise ValueError(f"{info.filename[:100]} has more than {most:,} bytes")
  return archive.read(info)


def _decoded(path: pathlib.Path, infos: list[zipfile.ZipInfo]) -> Iterator[np.ndarray]:
  """Yields the pictures of some members in blocks."""
  with zipfile.ZipFile(path) as archive:
    for start in range(0, len(infos), _BLOCK):
      records = [_zip_member(archive, info, _LARGEST_PICTURE) for info in infos[start:start + _BLOCK]]
      yield jpeg.decode(records, f"{path}, pictures from {start:,} on")


# The SHA-256 of CIFAR are those that Keras (tf.keras.datasets) and torchvision's prototype data sets verify. The CIFAR
# page publishes the MD5 of the same files, c58f30108f718f92721af3b95e74349a and eb9058c3a382ffc7106e4002c42a8d85. The
# authors of Tiny ImageNet publish no hash: this one stands in several public repositories, for the file of 248,100,043
# bytes whose MD5 loaders for PyTorch check, 90528d7ca1a48142e341f4ef8d21d0de.
ARCHIVES = {
  "cifar10": Archive("cifar-10-python.tar.gz", "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                     _cifar10),
  "cifar100": Archive("cifar-100-python.tar.gz", "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                      _cifar100),
  "tiny_imagenet": Archive("tiny-imagenet-200.zip", "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
                           _tiny_imagenet),
}
