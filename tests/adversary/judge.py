"""Lets the project read one mutated case, and says what became of it."""

from collections.abc import Callable, Iterator
import contextlib
import io
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from typing import Any, NamedTuple
import warnings

from calib_jax._system.errors import UserError

LONGEST = 3000  # Characters of a message.
SLOWEST = 20  # Seconds that a case may take.
MACHINE = 128 * 2**20  # Bytes of memory that the project is told the machine has, so that its limit is reached soon.
LARGEST = 256  # MB by which a case may raise the memory of the process.
ALLOWANCE = 8 * 2**30  # Bytes of address space that a worker may add, so that a flood ends in the worker.
CANARY = "adversary_canary"  # A module on the path whose import is an execution.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# Events of ``sys.audit`` that only code of an attacker raises while a case is read.
EXECUTES = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty",
            "pty.spawn", "pickle.find_class", "socket.connect", "socket.bind", "socket.getaddrinfo", "webbrowser.open",
            "code.__new__", "os.kill", "os.putenv")
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.symlink", "os.link",
           "os.truncate", "shutil.rmtree", "shutil.move")
FAULTS = ("executed", "silent", "traceback", "hang", "too large")


class Kind(NamedTuple):
  """A kind of attack.

  Attributes:
    prepare: makes what its cases share in a folder, such as a sound file, and returns it.
    mutate: ``mutate(draw, sound, folder)`` writes a case in an empty folder, and returns what ``read`` takes.
    read: lets the project read the case.
    silent: ``silent(sound, case, value, said)`` returns what is wrong with an accepted case, or "".
    refusals: the exceptions by which a case is refused.
    cases: how many cases there are, by default.
  """

  prepare: Callable[[pathlib.Path], Any]
  mutate: Callable[[random.Random, Any, pathlib.Path], Any]
  read: Callable[[Any], Any]
  silent: Callable[[Any, Any, Any, str], str] = lambda *_: ""
  refusals: tuple[type[Exception], ...] = (UserError,)
  cases: int = 5000


class Outcome(NamedTuple):
  """What became of a case: whether it was accepted, the fault if there was one (of ``FAULTS``), and its seconds."""

  number: int
  accepted: bool
  fault: str = ""
  detail: str = ""
  seconds: float = 0.0


class Hang(BaseException):
  """A case took too long."""


def judged(name: str, kind: Kind, sound: Any, number: int, seed: int, scratch: pathlib.Path) -> Outcome:
  """Makes case ``number`` and lets the project read it.

  Args:
    name: the name of the kind.
    kind: the kind.
    sound: what ``kind.prepare`` returned.
    number: the number of the case.
    seed: the seed of all cases.
    scratch: a folder for the case, which is emptied.
  Returns: what became of the case.
  """
  shutil.rmtree(scratch, ignore_errors=True)
  scratch.mkdir(parents=True)
  with warnings.catch_warnings(action="ignore"):
    case = kind.mutate(random.Random(f"{seed} {name} {number}"), sound, scratch)
  before, value, error, accepted = _memory(reset=True), None, None, False
  began = time.monotonic()
  with _watched(scratch) as acts, _captured() as said, _limited():
    try:
      value = kind.read(case)
      accepted = True
    except kind.refusals as refusal:
      error = refusal
    except BaseException as other:  # Whatever reaches the user is a traceback.
      error = other
  seconds = time.monotonic() - began
  grown = (_memory() - before) / 2**20

  def outcome(fault="", detail=""):
    return Outcome(number, accepted, fault, detail, seconds)

  if acts:
    return outcome("executed", f"{acts[0]}; then {error!r}"[:300])
  if isinstance(error, Hang) or seconds > SLOWEST:
    return outcome("hang", f"{seconds:.0f} s")
  if grown > LARGEST or re.search("Unable to allocate|MemoryError|bad_alloc|malloc of size", repr(error)):
    return outcome("too large", f"{grown:.0f} MB; {error!r}"[:300])
  if error is not None and not isinstance(error, kind.refusals):
    last = traceback.extract_tb(error.__traceback__)[-1]
    return outcome("traceback", f"{error!r}"[:300] + f" at {last.filename}:{last.lineno}")
  if fault := message_fault(str(error) if error is not None else ""):
    return outcome("traceback", fault)
  if "Traceback" in said():
    return outcome("traceback", f"it prints {said()[-200:]!r}")
  if accepted:
    try:
      with warnings.catch_warnings(action="ignore"):
        fault = kind.silent(sound, case, value, said())
    except Exception as failure:  # What the project reads, the reference must be able to read too.
      last = traceback.extract_tb(failure.__traceback__)[-1]
      fault = f"the reference cannot read it ({failure!r:.200} at {pathlib.Path(last.filename).name}:{last.lineno})"
    if fault:
      return outcome("silent", fault)
  return outcome()


def message_fault(message: str) -> str:
  """Returns what is wrong with the message of a refusal, or ""."""
  if len(message) > LONGEST:
    return f"a message of {len(message)} characters: {message[:100]}"
  if "\n" in message or CONTROL.search(message) or "Traceback" in message:
    return f"a message that is not one printable line: {message[:200]!r}"
  return "a refusal that names Python's option allow_pickle" if "allow_pickle" in message else ""


_state: dict[str, Any] = {"acts": None, "folder": ""}


def _audit(event: str, arguments: tuple) -> None:
  """Notes what a case must not do while it is read."""
  acts = _state["acts"]
  if acts is None:
    return
  if event in EXECUTES:
    acts.append(f"{event}{arguments!r}"[:200])
  elif event == "import":
    if arguments[0].split(".")[0] == CANARY:
      acts.append(f"import {arguments[0]}")
  elif event == "open":
    path, mode, flags = arguments
    writes = any(c in mode for c in "wax+") if mode else flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    if writes and _outside(path):
      acts.append(f"open {path!r} to write"[:200])
  elif event in CHANGES and _outside(arguments[0]):
    acts.append(f"{event}{arguments!r}"[:200])


def _outside(path: Any) -> bool:
  if not isinstance(path, str | bytes | os.PathLike):
    return False  # A descriptor that is open already.
  path = os.path.abspath(os.fsdecode(path))
  return path != os.devnull and not path.startswith(_state["folder"])


def watch() -> None:
  """Makes this process a worker, for as long as it lives: it notes what cases execute, and takes its machine for small.

  Without this ``judged`` notes nothing that is executed.
  """
  sys.addaudithook(_audit)
  sys.dont_write_bytecode = True
  sysconf = os.sysconf
  os.sysconf = lambda name: MACHINE // resource.getpagesize() if name == "SC_PHYS_PAGES" else sysconf(name)


@contextlib.contextmanager
def _watched(folder: pathlib.Path) -> Iterator[list[str]]:
  acts: list[str] = []
  _state.update(acts=acts, folder=os.path.abspath(folder))
  try:
    yield acts
  finally:
    _state["acts"] = None


@contextlib.contextmanager
def _captured() -> Iterator[Callable[[], str]]:
  """Takes what is printed and warned; yields a function that returns it."""
  out = io.StringIO()
  with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
    warnings.simplefilter("always")
    yield lambda: out.getvalue() + "".join(str(warning.message) for warning in caught)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
  """Ends what takes too long, where Python can, and what takes too much address space."""
  def ring(*_):
    raise Hang

  before = signal.signal(signal.SIGALRM, ring)
  signal.setitimer(signal.ITIMER_REAL, SLOWEST)
  soft, hard = resource.getrlimit(resource.RLIMIT_AS)
  used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
  resource.setrlimit(resource.RLIMIT_AS, (used + ALLOWANCE, hard))
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _memory(*, reset: bool = False) -> int:
  """Returns the bytes of memory that the process holds if ``reset``, and else the most since the last reset."""
  if reset:
    with contextlib.suppress(OSError):  # Some containers do not allow it; the peak of the process then counts.
      pathlib.Path("/proc/self/clear_refs").write_text("5")
  text = pathlib.Path("/proc/self/status").read_text()
  return int(re.search(rf"{'VmRSS' if reset else 'VmHWM'}:\s+(\d+)", text)[1]) * 1024
