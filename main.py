"""Trains, recalibrates, evaluates and reports in one run directory.

python main.py --config=configs/digits_savuc.py --workdir=runs/digits_savuc

Any field of the config can be changed on the command line, such as --config.training.num_steps=20. The same command
continues a run that was stopped.
"""

import sys

from calib_jax._system import process
from calib_jax.cli.train import main

if __name__ == "__main__":
  process.prepare()
  sys.exit(main(sys.argv[1:]))
