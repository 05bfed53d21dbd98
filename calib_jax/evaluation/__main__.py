"""Evaluates predictions of any framework: python -m calib_jax.evaluation --fit val.npz --test test.npz."""

import sys

from calib_jax.cli.evaluate import main

if __name__ == "__main__":
  sys.exit(main())
