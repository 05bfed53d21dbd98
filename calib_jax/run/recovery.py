"""Notices files of a finished run that were changed, cut or deleted, and prepares the next command to make them again.

Results and pages come from predictions, and predictions from checkpoints; a checkpoint and the log only come from
training. After the command the files are compared with those that the run wrote before, so that changed numbers are
never reported without a warning.
"""

from collections.abc import Iterable
import pathlib
import re
import shutil
import sys
from typing import NamedTuple

from calib_jax._system.errors import printable
from calib_jax._system.files import read_text, write_text
from calib_jax.run import manifest
from calib_jax.run.manifest import Manifest, listed

LOG = "metrics.jsonl"
PREDICTIONS = re.compile(r"(?:baseline/)?predictions/.*")
LASTING = re.compile(r"(?:baseline/)?(?:predictions|checkpoints)/.*")  # What no later command writes again.


class Damage(NamedTuple):
  """How a run's files differ from those that it wrote.

  Attributes:
    before: the manifest that the last command wrote; None if there is none.
    found: the SHA-256 of each file that the command found, by path.
    kept: the files of ``before`` that this command will not write.
  """

  before: Manifest | None
  found: dict[str, str]
  kept: frozenset[str] = frozenset()

  def paths(self) -> list[str]:
    """Returns the paths of the files that are missing or have other contents."""
    return [name for name, value in self.before.files.items() if self.found.get(name) != value] if self.before else []


def examine(workdir: pathlib.Path) -> Damage:
  """Compares the files of a run with its manifest, says what differs, and restores ``config.json`` from it."""
  before, reason = manifest.read(workdir)
  if reason:
    _warn(f"{reason}; it is written anew for the files as they are.")
  damage = Damage(before, manifest.digests(workdir) if before else {})
  changed = damage.paths()
  if changed:
    deleted = [name for name in changed if name not in damage.found]
    phrases = [f"{listed(names)} ({what})" for what, names in (
      ("changed", [name for name in changed if name in damage.found]), ("deleted", deleted)) if names]
    _warn(f"files of this run in {workdir} are not as it left them: {'; '.join(phrases)}.")
  if manifest.CONFIG in changed:
    write_text(workdir / manifest.CONFIG, before.config)
  return damage


def prepare(workdir: pathlib.Path, damage: Damage, seeds: Iterable[int], splits: Iterable[str]) -> Damage:
  """Puts damaged predictions aside, and the damaged checkpoints from which they cannot be made.

  Args:
    workdir: the run's directory, whose ``config.json`` is that of the present command.
    damage: what ``examine`` returned.
    seeds: the seeds of the present command.
    splits: the names of the splits whose predictions training writes.

  Returns:
    The same with ``kept``. The manifest on disk then lists only these files, or the predictions if there was no
    manifest, and those that are written later, until ``finish`` lists all.
  """
  config = read_text(workdir / manifest.CONFIG)
  if not damage.before:
    predictions = {name: value for name, value in manifest.digests(workdir).items() if PREDICTIONS.fullmatch(name)}
    manifest.write(workdir, Manifest(config, predictions))
    return damage
  changed = set(damage.paths())
  for name in changed:
    if PREDICTIONS.fullmatch(name) and (workdir / name).exists():
      _put_aside(workdir / name)
  kept = {name for name in damage.before.files if LASTING.fullmatch(name)}
  for group, steps in manifest.checkpoints(damage.before.files).items():
    first, last = re.search(r"seeds?(\d{1,12})(?:-(\d{1,12}))?$", group).groups()
    names = [f"{split}_seed{seed}.npz" for seed in seeds if int(first) <= seed <= int(last or first)
             for split in splits]
    complete = all((workdir / group).parent.with_name("predictions").joinpath(name).exists() for name in names)
    if complete or not changed & set(steps[max(steps)]):
      continue
    _warn(f"the models of {workdir / group} are trained again from their last whole checkpoint, because their "
          "predictions and their newest checkpoint are damaged.")
    # An empty folder says that these seeds train together.
    (workdir / group).mkdir(parents=True, exist_ok=True)
    for step, files in steps.items():
      kept -= set(files)
      if changed & set(files) and (workdir / group / str(step)).exists():
        _put_aside(workdir / group / str(step))
  manifest.write(workdir, Manifest(config, {name: damage.before.files[name] for name in kept}))
  return damage._replace(kept=frozenset(kept))


def finish(workdir: pathlib.Path, damage: Damage) -> None:
  """Writes the manifest of the finished run, and says which damaged files were made again and which cannot be."""
  files = manifest.digests(workdir)
  same, other, lost = [], [], []
  for name in damage.paths():
    if LASTING.fullmatch(name) and name not in damage.kept:
      continue  # A checkpoint of models that were trained again.
    before, found, now = damage.before.files[name], damage.found.get(name), files.get(name)
    if now == before:
      same.append(name)
    elif now != found and now is not None and not name.endswith(LOG):
      other.append(name)
    else:
      lost.append(name)
      files[name] = before  # The next command says it again.
  manifest.write(workdir, Manifest(read_text(workdir / manifest.CONFIG), files))
  if same:
    print(f"made again, byte for byte: {listed(same)}.", flush=True)
  if other:
    _warn(f"{listed(other)} could be made again, but not byte for byte as before: the machine, the versions, the data "
          "or the evaluation's settings are others, and the results above are those of the new files.")
  if lost:
    _warn(f"{listed(lost)} cannot be made again from what is left: delete {workdir} to train from the beginning, or "
          f"delete {workdir / manifest.NAME} to accept the files as they are.")


def _put_aside(path: pathlib.Path) -> None:
  aside = path.with_name(f"{path.name}.damaged")
  if aside.is_dir():
    shutil.rmtree(aside)
  path.replace(aside)


def _warn(text: str) -> None:
  print(f"warning: {printable(text)}", file=sys.stderr, flush=True)
