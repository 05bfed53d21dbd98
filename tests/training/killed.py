"""Runs main.py and kills its process at a step: ``python tests/training/killed.py STEP SIGNAL ARGUMENTS...``."""

import os
import sys

from calib_jax.training import progress
import main

ask = progress.Progress.due


def due(self, step):
  """Asked after each step."""
  if step == int(sys.argv[1]):
    os.kill(os.getpid(), int(sys.argv[2]))
  return ask(self, step)


if __name__ == "__main__":
  progress.Progress.due = due
  sys.exit(main.main(sys.argv[3:]))
