"""A finished run's list of its files: ``manifest.json`` holds the SHA-256 of each, and a copy of ``config.json``.

The next command on the same directory compares the files with it. Files that a run did not write are not listed.
"""

from collections.abc import Mapping
import fnmatch
import hashlib
import json
import pathlib
import re
import sys
from typing import NamedTuple

from calib_jax.errors import printable
from calib_jax.files import write_text

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
  try:
    with path.open("rb") as file:
      return hashlib.file_digest(file, "sha256").hexdigest()
  except OSError as error:  # A file that cannot be read is not the one that was written.
    return f"unreadable: {error.strerror}"


def read(workdir: pathlib.Path) -> Manifest | None:
  """Returns the manifest in ``workdir``; None if there is none, or, with a warning, if it is damaged itself."""
  path = workdir / NAME
  try:
    fields = json.loads(path.read_text(encoding="utf-8"))
    manifest = Manifest(str(fields["config"]), {str(name): str(value) for name, value in fields["files"].items()})
    if fields["sha256"] != _of(manifest):
      raise ValueError("its own checksum is another one")
    return manifest
  except FileNotFoundError:
    return None
  except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
    print(f"warning: {printable(path)} is damaged ({type(error).__name__}: {printable(error)}), so it is not known "
          "whether the files of this run are those that it wrote; it is written anew for the files as they are.",
          file=sys.stderr, flush=True)
    return None


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
