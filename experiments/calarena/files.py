"""Every calibrator on CalArena's files: HDF5 files, one a benchmark, such as ``cv-multiclass.h5``.

Every group ``{dataset}/{model}`` holds ``probas_cal``, ``labels_cal``, ``probas_test`` and ``labels_test``
(https://huggingface.co/datasets/probkit/CalArena). Every registered calibrator, with its defaults, is fitted to the
calibration examples of every experiment of a benchmark and scored on its test examples. The results are written as
CalArena writes them, ``{out}/{benchmark}/{calibrator}.csv``: ``dataset``, ``model``, ``cal_size``, ``test_size``, for
more than two classes ``n_classes``, and then, each after the calibrator's name and ``_``, ``brier``, ``logloss``, for
binary benchmarks ``kuiper``, ``ece-15``, ``accuracy``, and ``time``, the seconds of fitting and applying, which include
compilation. What these files hold already is not run again.

``{out}/{benchmark}.md`` and ``.png`` compare the calibrators with each other and with CalArena's CSV files (the folder
``results`` of its repository): see ``ranks``.
"""

from collections.abc import Sequence
import pathlib
import time
from typing import NamedTuple

import h5py
import jax
import numpy as np

from calib_jax import calibrators, metrics
from calib_jax._system.errors import UserError
from calib_jax.cli.inputs import calibrator
from calib_jax.training.run_log.progress import Progress
from experiments.calarena import ranks
from experiments.common.rows import append, read

# Calibrators as on the command line of calib_jax.evaluation; two have an option without a default.
REQUIRED = {"focal_calibration": ":gamma=1.0", "meta_calibration": ":target=0.05"}
CALIBRATORS = tuple(name + REQUIRED.get(name, "") for name in calibrators.CALIBRATORS)
ARRAYS = ("probas_cal", "labels_cal", "probas_test", "labels_test")
BINS = 15


class Experiment(NamedTuple):
  """The predictions of one model on one dataset: log-probabilities ``[N, K]`` and labels ``[N]``."""

  dataset: str
  model: str
  fit: tuple[np.ndarray, np.ndarray]
  test: tuple[np.ndarray, np.ndarray]


def groups(path: pathlib.Path) -> list[str]:
  """Returns the names of the groups of a file that hold predictions, in the file's order.

  Raises:
    UserError: if there are none.
  """
  names = []
  with h5py.File(path, "r") as file:
    file.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Group) and "probas_cal" in node
                    else None)
  if not names:
    raise UserError(f"{path} has no group DATASET/MODEL with {', '.join(ARRAYS)}.")
  return names


def load(path: pathlib.Path, group: str) -> Experiment:
  """Reads one experiment.

  Raises:
    UserError: if an array is missing.
  """
  with h5py.File(path, "r") as file:
    missing = [name for name in ARRAYS if name not in file[group]]
    if missing:
      raise UserError(f"{path}: {group} has no {', '.join(missing)}.")
    p, y, test_p, test_y = (np.asarray(file[group][name]) for name in ARRAYS)
  dataset, _, model = group.rpartition("/")
  return Experiment(dataset, model, (logarithms(p), y.ravel().astype(np.int32)),
                    (logarithms(test_p), test_y.ravel().astype(np.int32)))


def logarithms(probs: np.ndarray) -> np.ndarray:
  """Float32 log-probabilities ``[N, K]``; a single column is the probability of class 1."""
  probs = probs.astype(np.float32)
  if probs.ndim == 1 or probs.shape[1] == 1:
    probs = np.stack([1 - probs.ravel(), probs.ravel()], axis=1)
  return np.log(np.maximum(probs, np.finfo(np.float32).tiny))


def scores(log_probs: np.ndarray, labels: np.ndarray, binary: bool) -> dict[str, float]:
  """Returns the metrics of CalArena: all are lower for better predictions but for the accuracy.

  Its calibration error leaves out classes of which the test set has no example; of two classes it is that of the
  second class's probability, and of more that of the top label.

  Args:
    log_probs: ``[N, K]``.
    labels: ``[N]``.
    binary: whether the benchmark is one of binary problems, which have the Kuiper metric too.
  """
  probs = np.exp(log_probs.astype(np.float32))
  values = {"brier": float(metrics.brier_score(probs, labels)),
            "logloss": -float(np.mean(np.take_along_axis(log_probs, labels[:, None], axis=1), dtype=np.float64))}
  if binary:
    order = np.argsort(probs[:, 1], kind="stable")
    excess = np.cumsum(labels[order] - probs[order, 1].astype(np.float64)) / len(labels)
    values["kuiper"] = float(max(excess.max(), 0) - min(excess.min(), 0))
  present, among = np.unique(labels, return_inverse=True)
  shares = np.clip(probs[:, present], 1e-7, 1 - 1e-7)
  shares /= shares.sum(1, keepdims=True)
  confidence, correct = (shares[:, 1], among) if len(present) == 2 else (shares.max(1), shares.argmax(1) == among)
  values["ece-15"] = float(metrics.CONVENTIONS["torchmetrics"](confidence, correct.astype(bool), num_bins=BINS))
  return values | {"accuracy": float(np.mean(probs.argmax(1) == labels))}


def row(experiment: Experiment, name: str, binary: bool) -> dict:
  """Fits and scores one calibrator on one experiment; returns a row of its CSV file."""
  started = time.perf_counter()
  chosen = calibrator(name)
  log_probs = np.asarray(chosen.apply(chosen.fit(*experiment.fit), experiment.test[0]))
  seconds = time.perf_counter() - started
  key = (experiment.dataset, experiment.model, len(experiment.fit[1]), len(experiment.test[1]))
  return {**dict(zip(ranks.KEY, key, strict=True)), **({} if binary else {"n_classes": experiment.fit[0].shape[1]}),
          **{f"{name}_{metric}": value for metric, value in scores(log_probs, experiment.test[1], binary).items()},
          f"{name}_time": seconds}


def run(path: pathlib.Path, names: list[str], folder: pathlib.Path) -> None:
  """Runs what has no row yet of the experiments of a benchmark, and appends to the CSV files in a folder."""
  folder.mkdir(parents=True, exist_ok=True)
  done = {(f"{row['dataset']}/{row['model']}".lstrip("/"), name) for name in names
          for row in read(folder / f"{name}.csv")}
  jobs = [(group, name) for group in groups(path) for name in names if (group, name) not in done]
  progress = Progress(path.stem, len(jobs))
  experiment, loaded = None, ""
  for step, (group, name) in enumerate(jobs, 1):
    if group != loaded:
      if group.rpartition("/")[0] != loaded.rpartition("/")[0]:
        jax.clear_caches()  # Datasets have shapes of their own, so that programs of the last one only take memory.
      experiment, loaded = load(path, group), group
    try:
      values = row(experiment, name, path.stem.endswith("-binary"))
    except ValueError as error:
      print(f"{path.stem}: {name} cannot be fitted to {group}: {error}", flush=True)
      continue
    append(folder / f"{name}.csv", [values])
    progress.count(1, values[f"{name}_time"])
    if progress.due(step):
      progress.update(step, values[f"{name}_logloss"])


def run_all(folder: pathlib.Path, out: pathlib.Path, published: pathlib.Path | None, benchmarks: Sequence[str] | None,
            chosen: Sequence[str]) -> None:
  """Runs what has no row yet of files in a folder, by default all, and writes the comparison of each benchmark.

  Raises:
    UserError: if a file or a calibrator is missing.
  """
  names = list(dict.fromkeys(["identity", *chosen]))  # Improvements are over the identity.
  paths = {path.stem: path for path in sorted(folder.glob("*.h5"))}
  wanted = benchmarks or list(paths)
  unknown = [name for name in wanted if name not in paths]
  if unknown or not wanted:
    raise UserError(f"{folder} has no file {unknown[0] if unknown else '*'}.h5; it has {', '.join(paths) or 'none'}.")
  for name in names:
    calibrator(name)  # A mistake in a name or an option stops the command before anything runs.
  for benchmark in wanted:
    run(paths[benchmark], names, out / benchmark)
    ranks.write(out / benchmark, published and published / benchmark)
    print(f"{out / benchmark}.md holds the comparison.", flush=True)
