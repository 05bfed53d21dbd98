"""The command of the weekend."""

import sys

from experiments.weekend.command import main

if __name__ == "__main__":
  sys.exit(main())
