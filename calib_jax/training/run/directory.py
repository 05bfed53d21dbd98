"""Writes and reads ``config.json`` and ``environment.json`` in a run's directory."""

import contextlib
import glob
import json
import os
import pathlib

import flax.traverse_util
import ml_collections

from calib_jax._system.environment import environment
from calib_jax._system.errors import UserError, cut, printable, short
from calib_jax._system.files import check_local, read_json, read_text, write_text
from calib_jax.training import config as run_config
from calib_jax.training import data

# Fields that may change between two commands on the same directory, because trained models do not depend on them.
EVALUATION_ONLY = ("num_seeds", "compare_with_cross_entropy", "evaluation", "checkpoint", "profile")


def check_workdir(folder: str | os.PathLike[str]) -> None:
  """Raises a UserError if ``folder`` cannot be a run's directory, before a run spends time on it."""
  text = os.fspath(folder)
  if not text.strip():
    raise UserError("--workdir is empty, perhaps because a variable of the shell is not set: give a directory, such as "
                    "--workdir=runs/mine.")
  check_local("--workdir", text)
  try:
    text.encode("utf-8")
  except UnicodeEncodeError as error:
    raise UserError(f"--workdir: {text!a} is not UTF-8, in which checkpoints write their paths: give another "
                    "--workdir.") from error
  if os.path.lexists(text) and not os.path.isdir(text):
    raise UserError(f"--workdir: {text} is a file, or a link to what does not exist, and not a directory: give another "
                    "--workdir.")


# The directories and files that a run reads again or writes whole.
FOLDERS = ("baseline", "calibrators", "checkpoints", "events", "figures", "predictions", "profile")
FILES = ("config.json", "environment.json", "manifest.json", "metrics.jsonl", "report.html", "results.csv",
         "results.json", "results.md", "results.tex")


def create(folder: pathlib.Path) -> None:
  """Creates a run's directory if it does not exist; a UserError if it cannot be created or be a run's."""
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UserError(f"--workdir: {folder} cannot be created ({error.strerror}): give another --workdir.") from error
  check_entries(folder)


# What a run leaves that another config cannot continue.
LEFT = ("checkpoints/*/*", "predictions/*", "baseline/checkpoints/*/*", "baseline/predictions/*", "results.json")


def check_entries(folder: pathlib.Path) -> None:
  """Raises a UserError for a file, pipe or device in place of a run's directory, or a directory in place of a file."""
  for part in (folder, folder / "baseline"):
    for name in (*FOLDERS, *FILES):
      path = part / name
      if os.path.lexists(path) and not (path.is_dir() if name in FOLDERS else path.is_file()):
        raise UserError(f"{path} must be a {'directory' if name in FOLDERS else 'regular file'} and is none, so that "
                        f"{folder} cannot be the directory of a run: move it away.")


def write_config(config: ml_collections.ConfigDict, folder: pathlib.Path) -> str | None:
  """Writes ``config.json``, and returns a sentence if devices changed or an old log is replaced, else None.

  The config of another run, which left anything beside it and its log, is a UserError.
  """
  path = folder / "config.json"
  differing = differences(path, config) if path.exists() else ""
  if differing and any(next(folder.glob(pattern), None) for pattern in LEFT):
    raise UserError(f"--workdir: {folder} holds a run of another config ({differing}): "
                    "give another --workdir, or delete the old one.")
  if differing:  # A run that diverged at once, for example, whose rate is now lower.
    for name in ("metrics.jsonl", "baseline/metrics.jsonl"):
      (folder / name).unlink(missing_ok=True)
  text, path, now = run_config.to_json(config), folder / "environment.json", environment()
  changed = None if not differing else printable(
    f"the log of a run of another config ({differing}), which left no checkpoint, is replaced.")
  with contextlib.suppress(UserError, ValueError, KeyError, TypeError, IndexError):
    before = read_json(path)["devices"]
    if isinstance(before, list) and before != now["devices"]:
      then, here = (f"{len(devices)} x {devices[0]}" for devices in (before, now["devices"]))
      changed = printable(f"this run began on {cut(then)} and continues on {here}: its numbers differ by rounding, "
                          "which grows from step to step.")
  write_text(path, json.dumps(now, indent=2) + "\n")
  write_text(folder / "config.json", text)
  return changed


def read_only_results(config: ml_collections.ConfigDict, folder: pathlib.Path) -> str | None:
  """Returns what a finished run of this config reported, if nothing can be written to its directory; else None."""
  if (not (folder / "results.md").is_file() or not (folder / "config.json").is_file() or os.access(folder, os.W_OK)
      or differences(folder / "config.json", config)):
    return None
  return f"{folder} is read-only: these are the results as the run wrote them.\n\n{read_text(folder / 'results.md')}"


ABSENT = "no field"  # Stands for the value of a field that one of two configs does not have, such as another loss's.


def differences(path: pathlib.Path, config: ml_collections.ConfigDict) -> str:
  """Returns a phrase with the old and the new value of each training field that differs in the config at ``path``."""
  try:
    # What the present command's config names is imported already, and nothing else needs to be.
    stored = read_config(path.parent, own_code=None)
  except UserError as error:
    return str(error).removesuffix(".")
  old, new = ({key: list(value) if isinstance(value, tuple) else value
               for key, value in flax.traverse_util.flatten_dict(part.to_dict(), sep=".").items()
               if key.split(".")[0] not in EVALUATION_ONLY} for part in (stored, config))
  pairs = {key: (old.get(key, ABSENT), new.get(key, ABSENT)) for key in sorted(old.keys() | new.keys())}
  phrases = [f"{key} was {before if before is ABSENT else short(before)} and is {now if now is ABSENT else short(now)}"
             for key, (before, now) in pairs.items() if before != now]
  phrases += other_predictions(path.parent, stored, config)
  return "; ".join(phrases[:6]) + (f"; and {len(phrases) - 6} more" if len(phrases) > 6 else "")


def other_predictions(folder: pathlib.Path, before: ml_collections.ConfigDict, now: ml_collections.ConfigDict
                      ) -> list[str]:
  """Returns a phrase for each reason why predictions in a run's directory are not the config's, as it is ``now``.

  Predictions of a file are saved under its name alone, and would be taken for another file's of that name.
  """
  phrases, samples = [], (before.evaluation.samples, now.evaluation.samples)
  # Trained models do not depend on the samples, but predictions do, and those that are there are not made again. The
  # baseline always predicts without samples.
  if any(folder.glob("predictions/*.npz")) and samples[0] != samples[1]:
    phrases.append(f"evaluation.samples was {samples[0]} and is {samples[1]} (predictions are made anew if their "
                   "directory is deleted)")
  earlier = _named_files(before)
  for (field, name), file in _named_files(now).items():
    folders = [part for part in ("predictions/", "baseline/predictions/")
               if any(folder.glob(f"{part}**/{glob.escape(name)}_*.npz"))]
    if folders and earlier.get((field, name)) != file:
      reason = "differ" if (field, name) in earlier else "were predicted by an earlier command, maybe from another file"
      phrases.append(f"the files named {name} in evaluation.{field} {reason} (predictions are made anew if "
                     f"{' and '.join(folders)} {'is' if len(folders) == 1 else 'are'} deleted)")
  return phrases


def _named_files(config: ml_collections.ConfigDict) -> dict[tuple[str, str], str]:
  """Returns the files of evaluation sets by their field of ``config.evaluation`` and their name in tables."""
  options = config.evaluation
  published = filter(run_config.is_published, options.corruptions)
  return {**{("ood", run_config.ood_name(entry)): entry for entry in options.ood},
          **{("corruptions", name): str(file) for path in published
             for name, file in data.published_files(path).items()}}


def read_config(folder: pathlib.Path, *, own_code: bool | None = False) -> ml_collections.ConfigDict:
  """Reads the config of the run in ``folder``; import paths in it without ``own_code`` are a UserError."""
  path = folder / "config.json"
  check_entries(folder)
  try:
    text = read_text(path)
  except UserError as error:
    raise UserError(f"{folder} holds no run: {error}") from error
  return run_config.from_json(text, own_code=own_code)
