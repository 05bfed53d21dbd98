"""Says what a computation ran on: versions, devices and the git revision."""

import contextlib
import importlib.metadata
import pathlib
import platform
import subprocess

import jax


def environment() -> dict:
  """Returns versions, devices and git revision, which help to repeat a run."""
  packages = ("jax", "jaxlib", "numpy", "flax", "optax", "orbax-checkpoint", "tensorflow-datasets")
  versions = {}
  for package in packages:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[package] = importlib.metadata.version(package)
  git = None
  with contextlib.suppress(OSError):  # Git may not be installed.
    git = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40"], capture_output=True, text=True,
                         cwd=pathlib.Path(__file__).parent, check=False).stdout.strip()
  return {"python": platform.python_version(), "packages": versions, "git": git or None,
          "devices": [str(device.device_kind) for device in jax.devices()], "system": platform.platform()}
