"""Strategies for the bytes of hostile files, and a judge: no code runs, nothing hangs, floods the memory or crashes."""

from collections.abc import Callable, Collection, Iterator
import contextlib
import io
import os
import pathlib
import re
import resource
import signal
import socket
import sys
from typing import Any
import warnings
import zipfile

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from calib_jax._system.errors import UserError

LONGEST, SLOWEST, LARGEST = 3000, 20, 100  # Characters of a message; seconds and MB of memory that reading may take.
MACHINE = 128 * 2**20  # Bytes of memory that the project is told the machine has, so that its limit is reached soon.
CANARY = "adversary_canary"  # A module whose import is an execution.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]|"
                     "allow_pickle|Unable to allocate|MemoryError|bad_alloc")
# Events of ``sys.audit`` that only an attacker's code raises while a file is read.
EXECUTES = {"os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.kill",
            "socket.connect", "socket.bind", "os.remove", "os.rename", "os.chmod", "os.symlink", "shutil.rmtree"}
_acts: list[list[str]] = []


def attacked(strategy: hypothesis.strategies.SearchStrategy, examples: Collection) -> Callable:
  """Returns a decorator for tests of contents: they run on all examples and on the same draws each time."""
  def decorate(test):
    for example in examples:
      test = hypothesis.example(content=example)(test)
    return hypothesis.settings(derandomize=True, deadline=None, max_examples=10, suppress_health_check=list(
      hypothesis.HealthCheck))(hypothesis.given(content=strategy)(test))

  return decorate


def read(function: Callable, *arguments: Any, refusals: Any = UserError) -> tuple[Any, str]:
  """Returns what ``function(*arguments)`` gives, and the sentence that it refuses with; it fails if it gives way."""
  value, message, out, before = None, "", io.StringIO(), _memory("VmRSS")
  with (_watched() as acts, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out),
        warnings.catch_warnings(action="ignore")):
    try:
      value = function(*arguments)
    except refusals as error:
      message = str(error)
      assert message and len(message) <= LONGEST and "\n" not in message and not CONTROL.search(message), message
  assert not acts, acts
  assert _memory("VmHWM") - before < LARGEST, "it takes too much memory"
  assert "Traceback" not in message + out.getvalue(), out.getvalue()
  return value, message


def _audit(event: str, arguments: tuple) -> None:
  module = str(arguments[0]).split(".")[0] if event in ("import", "pickle.find_class") else "numpy"
  if _acts and (event in EXECUTES or (module == CANARY if event == "import" else module not in ("numpy", "_codecs"))):
    _acts[-1].append(f"{event}{arguments!r}"[:200])


sys.addaudithook(_audit)  # It does nothing where nothing is read.


@contextlib.contextmanager
def _watched() -> Iterator[list[str]]:
  """Notes what is executed, ends what takes too long, and says that the machine is small."""
  sysconf, before = os.sysconf, signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it takes too long"))
  signal.setitimer(signal.ITIMER_REAL, SLOWEST)
  with contextlib.suppress(OSError):  # Some containers do not allow it; the peak of the process then counts.
    pathlib.Path("/proc/self/clear_refs").write_text("5")
  try:
    with pytest.MonkeyPatch.context() as patch:
      pages = {"SC_PHYS_PAGES": MACHINE // resource.getpagesize()}
      patch.setattr(os, "sysconf", lambda name: pages.get(name) or sysconf(name))
      _acts.append([])
      yield _acts[-1]
  finally:
    _acts.clear()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def _memory(kind: str) -> float:
  """Returns the MB of memory that the process holds (VmRSS), or the most since the last reset (VmHWM)."""
  return int(re.search(rf"{kind}:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) / 1024


DESCRS = ("<f4", ">f8", "<f2", ">i8", "|O", "|V0", "<U1000000", "<M8[s]", "<c16", [("a", "|O")], "|V1000000000",
          ("<f4", (3,)), "zz")
SHAPES = ((), (0,), (-8, 3), (10**12, 3), (0, 10**18), (2**31, 2**31, 4), (True, 4), "ab", (8.0, 3), (None,), (1,) * 40)
HEADERS = ("(" * 3000, "{'descr': " + "[" * 400, "{'shape': (8, 3)}", "{'descr': __import__('os').system('true')}")
# What may stand in place of a file.
PLACES = ("pipe", "folder", "absent", "loop", "empty", "/dev/zero", "/dev/full", "socket", "gone")

lying_headers = st.sampled_from(HEADERS) | st.builds(
  "{{'descr': {!r}, 'fortran_order': {!r}, 'shape': {!r}, }}".format, st.sampled_from(DESCRS),
  st.sampled_from((True, False, 2)), st.sampled_from(SHAPES))


def zipped(members: list[tuple[str, bytes]]) -> bytes:
  """Returns an archive of these members, in this order."""
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w") as archive, warnings.catch_warnings(action="ignore"):  # A name may stand there twice.
    for name, content in members:
      archive.writestr(zipfile.ZipInfo(name), content)
  return file.getvalue()


def members(*twice: tuple[str, np.ndarray], **arrays: np.ndarray) -> list[tuple[str, bytes]]:
  """Returns the files of an ``.npz`` of arrays, where those of ``twice`` come last."""
  return [(f"{name}.npy", npy(x)) for name, x in (*arrays.items(), *twice)]


def npy(array: np.ndarray) -> bytes:
  """Returns the bytes of an ``.npy`` file."""
  np.save(file := io.BytesIO(), array, allow_pickle=True)
  return file.getvalue()


@st.composite
def archives(draw: st.DrawFn, **arrays: np.ndarray) -> bytes:
  """Draws an ``.npz`` of ``arrays`` where one is cut off, lies, is there twice or has another name."""
  content = members(**arrays)
  name, array = content[place := draw(st.integers(0, len(content) - 1))]
  if (way := draw(st.sampled_from(("cut", "lies", "twice", "renamed")))) == "cut":
    content[place] = name, array[:draw(st.integers(0, len(array) - 1))]
  elif way == "lies":
    header = draw(lying_headers).encode("latin1", "replace")
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    rest = array[128:] if draw(st.booleans()) else b""
    content[place] = name, b"\x93NUMPY\x01\x00" + (len(header) % 2**16).to_bytes(2, "little") + header + rest
  elif way == "twice":
    content.append((name, npy(np.flip(arrays[name[:-4]]))))
  else:
    content[place] = draw(st.sampled_from(("labels", "../x.npy", "x/y.npy", "", "\x1b[2J.npy"))), array
  return zipped(content)


def put_in_place(path: pathlib.Path, thing: str) -> None:
  """Puts something else in place of a file: a pipe, a link to a device that never ends."""
  path.unlink(missing_ok=True)
  if thing == "pipe":
    os.mkfifo(path)
  elif thing == "folder":
    path.mkdir()
  elif thing in ("empty", "sparse"):
    path.touch()
    os.truncate(path, 2**28 if thing == "sparse" else 0)
  elif thing == "socket":
    with socket.socket(socket.AF_UNIX) as bound:
      bound.bind(os.path.relpath(path))  # The path of a socket is short.
  elif thing != "gone":
    path.symlink_to({"absent": path.with_name("absent"), "loop": path}.get(thing, thing))
