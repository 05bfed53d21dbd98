"""Running the project's programs as a user would: in a fresh process, some packages blocked as if not installed."""

import os
import pathlib
import subprocess
import sys

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
  return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, check=False,
                        env=_environment(tmp_path, blocked, offline, num_devices, environment), timeout=timeout)


def start(*arguments, tmp_path, num_devices=1):
  """Starts ``python arguments`` like ``python``; returns the process, whose output and errors are one."""
  return subprocess.Popen([sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, cwd=ROOT, env=_environment(tmp_path, SLOW, False, num_devices, {}))


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
