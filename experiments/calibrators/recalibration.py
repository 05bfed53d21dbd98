"""Post-hoc calibration of saved predictions: temperatures, focal temperatures and class-wise loss scaling, by seeds.

Run: python -m experiments.calibrators.recalibration --out=DIR PREDICTIONS.npz RUN …

Each file holds `labels` and `logits` or `probs`: for each of `--seeds` seeds half of the rows, drawn anew, fit and the
other half test. In the directory of a run by main.py, the validation split of each seed fits and its test split tests.
The table has accuracy, NLL and ECE (15 equal-mass bins, norm 1), mean ± standard error over seeds, and how many fits
reached their tolerance.
"""

import argparse
import functools
import hashlib
import pathlib
import re
import sys

import numpy as np

from calib_jax import evaluation
from calib_jax._system.errors import UserError
from calib_jax.cli.inputs import files_of_run
from experiments.common import sweep
from experiments.common.declaration import Experiment, Saved

BASES = ("temperature_scaling", "ensemble_temperature_scaling", "parameterized_temperature_scaling",
         "class_temperature_scaling")
CALIBRATORS = {
  "TS (NLL)": {"name": "temperature_scaling"},
  "TS-SB-ECE": {"name": "temperature_scaling", "objective": "soft_binned_ece"},
  "TS-SB-ECE, label form": {"name": "temperature_scaling", "objective": "soft_binned_ece", "form": "label"},
  "TS-HB-ECE": {"name": "temperature_scaling", "objective": "ece"},
  **{f"FTS {search} ({objective.upper()})": {"name": "focal_temperature_scaling", "search": search,
                                             "objective": objective}
     for objective in ("nll", "ece") for search in ("grid", "line")},
  **{name: {"name": name} for name in BASES[1:]},
  **{f"{base} + CLS": {"name": "classwise_loss_scaling", "base": base} for base in BASES},
  **{name: {"name": name} for name in ("vector_scaling", "matrix_scaling", "dirichlet", "platt", "isotonic",
                                 "spline_calibration", "smart")},
}
DIVISIONS = 5  # Seeds of a file, if the command does not say.


def methods(options: argparse.Namespace) -> list[Saved]:
  """Returns what each path holds."""
  return [of_run(path) if path.is_dir() else of_file(path, options.seeds or DIVISIONS) for path in options.predictions]


def of_run(path: pathlib.Path) -> Saved:
  """Returns the predictions of a run's validation and test splits.

  Raises:
    UserError: if it has none.
  """
  files = files_of_run(path)
  if not files.get("validation") or len(files["validation"]) != len(files.get("test", ())):
    raise UserError(f"{path} must be the directory of a run, with predictions of its validation and test splits.")
  splits = [files[name] for name in ("validation", "test")]
  return _saved(path, len(splits[0]), [file for split in splits for file in split],
                lambda: tuple([evaluation.load(file) for file in split] for split in splits))


def of_file(path: pathlib.Path, num_seeds: int) -> Saved:
  """Returns the halves of a file, divided anew for each seed."""
  return _saved(path, num_seeds, [path], functools.partial(_halves, path, num_seeds))


def _halves(path: pathlib.Path, num_seeds: int) -> tuple[list[evaluation.Predictions], ...]:
  whole = evaluation.load(path)
  orders = [np.random.default_rng(seed).permutation(len(whole.labels)) for seed in range(num_seeds)]
  parts = [np.array_split(order, 2) for order in orders]
  return tuple([evaluation.Predictions(whole.logits[rows], whole.labels[rows]) for rows in half]
               for half in zip(*parts, strict=True))


def _saved(path: pathlib.Path, num_seeds: int, files: list[pathlib.Path], load) -> Saved:
  content = hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files))
  return Saved(re.sub(r"[^\w.-]+", "_", path.resolve().stem), "", num_seeds, content.hexdigest()[:12], load)


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the files and directories of predictions."""
  parser.add_argument("predictions", nargs="+", type=pathlib.Path)


EXPERIMENT = Experiment("calibrators.recalibration", "Calibrators on saved predictions", methods, CALIBRATORS,
                        ("accuracy", "nll", "adaptive", "converged"), arguments=arguments)

if __name__ == "__main__":
  sys.exit(sweep.main(EXPERIMENT))
