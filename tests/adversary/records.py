"""Mutated records of a run's directory: the JSON files beside ``config.json``, the log, the lock; runs to compare."""

import contextlib
import io
import json
import math
import os
import pathlib
import random
import shutil
import sys
from typing import Any

import numpy as np

from calib_jax import config as run_config
from calib_jax import evaluation
from calib_jax._system.errors import UserError
from calib_jax._system.files import write_text
from calib_jax.cli import inputs
from calib_jax.reports import __main__ as reports_command
from calib_jax.reports.logs import logged
from calib_jax.run import directory, lock, manifest
from calib_jax.training import seed_groups
from calib_jax.training.run_log import metric_log
from tests.adversary import mutations, predictions
from tests.adversary.judge import CONTROL, Kind, message_fault

ENVIRONMENT = {"python": "3.13", "packages": {"jax": "0.10.2"}, "git": None, "devices": ["cpu"], "system": "Linux"}


def _file(name: str, value: Any):
  """Returns a function that writes mutated JSON of ``value`` as a file of this name, and returns the folder."""
  def mutate(draw: random.Random, sound: Any, folder: pathlib.Path) -> pathlib.Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(mutations.json_text(draw, value(sound) if callable(value) else value))
    mutations.in_place_of(draw, path, is_small=True)
    return folder

  return mutate


def _prepare_environment(folder: pathlib.Path) -> Any:
  directory.environment = lambda: ENVIRONMENT  # It starts git.
  return run_config.load("configs/digits_savuc.py", [])


def _environment(draw, sound, folder):
  return _file("environment.json", ENVIRONMENT)(draw, None, folder), sound


def _write_config(case: tuple[pathlib.Path, Any]) -> str | None:
  directory.create(case[0])
  return directory.write_config(case[1], case[0])


def _silent_environment(sound, case, sentence, said) -> str:
  """What is said of the devices is one printable line, and the file is that of the present."""
  if sentence and ("\n" in sentence or CONTROL.search(sentence) or len(sentence) > 3000):
    return f"it says {sentence!r:.200}"
  written = json.loads((case[0] / "environment.json").read_text())
  return "" if written == ENVIRONMENT else "environment.json is not that of the present"


def _prepare_manifest(folder: pathlib.Path) -> dict:
  (folder / "run").mkdir()
  write_text(folder / "run" / "config.json", "{}\n")
  manifest.write(folder / "run", manifest.Manifest("{}\n", {"config.json": "ab" * 32, "results.md": "cd" * 32}))
  return json.loads((folder / "run" / "manifest.json").read_text())


def _silent_manifest(sound, folder, value, said) -> str:
  path = folder / "manifest.json"
  found, reason = value
  if found is None:
    if fault := message_fault(reason):
      return fault
    return "" if reason or not path.is_file() else "a damaged manifest was taken for none in silence"
  same = found.files == sound["files"] and found.config == sound["config"]
  return "" if same else "a changed manifest was taken for whole"


def _hold(folder: pathlib.Path) -> bool:
  with lock.held(folder):
    return (folder / "lock").read_text().startswith(f"process {os.getpid()} on ")


def _silent_lock(sound, folder, value, said) -> str:
  return f"it says {said!r:.200}" if CONTROL.search(said) else ""


SHAPE = {"image_shape": [8, 8, 1], "num_classes": 10, "mean": [0.3], "std": [0.3]}


def _read_shape(folder: pathlib.Path) -> Any:
  return seed_groups.Group((0,), folder / "checkpoints" / "seed0").read_shape()


def _silent_shape(sound, folder, value, said) -> str:
  if value is None:
    path = folder / "checkpoints" / "seed0.json"
    return "a file that is there was taken for none" if path.exists() else ""
  fields = json.loads((folder / "checkpoints" / "seed0.json").read_text())
  channels, sides = value.image_shape[-1:], value.image_shape
  if not (len(sides) == 3 and all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in sides)):
    return f"the shape of images is {sides!r:.60}"
  if not isinstance(value.num_classes, int) or value.num_classes is True or value.num_classes < 2:
    return f"the number of classes is {value.num_classes!r:.60}"
  for name in ("mean", "std"):
    numbers = getattr(value, name)
    if numbers.shape != channels or not np.isfinite(numbers).all() or (name == "std" and not (numbers > 0).all()):
      return f"{name} is {numbers!r:.60}"
    if not np.array_equal(numbers, np.array(fields[name], np.float32)):
      return f"{name} is not that of the file"
  return ""


ENTRIES = [{"seed": seed, "step": step, "train/loss": 1.0 / step, "validation/nll": 2.0 / step} for step in range(1, 9)
           for seed in range(2)]


def _prepare_log(folder: pathlib.Path) -> None:
  metric_log.EVENTS = False  # TensorFlow takes seconds to import.


def _log(draw: random.Random, sound: Any, folder: pathlib.Path) -> pathlib.Path:
  lines = [json.dumps(entry).encode() for entry in ENTRIES]
  for _ in range(draw.randint(1, 3)):
    place = draw.randrange(len(lines))
    lines[place] = mutations.json_text(draw, ENTRIES[place]) if draw.random() < 0.6 else mutations.changed(
      lines[place], draw)
  content = b"\n".join(lines) + b"\n" * draw.randint(0, 1)
  path = folder / "metrics.jsonl"
  path.write_bytes(mutations.changed(content, draw) if draw.random() < 0.2 else content)
  mutations.in_place_of(draw, path)
  return folder


def _read_log(folder: pathlib.Path) -> tuple[dict, list[str]]:
  curves = logged(folder / "metrics.jsonl")
  with contextlib.closing(metric_log.MetricLog(folder)) as log:
    log.resume([0], 4)
    log.write(5, {"train/loss": 0.2}, seed=0)
  return curves, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()


def _silent_log(sound, folder, value, said) -> str:
  """Whole lines that are not taken again must stay, and curves hold numbers."""
  curves, lines = value
  if json.loads(lines[-1]) != {"seed": 0, "step": 5, "train/loss": 0.2}:
    return "the new line is not the last"
  for name, (steps, values) in curves.items():
    if not all(isinstance(x, int | float) and math.isfinite(x) for x in steps):
      return f"the steps of {name} are {steps!r:.100}"
    if len(steps) != len(values):
      return f"{name} has {len(values)} values of {len(steps)} steps"
  return ""


def _prepare_runs(folder: pathlib.Path) -> pathlib.Path:
  """Makes a run's directory as reports read it: config, log, predictions and manifest."""
  inputs.fit = lambda *_: {}  # The calibrators are not what is attacked, and take a second each.
  run = folder / "run"
  (run / "predictions").mkdir(parents=True)
  (run / "config.json").write_text(run_config.to_json(run_config.load("configs/digits_savuc.py", [])))
  (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, ENTRIES)) + "\n")
  for name in ("validation", "test"):
    evaluation.save(run / "predictions" / f"{name}_seed0.npz", predictions.LOGITS, predictions.LABELS)
  manifest.write(run, manifest.Manifest((run / "config.json").read_text(), manifest.digests(run)))
  evaluation.save(folder / "other.npz", predictions.LOGITS * 2, predictions.LABELS)
  evaluation.save(folder / "swapped.npz", predictions.LOGITS[::-1], predictions.LABELS)
  _quietly(["compare", str(run), str(folder / "other.npz"), "--num_resamples=2"])  # Compiles, which takes seconds.
  return folder


def _runs(draw: random.Random, sound: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
  shutil.copytree(sound / "run", folder / "run")
  shutil.copy(sound / "other.npz", folder / "other.npz")
  files = sorted(path for path in (folder / "run").rglob("*") if path.is_file())
  for path in draw.sample(files, draw.randint(1, 2)):
    if mutations.in_place_of(draw, path):
      continue
    way = draw.random()
    if path.suffix == ".npz" and way < 0.4:
      shutil.copy(sound / "swapped.npz", path)
    elif path.suffix == ".json" and way < 0.6:
      path.write_bytes(mutations.json_text(draw, json.loads(path.read_bytes())))
    elif way < 0.8:
      path.write_bytes(mutations.changed(path.read_bytes(), draw))
    else:
      path.unlink()
  return folder


def _compare(folder: pathlib.Path) -> dict:
  """Compares a run with a file by the command; raises what it prints as an error."""
  out = folder / "results.json"
  code = _quietly(["compare", str(folder / "run"), str(folder / "other.npz"), "--num_resamples=2", f"--json={out}"])
  if code:
    raise UserError(code)
  return json.loads(out.read_text())


def _quietly(arguments: list[str]) -> str:
  """Runs the command of reports; returns what it says of an error, or "". What else it says, it says here too."""
  text = io.StringIO()
  with contextlib.redirect_stderr(text):
    code = reports_command.main(arguments)
  print(text.getvalue(), file=sys.stderr, end="")
  return text.getvalue().strip().splitlines()[-1] if code else ""


def _silent_runs(sound, folder, value, said) -> str:
  if CONTROL.search(said):
    return f"it says {said!r:.200}"
  expected = float((predictions.LOGITS.argmax(1) == predictions.LABELS).mean())
  table = value["results"]["test"]
  found = next(iter(table.values()))["none"]["accuracy"]["value"]
  whole = sorted(path.name for path in (folder / "run" / "predictions").glob("*"))
  intact = abs(found - expected) < 1e-6 and whole == ["test_seed0.npz", "validation_seed0.npz"]
  return "" if intact or "warning" in said else f"the accuracy is {found} in place of {expected}, without a word"


KINDS: dict[str, Kind] = {
  "environment.json": Kind(_prepare_environment, _environment, _write_config, _silent_environment),
  "manifest.json": Kind(_prepare_manifest, _file("manifest.json", lambda sound: sound), manifest.read,
                        _silent_manifest),
  "lock": Kind(lambda folder: None, _file("lock", "process 4711 on node3 since 2026"), _hold, _silent_lock),
  "shape in checkpoints": Kind(lambda folder: None, _file("checkpoints/seed0.json", SHAPE), _read_shape, _silent_shape),
  "metrics.jsonl": Kind(_prepare_log, _log, _read_log, _silent_log),
  "runs to compare": Kind(_prepare_runs, _runs, _compare, _silent_runs),
}
