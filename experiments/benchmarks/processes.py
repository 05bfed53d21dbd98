"""Commands as processes of their own: the evaluation of predictions, and a newcomer's first hour."""

import argparse
from collections.abc import Mapping, Sequence
import functools
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from experiments.benchmarks.arrays import Rows
from experiments.common import timing
from experiments.common.commands import ROOT

FOUR = ("temperature_scaling", "vector_scaling", "isotonic", "histogram_binning")
NETCAL = """
import sys, numpy as np
from netcal.metrics import ACE, ECE, MCE
from netcal.scaling import TemperatureScaling
fit, test = (np.load(path) for path in sys.argv[1:])
def probs(file):
  e = np.exp(file["logits"] - file["logits"].max(1, keepdims=True)); return e / e.sum(1, keepdims=True)
scaling = TemperatureScaling(); scaling.fit(probs(fit), fit["labels"])
for p in (probs(test), scaling.transform(probs(test))):
  print(*(metric(15).measure(p, test["labels"]) for metric in (ECE, ACE, MCE)))
"""
TORCHMETRICS = """
import sys, numpy as np, torch
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error
files = [np.load(path) for path in sys.argv[1:]]
z, y, test, labels = (torch.from_numpy(file[name]) for file in files for name in ("logits", "labels"))
log_t = torch.zeros((), requires_grad=True); solver = torch.optim.LBFGS([log_t], line_search_fn="strong_wolfe")
def closure():
  solver.zero_grad(); loss = torch.nn.functional.cross_entropy(z / log_t.exp(), y); loss.backward(); return loss
solver.step(closure)
for t in (1.0, log_t.exp().item()):
  k, p = test.shape[1], (test / t).softmax(1)
  print(*(multiclass_calibration_error(p, labels, k, n_bins=15, norm=norm).item() for norm in ("l1", "l2", "max")),
        multiclass_accuracy(p, labels, k, average="micro").item(),
        torch.nn.functional.cross_entropy(test / t, labels).item())
"""


def predictions(path: pathlib.Path, number: int, noise: float, seed: int) -> pathlib.Path:
  """Writes logits of 10 classes that are twice too large, and returns the path."""
  rng = np.random.default_rng(seed)
  labels = rng.integers(0, 10, number)
  logits = noise * rng.normal(size=(number, 10)) + 2.5 * np.eye(10)[labels]
  np.savez(path, logits=(2 * logits).astype(np.float32), labels=labels)
  return path


def without_cache(command: Sequence[str]) -> None:
  """Runs a command with an empty compilation cache; a failure raises `CalledProcessError`."""
  with tempfile.TemporaryDirectory() as cache:
    subprocess.run(command, cwd=ROOT, env=os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}, check=True,
                   capture_output=True)


def evaluation_commands(folder: pathlib.Path, number: int, python: str) -> dict[str, list[str]]:
  """Returns the commands by name, and writes what they read."""
  fit, test, shifted, ood = (str(predictions(folder / f"{name}.npz", number, noise, seed)) for seed, (name, noise)
                             in enumerate({"fit": 1.0, "test": 1.0, "shifted": 1.6, "ood": 3.0}.items()))
  command = [sys.executable, "-m", "calib_jax.evaluation", "--fit", fit, "--test", test]
  one, page = [*command, "--calibrators", FOUR[0]], ["--out", str(folder / "page")]
  named = {
    "one calibrator, table in the terminal": one,
    "one calibrator, page and figures": [*one, *page],
    "the same with figures as PDF too": [*one, *page, "--figures=pdf"],
    "four calibrators, a shifted set and an out-of-distribution set": [
      *command, "--test", shifted, "--ood", ood, "--calibrators", *FOUR, *page]}
  for name, code in (("netcal", NETCAL), ("torchmetrics", TORCHMETRICS)):
    if not subprocess.run([python, "-c", f"import {name}"], capture_output=True, check=False).returncode:
      named[f"{name}: one temperature, its metrics before and after"] = [python, "-c", code, fit, test]
  return named


def evaluation_rows(options: argparse.Namespace) -> Rows:
  """Times the evaluation with an empty cache, and in `--python` the part of it that other libraries have."""
  folder = pathlib.Path(tempfile.mkdtemp(dir=options.folder))
  number = 200 if options.scale == "tiny" else 5000
  return {name: functools.partial(timing.compare, functools.partial(without_cache, command), None, options.budget,
                                  1 if options.scale == "tiny" else 3)
          for name, command in evaluation_commands(folder, number, options.python or sys.executable).items()}


# Writes the demo's predictions of seed 0 as another program would save them.
CSV = """
import csv, numpy as np
for name, split in (("val", "validation"), ("test", "test")):
  saved = np.load(f"runs/fashion_mnist_small_savuc/predictions/{split}_seed0.npz")
  with open(f"{name}.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["label", *(f"logit_{i}" for i in range(saved["logits"].shape[1]))])
    writer.writerows([label, *row] for label, row in zip(saved["labels"], saved["logits"].tolist()))
"""


def first_hour_steps(python: str) -> dict[str, Sequence[str]]:
  """Returns the commands of a first hour in the clone by name; those of the guides."""
  own = ".venv/bin/python"
  return {
    "clone": ["git", "clone", "--quiet", str(ROOT), "."],
    "install": ["make", ".venv/demo", f"PYTHON={python}"],
    "demo": ["make", "demo", f"PYTHON={python}"],
    "a CSV file": ["sh", "-c", f'{own} -c "$CSV" && {own} -m calib_jax evaluate --fit val.csv --test test.csv '
                               "--out runs/csv"],
    "own parts": [own, "main.py", "--config=examples/own/config.py", "--workdir=runs/own"],
    "site": ["make", "docs", f"PYTHON={python}"]}


def in_clone(command: Sequence[str], folder: pathlib.Path) -> None:
  """Runs a command as a user who has none of our variables and caches; a RuntimeError has its last lines."""
  clean = {name: value for name, value in os.environ.items()
           if not name.startswith(("PYTHON", "JAX_", "XLA_", "VIRTUAL_ENV", "CALIB_JAX"))}
  clone = folder / "calib_jax"
  clone.mkdir(exist_ok=True)
  done = subprocess.run(command, cwd=clone, env=clean | {"XDG_CACHE_HOME": str(folder / "cache"), "CSV": CSV},
                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
  if done.returncode:
    raise RuntimeError("\n".join([" ".join(command), *done.stdout.splitlines()[-20:]]))


def first_hour_rows(options: argparse.Namespace) -> Rows:
  """Times a newcomer's first hour, once, from a clean clone: installation, demo, a CSV file, own parts, the site."""
  folder, all_times = pathlib.Path(tempfile.mkdtemp(dir=options.folder)), []

  def step(command: Sequence[str]) -> Mapping[str, object]:
    all_times.append(timing.compare(functools.partial(in_clone, command, folder), fewest=1))
    shown = " ".join(command).replace(str(ROOT), "URL").rpartition("&& ")[2].partition(" PYTHON=")[0]
    return {"command": f"`{shown}`", **all_times[-1]}

  rows = {name: functools.partial(step, command)
          for name, command in first_hour_steps(options.python or "python3").items()}
  return rows | {"all": lambda: {key: sum(times[key] for times in all_times) for key in ("seconds", "processor s")}}
