"""What a card that is lent for some minutes is for: digits, steps, metrics and fits, and then training.

Run: python -m experiments.benchmarks.gpu --minutes=14 --data=cifar10.npz --out=DIR [--tiny]

Losses, metrics and fits are compared with float64 on the CPU, and the benchmarks of `BENCHMARKS` run for half of the
time. In the other half PreResNet-56 is trained with each of `LOSSES`, one process each, all at once; the same command
goes on from what is in DIR, so that several times add up to the 200 epochs of Zhou et al. 2025.
"""

import contextlib
import functools
import json
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
from experiments.benchmarks import __main__ as benchmarks
from experiments.benchmarks.arrays import OPTIONS
from experiments.common import commands

BENCHMARKS = ("training", "metrics", "calibrators", "starts")
LOSSES = {"cross_entropy": (), "selective_risk": (),  # Entries of configs/reweighted_risk.py:cifar10.preresnet56.
          "s_avuc": ("loss.secondary.name=soft_avuc", "loss.secondary.threshold=0.9",
                     "loss.secondary.temperature=0.3")}
STOPPING = 30.0  # Seconds before the end at which training is asked to save and stop.
FITS = ("temperature_scaling", "matrix_scaling", "structured_matrix_scaling", "dirichlet")
ERRORS = ("nll", "brier_score", "expected_calibration_error", "kde_calibration_error", "classwise_calibration_error")


def main(arguments: list[str] | None = None) -> int:
  """Measures what has no result, and trains until the minutes are over; returns 1 if something failed."""
  started, parser = time.monotonic(), commands.parser(__spec__.name, __doc__)
  parser.add_argument("--minutes", type=commands.amount, default=14.0, help="when to stop; 14 by default")
  parser.add_argument("--data", type=pathlib.Path, help="CIFAR-10 as an .npz file; without it nothing is trained")
  parser.add_argument("--out", type=commands.directory, required=True, help="where results and checkpoints go")
  parser.add_argument("--tiny", action="store_true", help="only to show that all runs")
  options = parser.parse_args(arguments)
  # Otherwise this process takes most of the card's memory, and those that train beside it find none.
  os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
  worse = digits(*((("mmce",), FITS[:1], 64) if options.tiny else (tuple(losses.PER_BATCH), FITS, 256)))
  print(f"differ from float64 by over 1e-5 of the largest: {json.dumps(worse) if worse else 'none'}", flush=True)
  failed = benchmarks.main([*BENCHMARKS, f"--minutes={options.minutes / 2:g}", f"--out={options.out}", "--data",
                            "20000x10", *(["--scale=tiny"] if options.tiny else [])])
  return failed | (train(options, started + 60 * options.minutes - STOPPING) if options.data else 0)


def digits(names: tuple[str, ...], fits: tuple[str, ...], n: int) -> dict[str, float]:
  """Returns which losses with gradients, metrics and fits differ here from float64 on the CPU, and by how much."""
  rng = np.random.default_rng(0)
  z = 3 * rng.normal(size=(n, 10))
  y = (z + 3 * rng.gumbel(size=z.shape)).argmax(1).astype(np.int32)

  def of_loss(loss, z, y):
    return jax.value_and_grad(lambda z: jnp.mean(loss(z, y)))(z)

  def of_fit(calibrator, z, y):
    return calibrator.apply(calibrator.fit(z, y), z)

  functions = {name: functools.partial(of_loss, losses.get(name, **OPTIONS.get(name, {}))) for name in names}
  functions |= {name: lambda z, y, name=name: getattr(metrics, name)(jax.nn.softmax(z), y) for name in ERRORS}
  functions |= {name: functools.partial(of_fit, calibrators.get(name)) for name in fits}
  worse = {}
  for name, function in functions.items():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"), jax.default_device(jax.devices("cpu")[0]):
      exact = jax.tree.map(np.asarray, jax.jit(function)(jnp.asarray(z), jnp.asarray(y)))
    ours = jax.tree.map(np.asarray, jax.jit(function)(jnp.asarray(z, jnp.float32), jnp.asarray(y)))
    error = max(float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 1e-30))
                for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True))
    if not error <= 1e-5:
      worse[name] = error
  return worse


def train(options, end: float) -> int:
  """Trains with each loss in a process of its own until the end; returns 1 if one failed."""
  running = []
  for loss, fields in LOSSES.items():
    entry = "cross_entropy" if loss == "s_avuc" else loss
    tiny = ("training.num_epochs=1", "model.name=resnet8") if options.tiny else ()
    command = [sys.executable, "main.py", f"--config=configs/reweighted_risk.py:cifar10.preresnet56.{entry}",
               f"--workdir={options.out / loss}", *(f"--config.{field}" for field in (
                 "data.name=npz", f"data.path={options.data.resolve()}", "num_seeds=1", "model.dtype=bfloat16",
                 "evaluation.ood=()", "checkpoint.keep=1", *tiny, *fields))]
    running.append(subprocess.Popen(command, cwd=commands.ROOT))
  for process in running:
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(max(end - time.monotonic(), 1.0))
    if process.poll() is None:
      process.send_signal(signal.SIGTERM)
  return int(any(process.wait() not in (0, 128 + signal.SIGTERM) for process in running))


if __name__ == "__main__":
  sys.exit(main())
