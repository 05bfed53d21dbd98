"""Trains, recalibrates, evaluates and reports: one command, one run directory.

python main.py --config=configs/digits_savuc.py --workdir=runs/digits_savuc

Any field of the config can be changed on the command line: --config.training.num_steps=20. A run that was stopped goes
on with the same command.
"""

import argparse
import contextlib
import errno
import functools
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

import jax
from ml_collections import ConfigDict

from calib_jax import calibrators, data, evaluation, training
from calib_jax import config as run_config
from calib_jax.errors import UserError
from calib_jax.files import write_text
from calib_jax.training import processes

# TensorFlow only reads data and writes events here: its start-up notices say nothing to the user.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

CROSS_ENTROPY = "cross_entropy"


def main(arguments: list[str]) -> int:
  """Runs the command line; returns the exit code.

  0, or 2 for a mistake that the user can mend, 3 where another process was lost, 128 and the signal that stopped it.
  """
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
  parser.add_argument("--config", required=True, help="a file with get_config(), such as configs/digits_savuc.py")
  parser.add_argument("--workdir", required=True, help="the run's directory, made where it is not there")
  parser.add_argument("--coordinator", help="host:port of the first of several processes")
  parser.add_argument("--num_processes", type=int, help="how many processes take part in the run")
  parser.add_argument("--process_id", type=int, help="which of them this is, from 0")
  options, overrides = parser.parse_known_args(arguments)
  try:
    processes.connect(options.coordinator, options.num_processes, options.process_id)
    config = run_config.load(options.config, overrides)
    run_config.check(config, jax.device_count())
    run(config, pathlib.Path(options.workdir))
    return 0
  except UserError as error:
    code, message = 2, f"error: {error}"
  except training.Stopped as stopped:
    code, message = 128 + stopped.signal, f"\n{stopped}"
  except KeyboardInterrupt:
    code, message = 130, "\nstopped; the same command goes on from what is on disk."
  except OSError as error:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
      raise
    where = error.filename or options.workdir
    code, message = 2, f"error: {where}: {error.strerror}; make room, and the same command goes on."
  except jax.errors.JaxRuntimeError as error:
    if jax.process_count() == 1:
      raise
    code, message = 3, f"error: {processes.LOST} ({str(error).splitlines()[0]})"
  print(message, file=sys.stderr, flush=True)
  if jax.process_count() > 1 and code in (2, 3):
    os._exit(code)  # JAX would wait minutes at exit for processes that are waiting for this one.
  return code


def run(config: ConfigDict, workdir: pathlib.Path) -> None:
  """Everything from data to report; all of it lands in ``workdir``, written by the first process."""
  started = time.monotonic()
  methods = {method_name(config): (config, workdir)}
  if config.compare_with_cross_entropy:
    methods = {CROSS_ENTROPY: (plain_cross_entropy(config), workdir / "baseline"), **methods}
  load_splits(config, config.seed)  # What is wrong with the data is said before anything is written.
  if processes.is_first():
    write_config(config, workdir)
    if not training.EVENTS:
      say(training.NO_EVENTS)
  if jax.config.jax_compilation_cache_dir is None:
    jax.config.update("jax_compilation_cache_dir", str(workdir.absolute().parent / ".compiled"))
  for method, (method_config, folder) in methods.items():
    train_seeds(method_config, folder, method)
  if not processes.is_first():
    return
  report(config, workdir, {method: calibrate(*of_method) for method, of_method in methods.items()})
  say(f"\ndone in {time.monotonic() - started:.0f} s; {workdir} holds")
  for path in sorted(workdir.iterdir()):
    say(f"  {path}{os.sep if path.is_dir() else ''}")


def method_name(config: ConfigDict) -> str:
  """How tables call what a config trains."""
  secondary = f" + {config.loss.secondary.name}" if config.loss.secondary.name else ""
  return config.loss.primary.name + secondary


def plain_cross_entropy(config: ConfigDict) -> ConfigDict:
  """The same run with cross entropy alone as its loss."""
  baseline = config.copy_and_resolve_references().unlock()
  baseline.compare_with_cross_entropy = False
  baseline.loss.primary = ConfigDict({"name": CROSS_ENTROPY})
  baseline.loss.secondary = ConfigDict({"name": ""})
  baseline.training.schedule = "joint"
  return baseline.lock()


def seeds(config: ConfigDict) -> range:
  """The seeds of a run, one model each."""
  return range(config.seed, config.seed + config.num_seeds)


def load_splits(config: ConfigDict, seed: int) -> data.Splits:
  """The config's data set; that of the last call is kept."""
  return _load(seed, tuple(sorted(run_config.data_options(config).items())))


@functools.lru_cache(maxsize=1)
def _load(seed: int, options: tuple) -> data.Splits:
  return data.load(seed=seed, **dict(options))


def train_seeds(config: ConfigDict, folder: pathlib.Path, method: str) -> None:
  """Trains one model a seed; leaves metrics, checkpoints and predictions in ``folder``. What is there stays."""
  def files(seed):
    return {name: folder / "predictions" / f"{name}_seed{seed}.npz" for name in ("validation", "test")}

  every = list(seeds(config))
  groups = [every] if config.training.seeds_together else [[seed] for seed in every]
  groups = [group for group in groups
            if not processes.agreed(all(path.exists() for seed in group for path in files(seed).values()))]
  if not groups:
    return
  with contextlib.ExitStack() as stack:
    log = None
    if processes.is_first():
      (folder / "predictions").mkdir(parents=True, exist_ok=True)
      log = training.MetricLog(folder, None if missing_for_figures() else functools.partial(picture, method))
      stack.callback(log.close)
    for group in groups:
      name = f"seed{group[0]}" if len(group) == 1 else f"seeds{group[0]}-{group[-1]}"
      splits = [load_splits(config, seed) for seed in group]
      _, predictions = training.train(config, splits, seeds=group, folder=folder / "checkpoints" / name, log=log,
                                      label=f"{method}, {name}")
      for seed, found in zip(group, predictions, strict=True):
        for split, (logits, labels) in found.items() if processes.is_first() else ():
          evaluation.save(files(seed)[split], logits, labels)


def missing_for_figures() -> list[str]:
  """The packages that figures need and that are not installed."""
  return [name for name in ("matplotlib", "jinja2") if not importlib.util.find_spec(name)]


def picture(method: str, logits, labels):
  """A reliability diagram for the event files."""
  from calib_jax import reports  # Matplotlib takes a second to import: not before training.

  return reports.picture(f"{method}\nvalidation", evaluation.Predictions(logits, labels))


def calibrate(config: ConfigDict, folder: pathlib.Path) -> dict[str, list[evaluation.Predictions]]:
  """The test predictions in ``folder`` before and after each of the config's calibrators."""
  fit, test = ([evaluation.load(folder / "predictions" / f"{name}_seed{seed}.npz") for seed in seeds(config)]
               for name in ("validation", "test"))
  labelled = {label: calibrators.get(**section) for label, section in config.evaluation.calibrators.items()}
  return evaluation.calibrate(fit, test, labelled)


def report(config: ConfigDict, workdir: pathlib.Path,
           calibrated: dict[str, dict[str, list[evaluation.Predictions]]]) -> None:
  """Writes ``results.json``, ``results.md``, the figure and the page, and prints the table."""
  results = {method: evaluation.evaluate(parts, num_bins=config.evaluation.num_bins,
                                         num_resamples=config.evaluation.num_resamples)
             for method, parts in calibrated.items()}
  rows = evaluation.to_rows(results)
  note = (f"Test split, mean over {config.num_seeds} seed{'s' if config.num_seeds > 1 else ''}, with 95% bootstrap "
          f"intervals over its examples; calibrators fitted on the validation split; ECE with "
          f"{config.evaluation.num_bins} bins, biased upwards, and in its resamples once more: its intervals lean up.")
  table = evaluation.markdown(rows)
  write_text(workdir / "results.json", json.dumps(results, indent=2) + "\n")
  write_text(workdir / "results.md", f"{note}\n\n{table}")
  say(f"\n{note}\n\n{table}")
  if missing := missing_for_figures():
    say(f"no figure and no page: {' and '.join(missing)} not installed (pip install 'calib-jax[report]').")
    return
  from calib_jax import reports

  figure = workdir / "figures" / "reliability.png"
  figure.parent.mkdir(exist_ok=True)
  panels = [[reports.panel(f"{method}\ncalibrated by: {label}", parts[label], results[method][label]["ece"])
             for label in parts] for method, parts in calibrated.items()]
  reports.draw(panels, figure, num_bins=config.evaluation.num_bins)
  reports.write(workdir / "report.html", title=f"{config.data.name}: {method_name(config)}", note=note, rows=rows,
                figures=[figure], config=config.to_dict(), environment=environment())


def write_config(config: ConfigDict, folder: pathlib.Path) -> None:
  """Makes ``folder`` and says in it what runs there and on what. UserError where it holds another run."""
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UserError(f"--workdir: {folder} cannot be made ({error.strerror}).") from error
  text = json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"
  path = folder / "config.json"
  if path.exists() and path.read_text(encoding="utf-8") != text:
    raise UserError(f"--workdir: {folder} holds a run of another config ({changed(path, text)}): "
                    "give another --workdir, or delete it.")
  write_text(path, text)
  path, now = folder / "environment.json", environment()
  with contextlib.suppress(OSError, ValueError, KeyError):
    before = json.loads(path.read_text(encoding="utf-8"))["devices"]
    if before != now["devices"]:
      then, here = (f"{len(devices)} x {devices[0]}" for devices in (before, now["devices"]))
      say(f"this run began on {then} and goes on with {here}: its numbers will be the same but for rounding.")
  write_text(path, json.dumps(now, indent=2) + "\n")


def changed(path: pathlib.Path, text: str) -> str:
  """Which keys differ between the config at ``path`` and ``text``."""
  def flat(node, prefix=""):
    if not isinstance(node, dict):
      return {prefix[:-1]: node}
    return {key: leaf for name, child in node.items() for key, leaf in flat(child, f"{prefix}{name}.").items()}

  try:
    before, now = flat(json.loads(path.read_text(encoding="utf-8"))), flat(json.loads(text))
  except ValueError:
    return "its config.json is damaged"
  return ", ".join(sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))) + " differ"


def environment() -> dict:
  """Versions, devices and git revision, for whoever repeats the run."""
  packages = ("jax", "jaxlib", "numpy", "flax", "optax", "orbax-checkpoint", "tensorflow-datasets")
  versions = {}
  for package in packages:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[package] = importlib.metadata.version(package)
  git = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40"], capture_output=True, text=True,
                       cwd=pathlib.Path(__file__).parent, check=False)
  return {"python": platform.python_version(), "packages": versions, "git": git.stdout.strip() or None,
          "devices": [str(device.device_kind) for device in jax.devices()], "system": platform.platform()}


def say(text: str) -> None:
  """Prints a line for the user at once."""
  print(text, flush=True)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
