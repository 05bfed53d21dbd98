"""Reads ``.npz`` and ``.npy`` files without pickle, and writes files that appear only once they are complete."""

from collections.abc import Callable, Collection, Iterator
import contextlib
import hashlib
import math
import mmap
import os
import pathlib
import stat
import struct
import tokenize
from typing import BinaryIO
import warnings
import zipfile
import zlib

import numpy as np

from calib_jax.capacity import memory, size
from calib_jax.errors import UserError, printable

MAPPED = 2**24  # Arrays of at least so many bytes are mapped into memory, if they are not compressed.
# What zipfile and numpy raise for damaged archives and headers.
_DAMAGED = (ValueError, TypeError, KeyError, IndexError, AttributeError, SyntaxError, OverflowError, MemoryError,
            RecursionError, EOFError, OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error,
            struct.error, tokenize.TokenError)


def read_npz(path: str | os.PathLike, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
  """Reads the arrays of an ``.npz`` file, without pickle and without trusting the sizes that it claims.

  Large arrays that are not compressed are mapped into memory, read-only, as ``read_npy`` does.

  Args:
    path: the path of the file.
    names: the arrays to read, if the file holds them; None for all.
  Returns: the arrays by name.
  Raises: UserError if the file is missing, is not a regular file, is damaged, holds Python objects, or claims more than
    it holds or than fits in memory.
  """
  with _opened(path, ".npz of plain arrays") as file, zipfile.ZipFile(file) as archive:
    found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    return {name: _member(archive, info, f"{path}: {name}", path) for name, info in found.items()
            if names is None or name in names}


def names_in_npz(path: str | os.PathLike) -> list[str]:
  """Returns the names of the arrays of an ``.npz`` file.

  Args:
    path: the path of the file.
  Returns: the names.
  Raises: UserError if the file is missing, is not a regular file or is damaged.
  """
  with _opened(path, ".npz of plain arrays") as file, zipfile.ZipFile(file) as archive:
    return [name.removesuffix(".npy") for name in archive.namelist()]


def read_npy(path: str | os.PathLike) -> np.ndarray:
  """Maps the array of an ``.npy`` file into memory, without pickle and without trusting the size that it claims.

  Args:
    path: the path of the file.
  Returns: the array, read-only; its numbers are read from the disk when they are used.
  Raises: UserError if the file is missing, is not a regular file, is damaged, holds Python objects, or claims more than
    it holds.
  """
  with _opened(path, ".npy of numbers") as file:
    _check_header(file, os.path.getsize(path), str(path))
    return np.load(path, mmap_mode="r", allow_pickle=False)


def release(array: np.ndarray) -> None:
  """Gives back the memory of a mapped file. What was read of it is read from the disk again if it is needed again."""
  while isinstance(array, np.ndarray):
    array = array.base
  if isinstance(array, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
    array.madvise(mmap.MADV_DONTNEED)


def check_regular(path: str | os.PathLike) -> None:
  """Raises a UserError unless ``path`` is a regular file: reading a pipe would wait for a writer."""
  try:
    mode = os.stat(path).st_mode
  except (OSError, ValueError) as error:
    if isinstance(error, FileNotFoundError):
      raise UserError(f"there is no file {str(path)!r}.") from error
    raise UserError(f"{path} cannot be read ({getattr(error, 'strerror', error)}).") from error
  if not stat.S_ISREG(mode):
    raise UserError(f"{path} is {'a directory' if stat.S_ISDIR(mode) else 'a pipe or a device'}, not a file of arrays.")


@contextlib.contextmanager
def _opened(path: str | os.PathLike, kind: str) -> Iterator[BinaryIO]:
  """Opens a regular file; an error of what reads it becomes a UserError."""
  check_regular(path)
  try:
    with open(path, "rb") as file, warnings.catch_warnings(action="ignore"):  # numpy warns of unusual headers.
      if file.read(2) in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        raise UserError(f"{path} is a pickle, which is not read because it could run code. {conversion(path)}")
      file.seek(0)
      yield file
  except UserError:
    raise
  except _DAMAGED as error:
    reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
    raise UserError(f"{path} cannot be read as an {kind} ({reason}).") from error


def conversion(path: str | os.PathLike, module: str = "pickle, pathlib",
               load: str = "pickle.loads(pathlib.Path({!r}).read_bytes())") -> str:
  """Returns a sentence with the line of Python that converts a file of pickled arrays, if its owner trusts it."""
  target = str(pathlib.Path(path).with_suffix(".npz"))
  return (f"If you made it yourself, convert it: import numpy, {module}; d = {load.format(str(path))}; "
          f"numpy.savez({target!r}, logits=d['logits'], labels=d['labels'])")


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, place: str, path: str | os.PathLike) -> np.ndarray:
  """Reads one array, or maps it into memory if it is large; its header must claim what the archive holds."""
  with archive.open(info) as member:
    claimed, shape, in_columns, dtype = _check_header(member, info.file_size, place)
    if info.compress_type == zipfile.ZIP_STORED and claimed >= MAPPED:
      offset = member.tell()
      while member.read(2**20):  # Compares the checksum at the end.
        pass
      archive.fp.seek(info.header_offset)
      name_size, extra_size = struct.unpack("<26x2H", archive.fp.read(30))
      return np.memmap(path, dtype, "r", info.header_offset + 30 + name_size + extra_size + offset, shape,
                       "F" if in_columns else "C")
    if claimed > memory():
      raise UserError(f"{place} takes {size(claimed)}, and this machine has {size(memory())} of memory.")
  with archive.open(info) as member:
    return np.lib.format.read_array(member, allow_pickle=False)


def _check_header(file: BinaryIO, file_size: int, place: str) -> tuple[int, tuple[int, ...], bool, np.dtype]:
  """Returns the size in bytes of an array, its shape, whether its columns are contiguous, and its dtype.

  Raises: UserError if the header does not describe plain numbers of the size held.
  """
  version = np.lib.format.read_magic(file)
  readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
  if version not in readers:
    raise UserError(f"{place} has version {version} of numpy's format, which is for named fields: save plain arrays.")
  shape, in_columns, dtype = readers[version](file)
  if dtype.hasobject:
    raise UserError(f"{place} holds Python objects, which are not read because they could run code: "
                    "save arrays of numbers.")
  claimed, held = math.prod(shape) * dtype.itemsize, file_size - file.tell()
  if claimed != held:
    raise UserError(f"{place} is damaged: its header claims {size(claimed)}, and the file holds {size(held)}.")
  return claimed, shape, in_columns, dtype


def write(path: pathlib.Path, fill: Callable[[BinaryIO], object]) -> None:
  """Writes a file by a function that fills it. The file appears only once it is complete."""
  partial = path.with_suffix(path.suffix + ".tmp")
  with partial.open("wb") as file:
    fill(file)
    file.flush()
    os.fsync(file.fileno())  # Otherwise a power cut may leave an empty file under the final name.
  partial.replace(path)


def write_npz(path: pathlib.Path, **arrays: np.ndarray) -> None:
  """Writes ``arrays`` as an ``.npz``."""
  write(path, lambda file: np.savez(file, **arrays))


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes ``text`` as UTF-8; a lone surrogate, which UTF-8 does not have, as its escape."""
  write(path, lambda file: file.write(text.encode("utf-8", "backslashreplace")))


def stem(label: str) -> str:
  """Returns a name for the file of what a user labelled, which any file system holds."""
  name = printable(label).replace("/", "_")
  return name if len(name.encode()) <= 200 else f"{name[:40]}_{hashlib.sha256(name.encode()).hexdigest()[:9]}"
