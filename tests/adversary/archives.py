"""Mutated archives of CIFAR-10 and Tiny ImageNet, and pickles in them that name code or grow."""

import io
import pathlib
import pickle
import random
import tarfile
from typing import Any

import numpy as np

from calib_jax.data import archives
from calib_jax.data.splits import Pool
from tests.adversary import mutations
from tests.adversary.judge import CANARY, Kind
from tests.data import archive_files

NAME = CANARY.encode()
ZERO = np.zeros((2, 3072), np.uint8)


class Reduced:
  """Is pickled as a call."""

  def __init__(self, reduced: tuple):
    """Takes what ``__reduce__`` returns."""
    self.reduced = reduced

  def __reduce__(self) -> tuple:
    return self.reduced


def _array(shape: Any, content: Any, dtype: Any) -> Reduced:
  make, arguments, _ = np.zeros(1).__reduce__()
  return Reduced((make, arguments, (1, shape, dtype, False, content)))


def _floods() -> list[bytes]:
  # A tuple of two of a tuple of two of ..., whose hash takes 2**60 steps.
  nested = b")q\x01" + b"".join(b"h%bh%b\x86q%b" % (bytes([i]), bytes([i]), bytes([i + 1])) for i in range(1, 60))
  return [b"\x80\x02}U\x01a(" + b"]" * 10**7 + b"ls.", b"(" * 10**7, b"\x80\x02})" + b"\x85" * 10**6 + b"K\x01s.",
          b"\x80\x02}(" + nested + b"K\x01u.", b"\x80\x04}" + b"\x94" * 10**7 + b".",
          b"\x80\x02}r\xff\xff\xff\xff.", b"\x80\x02}U\x01aL" + b"9" * 10**6 + b"L\ns.",
          b"\x80\x02c" + NAME + b"\ntouch\n(tR.", b"\x80\x02(i" + NAME + b"\ntouch\n.",
          b"\x80\x04\x8c" + bytes([len(NAME)]) + NAME + b"\x8c\x05touch\x93)R.", b"\x80\x02cos\nsystem\n(U\x04truetR."]


def _pickled(draw: random.Random, floods: list[bytes]) -> bytes:
  """Returns a pickle of a batch that is not as it should be."""
  if draw.random() < 0.3:
    return draw.choice(floods)
  fields: dict[Any, Any] = {b"data": ZERO, b"labels": [0, 1]}
  shape = draw.choice((*mutations.SHAPES, (2, 3072)))
  dtype = draw.choice((*mutations.DTYPES, "|u1", "|u1"))
  try:
    dtype = np.dtype(dtype)
  except (TypeError, ValueError):
    dtype = np.dtype("O")
  fields[draw.choice((b"data", b"labels", b"other", 3, None, (1,)))] = draw.choice((
    _array(shape, ZERO.tobytes(), dtype), _array((2, 3072), ZERO.tobytes(), dtype), *mutations.VALUES[:24],
    [0, True], [0, 1.0], [0, 2**40], [[0], 1], np.arange(2), ZERO.T, ZERO.astype(np.int8)))
  return pickle.dumps(fields, draw.choice((0, 1, 2, 4)))


def _prepare(folder: pathlib.Path) -> dict:
  cifar = archive_files.cifar10_members(archive_files.cifar_arrays(per_batch=4))
  file = io.BytesIO()
  with tarfile.open(fileobj=file, mode="w:gz", compresslevel=9) as archive:  # A member of 400 MB in half a megabyte.
    info = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
    info.size = mutations.FLOOD
    archive.addfile(info, _Zeros())
  return {"cifar10": cifar, "flood": file.getvalue(), "floods": _floods(),
          "tiny_imagenet": archive_files.tiny_imagenet_members(side=8)}


class _Zeros(io.RawIOBase):
  def read(self, size: int = -1) -> bytes:
    return bytes(size)


def _cifar(draw: random.Random, sound: dict, folder: pathlib.Path) -> str:
  path, members = folder / "cifar-10-python.tar.gz", dict(sound["cifar10"])
  way, name = draw.random(), draw.choice([name for name in sound["cifar10"] if name != "readme.html"])
  if way < 0.45:
    members[name] = mutations.changed(members[name], draw)
  elif way < 0.7:
    members[name] = _pickled(draw, sound["floods"])
  elif way < 0.75:
    del members[name]
  archive_files.tar(path, members)
  if way > 0.97:
    path.write_bytes(sound["flood"])
  elif way > 0.75:
    path.write_bytes(mutations.changed(path.read_bytes(), draw))
  mutations.in_place_of(draw, path)
  return str(path)


def _tiny_imagenet(draw: random.Random, sound: dict, folder: pathlib.Path) -> str:
  path, members = folder / "tiny-imagenet-200.zip", dict(sound["tiny_imagenet"])
  way, name = draw.random(), draw.choice(list(members))
  if way < 0.5:
    members[name] = mutations.changed(members[name], draw)
  elif way < 0.6:
    del members[name]
  elif way < 0.7:
    members[draw.choice(("wnids.txt", "val/val_annotations.txt"))] = draw.choice((
      b"", b"n9\n", b"n9\nn9\n", b"\xff\xfe\n", b"x" * 10**5, b"val_0.JPEG\n", b"val_0.JPEG\tn9\n../../wnids.txt\tn8\n",
      b"val_0.JPEG\tn1\n", bytes(2**24 + 1)))
  archive_files.zipped(path, members)
  if way > 0.7:
    path.write_bytes(mutations.changed(path.read_bytes(), draw))
  mutations.in_place_of(draw, path)
  return str(path)


def _read(path: str) -> Pool:
  return archives.read("tiny_imagenet" if path.endswith(".zip") else "cifar10", path)


def _silent_cifar(sound: dict, path: str, pool: Pool, said: str) -> str:
  """Compares with what ``pickle`` reads; what names other code than NumPy's was not accepted."""
  with tarfile.open(path) as archive:
    read = {pathlib.PurePosixPath(member.name).name: pickle.loads(archive.extractfile(member).read(), encoding="bytes")
            for member in archive if member.isreg() and not member.name.endswith("html")}
  batches = [{key.decode() if isinstance(key, bytes) else key: value for key, value in read[name].items()}
             for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")]
  images = np.concatenate([x["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) for x in batches])
  labels = np.concatenate([x["labels"] for x in batches])
  same = (np.array_equal(np.concatenate([pool.train.images, pool.test.images]), images)
          and np.array_equal(np.concatenate([pool.train.labels, pool.test.labels]), labels))
  return "" if same else "the examples are not those that pickle reads"


KINDS = {"archives of CIFAR": Kind(_prepare, _cifar, _read, _silent_cifar, cases=2000),
         "archives of Tiny ImageNet": Kind(_prepare, _tiny_imagenet, _read, cases=2000)}
