"""Running the project's programs as a user would: in a fresh process, some packages blocked as if not installed."""

import atexit
import multiprocessing.forkserver
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
# Importing TensorFlow, for event files, takes two fifths of the time of a short run, and drawing figures another third;
# tests of what needs them pass `blocked=()`.
SLOW = ("tensorflow", "tensorboard", "matplotlib")

BLOCKER = """
import sys

class Blocked:
  def find_spec(self, name, path=None, target=None):
    if name.split(".")[0] in {names!r}:
      raise ModuleNotFoundError(f"No module named {{name!r}} (blocked)", name=name)

sys.meta_path.insert(0, Blocked())
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {names!r} else find_spec(name, package)
"""


OFFLINE = """
import socket

def refuse(*args, **kwargs):
  raise socket.gaierror("no network in this test")

socket.getaddrinfo = refuse
"""


def python(*arguments, tmp_path, blocked=SLOW, offline=False, num_devices=1, timeout=300, **environment):
  """Runs ``python arguments`` from the project's root; returns the finished process, output as text.

  ``environment``: variables to set, or, where None, to leave out.
  """
  changed = _environment(tmp_path, blocked, offline, num_devices, environment)
  if (blocked, offline, environment) == (SLOW, False, {}):
    return _forked(arguments, changed, tmp_path, timeout)
  return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, check=False,
                        env=changed, timeout=timeout)


def start(*arguments, tmp_path, num_devices=1):
  """Starts ``python arguments`` like ``python``; returns the process, and a file of its output and its children's."""
  output, written = multiprocessing.Pipe(duplex=False)
  process = _fork(arguments, _environment(tmp_path, SLOW, False, num_devices, {}), [written, written])
  written.close()
  with output:
    return process, os.fdopen(os.dup(output.fileno()))


def never(step, measured):
  """A hook for runs that must not take a step."""
  raise AssertionError("this must not train")


def _environment(tmp_path, blocked, offline, num_devices, changes):
  site = tmp_path / "site"
  site.mkdir(exist_ok=True)
  (site / "sitecustomize.py").write_text((BLOCKER.format(names=set(blocked)) if blocked else "")
                                         + (OFFLINE if offline else ""))
  # Compiled as this tier of the tests is, on as many virtual devices as asked for.
  flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
  flags.append(f"--xla_force_host_platform_device_count={num_devices}")
  environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "JAX_PLATFORMS": "cpu",
                 "XLA_FLAGS": " ".join(flags), **changes}
  return {name: value for name, value in environment.items() if value is not None}


def _fork(arguments, environment, outputs):
  """Starts ``python arguments`` in a process that begins where its imports end, which saves a quarter of a short run.

  A server, one for each worker of pytest, has imported them, with the packages of ``SLOW`` blocked, and forks. It has
  no threads and no devices.
  """
  context = multiprocessing.get_context("forkserver")
  context.set_forkserver_preload(["calib_jax.cli.train", "calib_jax.run.outputs", "tests.programs"])
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    multiprocessing.forkserver.ensure_running()
  process = context.Process(target=_run, args=([str(x) for x in arguments], environment, outputs))
  process.start()
  return process


def _forked(arguments, environment, tmp_path, timeout):
  files = [pathlib.Path(tempfile.mkstemp(dir=tmp_path / "site")[1]) for _ in range(2)]
  process = _fork(arguments, environment, files)
  process.join(timeout)
  if process.exitcode is None:
    process.kill()
    raise subprocess.TimeoutExpired(arguments, timeout)
  return subprocess.CompletedProcess(arguments, process.exitcode, *(path.read_text() for path in files))


def _run(arguments, environment, outputs):
  """Becomes ``python arguments`` in a process that was forked; output goes to ``outputs``, which are files or pipes."""
  os.environ.clear()
  os.environ.update(environment)
  os.chdir(ROOT)
  for stream, output in enumerate(outputs, 1):
    is_file = isinstance(output, pathlib.Path)
    os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND) if is_file else output.fileno(), stream)
  first, *rest = arguments
  sys.argv = [first, *rest] if first != "-m" else rest
  try:
    if first == "-c":
      sys.argv = ["-c", *rest[1:]]
      exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
      runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
      runpy.run_path(first, run_name="__main__")
  finally:
    atexit._run_exitfuncs()
