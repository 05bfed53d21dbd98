"""``python -m calib_jax`` says which commands there are, and runs them as ``calib-jax`` does."""

import sys

from calib_jax.cli.main import main

if __name__ == "__main__":
  sys.exit(main())
