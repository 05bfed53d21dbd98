"""Keeps two runs from writing in the same directory at the same time.

A run holds the operating system's lock (``flock``) on the file ``lock`` in its directory, which names its process. The
lock ends with the process, however it ends, so that the file alone, left by a killed run or copied, stops nobody.
"""

from collections.abc import Iterator
import contextlib
import datetime
import os
import pathlib
import platform

from calib_jax._system.errors import UserError, cut, printable
from calib_jax._system.files import check_regular
from calib_jax.training.run import manifest

try:
  import fcntl
except ImportError:  # Some systems have no module fcntl.
  fcntl = None

NAME = "lock"


@contextlib.contextmanager
def hold(folder: pathlib.Path) -> Iterator[None]:
  """Holds a directory in a ``with`` block; a UserError names another holder, a warning a file system without locks."""
  path = folder / NAME
  if os.path.lexists(path):
    check_regular(path)
  try:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
  except OSError as error:
    raise UserError(f"--workdir: {path} cannot be written ({error.strerror}).") from error
  try:
    _lock(path, descriptor)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()} since {now}\n".encode(errors="replace"), 0)
    yield  # The file stays afterwards, because another process may have opened it already.
  finally:
    os.close(descriptor)


def _lock(path: pathlib.Path, descriptor: int) -> None:
  """Locks an open file, or raises a UserError that names its holder, which writes its name once it has the lock."""
  try:
    if fcntl is None:
      raise OSError("no flock on this system")
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as error:
    holder = cut(printable(os.pread(descriptor, 1000, 0).decode(errors="replace").strip()), 300)
    raise UserError(f"--workdir: {path.parent} is in use by {holder or 'another process'}: wait until it ends, or give "
                    "another --workdir.") from error
  except OSError:
    manifest.warn(f"the file system of {path.parent} has no locks, so a second run that starts there is not noticed: "
                  "give each run a --workdir of its own.")
