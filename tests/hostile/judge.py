"""Lets the project read hostile input, and fails if it runs code, hangs, floods the memory or prints a traceback."""

from collections.abc import Callable, Collection, Iterator
import contextlib
import io
import os
import pathlib
import re
import resource
import signal
import sys
import tempfile
from typing import Any, NamedTuple
import warnings

import hypothesis
import pytest

from calib_jax._system.errors import UserError

LONGEST, SLOWEST, LARGEST = 3000, 20, 100  # Characters of a message; seconds and MB of memory that reading may take.
MACHINE = 128 * 2**20  # Bytes of memory that the project is told the machine has, so that its limit is reached soon.
CANARY = "adversary_canary"  # A module whose import is an execution.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# Events of ``sys.audit`` that only code of an attacker raises while a file is read, and those that change files.
EXECUTES = {"os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty",
            "os.kill", "pty.spawn", "socket.connect", "socket.bind", "socket.getaddrinfo", "webbrowser.open",
            "os.putenv"}
CHANGES = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.symlink", "os.link",
           "os.truncate", "shutil.rmtree", "shutil.move"}
_watching: dict[str, Any] = {"acts": None, "folder": ""}


class Answer(NamedTuple):
  """What reading gave: the value, and the sentence of a refusal, "" if there was none."""

  value: Any
  refusal: str


def attacked(strategy: hypothesis.strategies.SearchStrategy, examples: Collection) -> Callable:
  """Returns a decorator for tests of a folder and a case: they run on all examples and on the same draws each time."""
  def decorate(test):
    def run(case):
      with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        test(pathlib.Path(folder), case)

    run.__name__ = run.__qualname__ = test.__name__
    for example in examples:
      run = hypothesis.example(case=example)(run)
    return hypothesis.settings(derandomize=True, deadline=None, max_examples=10, suppress_health_check=list(
      hypothesis.HealthCheck))(hypothesis.given(case=strategy)(run))

  return decorate


def read(function: Callable, *arguments: Any, folder: pathlib.Path | str = "", refusals: Any = UserError) -> Answer:
  """Returns what ``function(*arguments)`` gives, which may write in ``folder`` alone.

  Raises:
    AssertionError: if it gives way.
  """
  value, message, out, before = None, "", io.StringIO(), _memory("VmRSS")
  with (_watched(folder) as acts, warnings.catch_warnings(record=True, action="always") as caught,
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(out)):
    try:
      value = function(*arguments)
    except refusals as error:
      message = str(error)
      assert message and len(message) <= LONGEST and "\n" not in message and not CONTROL.search(message), message
      assert not re.search("Traceback|allow_pickle|Unable to allocate|MemoryError|bad_alloc", message), message
  assert not acts, acts
  assert _memory("VmHWM") - before < LARGEST, "it takes too much memory"
  printed = out.getvalue() + "".join(str(warning.message) for warning in caught)
  assert "Traceback" not in printed, printed
  return Answer(value, message)


def _audit(event: str, arguments: tuple) -> None:
  if (acts := _watching["acts"]) is None:
    return
  changes = event in CHANGES
  if event == "open":
    _, mode, flags = arguments
    changes = any(c in mode for c in "wax+") if mode else flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
  module = str(arguments[0]).split(".")[0] if event in ("import", "pickle.find_class") else ""
  if (event in EXECUTES or (changes and _is_elsewhere(arguments[0])) or (
      module == CANARY if event == "import" else module not in ("", "numpy", "_codecs"))):
    acts.append(f"{event}{arguments!r}"[:200])


def _is_elsewhere(path: Any) -> bool:
  if not isinstance(path, str | bytes | os.PathLike):
    return False  # A descriptor that is open already.
  path = os.path.abspath(os.fsdecode(path))
  compiled = os.environ.get("JAX_COMPILATION_CACHE_DIR", os.devnull)
  return "__pycache__" not in path and not path.startswith((_watching["folder"], os.devnull, compiled))


@contextlib.contextmanager
def _watched(folder: pathlib.Path | str) -> Iterator[list[str]]:
  """Notes what is executed or changed elsewhere, ends what takes too long, and says that the machine is small."""
  if not _watching["folder"]:
    sys.addaudithook(_audit)  # It stays for as long as the process lives, and does nothing outside of this block.
  sysconf, before = os.sysconf, signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it takes too long"))
  signal.setitimer(signal.ITIMER_REAL, SLOWEST)
  with contextlib.suppress(OSError):  # Some containers do not allow it; the peak of the process then counts.
    pathlib.Path("/proc/self/clear_refs").write_text("5")
  try:
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(os, "sysconf", lambda name: (MACHINE // resource.getpagesize() if name == "SC_PHYS_PAGES" else
                                                 sysconf(name)))
      _watching.update(acts=[], folder=os.path.abspath(folder))
      yield _watching["acts"]
  finally:
    _watching["acts"] = None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def _memory(kind: str) -> float:
  """Returns the MB of memory that the process holds (VmRSS), or the most since the last reset (VmHWM)."""
  return int(re.search(rf"{kind}:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) / 1024
