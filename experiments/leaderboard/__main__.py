"""The command of the leaderboard: python -m experiments.leaderboard --data=IMAGES.npz."""

import sys

from experiments.leaderboard.experiment import main

if __name__ == "__main__":
  sys.exit(main())
