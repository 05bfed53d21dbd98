"""Executes a run, from its config to its report."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import pathlib
import shlex
import sys
import time
from typing import Any

import ml_collections
import numpy as np

from calib_jax import evaluation, training
from calib_jax._system import compilation, progress
from calib_jax._system.errors import printable
from calib_jax.evaluation.predictions import ensembles
from calib_jax.evaluation.reports import outputs
from calib_jax.training import data
from calib_jax.training.distributed import processes
from calib_jax.training.run import last_layer, lock, manifest
from calib_jax.training.run.data import check_laplace, load_splits, sets_that_are_read
from calib_jax.training.run.directory import check_workdir, create, read_only_results, write_config
from calib_jax.training.run.methods import CROSS_ENTROPY, method_name, plain_cross_entropy, remarks, samples_name
from calib_jax.training.run.run import Run, prediction_file, seeds_of

SPLITS = ("validation", "test")


def execute(config: ml_collections.ConfigDict, workdir: pathlib.Path, hooks: Sequence[Callable[..., Any]] = (), *,  # noqa: C901
            reports: bool = True) -> None:
  """Trains, calibrates, evaluates and reports. The first process writes everything in ``workdir``.

  Args:
    config: a complete config, as ``config.load`` returns it.
    workdir: the run's directory. Models that it already holds are not trained again.
    hooks: the hooks of ``training.train``.
    reports: whether to evaluate and report; if not, the run ends with its predictions.

  Raises:
    UserError: for a mistake of the user, or if another run holds ``workdir``.
    training.Stopped: after a signal.
  """
  started = time.monotonic()
  check_workdir(workdir)
  if reports and (written := read_only_results(config, workdir)):
    if processes.is_first():
      say(written)
    return
  methods = {method_name(config): (config, workdir)}
  if config.compare_with_cross_entropy and CROSS_ENTROPY not in methods:
    methods = {CROSS_ENTROPY: (plain_cross_entropy(config), workdir / "baseline"), **methods}
  training.check_weights(config)
  splits = load_splits(config, config.seed)  # Raises an error about the data before anything is written.
  for method_config, _ in methods.values():
    training.check_phases(method_config, splits)
    training.check_model(method_config, splits)
    if config.evaluation.laplace:
      check_laplace(method_config, splits)
  not_kept = compilation.keep()
  if not processes.is_first():  # The first process holds the directory for all of them.
    for method, (method_config, folder) in methods.items():
      train_seeds(method_config, folder, method, hooks)
    return
  for name, load in sets_that_are_read(config, config.seed):
    if not all(prediction_file(folder, name, seed).exists() for _, folder in methods.values()
               for seed in seeds_of(config)):
      load()  # Raises an error about these files too.
  create(workdir)
  with lock.hold(workdir):
    damage = manifest.begin(workdir)
    for sentence in (write_config(config, workdir), not_kept, *remarks(config)):
      if sentence:
        say(sentence)
    if training.EVENTS:
      say(f"TensorBoard: tensorboard --logdir={shlex.quote(str(workdir))}")
    manifest.keep(workdir, damage)
    for method, (method_config, folder) in methods.items():
      train_seeds(method_config, folder, method, hooks)
    if reports:
      with progress.shown(say) if sys.stdout.isatty() else contextlib.nullcontext():
        report(config, workdir, methods)
    manifest.finish(workdir, damage)
  if reports:
    say(f"\ndone in {time.monotonic() - started:.0f} s; {workdir} holds")
    for path in sorted(workdir.iterdir()):
      if path.name != lock.NAME:
        say(f"  {printable(path)}{'/' if path.is_dir() else ''}")


def report(config: ml_collections.ConfigDict, workdir: pathlib.Path,
           methods: Mapping[str, tuple[ml_collections.ConfigDict, pathlib.Path]]) -> None:
  """Predicts additional sets, and writes tables, figures and the page; ``methods`` is by name in tables."""
  runs = {method: Run(method_config, folder) for method, (method_config, folder) in methods.items()}
  say(f"\ncalibrating and evaluating ({config.evaluation.num_resamples:,} bootstrap resamples) …")
  for run in runs.values():
    run.predict_sets()
  models = {method: run.model() for method, run in runs.items()}
  validation = {method: run.saved("validation") for method, run in runs.items()}
  for name, method in of_networks(config, runs).items() if config.evaluation.laplace else ():
    models[name], validation[name] = last_layer.laplace(runs[method], models[method])
  if config.evaluation.ensemble:
    models |= {title: model for name in validation
               for title, model in ensembles.models(name, models[name], validation[name]).items()}
  results = evaluation.judge(models,
                             num_bins=config.evaluation.num_bins, num_resamples=config.evaluation.num_resamples)
  outputs.write(results, workdir, title=f"{config.data.name}: {method_name(config)}", config=config.to_dict(),
                log=workdir / "metrics.jsonl")


def of_networks(config: ml_collections.ConfigDict, methods: Iterable[str]) -> dict[str, str]:
  """Returns the method of each row with a Laplace approximation, of the network without samples, by its name."""
  names: dict[str, str] = {}
  for method in methods:
    names.setdefault(f"{method.removesuffix(samples_name(config))}, Laplace", method)
  return names


def train_seeds(config: ml_collections.ConfigDict, folder: pathlib.Path, method: str,
                hooks: Sequence[Callable[..., Any]] = ()) -> None:
  """Trains the models that are not finished; writes metrics, checkpoints and predictions that are not there."""
  seeds = seeds_of(config)
  missing = [seed for seed in seeds if not processes.agreed(
    all(prediction_file(folder, split, seed).exists() for split in SPLITS))]
  with contextlib.ExitStack() as stack:
    log = None
    if missing and processes.is_first():
      (folder / "predictions").mkdir(parents=True, exist_ok=True)
      log = training.MetricLog(folder, outputs.reliability_picture(method))
      stack.callback(log.close)
    for group in training.groups_to_train(folder, seeds, missing, config.training.seeds_together):
      splits = [load_splits(config, seed) for seed in group.seeds]
      if processes.is_first():
        group.write_shape(training.shape_of(splits[0]))
      _, predictions = training.train(config, splits, seeds=group.seeds, folder=group.folder, log=log,
                                      label=f"{method}, {group.folder.name}", predicted=SPLITS, hooks=hooks)
      for seed, split_of_seed, by_split in zip(group.seeds, splits, predictions, strict=True):
        train = split_of_seed.train  # Labels of data that do not fit in memory are not counted: it takes minutes.
        counts = np.bincount(train.labels, minlength=split_of_seed.num_classes) if isinstance(
          train, data.Examples) else None
        for split, arrays in by_split.items() if processes.is_first() else ():
          if not (path := prediction_file(folder, split, seed)).exists():
            evaluation.save(path, **arrays, classes=splits[0].classes, train_counts=counts)
            manifest.add(folder, [path])


def say(text: str) -> None:
  """Prints a line and flushes it."""
  print(printable(text, lines=True), flush=True)
