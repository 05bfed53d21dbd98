"""Keeps two runs from writing in the same directory at the same time.

A run holds a file ``lock`` in its directory, which says which process of which machine holds it and since when. The
operating system's lock on this file (``flock``) ends with the process, however it ends, so that a file left by a killed
run does not stop the next one.
"""

from collections.abc import Iterator
import contextlib
import datetime
import json
import os
import pathlib
import platform
import stat
import sys
import time
from typing import NamedTuple

from calib_jax._system.errors import UserError, cut, printable
from calib_jax._system.files import read_json

try:
  import fcntl
except ImportError:  # Some systems have no module fcntl.
  fcntl = None

NAME = "lock"
SETTLED = 1.0  # Seconds after which a file system without locks shows every process what another one wrote.
_held: set[int] = set()  # Descriptors of the locks of this process.


def _close_in_child() -> None:
  """Closes inherited descriptors, because a child that outlives this process would keep its lock."""
  for descriptor in _held:
    os.close(descriptor)
  _held.clear()


if hasattr(os, "register_at_fork"):
  os.register_at_fork(after_in_child=_close_in_child)


class Holder(NamedTuple):
  """The process that holds a directory.

  Attributes:
    host: the name of its machine.
    boot: an identifier of the machine's present uptime, "" where the system has none.
    process: its process id.
    started: when the system started it, in the system's own unit, "" where the system does not say.
    since: the time at which it took the lock.
  """

  host: str
  boot: str
  process: int
  started: str
  since: str

  def __str__(self) -> str:
    """Returns the words that name it in messages."""
    return f"process {self.process} on {cut(printable(self.host))} since {cut(printable(self.since))}"


def this_process() -> Holder:
  """Returns the present process as a holder."""
  boot = ""
  with contextlib.suppress(OSError):
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
  now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
  return Holder(platform.node(), boot, os.getpid(), _start_time(os.getpid()), now)


@contextlib.contextmanager
def held(folder: pathlib.Path) -> Iterator[None]:
  """Holds ``folder`` for this process in a ``with`` block.

  Args:
    folder: an existing directory.

  Raises:
    UserError: if another process holds it, or if a process of another machine left a lock, about which this machine
      cannot say whether it still runs; the message names the holder.
    UserError: if the lock cannot be written.
  """
  path = folder / NAME
  descriptor = _acquired(path)
  _held.add(descriptor)
  try:
    yield
  finally:
    path.unlink(missing_ok=True)
    _held.discard(descriptor)
    os.close(descriptor)


def _acquired(path: pathlib.Path) -> int:
  """Returns the descriptor of the locked file, in which this process is named."""
  while True:
    try:
      descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    except OSError as error:
      raise UserError(f"--workdir: {path} cannot be written ({error.strerror}).") from error
    try:
      if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise UserError(f"--workdir: {path} is a pipe or a device, not a file: move it away.")
      locked = _flock(descriptor)
      if locked is not False and not _is_still(path, descriptor):
        continue  # The last holder deleted the file after it was opened here.
      holder = _read(path, wait=locked is False)
      if locked is False:
        if not path.exists():
          continue  # The holder has just ended.
        raise UserError(_in_use(path, holder))
      if holder:
        _check_left(path, holder, locked)
        print(f"{printable(path.parent)}: taking over from {holder}, which ended without releasing it.", flush=True)
      _write(path, descriptor, locked)
      taken, descriptor = descriptor, -1
      return taken
    finally:
      if descriptor >= 0:
        os.close(descriptor)


def _flock(descriptor: int) -> bool | None:
  """Locks a file; returns False if another process has locked it, None if the file system has no locks."""
  if fcntl is None:
    return None
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True
  except BlockingIOError:
    return False
  except OSError:
    return None


def _is_still(path: pathlib.Path, descriptor: int) -> bool:
  """Returns whether ``path`` is the file that was opened as ``descriptor``."""
  try:
    return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
  except FileNotFoundError:
    return False


def _read(path: pathlib.Path, wait: bool) -> Holder | None:
  """Returns the holder that the file names, or None; ``wait`` gives a new holder a second to write its name."""
  for _ in range(20 if wait else 1):
    try:
      fields = read_json(path)
      return Holder(**{name: kind(fields[name]) for name, kind in Holder.__annotations__.items()})
    except (UserError, ValueError, KeyError, TypeError, OverflowError):
      if not path.exists():
        return None
      time.sleep(0.05 if wait else 0)
  return None


def _write(path: pathlib.Path, descriptor: int, locked: bool | None) -> None:
  """Writes this process into the file. Without locks it then checks that no other process did at the same time."""
  text = json.dumps(this_process()._asdict()) + "\n"
  os.ftruncate(descriptor, 0)
  os.pwrite(descriptor, text.encode(), 0)
  if locked is None:
    print(f"warning: the file system of {printable(path.parent)} has no locks, so two runs that start there within "
          "the same second may not notice each other.", file=sys.stderr, flush=True)
    time.sleep(SETTLED)
    if path.read_text(encoding="utf-8") != text:
      raise UserError(_in_use(path, _read(path, wait=True)))


def _check_left(path: pathlib.Path, holder: Holder, locked: bool | None) -> None:
  """Raises a UserError if the holder that an unlocked file names may still run."""
  here = this_process()
  if holder.host != here.host:
    raise UserError(f"--workdir: {path.parent} was left locked by {holder}, and this machine ({here.host}) cannot say "
                    f"whether that process still runs: if it has ended, delete {path} and run the same command again.")
  # A lock that was granted shows that the holder has ended. Without locks its process id and start time do.
  if locked is None and holder.boot == here.boot and _start_time(holder.process) == holder.started and (
      _exists(holder.process)):
    raise UserError(_in_use(path, holder))


def _in_use(path: pathlib.Path, holder: Holder | None) -> str:
  """Returns the message for the second of two runs."""
  return (f"--workdir: {path.parent} is in use by {holder or 'another process, which does not say its name'}: wait "
          "until it ends, or give another --workdir.")


def _exists(process: int) -> bool:
  try:
    os.kill(process, 0)
  except ProcessLookupError:
    return False
  except OSError:
    pass  # It belongs to another user.
  return True


def _start_time(process: int) -> str:
  """Returns when the system started a process; "" if it has ended or the system does not say."""
  with contextlib.suppress(OSError, IndexError):
    # The name of the program, in parentheses, may hold spaces; the start time is the 20th field after it.
    return pathlib.Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
  return ""
