"""The command of CalArena's protocol."""

import sys

from experiments.calarena.command import main

if __name__ == "__main__":
  sys.exit(main())
