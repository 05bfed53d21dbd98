"""Runs main.py and sends its process a signal at a step: ``killed.py STEP SIGNAL ARGUMENTS...``."""

import os
import sys

from calib_jax.training.distributed import processes
import main


def kill(step, measured):
  """A hook: called after each step."""
  if step == int(sys.argv[1]):
    os.kill(os.getpid(), int(sys.argv[2]))


if __name__ == "__main__":
  processes._SILENCE = 10  # A third of what users wait until a process is taken for dead.
  sys.exit(main.main(sys.argv[3:], hooks=[kill]))
