"""What a card that is lent for some minutes can show: steps, digits, starts, metrics and fits, and then training.

Run: python -m experiments.benchmarks.lease --minutes=14 --data=cifar10.npz --out=DIR [--tiny]

It is a benchmark like the others, with the most important first, and its results go to `lease.json` and `lease.md` in
DIR. In the last minutes PreResNet-56 is trained with each of `LOSSES`, one process each, all at once; networks go on
from their checkpoints in DIR, so that several leases add up to the 200 epochs of Zhou et al. 2025.
"""

import argparse
from collections.abc import Callable, Mapping
import contextlib
import functools
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators, losses, metrics
from calib_jax._system import compilation
from experiments.benchmarks import calibrators as fits
from experiments.benchmarks import calls, starts
from experiments.benchmarks.__main__ import Benchmark, run
from experiments.benchmarks.arrays import OPTIONS, Rows
from experiments.common import commands, timing

# Entries of configs/reweighted_risk.py:cifar10.preresnet56, by name.
LOSSES = {"cross_entropy": (), "selective_risk": (),  # As released, with the score msp.
          "s_avuc": ("loss.secondary.name=soft_avuc", "loss.secondary.threshold=0.9",
                     "loss.secondary.temperature=0.3")}
STOPPING = 30.0  # Seconds before the end at which training is asked to save and stop.
FITS = ("temperature_scaling", "matrix_scaling", "structured_matrix_scaling", "dirichlet")
ERRORS = ("nll", "brier_score", "expected_calibration_error", "kde_calibration_error", "classwise_calibration_error")


def parse(arguments: list[str] | None) -> argparse.Namespace:
  """Returns the options of the command."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("--minutes", type=commands.amount, default=14.0, help="when to stop; 14 by default")
  parser.add_argument("--data", type=pathlib.Path, help="CIFAR-10 as an .npz file; without it nothing is trained")
  parser.add_argument("--out", type=commands.directory, required=True, help="where results and checkpoints go")
  parser.add_argument("--only", nargs="+", metavar="WORD", help="only rows whose names hold one of these words")
  parser.add_argument("--tiny", dest="scale", action="store_const", const="tiny", help="only to show that all runs")
  return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
  """Measures what has no result, and trains until the minutes are over; returns 1 if something failed."""
  started, options = time.monotonic(), parse(arguments)
  # Otherwise this process takes most of the card's memory, and those that train beside it find none.
  os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
  compilation.keep()
  end = started + 60 * options.minutes - STOPPING
  failed = run("lease", Benchmark(rows, "PyTorch on the same device"), options, end)
  return failed | (train(options, end) if options.data else 0)


def rows(options: argparse.Namespace) -> Rows:
  """Times steps, starts, fits and what PyTorch has too, if it is installed, and compares digits."""
  tiny = options.scale == "tiny"
  options.budget = 0.0 if tiny else 4.0
  steps = calls.rows(options)
  n, k = (200, 5) if tiny else (20_000, 10)
  torch = {f"ECE, {[n * 50, k]}": functools.partial(beside_torch, "ece", n * 50, k),
           f"temperature, {[n, k]}": functools.partial(beside_torch, "temperature", n, k)}
  return {**{name: steps[name] for name in sorted(steps, key=lambda name: "PreResNet" not in name)},
          "digits": functools.partial(digits, *((("mmce",), FITS[:1], 64) if tiny else (
            tuple(losses.PER_BATCH), FITS, 256))),
          **{f"start, {name}": functools.partial(starts.measure, name, 1)
             for name in (list(starts.NETWORKS)[:1] if tiny else ("preresnet56", "resnet50"))},
          **(torch if importlib.util.find_spec("torch") else {}),
          **{f"fit, {name}, {[n, k]}": functools.partial(fits.ours, name, f"{n}x{k}", options.budget)
             for name in (FITS[:1] if tiny else FITS)}}


def digits(names: tuple[str, ...], fits: tuple[str, ...], n: int) -> Mapping[str, object]:
  """Compares losses with their gradients, metrics and fits on this device with float64 on the CPU."""
  z, y = _predictions(n, 10, np.float64)
  functions = {name: _value_and_gradient(losses.get(name, **OPTIONS.get(name, {}))) for name in names}
  functions |= {name: functools.partial(_error, getattr(metrics, name)) for name in ERRORS}
  functions |= {name: functools.partial(_calibrated, calibrators.get(name)) for name in fits}
  worse = {}
  for name, function in functions.items():
    with (jax.enable_x64(True), jax.numpy_dtype_promotion("standard"),
          jax.default_device(jax.devices("cpu")[0])):
      exact = jax.tree.map(np.asarray, jax.jit(function)(jnp.asarray(z), jnp.asarray(y)))
    ours = jax.tree.map(np.asarray, jax.jit(function)(jnp.asarray(z, jnp.float32), jnp.asarray(y)))
    error = max(float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 1e-30))
                for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True))
    if not error <= 1e-5:
      worse[name] = f"{name} {error:.1e}"
  return {"compared": len(functions), "differ by over 1e-5 of the largest": ", ".join(worse.values()) or "none"}


def _value_and_gradient(loss: Callable) -> Callable:
  return jax.value_and_grad(lambda z, y: jnp.mean(loss(z, y)))


def _error(metric: Callable, z: jax.Array, y: jax.Array) -> jax.Array:
  return metric(jax.nn.softmax(z), y)


def _calibrated(calibrator: calibrators.Calibrator, z: jax.Array, y: jax.Array) -> jax.Array:
  return calibrator.apply(calibrator.fit(z, y), z)


def _predictions(n: int, k: int, dtype: type[np.floating]) -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(0)
  z = (3 * rng.normal(size=(n, k))).astype(dtype)
  return z, (z + 3 * rng.gumbel(size=z.shape)).argmax(1).astype(np.int32)


def beside_torch(what: str, n: int, k: int) -> Mapping[str, object]:
  """Times the ECE, or the fit of a temperature, beside the usual code of PyTorch on the same device."""
  import torch

  device = "cuda" if torch.cuda.is_available() else "cpu"
  z, y = _predictions(n, k, np.float32)
  tz, ty = torch.from_numpy(z).to(device), torch.from_numpy(y).long().to(device)
  jz, jy = jnp.asarray(z), jnp.asarray(y)

  def torch_ece():
    confidence, top = torch.softmax(tz, 1).max(1)
    bins = (confidence * 15).long().clamp(max=14)
    gaps = torch.zeros(15, device=device).index_add_(0, bins, confidence - (top == ty).float())
    return float(gaps.abs().sum() / n)

  def torch_temperature():
    log_t = torch.zeros(1, requires_grad=True, device=device)
    optimizer = torch.optim.LBFGS([log_t], max_iter=100, tolerance_change=1e-9, line_search_fn="strong_wolfe")

    def closure():
      optimizer.zero_grad()
      loss = torch.nn.functional.cross_entropy(tz / log_t.exp(), ty)
      loss.backward()
      return loss

    optimizer.step(closure)
    return float(log_t.detach().exp())

  ece = jax.jit(lambda z, y: metrics.expected_calibration_error(jax.nn.softmax(z), y))
  calibrator = calibrators.get("temperature_scaling")
  ours, theirs = {"ece": (lambda: float(ece(jz, jy)), torch_ece),
                  "temperature": (lambda: float(calibrator.fit(jz, jy)["temperature"]), torch_temperature)}[what]
  values = (ours(), theirs())
  return {"ours": values[0], "PyTorch's": values[1],
          **{key: value for key, value in timing.compare(ours, theirs).items() if key in ("seconds", "to floor")}}


def train(options: argparse.Namespace, end: float) -> int:
  """Trains PreResNet-56 with each loss in a process of its own until the end; returns 1 if one failed."""
  running = []
  for loss, fields in LOSSES.items():
    folder = options.out / loss
    entry = "cross_entropy" if loss == "s_avuc" else loss
    command = [sys.executable, "main.py", f"--config=configs/reweighted_risk.py:cifar10.preresnet56.{entry}",
               f"--workdir={folder}", *(f"--config.{field}" for field in (
                 "data.name=npz", f"data.path={options.data.resolve()}", "num_seeds=1", "model.dtype=bfloat16",
                 "evaluation.ood=()", "checkpoint.keep=1",
                 *(("training.num_epochs=1", "model.name=resnet8") if options.scale == "tiny" else ()), *fields))]
    with (options.out / f"{loss}.log").open("a", encoding="utf-8") as log:
      running.append(subprocess.Popen(command, cwd=commands.ROOT, stdout=log, stderr=log))
  for process in running:
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(max(end - time.monotonic(), 1.0))
  for process in running:
    if process.poll() is None:
      process.send_signal(signal.SIGTERM)
  codes = [process.wait() for process in running]
  for loss in LOSSES:
    lines = (options.out / f"{loss}.log").read_text(encoding="utf-8").splitlines()
    print(f"{loss}: " + (lines[-1] if lines else ""), flush=True)
  return int(any(code not in (0, 128 + signal.SIGTERM) for code in codes))


if __name__ == "__main__":
  sys.exit(main())
