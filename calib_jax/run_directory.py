"""Writes and reads ``config.json`` and ``environment.json`` in a run's directory."""

import contextlib
import json
import os
import pathlib

from ml_collections import ConfigDict

from calib_jax import config as run_config
from calib_jax.environment import environment
from calib_jax.errors import UserError
from calib_jax.files import read_json, read_text, write_text

# Fields that may change between two commands on the same directory, because trained models do not depend on them.
EVALUATION_ONLY = ("num_seeds", "compare_with_cross_entropy", "evaluation", "checkpoint", "profile")


# The directories and files that a run reads again or writes whole.
FOLDERS = ("baseline", "calibrators", "checkpoints", "events", "figures", "predictions", "profile")
FILES = ("config.json", "environment.json", "manifest.json", "metrics.jsonl", "report.html", "results.csv",
         "results.json", "results.md", "results.tex")


def create(folder: pathlib.Path) -> None:
  """Creates a run's directory if it does not exist. Raises: UserError if it cannot be created or be that of a run."""
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UserError(f"--workdir: {folder} cannot be created ({error.strerror}): give another --workdir.") from error
  check_entries(folder)


def check_entries(folder: pathlib.Path) -> None:
  """Raises a UserError for a file, pipe or device in place of a run's directory, or a directory in place of a file."""
  for part in (folder, folder / "baseline"):
    for name in (*FOLDERS, *FILES):
      path = part / name
      if os.path.lexists(path) and not (path.is_dir() if name in FOLDERS else path.is_file()):
        raise UserError(f"{path} must be a {'directory' if name in FOLDERS else 'regular file'} and is none, so that "
                        f"{folder} cannot be the directory of a run: move it away.")


def write_config(config: ConfigDict, folder: pathlib.Path) -> str | None:
  """Writes ``config.json`` and ``environment.json``.

  Args:
    config: the config of the run.
    folder: the run's directory.
  Returns: a sentence for the user if the devices changed since the last command, else None.
  Raises: UserError if the folder holds a run that was trained with another config.
  """
  path = folder / "config.json"
  if path.exists() and (differing := differences(path, config)):
    raise UserError(f"--workdir: {folder} holds a run of another config ({differing}): "
                    "give another --workdir, or delete the old one.")
  write_text(path, json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n")
  path, now = folder / "environment.json", environment()
  changed = None
  with contextlib.suppress(UserError, ValueError, KeyError, TypeError):
    before = read_json(path)["devices"]
    if before != now["devices"]:
      then, here = (f"{len(devices)} x {devices[0]}" for devices in (before, now["devices"]))
      changed = f"this run began on {then} and continues on {here}: its numbers may differ by rounding."
  write_text(path, json.dumps(now, indent=2) + "\n")
  return changed


def differences(path: pathlib.Path, config: ConfigDict) -> str:
  """Returns a phrase that lists the training fields in which the config at ``path`` differs, or "" if none do."""
  def flat(node, prefix=""):
    if not isinstance(node, dict):
      return {prefix[:-1]: list(node) if isinstance(node, tuple) else node}
    return {key: leaf for name, child in node.items() for key, leaf in flat(child, f"{prefix}{name}.").items()}

  def training_fields(config):
    return {key: value for key, value in flat(config.to_dict()).items() if key.split(".")[0] not in EVALUATION_ONLY}

  try:
    before = training_fields(read_config(path.parent))
  except UserError:
    return "its config.json is damaged"
  now = training_fields(config)
  keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
  return ", ".join(keys) + " differ" if keys else ""


def read_config(folder: pathlib.Path) -> ConfigDict:
  """Reads the config of the run in ``folder``. Raises: UserError if there is none."""
  path = folder / "config.json"
  check_entries(folder)
  try:
    text = read_text(path)
  except UserError as error:
    raise UserError(f"{folder} holds no run: {error}") from error
  return run_config.from_json(text)
