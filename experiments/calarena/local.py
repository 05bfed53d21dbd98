"""Calibrators, and the same ones of other packages, on the data sets of ``local_sets``: ``{out}/calarena_local.csv``.

A row is of a method, a package, an experiment and a split. Where the calibration half has more than 1,000 examples,
this package's methods are fitted to its first 500 as well. Probabilities below 1.2e-7, the precision of float32, count
as that, as in scikit-learn's ``log_loss``; without it one 0 from an isotonic regression is worth 87 nats.

Every fit is run once before the clock starts, so that nothing is compiled while it is timed. On the first split the
implementations of a method are then fitted in turn, three times, and the row has the medians of the processor seconds
of a fit and of an application; a fit of more than two seconds is not repeated. Processor seconds are those of all
threads; `OMP_NUM_THREADS=1 XLA_FLAGS=--xla_cpu_multi_thread_eigen=false` before the command gives products of matrices
one thread each. What has rows already is not run again.
"""

from collections.abc import Iterator, Sequence
import pathlib
import statistics
import time
import warnings

import numpy as np

from calib_jax._system.errors import UserError
from experiments.calarena import local_page, local_sets, methods
from experiments.calarena.files import Experiment, scores
from experiments.common import commands, rows
from experiments.common.calibrator_peers import PACKAGES

NAME = "calarena_local"
FEW, ENOUGH = 500, 1000  # The examples of the smaller calibration set, and of the larger one from which it is drawn.
REPEATS, LONG = 3, 2.0
LEAST = float(np.finfo(np.float32).eps)
METRICS = ("brier", "logloss", "ece-15", "accuracy")


def sized(experiment: Experiment) -> dict[str, Experiment]:
  """Returns the experiment with all calibration examples and, where they are many, with the first 500."""
  z, y = experiment.fit
  few = {"few": experiment._replace(fit=(z[:FEW], y[:FEW]))} if len(y) > ENOUGH else {}
  return {"all": experiment, **few}


def measured(experiment: Experiment, name: str, *, peers: bool, timed: bool) -> Iterator[dict[str, object]]:
  """Yields the rows of a method: one a package, with empty scores if it failed."""
  num_classes = experiment.fit[0].shape[1]
  implementations, texts, notes = methods.of(name, num_classes, peers), {}, {}
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Peers warn of overflows and of what will change.
    for method in implementations:
      try:
        values, notes[method] = _scored(method, experiment)
        texts[method] = {key: f"{values[key]:.6g}" for key in METRICS}
      except Exception as error:  # Some peers fail on absent classes; ours must not.
        if method.package == methods.OURS:
          raise
        notes[method] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
    seconds = _seconds(list(texts), experiment) if timed else {}
  for method in implementations:
    yield {"classes": num_classes, "cal_size": len(experiment.fit[1]), "test_size": len(experiment.test[1]),
           "method": name, "package": method.package, **texts.get(method, dict.fromkeys(METRICS, "")),
           **dict(zip(("fit_seconds", "apply_seconds"), seconds.get(method, ("", "")), strict=True)),
           "note": notes[method]}


def _scored(method: methods.Method, experiment: Experiment) -> tuple[dict[str, float], str]:
  """Fits and applies a method; returns its scores, and the choice of ``select``."""
  apply = method.fit(method.inputs(experiment.fit[0]), experiment.fit[1])
  probs = np.asarray(apply(method.inputs(experiment.test[0])), np.float64)
  if probs.shape != experiment.test[0].shape or not np.isfinite(probs).all():
    raise ValueError("the probabilities are not finite, or have another shape")
  values = scores(np.log(np.clip(probs, LEAST, 1)), experiment.test[1], binary=probs.shape[1] == 2)
  return values, getattr(apply, "choice", "")


def _seconds(implementations: Sequence[methods.Method], experiment: Experiment) -> dict[methods.Method, list[str]]:
  """Returns the median processor seconds of fits and of applications, in turn; each has run before."""
  taken = {method: [] for method in implementations}
  prepared = {method: (method.inputs(experiment.fit[0]), method.inputs(experiment.test[0])) for method in taken}
  for repeat in range(REPEATS):
    for method, (inputs, test) in prepared.items():
      if repeat and taken[method][0][0] > LONG:
        continue
      started = time.process_time()
      apply = method.fit(inputs, experiment.fit[1])
      fitted = time.process_time()
      apply(test)
      taken[method].append((fitted - started, time.process_time() - fitted))
  return {method: [f"{statistics.median(column):.4g}" for column in zip(*pairs, strict=True)]
          for method, pairs in taken.items()}


def run(out: pathlib.Path, predictions: pathlib.Path | None, splits: int, chosen: Sequence[str] | None = None,
        datasets: Sequence[str] | None = None) -> None:
  """Runs what has no row yet, and writes the page and the figure.

  Args:
    out: where the results go.
    predictions: the folder of saved predictions of networks, or None for trained classifiers alone.
    splits: the number of random divisions of each data set.
    chosen: the calibrators, as on the command line; None for all of ``methods.names``.
    datasets: the names of data sets; None for all.

  Raises:
    UserError: for a name that is not among them.
  """
  names = methods.names(chosen)
  out.mkdir(parents=True, exist_ok=True)
  path = out / f"{NAME}.csv"
  if absent := [package for package in PACKAGES if package not in methods.installed()]:
    print(f"Not installed, and left out: {', '.join(absent)}.", flush=True)
  made = local_sets.experiments(predictions)
  if unknown := set(datasets or ()) - {name for name, *_ in made}:
    raise UserError(f"no such data set: {', '.join(sorted(unknown))}.")
  jobs = [(experiment, split) for experiment in made for split in range(splits)
          if not datasets or experiment[0] in datasets]
  done = {(row["dataset"], row["model"], row["split"], row["size"], row["method"]) for row in rows.read(path)}
  started = time.monotonic()
  for i, ((dataset, model, make), split) in enumerate(jobs, 1):
    missing = {size: [name for name in names if (dataset, model, str(split), size, name) not in done]
               for size in ("all", "few")}
    if not missing["all"]:
      continue
    # The packages of a method run together, to be timed in turn.
    new = [{"dataset": dataset, "model": model, "split": split, "size": size, **row}
           for size, experiment in sized(make(split)).items() for name in missing[size]
           for row in measured(experiment, name, peers=size == "all", timed=size == "all" and not split)]
    rows.append(path, new)
    print(f"{dataset}, {model}, split {split}: {len(new)} rows, {commands.left(started, i, len(jobs))}", flush=True)
  rows.pack(path)
  local_page.write(path)
  print(f"{out / NAME}.md holds the tables.", flush=True)
