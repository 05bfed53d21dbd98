"""The console command ``calib-jax``, which finds the programs of this package.

calib-jax train --config=configs/digits_savuc.py --workdir=runs/digits_savuc
calib-jax evaluate --fit val.npz --test test.npz
calib-jax compare runs/digits_focal runs/digits_savuc --out comparison
"""

import importlib
import sys

# The modules of the programs, whose function ``main`` reads the rest of the command line.
PROGRAMS = {"train": "calib_jax.cli.train", "evaluate": "calib_jax.cli.evaluate",
            "compare": "calib_jax.cli.compare"}


def main() -> int:
  """Runs the command line; returns the exit code of the program, which is 2 after a mistake of the user."""
  name, *arguments = sys.argv[1:] or ["--help"]
  if name in ("-h", "--help"):
    print(f"usage: calib-jax {{{','.join(PROGRAMS)}}} ...\n\n"
          "calib-jax train --help, calib-jax evaluate --help and calib-jax compare --help show the options of each.")
    return 0
  if name not in PROGRAMS:
    print(f"error: calib-jax has no command {name!r}: type calib-jax with {', '.join(PROGRAMS)}.",
          file=sys.stderr)
    return 2
  try:
    module = importlib.import_module(PROGRAMS[name])
  except ModuleNotFoundError as error:
    if (error.name or "").startswith("calib_jax"):
      raise
    print(f"error: calib-jax {name} needs {error.name}, which is not installed: pip install 'calib-jax[train,report]'.",
          file=sys.stderr)
    return 2
  sys.argv = [f"calib-jax {name}", *arguments]
  return module.main()
