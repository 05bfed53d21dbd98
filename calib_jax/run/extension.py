"""Makes a run longer: a larger ``training.num_epochs``, ``training.num_steps`` or ``schedule.stage2_epochs``."""

import pathlib

from ml_collections import ConfigDict

from calib_jax import data, training
from calib_jax._system.errors import UserError
from calib_jax.run import manifest
from calib_jax.run.directory import changes, extensions, other_predictions, read_config
from calib_jax.run.methods import plain_cross_entropy

LENGTHS = ("training.num_epochs", "training.num_steps", "schedule.stage2_epochs")
# What the longer run writes anew. Checkpoints stay, from which it goes on, and so does the log.
REPLACED = ("predictions/**/*.npz", "calibrators/*.npz", "results.*", "report.html", "figures/*")


def prepare(config: ConfigDict, workdir: pathlib.Path, splits: data.Splits, damage: manifest.Damage, *,
            allowed: bool) -> tuple[manifest.Damage, dict | None, str | None]:
  """Prepares a directory for the longer run of ``config``, if it holds a run that differs in its length only.

  Predictions and results of the shorter run are deleted. ``splits`` are the data of one of its seeds, and ``damage``
  is what ``manifest.begin`` returned. If the result would not be that of a run that began with this length, and this
  is not ``allowed``, it is a UserError.

  It returns the damage without the files that are replaced; what ``environment.json`` says of the extension, or None
  if the run is not made longer; and a sentence for the user, or None.
  """
  stored, changed = None, {}
  if (workdir / "config.json").exists():
    try:
      stored = read_config(workdir, own_code=None)
      changed = changes(stored, config)
    except UserError:  # ``directory.write_config`` says so.
      return damage, None, None
  if not changed or not changed.keys() <= set(LENGTHS) or other_predictions(workdir, stored, config):
    return damage, None, _earlier(workdir) if stored and not changed else None
  runs = {workdir: (stored, config)}
  if (workdir / "baseline/checkpoints").is_dir():
    runs[workdir / "baseline"] = (plain_cross_entropy(stored), plain_cross_entropy(config))
  extensions_by_folder = {folder: training.extension(before, now, splits) for folder, (before, now) in runs.items()}
  if None in extensions_by_folder.values():
    return damage, None, None
  obstacles = list(dict.fromkeys(text for extension in extensions_by_folder.values() for text in extension.obstacles))
  lengths = ", ".join(f"{key} from {before} to {now}" for key, (before, now) in changed.items())
  because = "; ".join(obstacles)
  if obstacles and not allowed:
    raise UserError(f"--workdir: {workdir} holds a run that cannot change {lengths} and equal one that began so: "
                    f"{because}. Give another --workdir; or add --extend, which goes on from the last checkpoint with "
                    "the rates of the longer run.")
  for folder, extension in extensions_by_folder.items():
    if extension.steps_before != extension.steps_now:
      for path in (path for pattern in REPLACED for path in folder.glob(pattern) if path.is_file()):
        path.unlink()
  entry = {"fields": {key: list(values) for key, values in changed.items()}, "not_equal_because": because,
           "steps": list(extensions_by_folder[workdir][:2])}
  equal = f"which no run that began so equals: {because}" if obstacles else "which equals a run that began so"
  return damage.without_models(), entry, f"this run goes on with {lengths}, {equal}."


def _earlier(workdir: pathlib.Path) -> str | None:
  """Returns the sentence that says that an earlier command used ``--extend``, or None."""
  reasons = [str(entry["not_equal_because"]) for entry in extensions(workdir) if entry.get("not_equal_because")]
  return (f"an earlier command made this run longer by --extend, so that no run that began so equals it: {reasons[-1]}."
          if reasons else None)
