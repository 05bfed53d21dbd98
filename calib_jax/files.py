"""Reads ``.npz`` files without pickle, and writes files that appear only once they are complete."""

from collections.abc import Callable
import math
import os
import pathlib
import stat
import struct
import tokenize
from typing import BinaryIO
import zipfile
import zlib

import numpy as np

from calib_jax.capacity import memory, size
from calib_jax.errors import UserError

# What zipfile and numpy raise for damaged archives and headers.
_DAMAGED = (ValueError, TypeError, KeyError, IndexError, AttributeError, SyntaxError, OverflowError, MemoryError,
            RecursionError, EOFError, OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error,
            struct.error, tokenize.TokenError)


def read_npz(path: str | os.PathLike, names: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
  """Reads the arrays of an ``.npz`` file, without pickle and without trusting the sizes that it claims.

  Args:
    path: of the file.
    names: the arrays to read, if the file holds them; None for all.
  Returns: the arrays by name.
  Raises: UserError if the file is missing, is not a regular file, is damaged, holds Python objects, or claims more than
    it holds or than fits in memory.
  """
  try:
    mode = os.stat(path).st_mode
  except (OSError, ValueError) as error:
    if isinstance(error, FileNotFoundError):
      raise UserError(f"there is no file {str(path)!r}.") from error
    raise UserError(f"{path} cannot be read ({getattr(error, 'strerror', error)}).") from error
  if not stat.S_ISREG(mode):
    kind = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device"
    raise UserError(f"{path} is {kind}, not an .npz file.")
  try:
    with open(path, "rb") as file:
      if file.read(2) == b"\x80\x04":
        raise UserError(f"{path} is a pickle, which is not read because it could run code: save arrays by numpy.savez.")
      with zipfile.ZipFile(file) as archive:
        found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        return {name: _array(archive, info, f"{path}: {name}") for name, info in found.items()
                if names is None or name in names}
  except UserError:
    raise
  except _DAMAGED as error:
    reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
    raise UserError(f"{path} cannot be read as an .npz of plain arrays ({reason}).") from error


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, place: str) -> np.ndarray:
  """Reads one array; its header must claim what the archive holds."""
  with archive.open(info) as member:
    version = np.lib.format.read_magic(member)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
      raise UserError(f"{place} has version {version} of numpy's format, which is for named fields: save plain arrays.")
    shape, _, dtype = readers[version](member)
    if dtype.hasobject:
      raise UserError(f"{place} holds Python objects, which are not read because they could run code: "
                      "save arrays of numbers.")
    claimed, held = math.prod(shape) * dtype.itemsize, info.file_size - member.tell()
    if claimed != held:
      raise UserError(f"{place} is damaged: its header claims {size(claimed)}, and the file holds {size(held)}.")
    if claimed > memory():
      raise UserError(f"{place} takes {size(claimed)}, and this machine has {size(memory())} of memory.")
  with archive.open(info) as member:
    return np.lib.format.read_array(member, allow_pickle=False)


def write_npz(path: pathlib.Path, **arrays: np.ndarray) -> None:
  """Writes ``arrays`` as an ``.npz``."""
  _write(path, lambda file: np.savez(file, **arrays))


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes ``text`` as UTF-8."""
  _write(path, lambda file: file.write(text.encode("utf-8")))


def _write(path: pathlib.Path, content: Callable[[BinaryIO], object]) -> None:
  partial = path.with_suffix(path.suffix + ".tmp")
  with partial.open("wb") as file:
    content(file)
    file.flush()
    os.fsync(file.fileno())  # Otherwise a power cut may leave an empty file under the final name.
  partial.replace(path)
