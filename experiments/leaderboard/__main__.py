"""The command of the leaderboard."""

import sys

from experiments.common import sweep
from experiments.leaderboard.experiment import EXPERIMENT

if __name__ == "__main__":
  sys.exit(sweep.main(EXPERIMENT))
