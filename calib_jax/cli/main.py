"""The console command ``calib-jax``, which finds the programs of this package.

calib-jax train --config=configs/digits_savuc.py --workdir=runs/digits_savuc
calib-jax evaluate --fit val.npz --test test.npz
calib-jax compare runs/digits_focal runs/digits_savuc --out comparison
calib-jax apply --calibrator out/calibrator.npz --predictions new.csv --out fixed.csv
calib-jax watch --log answers.jsonl --cut 0.9 --risk 0.05
"""

import importlib
import sys

import calib_jax
from calib_jax._system import process

PROGRAMS = ("train", "evaluate", "compare", "apply", "watch")  # Modules, whose ``main`` reads the rest of the line.
HELP = f"""usage: calib-jax {{{",".join(PROGRAMS)}}} ..., or python -m calib_jax ...

  train     trains, recalibrates, evaluates and reports in one directory: --config=FILE --workdir=DIR
  evaluate  calibrates and measures saved logits or probabilities: --fit val.csv --test test.csv
  compare   measures runs, or files of predictions, beside each other: RUN RUN --out DIR
  apply     calibrates predictions by a fitted calibrator: --calibrator FILE --predictions new.csv --out fixed.csv
  watch     says whether a promise still holds over a log that grows: --log answers.jsonl --cut 0.9 --risk 0.05
  --version prints the version

calib-jax COMMAND --help shows the options of a command. From Python, calib_jax.losses, .metrics and .calibrators are
functions of arrays, and calib_jax.training.Run.load(DIR) loads what train wrote. python -m calib_jax.training.data
--config=FILE shows what a config trains on."""


def main() -> int:
  """Runs the command line; returns the exit code of the program, which is 2 after a mistake of the user."""
  name, *arguments = sys.argv[1:] or ["--help"]
  if name in ("-h", "--help"):
    print(HELP)
    return 0
  if name == "--version":
    print(f"calib-jax {calib_jax.__version__}")
    return 0
  if name not in PROGRAMS:
    print(f"error: calib-jax has no command {name!r}: type calib-jax with {', '.join(PROGRAMS)}.",
          file=sys.stderr)
    return 2
  try:
    module = importlib.import_module(f"calib_jax.cli.{name}")
  except ModuleNotFoundError as error:
    if (error.name or "").startswith("calib_jax"):
      raise
    print(f"error: calib-jax {name} needs {error.name}, which is not installed: pip install 'calib-jax[train,report]'.",
          file=sys.stderr)
    return 2
  process.prepare()
  sys.argv = [f"calib-jax {name}", *arguments]
  return module.main()
