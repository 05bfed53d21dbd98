"""Reads ``.npz``, ``.npy`` and small JSON files, and writes files that appear only once they are complete.

What is read may come from anyone: nothing is run or waited for, and sizes are checked before anything is made.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
import contextlib
import difflib
import hashlib
import math
import mmap
import os
import pathlib
import re
import stat
import struct
import sys
import tokenize
from typing import BinaryIO, NamedTuple
import warnings
import zipfile
import zlib

import numpy as np

from calib_jax._system import capacity
from calib_jax._system.errors import FileError, UserError, about, printable, short
from calib_jax._system.json_objects import parse_json

MAPPED = 2**24  # Arrays of at least so many bytes are mapped into memory, if they are not compressed.
SMALL = 2**26  # Bytes of the largest text that is read whole.
EMPTY = 2**20  # Rows or elements of an array that holds no bytes, whose number the size of the file does not limit.
# What zipfile and numpy raise for damaged archives and headers; SystemError: Python 3.13 for a null byte in a header.
_DAMAGED = (ValueError, TypeError, KeyError, IndexError, AttributeError, SyntaxError, OverflowError, MemoryError,
            RecursionError, EOFError, OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error,
            struct.error, tokenize.TokenError, SystemError)


def read_npz(path: str | os.PathLike, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
  """Reads the arrays ``names`` of an ``.npz`` file, or all, without pickle and without trusting the sizes it claims.

  Large uncompressed arrays are mapped into memory, read-only. A file that is missing, irregular, damaged, has Python
  objects or a name twice, or claims more than it holds or ``capacity.check_read`` allows, is a UserError.
  """
  with opened_npz(path) as archive:
    return archive.read(archive.headers(archive.members if names is None else names))


@contextlib.contextmanager
def opened_npz(path: str | os.PathLike) -> Iterator["NpzFile"]:
  """Opens an ``.npz``, to look at what it claims before any of it is read; what is wrong with it is a UserError."""
  with _opened(path, ".npz of plain arrays") as file, zipfile.ZipFile(file) as archive:
    yield NpzFile(path, archive)


def read_npy(path: str | os.PathLike) -> np.ndarray:
  """Maps the array of an ``.npy`` file into memory, read-only; what ``read_npz`` refuses is a UserError, too."""
  with _opened(path, ".npy of numbers") as file:
    _checked_header(file, os.path.getsize(path))
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
      raise UserError(f"there is no file {str(path)!r}.{_near(pathlib.Path(path))}") from error
    raise UserError(f"{path} cannot be read ({getattr(error, 'strerror', error)}).") from error
  if not stat.S_ISREG(mode):
    raise UserError(f"{path} is {'a directory' if stat.S_ISDIR(mode) else 'a pipe or a device'}, not a file.")


def _near(path: pathlib.Path) -> str:
  """`` Did you mean …?`` with a file beside a path of no file, or nothing."""
  try:
    near = difflib.get_close_matches(path.name, [sibling.name for sibling in path.parent.iterdir()], n=1)
  except OSError:
    return ""
  return f" Did you mean {near[0]!r}?" if near else ""


def check_local(option: str, path: str | os.PathLike) -> None:
  """Raises a UserError for the address of a bucket or of a server, which would become a directory called ``gs:``."""
  if match := re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", os.fspath(path)):
    raise UserError(f"{option}={os.fspath(path)}: {match[1]}:// is an address, and files are written to a directory of "
                    "this machine or of a mounted file system: name one, and copy it afterwards, or mount the bucket, "
                    "by gcsfuse for example.")


def read_bytes(path: str | os.PathLike, most: float = SMALL) -> bytes:
  """Reads a regular file of at most so many bytes; a UserError if it cannot be read."""
  check_regular(path)
  try:
    with open(path, "rb") as file:
      content = file.read(int(most) + 1)
  except OSError as error:
    raise UserError(f"{path} cannot be read ({error.strerror}).") from error
  if len(content) > most:
    raise UserError(f"{path} has more than {capacity.size(most)}, the most that is read of such a file.")
  return content


def read_text(path: str | os.PathLike) -> str:
  """Reads a small regular file of UTF-8; a UserError if it cannot be read."""
  try:
    return read_bytes(path).decode("utf-8")
  except UnicodeDecodeError as error:
    raise UserError(f"{path} is damaged: it is not UTF-8 ({error.reason} at byte {error.start:,}).") from error


def read_json(path: str | os.PathLike) -> dict:
  """Reads a small JSON file that holds an object; see ``parse_json``."""
  return parse_json(read_text(path), str(path))


@contextlib.contextmanager
def _opened(path: str | os.PathLike, kind: str) -> Iterator[BinaryIO]:
  """Opens a regular file; an error of what reads it becomes a UserError."""
  check_regular(path)
  try:
    # numpy warns of unusual headers.
    with about(path), open(path, "rb") as file, warnings.catch_warnings(action="ignore"):
      if file.read(2) in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        raise FileError(f" is a pickle, which is not read because it could run code. {conversion(path)}")
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
  target = pathlib.Path(path).with_suffix(".npz")
  while os.path.lexists(target):  # The line must not replace a file, least of all the pickle itself.
    target = target.with_stem(f"{target.stem}_converted")
  return (f"If you made it yourself, convert it: import numpy, {module}; d = {load.format(str(path))}; "
          f"numpy.savez({str(target)!r}, logits=d['logits'], labels=d['labels'])")


class _Header(NamedTuple):
  """What the header of an array says, which is what the file holds, and the array's entry in its archive."""

  claimed: int  # Bytes.
  shape: tuple[int, ...]
  in_columns: bool
  dtype: np.dtype
  end: int  # Where the header ends.
  info: zipfile.ZipInfo | None = None

  @property
  def is_mapped(self) -> bool:
    return self.info.compress_type == zipfile.ZIP_STORED and self.claimed >= MAPPED


class NpzFile:
  """An ``.npz`` that is open; ``members`` are its entries by the names of their arrays."""

  def __init__(self, path: str | os.PathLike, archive: zipfile.ZipFile):
    self._path, self._archive = path, archive
    self.members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
      name = info.filename.removesuffix(".npy")
      if name in self.members:
        raise FileError(f" holds two arrays called {short(name)}: save it again with one of them.")
      self.members[name] = info

  def headers(self, names: Collection[str]) -> dict[str, _Header]:
    """Returns the headers of the arrays of ``names`` that the archive holds."""
    headers = {}
    for name, info in self.members.items():
      if name in names:
        with self._archive.open(info) as member:
          headers[name] = _checked_header(member, info.file_size, f": {name}")._replace(info=info)
    return headers

  def read(self, headers: Mapping[str, _Header]) -> dict[str, np.ndarray]:
    """Returns the arrays of these headers."""
    capacity.check_read(f": {', '.join(headers)[:200]}",
                        sum(header.claimed for header in headers.values() if not header.is_mapped))
    return {name: self._array(name, header) for name, header in headers.items()}

  def _array(self, name: str, header: _Header) -> np.ndarray:
    """Reads one array, or maps it into memory if it is large."""
    info = header.info
    with self._archive.open(info) as member:
      if not header.is_mapped:
        array = np.lib.format.read_array(member, allow_pickle=False)
        if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
          codes = np.frombuffer(array.tobytes(), np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
          if codes.max() > sys.maxunicode:  # Python cannot make a string of these.
            raise FileError(f": {name} is damaged: it holds texts with numbers that are no characters.")
        return array
      while member.read(2**20):  # Compares the checksum at the end.
        pass
    file = self._archive.fp
    file.seek(info.header_offset)
    name_size, extra_size = struct.unpack("<26x2H", file.read(30))
    start = info.header_offset + 30 + name_size + extra_size + header.end
    return np.memmap(self._path, header.dtype, "r", start, header.shape, "F" if header.in_columns else "C")


def _checked_header(file: BinaryIO, file_size: int, place: str = "") -> _Header:
  """Returns the header of an array, plain numbers or texts as long as it says; else a FileError about ``place``."""
  version = np.lib.format.read_magic(file)
  readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
  if version not in readers:
    raise FileError(f"{place} has version {version} of numpy's format, which is for named fields: save plain arrays.")
  shape, in_columns, dtype = readers[version](file)
  if dtype.hasobject:
    raise FileError(f"{place} holds Python objects, which are not read because they could run code: "
                    "save arrays of numbers, or of texts by .astype(str).")
  claimed, available = math.prod(shape) * dtype.itemsize, file_size - file.tell()
  if claimed != available:
    raise FileError(f"{place} is damaged: its header claims {capacity.size(claimed)}, and the file holds "
                    f"{capacity.size(available)}.")
  if claimed == 0 and math.prod(filter(None, shape)) > EMPTY:
    raise FileError(f"{place} has the shape {short(shape)} and holds no bytes: save it without empty texts and axes.")
  return _Header(claimed, shape, in_columns, dtype, file.tell())


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
