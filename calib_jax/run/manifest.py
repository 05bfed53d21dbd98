"""A finished run's list of its files: ``manifest.json`` holds the SHA-256 of each, and a copy of ``config.json``.

The next command on the same directory compares the files with it, and so does what loads or compares runs. Files that a
run did not write are not listed. Until the run is finished, the manifest only lists predictions.
"""

from collections.abc import Iterable, Mapping, Sequence
import fnmatch
import hashlib
import json
import os
import pathlib
import re
from typing import NamedTuple

from calib_jax._system.errors import UserError, printable
from calib_jax._system.files import read_json, write_text

NAME = "manifest.json"
CONFIG = "config.json"
# What a run writes in its directory.
WRITTEN = (CONFIG, "environment.json", "metrics.jsonl", "results*", "report*", "checkpoints", "predictions",
           "calibrators", "figures", "events", "profile", "baseline")
# Files that are being written, and files that were put aside.
PASSING = ("*.tmp", "*.partial", "*.damaged", "*orbax-checkpoint-tmp*")


class Manifest(NamedTuple):
  """What a run left.

  Attributes:
    config: the text of ``config.json``.
    files: the SHA-256 of each file, by its path in the run's directory, such as ``predictions/test_seed0.npz``.
  """

  config: str
  files: dict[str, str]


def digests(workdir: pathlib.Path) -> dict[str, str]:
  """Returns the SHA-256 of every file that the run in ``workdir`` wrote, by its path there."""
  found = {}
  for top in sorted(workdir.iterdir()) if workdir.is_dir() else ():
    if any(fnmatch.fnmatchcase(top.name, pattern) for pattern in WRITTEN):
      for path in [top] if top.is_file() else sorted(top.rglob("*")):
        name = path.relative_to(workdir).as_posix()
        if path.is_file() and not any(fnmatch.fnmatchcase(part, p) for part in name.split("/") for p in PASSING):
          found[name] = _sha256(path)
  return found


def _sha256(path: pathlib.Path) -> str:
  if not path.is_file():  # Nothing would ever be read from a pipe.
    return "no file"
  try:
    with path.open("rb") as file:
      return hashlib.file_digest(file, "sha256").hexdigest()
  except OSError as error:  # A file that cannot be read is not the one that was written.
    return f"unreadable: {error.strerror}"


def root(folder: pathlib.Path) -> pathlib.Path:
  """Returns the directory of the run whose files are in ``folder``, which may be that of its baseline."""
  is_baseline = not (folder / CONFIG).exists() and (folder.absolute().parent / CONFIG).exists()
  return folder.absolute().parent if is_baseline else folder


def read(workdir: pathlib.Path) -> tuple[Manifest | None, str]:
  """Returns the manifest in ``workdir``, or None and a phrase that says why there is none.

  The phrase is empty for a directory in which no predictions or results are. Every command writes a manifest before it
  writes these, so a directory that holds them has lost its own, or is of an earlier version.
  """
  path, unknown = workdir / NAME, "so it is not known whether the files of this run are those that it wrote"
  if not os.path.lexists(path):
    return None, f"there is no {path}, {unknown}" if _has_results(workdir) else ""
  try:
    fields = read_json(path)
    manifest = Manifest(str(fields["config"]), {str(name): str(value) for name, value in fields["files"].items()})
    if fields["sha256"] != _of(manifest):
      raise ValueError("its own checksum is another one")
    return manifest, ""
  except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
    return None, f"{path} is damaged ({type(error).__name__}: {error}), {unknown}"


def _has_results(workdir: pathlib.Path) -> bool:
  return any(next(workdir.glob(pattern), None) for pattern in
             ("results.json", "predictions/*.npz", "baseline/predictions/*.npz"))


def doubt(workdir: pathlib.Path, used: Iterable[str]) -> str | None:
  """Returns the sentence that says which files of a run are not those that it wrote, or that this is not known.

  Args:
    workdir: the run's directory.
    used: the files to compare, by their paths in the directory. One that the manifest does not list counts only if the
      run was finished, because an unfinished run may have written more than it has listed.

  Returns:
    The sentence; None if nothing is wrong.
  """
  manifest, reason = read(workdir)
  if manifest is None:
    return f"{reason}." if reason else None
  expected = {CONFIG: hashlib.sha256(manifest.config.encode()).hexdigest()} | manifest.files
  finished = CONFIG in manifest.files
  other = [name for name in used if (finished or name in expected) and expected.get(name) != _sha256(workdir / name)]
  return (f"{listed(other)} in {workdir} {'is' if len(other) == 1 else 'are'} not as the run left "
          f"{'it' if len(other) == 1 else 'them'}, so the numbers may not be those of this run.") if other else None


def names(workdir: pathlib.Path, paths: Iterable[pathlib.Path]) -> list[str]:
  """Returns files in a run's directory by their paths in it, as the manifest lists them."""
  return [path.absolute().relative_to(workdir.absolute()).as_posix() for path in paths]


def newest(workdir: pathlib.Path, group: pathlib.Path) -> list[str]:
  """Returns the files of the newest checkpoint in the folder ``group``, those on disk and those that are listed."""
  manifest, _ = read(workdir)
  on_disk = names(workdir, (path for path in group.rglob("*") if path.is_file()))
  steps = checkpoints([*on_disk, *(manifest.files if manifest else ())]).get(names(workdir, [group])[0], {})
  return list(dict.fromkeys(steps[max(steps)])) if steps else []


def add(folder: pathlib.Path, paths: Sequence[pathlib.Path]) -> None:
  """Lists files that were just written below ``folder`` in the manifest of their run, if it has one."""
  workdir = root(folder)
  manifest, _ = read(workdir)
  if manifest:
    written = dict(zip(names(workdir, paths), map(_sha256, paths), strict=True))
    write(workdir, manifest._replace(files=manifest.files | written))


def checkpoints(names: Iterable[str]) -> dict[str, dict[int, list[str]]]:
  """Returns the files of each checkpoint: ``{folder of its group: {step: paths}}``."""
  groups: dict[str, dict[int, list[str]]] = {}
  for name in names:
    if match := re.fullmatch(r"((?:baseline/)?checkpoints/seeds?\d{1,12}(?:-\d{1,12})?)/(\d{1,12})/.*", name):
      groups.setdefault(match[1], {}).setdefault(int(match[2]), []).append(name)
  return groups


def write(workdir: pathlib.Path, manifest: Manifest) -> None:
  """Writes ``manifest.json``, which appears only once it is complete."""
  fields = {**manifest._asdict(), "files": dict(sorted(manifest.files.items())), "sha256": _of(manifest)}
  write_text(workdir / NAME, json.dumps(fields, indent=2) + "\n")


def _of(manifest: Manifest) -> str:
  """Returns the SHA-256 of a manifest itself."""
  return hashlib.sha256(json.dumps(manifest._asdict(), sort_keys=True).encode()).hexdigest()


def listed(names: Mapping[str, str] | list[str]) -> str:
  r"""Returns paths as a phrase for a message; the files of one checkpoint are named as one.

  >>> listed(["results.json", "checkpoints/seed0/9/a", "checkpoints/seed0/9/b"])
  'results.json, checkpoints/seed0/9'
  >>> listed(["predictions/\x1b[31m"])
  'predictions/\\x1b[31m'
  """
  short = list(dict.fromkeys(re.sub(r"(checkpoints/[^/]+/\d+)/.*", r"\1", name) for name in names))
  return ", ".join(map(printable, short[:6])) + (f" and {len(short) - 6} more" if len(short) > 6 else "")
