"""Two runs never hold the same directory, and a lock that a killed run left stops nobody."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

from calib_jax._system.errors import UserError
from calib_jax.run import lock
from tests.programs import ROOT

# Waits for a line, takes the lock, says so, and holds it until another line or a signal ends it.
HOLD = """
import pathlib, sys
from calib_jax.run import lock
from calib_jax._system.errors import UserError
{extra}
print("ready", flush=True)
sys.stdin.readline()
try:
  with lock.held(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
except UserError as error:
  print(error, flush=True)
"""


def _start(folder, extra=""):
  process = subprocess.Popen([sys.executable, "-c", HOLD.format(extra=extra), str(folder)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True, cwd=ROOT)
  assert process.stdout.readline() == "ready\n"
  return process


def _go(*processes):
  """Lets processes go on at the same time."""
  for process in processes:
    process.stdin.write("\n")
    process.stdin.flush()


def _take(process):
  _go(process)
  return process.stdout.readline()


def test_of_many_that_start_together_one_holds_and_the_others_name_it(tmp_path):
  processes = [_start(tmp_path) for _ in range(5)]
  _go(*processes)
  said = [process.stdout.readline() for process in processes]
  holder = processes[said.index("held\n")]
  assert said.count("held\n") == 1
  for line in set(said) - {"held\n"}:
    assert f"--workdir: {tmp_path} is in use by process {holder.pid} on " in line
    assert " since " in line and " UTC: wait until it ends, or give another --workdir." in line
  holder.communicate("\n")
  for process in processes:
    process.communicate()
  assert not list(tmp_path.iterdir())  # It is released and deleted.


def test_what_a_lock_guards_is_never_done_by_two_at_once(tmp_path):
  """Processes that take and release the lock a hundred times each lose none of their additions to one number."""
  (tmp_path / "number").write_text("0")
  adding = """
folder = pathlib.Path(sys.argv[1])
number = folder / "number"
sys.stdin.readline()
for _ in range(100):
  while True:
    try:
      with lock.held(folder):
        before = int(number.read_text())
        number.write_text(str(before + 1))
      break
    except UserError:
      pass
sys.exit()
"""
  processes = [subprocess.Popen([sys.executable, "-c", HOLD.format(extra=adding), str(tmp_path)], cwd=ROOT,
                                stdin=subprocess.PIPE, text=True) for _ in range(3)]
  _go(*processes)
  for process in processes:
    process.communicate()
    assert process.returncode == 0
  assert (tmp_path / "number").read_text() == "300"


def test_a_lock_is_released_also_after_an_error_and_may_be_taken_again(tmp_path, capsys):
  for _ in range(2):
    with pytest.raises(KeyError), lock.held(tmp_path):
      assert json.loads((tmp_path / "lock").read_text())["process"] == os.getpid()
      with pytest.raises(UserError, match=f"in use by process {os.getpid()} on"), lock.held(tmp_path):
        pass
      raise KeyError
  assert capsys.readouterr().out == ""


def test_the_lock_of_a_killed_process_is_taken_over_with_a_word(tmp_path, capsys):
  process = _start(tmp_path)
  assert _take(process) == "held\n"
  process.send_signal(signal.SIGKILL)
  process.communicate()
  assert (tmp_path / "lock").exists()
  with lock.held(tmp_path):
    assert json.loads((tmp_path / "lock").read_text())["process"] == os.getpid()
  assert f"taking over from process {process.pid} on " in capsys.readouterr().out


def test_a_child_that_outlives_its_killed_parent_does_not_keep_its_lock(tmp_path):
  child = """
def fork():
  ready, go = os.pipe()
  number = os.fork()
  if number == 0:
    os.write(go, b"!")
    time.sleep(60)
    os._exit(0)
  os.read(ready, 1)  # The child runs.
  return number
import os, time
held = lock.held
class lock:
  import contextlib
  @contextlib.contextmanager
  def held(folder):
    with held(folder):
      print(fork(), flush=True)
      yield
"""
  process = _start(tmp_path, child)
  child = int(_take(process))
  try:
    process.send_signal(signal.SIGKILL)
    process.wait()
    os.kill(child, 0)  # It lives.
    with lock.held(tmp_path):
      pass
  finally:
    os.kill(child, signal.SIGKILL)
    process.communicate()


def test_a_lock_of_another_machine_says_how_to_remove_it(tmp_path):
  other = lock.this_process()._replace(host="node7", process=123, since="2026-01-02 03:04:05 UTC")
  (tmp_path / "lock").write_text(json.dumps(other._asdict()))
  with pytest.raises(UserError, match=r"left locked by process 123 on node7 since 2026-01-02 03:04:05 UTC, and this "
                     r"machine .* cannot say .* if it has ended, delete .*/lock and run the same command again"):
    lock.held(tmp_path).__enter__()
  assert json.loads((tmp_path / "lock").read_text())["host"] == "node7"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": 1}', '{"process": "x"}', "\xff", "null"])
def test_a_damaged_lock_stops_nobody(text, tmp_path):
  (tmp_path / "lock").write_bytes(text.encode("latin1"))
  with lock.held(tmp_path):
    pass


def test_without_locks_of_the_file_system_the_process_that_is_named_decides(tmp_path, monkeypatch, capsys):
  def refuse(descriptor, operation):
    raise OSError(38, "Function not implemented")

  monkeypatch.setattr(lock.fcntl, "flock", refuse)
  monkeypatch.setattr(lock, "SETTLED", 0.01)
  with lock.held(tmp_path):
    assert "has no locks" in capsys.readouterr().err
    with pytest.raises(UserError, match="is in use by process"), lock.held(tmp_path):
      pass
  here = lock.this_process()
  for dead in (here._replace(process=2**22 + 1, started=""), here._replace(started="1"), here._replace(boot="before")):
    (tmp_path / "lock").write_text(json.dumps(dead._asdict()))  # Ended, another process of that number, a reboot.
    with lock.held(tmp_path):
      assert f"taking over from process {dead.process}" in capsys.readouterr().out


def test_without_locks_the_last_of_two_that_write_at_once_holds(tmp_path, monkeypatch):
  other = lock.this_process()._replace(process=1)
  monkeypatch.setattr(lock.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(38, "Function not implemented")))
  monkeypatch.setattr(lock.time, "sleep", lambda _: (tmp_path / "lock").write_text(json.dumps(other._asdict())))
  with pytest.raises(UserError, match="is in use by process 1 on"), lock.held(tmp_path):
    pass


def test_a_pipe_in_place_of_the_lock_is_not_waited_for(tmp_path):
  os.mkfifo(tmp_path / "lock")
  with pytest.raises(UserError, match="lock is a pipe or a device, not a file: move it away"), lock.held(tmp_path):
    pass


def test_a_directory_that_cannot_be_written_is_one_sentence(tmp_path):
  (tmp_path / "lock").mkdir()
  with pytest.raises(UserError, match="lock cannot be written"), lock.held(tmp_path):
    pass


def test_a_holder_that_names_itself_badly_is_printable(tmp_path, capsys):
  fields = {**lock.this_process()._asdict(), "process": 1, "since": "\x1b[2J" + "now " * 1000}
  for host, end in (("other\x1b[31m\n\u202e\udcff", pytest.raises(UserError)), (lock.this_process().host, None)):
    (tmp_path / "lock").write_text(json.dumps(fields | {"host": host}))
    with end or contextlib.nullcontext() as raised, lock.held(tmp_path):
      pass
    said = str(raised.value) if end else capsys.readouterr().out.removesuffix("\n")
    assert said.isprintable() and r"\x1b[2J" in said and len(said) < 800
