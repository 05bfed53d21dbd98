"""How long a network takes to start: from a config to two steps, with nothing compiled before and with all of it.

Each start is a process of its own, because tracing is kept within one.
"""

import argparse
from collections.abc import Mapping
import functools
import json
import os
import subprocess
import sys
import tempfile
import time

import jax

from calib_jax._system import compilation
from experiments.benchmarks.arrays import Rows
from experiments.common.commands import ROOT
from experiments.common.train_step import configured, engine, images

# By name: the side and channels of an image, and the fields of its config.
NETWORKS = {
  "the demo's network": (28, 1, ("model.name=mlp", "model.hidden=(256, 256)")),
  **{name: (32, 3, (f"model.name={name}",)) for name in (
    "resnet8", "preresnet56", "resnet110", "wide_resnet28_10", "resnet50", "densenet121")},
  "vit_small, patches of 4x4": (32, 3, ("model.name=vit_small", "model.patch_size=4"))}
SIZE = 8  # Examples of a batch.
START = "import json, sys; from experiments.benchmarks import starts; print(json.dumps(starts.start(sys.argv[1])))"


def start(name: str) -> dict[str, float]:
  """Starts a network in this process; returns the seconds in all, and those of XLA's compiler."""
  side, channels, fields = NETWORKS[name]
  seconds = {"all": 0.0, "compiling": 0.0}

  def add(event: str, duration: float, **_) -> None:
    if event.endswith("/backend_compile_duration"):
      seconds["compiling"] += duration

  config = configured(*fields, f"training.batch_size={SIZE}")
  splits = images(2 * SIZE, (side, side, channels), 10)
  compilation.keep()
  jax.monitoring.register_event_duration_secs_listener(add)
  started = time.perf_counter()
  engine(config, splits)
  return seconds | {"all": time.perf_counter() - started}


def measure(name: str, repeats: int) -> Mapping[str, object]:
  """Returns the least seconds of some starts of a network, each time without and with its compiled programs."""
  new, kept = [], []
  for _ in range(repeats):
    with tempfile.TemporaryDirectory() as cache:
      for results in (new, kept):
        done = subprocess.run([sys.executable, "-c", START, name], cwd=ROOT, check=True, capture_output=True,
                              env=os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}, text=True)
        results.append(json.loads(done.stdout.splitlines()[-1]))
  least = min(new, key=lambda seconds: seconds["all"])
  return {"seconds": least["all"], "of tracing, lowering and steps": least["all"] - least["compiling"],
          "of compiling": least["compiling"], "with kept programs": min(seconds["all"] for seconds in kept)}


def rows(options: argparse.Namespace) -> Rows:
  """Starts each network."""
  tiny = options.scale == "tiny"
  return {name: functools.partial(measure, name, 1 if tiny else 2) for name in list(NETWORKS)[:1 if tiny else None]}
