"""The command of the leaderboard."""

import sys

from experiments.leaderboard.experiment import main

if __name__ == "__main__":
  sys.exit(main())
