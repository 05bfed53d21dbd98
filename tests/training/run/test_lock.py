"""Two runs never hold the same directory, and a lock that a killed run left stops nobody."""

import concurrent.futures
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from calib_jax._system.errors import UserError
from calib_jax.training.run import lock
from tests.programs import ROOT

# Takes the lock, says so, and holds it until a signal ends it.
HOLD = """
import pathlib, sys
from calib_jax.training.run import lock
with lock.hold(pathlib.Path(sys.argv[1])):
  print("held", flush=True)
  sys.stdin.readline()
"""


def test_what_a_lock_guards_is_never_done_by_two_at_once(tmp_path):
  """Threads that take the lock fifty times each, which excludes each open file, lose none of their additions."""
  number = tmp_path / "number"
  number.write_text("0")

  def add(_):
    taken, attempts = 0, 0
    while taken < 50 and attempts < 100_000:  # So that a lock that nobody releases fails.
      attempts += 1
      with contextlib.suppress(UserError), lock.hold(tmp_path):
        before = int(number.read_text())
        time.sleep(0)  # Another thread may go on here.
        number.write_text(str(before + 1))
        taken += 1
      time.sleep(0)

  with concurrent.futures.ThreadPoolExecutor(3) as pool:
    list(pool.map(add, range(3)))
  assert number.read_text() == "150"


def test_a_lock_is_released_also_after_an_error_and_may_be_taken_again(tmp_path):
  for _ in range(2):
    with pytest.raises(KeyError), lock.hold(tmp_path):
      assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on ")
      with pytest.raises(UserError, match=f"in use by process {os.getpid()} on"), lock.hold(tmp_path):
        pass
      raise KeyError


def test_the_lock_of_a_killed_process_is_free_and_a_copied_directory_has_no_holder(tmp_path):
  process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True, cwd=ROOT)
  assert process.stdout.readline() == "held\n"
  with pytest.raises(UserError, match=f"in use by process {process.pid} on"), lock.hold(tmp_path):
    pass
  copy = shutil.copytree(tmp_path, tmp_path / "copy")
  with lock.hold(copy):
    pass
  process.send_signal(signal.SIGKILL)
  process.communicate()
  assert str(process.pid) in (tmp_path / "lock").read_text()
  with lock.hold(tmp_path):
    assert str(os.getpid()) in (tmp_path / "lock").read_text()


@pytest.mark.parametrize("text", ["", "{", "process 1 on \x1b[31m", "\xff", "process 1 on node7 since 2026" * 100])
def test_what_the_file_says_stops_nobody(text, tmp_path):
  (tmp_path / "lock").write_bytes(text.encode("latin1"))
  with lock.hold(tmp_path):
    pass


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, capsys):
  def refuse(descriptor, operation):
    raise OSError(38, "Function not implemented")

  monkeypatch.setattr(lock.fcntl, "flock", refuse)
  with lock.hold(tmp_path):
    warning = capsys.readouterr().err
    assert warning.startswith(f"warning: the file system of {tmp_path} has no locks, so a second run that starts ")
    assert warning.count("\n") == 1


def test_a_holder_that_names_itself_badly_is_printable(tmp_path, monkeypatch):
  monkeypatch.setattr(lock.platform, "node", lambda: "other\x1b[31m\n\u202e" + "now " * 1000)
  with lock.hold(tmp_path), pytest.raises(UserError) as raised, lock.hold(tmp_path):
    pass
  assert str(raised.value).isprintable() and r"\x1b[31m" in str(raised.value) and len(str(raised.value)) < 800
