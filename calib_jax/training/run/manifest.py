"""The list of the files that a run's numbers come from: ``manifest.json`` holds the SHA-256 of each, and the config.

These are predictions, checkpoints, the log and ``config.json``; tables, figures and the page are written anew by every
command. The next command on the same directory compares the files with the list, and so does what loads or compares
runs, so that changed numbers are never reported without a warning. Until the run is finished, the manifest only lists
predictions and what an earlier command left for good.
"""

from collections.abc import Iterable, Sequence
import hashlib
import json
import os
import pathlib
import re
import sys
from typing import NamedTuple

from calib_jax._system.errors import UserError, printable
from calib_jax._system.files import read_json, read_text, write_text

NAME = "manifest.json"
CONFIG = "config.json"
# The files that are listed, also below ``baseline``, and the folders that are each listed as one.
FILES = (CONFIG, "metrics.jsonl", "predictions/**/*.npz", "checkpoints/*.json")
CHECKPOINT = re.compile(r"((?:baseline/)?checkpoints/seeds?\d{1,12}(?:-\d{1,12})?)/(\d{1,12})")
PREDICTIONS = re.compile(r"(?:baseline/)?predictions/.*")
LASTING = re.compile(r"(?:baseline/)?(?:predictions|checkpoints)/.*")  # What no later command writes again.


class Manifest(NamedTuple):
  """What a run left: the text of ``config.json``, and the SHA-256 of each file or checkpoint by its path in the run."""

  config: str
  files: dict[str, str]


class Damage(NamedTuple):
  """The SHA-256 of files as the last command listed them (None without a manifest), and of those on disk, by path."""

  before: dict[str, str] | None
  now: dict[str, str]

  def changed(self) -> list[str]:
    """Returns the paths of the files that have other contents."""
    return [path for path, digest in (self.before or {}).items() if self.now.get(path, digest) != digest]


def begin(workdir: pathlib.Path) -> Damage:
  """Restores ``config.json``; says which files are not those that a run wrote; changed predictions are a UserError."""
  manifest, reason = read(workdir)
  if reason:
    warn(f"{reason}; it is written anew for the files as they are.")
  damage = Damage(manifest and manifest.files, digests(workdir))
  changed, deleted = damage.changed(), [path for path in damage.before or () if path not in damage.now]
  if deleted or changed:
    phrases = [f"{listed(paths)} ({what})" for what, paths in (("changed", changed), ("deleted", deleted)) if paths]
    warn(f"files of this run in {workdir} are not as it left them: {'; '.join(phrases)}.")
  if wrong := [path for path in changed if PREDICTIONS.fullmatch(path)]:
    raise UserError(f"--workdir: predictions in {workdir} are not as the run left them: delete {listed(wrong)}, and "
                    f"the same command predicts again from the checkpoint; or delete {workdir / NAME} to accept the "
                    "files as they are.")
  if CONFIG in (*changed, *deleted):
    write_text(workdir / CONFIG, manifest.config)
  return damage


def keep(workdir: pathlib.Path, damage: Damage) -> None:
  """Writes the manifest of a run that is not finished, for the ``config.json`` that is there now."""
  files, lasting = (damage.now, PREDICTIONS) if damage.before is None else (damage.before, LASTING)
  write(workdir, Manifest(read_text(workdir / CONFIG), {k: v for k, v in files.items() if lasting.fullmatch(k)}))


def finish(workdir: pathlib.Path, damage: Damage) -> None:
  """Writes the manifest of a finished run, and says which changed files, by ``begin``, are not as the run left them."""
  files = digests(workdir)
  # What this command did not write stays listed as it was, so that the next command names it again.
  left = {path: damage.before[path] for path in damage.changed() if files.get(path) == damage.now[path]}
  write(workdir, Manifest(read_text(workdir / CONFIG), files | left))
  if left:
    warn(f"{listed(list(left))} cannot be made anew: delete {workdir} to train from the beginning, or "
         f"{workdir / NAME} to accept the files as they are.")
  if other := [path for path, digest in files.items() if PREDICTIONS.fullmatch(path)
               and (damage.before or {}).get(path, digest) != digest]:
    warn(f"{listed(other)} cannot be predicted byte for byte as before: the machine, the versions, the data or the "
         "settings of the evaluation are others, and the results above are those of the new predictions.")


def warn(text: str) -> None:
  """Prints a warning."""
  print(f"warning: {printable(text)}", file=sys.stderr, flush=True)


def digests(workdir: pathlib.Path) -> dict[str, str]:
  """Returns the SHA-256 of every file and checkpoint of the run in ``workdir`` that is listed, by its path there."""
  parts = (workdir, workdir / "baseline")
  paths = [path for part in parts for pattern in (*FILES, "checkpoints/*/*") for path in part.glob(pattern)]
  return {name: _sha256(workdir / name) for name in sorted(names(workdir, paths))
          if CHECKPOINT.fullmatch(name) or not re.search(r"checkpoints/.*/", name)}


def _sha256(path: pathlib.Path) -> str:
  """Returns the SHA-256 of a file, or of the names and contents of the files in a checkpoint's folder."""
  if path.is_dir():
    files = (f"{file.relative_to(path)} {_sha256(file)}" for file in sorted(path.rglob("*")) if not file.is_dir())
    return hashlib.sha256("\n".join(files).encode(errors="surrogateescape")).hexdigest()
  if not path.is_file():  # Nothing would ever be read from a pipe.
    return "no file"
  try:
    with path.open("rb") as file:
      return hashlib.file_digest(file, "sha256").hexdigest()
  except OSError as error:  # A file that cannot be read is not the one that was written.
    return f"unreadable: {error.strerror}"


def root(folder: pathlib.Path) -> pathlib.Path:
  """Returns the directory of the run whose files are in ``folder``, which may be its baseline's."""
  is_baseline = not (folder / CONFIG).exists() and (folder.absolute().parent / CONFIG).exists()
  return folder.absolute().parent if is_baseline else folder


def read(workdir: pathlib.Path) -> tuple[Manifest | None, str]:
  """Returns the manifest in ``workdir``, or None and a phrase that says why there is none, empty for a new directory.

  Every command writes a manifest before predictions and results, so a directory that holds these has lost its own.
  """
  path, unknown = workdir / NAME, "so it is not known whether the files of this run are those that it wrote"
  if not os.path.lexists(path):
    is_run = any(next(workdir.glob(pattern), None) for pattern in (
      "results.json", "predictions/*.npz", "baseline/predictions/*.npz"))
    return None, f"there is no {path}, {unknown}" if is_run else ""
  try:
    fields = read_json(path)
    manifest = Manifest(str(fields["config"]), {str(name): str(value) for name, value in fields["files"].items()})
    if fields["sha256"] != _of(manifest):
      raise ValueError("its own checksum is another one")
    return manifest, ""
  except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
    return None, f"{path} is damaged ({type(error).__name__}: {error}), {unknown}"


def doubt(workdir: pathlib.Path, used: Iterable[str]) -> str | None:
  """Says which ``used`` files, listed or of a finished run, are not as written, or that it is not known; or None."""
  manifest, reason = read(workdir)
  if manifest is None:
    return f"{reason}." if reason else None
  expected = {CONFIG: hashlib.sha256(manifest.config.encode()).hexdigest()} | manifest.files
  finished = CONFIG in manifest.files
  other = [name for name in used if (finished or name in expected) and expected.get(name) != _sha256(workdir / name)]
  return (f"files of the run in {workdir} are not as it left them, so the numbers may not be those of this run: "
          f"{listed(other)}.") if other else None


def names(workdir: pathlib.Path, paths: Iterable[pathlib.Path]) -> list[str]:
  """Returns files in a run's directory by their paths in it, as the manifest lists them."""
  return [path.absolute().relative_to(workdir.absolute()).as_posix() for path in paths]


def newest(workdir: pathlib.Path, group: pathlib.Path) -> list[str]:
  """Returns the path of the newest checkpoint in the folder ``group``, of those on disk and those that are listed."""
  manifest, _ = read(workdir)
  folder, = names(workdir, [group])
  paths = [*names(workdir, group.iterdir()), *(manifest.files if manifest else ())]
  steps = [int(match[2]) for path in paths if (match := CHECKPOINT.fullmatch(path)) and match[1] == folder]
  return [f"{folder}/{max(steps)}"] if steps else []


def add(folder: pathlib.Path, paths: Sequence[pathlib.Path]) -> None:
  """Lists files that were just written below ``folder`` in the manifest of their run, if it has one."""
  workdir = root(folder)
  manifest, _ = read(workdir)
  if manifest:
    written = dict(zip(names(workdir, paths), map(_sha256, paths), strict=True))
    write(workdir, manifest._replace(files=manifest.files | written))


def write(workdir: pathlib.Path, manifest: Manifest) -> None:
  """Writes ``manifest.json``, which appears only once it is complete."""
  fields = {**manifest._asdict(), "files": dict(sorted(manifest.files.items())), "sha256": _of(manifest)}
  write_text(workdir / NAME, json.dumps(fields, indent=2) + "\n")


def _of(manifest: Manifest) -> str:
  """Returns the SHA-256 of a manifest itself."""
  return hashlib.sha256(json.dumps(manifest._asdict(), sort_keys=True).encode()).hexdigest()


def listed(names: list[str]) -> str:
  r"""Returns paths as a phrase for a message.

  >>> listed(["results.json", "predictions/\x1b[31m"])
  'results.json, predictions/\\x1b[31m'
  """
  return ", ".join(map(printable, names[:6])) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
