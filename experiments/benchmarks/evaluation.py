"""Processor time of the command that evaluates predictions, from its start to its end, and of other libraries' tables.

Run: python -m experiments.benchmarks.evaluation [--repeats=3] [--others=PYTHON]

Each command is a process of its own with an empty compilation cache, and its time is what the operating system counts
for it (user and system, of all threads): a busy machine changes that less than the time of day. netcal and torchmetrics
are measured in the interpreter ``--others`` where they are installed there: one temperature is fitted, and the table
holds what they have of ours before and after it, without intervals, floors, p-values, figures or a page.
"""

import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

import numpy as np

from experiments.common import commands

ROOT = pathlib.Path(__file__).parents[2]
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


def predictions(path: pathlib.Path, noise: float, seed: int) -> pathlib.Path:
  """Writes 5,000 x 10 logits that are twice too large, and returns the path."""
  rng = np.random.default_rng(seed)
  labels = rng.integers(0, 10, 5000)
  logits = noise * rng.normal(size=(5000, 10)) + 2.5 * np.eye(10)[labels]
  np.savez(path, logits=(2 * logits).astype(np.float32), labels=labels)
  return path


def processor_seconds(arguments: list[str]) -> float:
  """Runs a command with an empty compilation cache and returns its processor time.

  Raises:
    CalledProcessError: if it fails.
  """
  def used():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime

  with tempfile.TemporaryDirectory() as cache:
    before = used()
    subprocess.run(arguments, cwd=ROOT, env=os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}, check=True,
                   capture_output=True)
    return used() - before


def rows(folder: pathlib.Path, others: str) -> dict[str, list[str]]:
  """Returns the commands by name, and writes what they read."""
  fit, test, shifted, ood = (str(predictions(folder / f"{name}.npz", noise, seed)) for seed, (name, noise) in enumerate(
    {"fit": 1.0, "test": 1.0, "shifted": 1.6, "ood": 3.0}.items()))
  command = [sys.executable, "-m", "calib_jax.evaluation", "--fit", fit, "--test", test]
  rows = {
    "one calibrator, table in the terminal": [*command, "--calibrators", FOUR[0]],
    "one calibrator, page and figures": [*command, "--calibrators", FOUR[0], "--out", str(folder / "one")],
    "the same with figures as PDF too": [*command, "--calibrators", FOUR[0], "--out", str(folder / "pdf"),
                                         "--figures=pdf"],
    "four calibrators, a shifted set and an out-of-distribution set": [
      *command, "--test", shifted, "--ood", ood, "--calibrators", *FOUR, "--out", str(folder / "four")],
  }
  for name, code in (("netcal", NETCAL), ("torchmetrics", TORCHMETRICS)):
    if not subprocess.run([others, "-c", f"import {name}"], capture_output=True, check=False).returncode:
      rows[f"{name}: one temperature, its metrics before and after"] = [others, "-c", code, fit, test]
  return rows


def main(arguments: list[str] | None = None) -> None:
  """Prints the median processor time of each command."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("--repeats", type=int, default=3)
  parser.add_argument("--others", default=sys.executable, metavar="PYTHON", help="one with the other libraries")
  options = parser.parse_args(arguments)
  print(f"{os.cpu_count()} CPU cores\n\n| command | processor seconds, the median of {options.repeats} |\n|---|---|")
  with tempfile.TemporaryDirectory() as folder:
    for name, command in rows(pathlib.Path(folder), options.others).items():
      seconds = statistics.median(processor_seconds(command) for _ in range(options.repeats))
      print(f"| {name} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
  main()
