"""Measures what only a GPU or a TPU can show, the most important first, for as many minutes as are given.

Run: python -m experiments.benchmarks.accelerator [--data=cifar10.npz] [--minutes=9] [--out=DIR]

1. A training step of WRN-28-10 at batch 512 in bfloat16: examples a second, the shares of the device's matrix products
   and copies that its operations and bytes reach, and the time relative to a hand-written step and, where it is
   installed, to PyTorch.
2. The same step on all local devices together, if there are several.
3. The step of ResNet-50 and of WRN-28-10 at batch 128 and 512, and the share that the value and gradient of each loss
   would take of it.
4. Whether two runs agree bit by bit, and the time of a step under pmap and under shard_map.
5. The ECE of 50,000 x 1,000 logits and temperature scaling of them, beside PyTorch where it is installed.
6. What three secondary losses add to the step of 1, measured in the step itself.
7. With `--data`, an `.npz` file of CIFAR-10 as docs/data_and_models.md describes it: ResNet-50 with cross entropy, with
   the focal loss, with S-AvUC on held-out images and with selective risk, in as many epochs of the papers' schedules as
   the rest of the time allows.

Each result is written to `accelerator.json` as it comes, with a table (`.md`). The same command continues: results that
are there are not measured again, and runs go on from their checkpoints. Nothing needs TensorFlow or a network. On a CPU
the default is `--scale=tiny`, which only shows that everything runs.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import functools
import json
import re
import signal
import statistics
import sys
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import config as run_config
from calib_jax import data, evaluation, training
from calib_jax._system import compilation, environment
from calib_jax._system.errors import UserError
from calib_jax._system.files import write_text
from configs import reweighted_risk
from experiments.benchmarks import losses as loss_times
from experiments.benchmarks import on_device, timing
from experiments.benchmarks import training as steps
from experiments.benchmarks.accelerator_sizes import RUNS, SIZES, Size
from experiments.common import commands, scores, settings


class Session(NamedTuple):
  """What the measurements share: options, size, random images, results so far, and the time at which to stop."""

  options: argparse.Namespace
  size: Size
  splits: data.Splits
  results: dict[str, Any]
  deadline: float
  compiled: dict[str, Callable]

  def config(self, *overrides: str, secondary: str = ""):
    """Returns the config of the measured step."""
    return steps.configured(self.size.model, self.size.batch_size, secondary, *overrides)

  def plain(self) -> Callable[[], None]:
    """Returns the compiled step of cross entropy, which other steps are compared with."""
    if "plain" not in self.compiled:
      self.compiled["plain"] = steps.engine(self.config(), self.splits)
    return self.compiled["plain"]


def plain_step(session: Session) -> dict[str, float]:
  """Measures the step of cross entropy."""
  size = session.size
  measured, session.compiled["plain"] = steps.plain(session.config(), session.splits, size.budget, size.matrix)
  return measured


def network_step(session: Session, name: str, batch_size: int) -> dict[str, object]:
  """Times the step of a network, and the value and gradient of each loss on as many logits as a share of it."""
  config = steps.configured(session.size.networks[name], batch_size)
  step = steps.engine(config, session.splits)
  seconds = statistics.median(timing.seconds(step) for _ in range(10))
  shares = {}
  for loss in session.size.losses:
    alone = loss_times.compiled(loss, loss_times.VARIANTS[loss][1], batch_size, session.splits.num_classes)
    shares[loss] = statistics.median(timing.seconds(alone) for _ in range(10)) / seconds
  return {"seconds": seconds, "examples_per_second": batch_size / seconds,
          **{f"share_of_{loss}": share for loss, share in shares.items()}}


def all_devices(session: Session) -> dict[str, float]:
  """Measures the step on all local devices relative to that on one; the batch is the same."""
  devices = _devices(session.size.batch_size)
  ratio, seconds = timing.pairs(steps.engine(session.config(), session.splits, devices=devices), session.plain(),
                               session.size.budget)
  return {"devices": len(devices), "seconds": seconds, "relative_to_one_device": ratio}


def _devices(batch_size: int) -> list[jax.Device]:
  """Returns as many local devices as share a batch evenly."""
  devices = jax.local_devices()
  return devices[:next(n for n in range(len(devices), 0, -1) if batch_size % n == 0)]


def secondary_step(session: Session, name: str) -> dict[str, float]:
  """Measures what a secondary loss adds to the step."""
  ratio, seconds = timing.pairs(steps.engine(session.config(secondary=name), session.splits), session.plain(),
                               session.size.budget)
  return {"seconds": seconds, "relative_to_cross_entropy": ratio}


def repeated(session: Session) -> dict[str, Any]:
  """Trains twice for a few steps, and compares the parameters bit by bit."""
  config = session.config("--config.training.num_steps=5", "--config.training.evaluate_every_epochs=1000")
  states = [training.train(config, [session.splits], seeds=[0], devices=_devices(session.size.batch_size), predicted=(),
                           label="repeat")[0].params for _ in range(2)]
  pairs = list(zip(*map(jax.tree.leaves, states), strict=True))
  return {"equal_bits": all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs),
          "largest_difference": max(float(jnp.max(jnp.abs(a - b))) for a, b in pairs)}


def parallel(session: Session) -> dict[str, float]:
  """Measures the step under shard_map relative to that under pmap."""
  config = session.config("--config.training.parallel=shard_map")
  ratio, seconds = timing.pairs(steps.engine(config, session.splits), session.plain(), session.size.budget)
  return {"seconds": seconds, "relative_to_pmap": ratio}


def run(session: Session, name: str) -> dict[str, Any]:
  """Trains, or goes on training, one run until it is finished or the time is over; scores it if it is finished."""
  model, fields = RUNS[name]
  config = reweighted_risk.get_config(f"cifar10.{model}").unlock()
  config.data = {"name": "npz", "path": session.options.data, "validation_fraction": 0.1}
  config = settings.changed(run_config.complete(config).lock(), {
    **session.size.fields, **fields, "training.evaluate_every_epochs": 1000, "checkpoint.keep": 1})
  splits = data.load(seed=config.seed, **run_config.data_options(config))
  folder = session.options.out / "runs" / re.sub(r"[^a-z0-9]+", "_", name.lower())
  plan = session.results.setdefault("plans", {})
  if name not in plan:
    per_epoch = data.steps_per_epoch(len(splits.train.labels), config.training.batch_size)
    left = len(session.size.runs) - list(session.size.runs).index(name)
    allowed = (session.deadline - time.monotonic()) / left
    plan[name] = max(1, min(config.training.num_epochs, int(allowed / per_epoch / _step_seconds(config, splits))))
  config = settings.changed(config, {"training.num_epochs": plan[name]})
  started, taken = time.monotonic(), []

  def stop_in_time(step, measured):
    taken.append(step)
    if time.monotonic() > session.deadline:
      signal.raise_signal(signal.SIGTERM)  # The loop saves a checkpoint, and stops.

  _, predictions = training.train(config, [splits], seeds=[config.seed], devices=_devices(config.training.batch_size),
                                  folder=folder, label=name, hooks=[stop_in_time])
  held_out, test = ([evaluation.Predictions(**predictions[0][split])] for split in ("validation", "test"))
  scored = scores.calibrated(held_out, test, {"TS": {"name": "temperature_scaling"}})
  return {"epochs": plan[name], "seconds": time.monotonic() - started, "steps": len(taken),
          **{label: values for label, _, values, _ in scored}}


def _step_seconds(config, splits: data.Splits) -> float:
  return timing.seconds(steps.engine(config, splits, devices=_devices(config.training.batch_size)), 5)


def parts(session: Session) -> dict[str, Callable[[Session], dict]]:
  """Returns what is measured by name, the most important first."""
  named: dict[str, Callable] = {"step": plain_step}
  if len(_devices(session.size.batch_size)) > 1:
    named["all devices"] = all_devices
  named |= {f"{name}, batch {n}": functools.partial(network_step, name=name, batch_size=n)
            for name in session.size.networks for n in session.size.batch_sizes}
  named |= {"repeated": repeated, "parallel": parallel, "metrics and fits": lambda session: on_device.measured(
    *session.size.predictions, session.size.budget)}
  named |= {f"secondary {name}": functools.partial(secondary_step, name=name) for name in session.size.secondary}
  if session.options.data:
    named |= {f"run {name}": functools.partial(run, name=name) for name in session.size.runs}
  return named


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
  """Returns the options of the command."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("--data", default="", help="an .npz file of 32x32 images in 10 classes, to train on")
  parser.add_argument("--minutes", type=commands.amount, default=9.0, help="when to stop; the same command goes on")
  parser.add_argument("--out", type=commands.directory, default="runs/accelerator")
  parser.add_argument("--scale", choices=list(SIZES), help="tiny on a CPU and paper elsewhere, by default")
  return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
  """Measures what has no result yet, until the time is over; returns 1 if something failed."""
  started, options = time.monotonic(), parse(arguments)
  options.scale = options.scale or ("tiny" if jax.default_backend() == "cpu" else "paper")
  compilation.keep()  # A step that is timed before its run compiles once.
  path, size, failed = options.out / "accelerator.json", SIZES[options.scale], False
  results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
  results = {"environment": environment.environment(), "scale": options.scale, "results": {}, **results}
  if results["scale"] != options.scale:
    raise SystemExit(f"{path} holds results of --scale={results['scale']}: give another --out.")
  session = Session(options, size, steps.images(8 * size.batch_size), results,
                    started + 60 * options.minutes, {})
  for name, measure in parts(session).items():
    if name in results["results"]:
      continue
    if time.monotonic() > session.deadline:
      print(f"the {options.minutes:g} minutes are over; the same command goes on with: {name}", flush=True)
      break
    print(f"{name} …", flush=True)
    try:
      results["results"][name] = measure(session)
      print(f"  {steps.line(results['results'][name])}", flush=True)
    except training.Stopped as stopped:
      print(stopped, flush=True)
    except Exception as error:  # The other measurements may still succeed.
      failed = True
      kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
      print(f"failed: {name}: {kind}{next(iter(str(error).splitlines()), '')}", file=sys.stderr, flush=True)
    write_text(path, json.dumps(results, indent=2) + "\n")
    write_text(path.with_suffix(".md"), page(results))
  write_text(path.with_suffix(".md"), page(results))
  print(page(results))
  return 1 if failed else 0


def page(results: Mapping[str, Any]) -> str:
  """Returns the Markdown tables of all results."""
  made = results["environment"]
  lines = [f"`python -m experiments.benchmarks.accelerator --scale={results['scale']}` on {len(made['devices'])} x "
           f"{made['devices'][0]}, JAX {made['packages']['jax']}.", "", "| measurement | result |", "|---|---|"]
  runs = {}
  for name, result in results["results"].items():
    if name.startswith("run "):
      runs[name.removeprefix("run ")] = result
    else:
      lines.append(f"| {name} | {steps.line(result)} |")
  if runs:
    columns = ("accuracy", "nll", "brier", "ece", "ece_equal_mass_l2")
    lines += ["", "| run | epochs | seconds | calibrated by | " + " | ".join(columns) + " |", "|---" * 9 + "|"]
    lines += [f"| {name} | {result['epochs']} | {result['seconds']:.0f} | {label} | "
              + " | ".join(f"{result[label][column]:.4f}" for column in columns) + " |"
              for name, result in runs.items() for label in ("none", "TS")]
  return "\n".join(lines) + "\n"


if __name__ == "__main__":
  sys.exit(main())
