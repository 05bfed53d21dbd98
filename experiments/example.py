"""An experiment to copy: which weight of soft AvUC on the digits, and does a tuned focal loss do as well?

Run: python -m experiments.example --out=DIR [--seeds=1] [--processes=2]

docs/sweeps.md explains what the command can do.
"""

import functools
import sys

from calib_jax.training import config as run_config
from experiments.common import settings, sweep
from experiments.common.declaration import Experiment, Method


def config(fields):
  """Returns the config of all methods with some fields changed."""
  base = run_config.load("configs/digits_savuc.py", [])  # Or a config file of your own.
  return settings.changed(base, {"num_seeds": 3, "compare_with_cross_entropy": False, **fields})


def methods(options):
  """Returns the methods; ``options`` are those of the command."""
  focal = functools.partial(config, {"loss.secondary": {"name": ""}})
  return [Method("digits", "focal", focal),
          Method("digits", "focal, tuned", focal, {"loss.primary.gamma": (1.0, 2.0, 3.0)}),  # On validation splits.
          *(Method("digits", f"soft AvUC, weight {weight:g}", functools.partial(config, {"loss.weight": weight}))
            for weight in (0.1, 0.3, 1.0))]


EXPERIMENT = Experiment("example", "Weights of soft AvUC", methods, {"TS": {"name": "temperature_scaling"}},
                        ("accuracy", "nll", "ece"))
if __name__ == "__main__":
  sys.exit(sweep.main(EXPERIMENT))
