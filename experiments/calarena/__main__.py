"""Every calibrator by the protocol of CalArena (Berta et al. 2026), on its files or on data sets that are at hand.

Run: python -m experiments.calarena --data=calibration_benchmarks [--published=results] [--out=DIR]
     python -m experiments.calarena --data=local [--predictions=DIR] [--splits=2] [--out=DIR]

With a folder of CalArena's HDF5 files, ``files`` says what is run and written, to experiments/results/calarena or to
`--out`; `--published` is the folder `results` of CalArena's repository. With `local`, ``local`` says so, and
`--predictions` is a folder of saved predictions of networks. Both continue where they were stopped.
"""

from collections.abc import Sequence
import pathlib
import sys

from calib_jax._system.errors import UserError
from experiments.calarena import files, local
from experiments.common import commands


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs what has no row yet, and writes the comparison."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("--data", required=True, help="the folder with CalArena's .h5 files, or local")
  parser.add_argument("--published", type=pathlib.Path, help="the folder results of CalArena's repository")
  parser.add_argument("--benchmarks", nargs="+", metavar="NAME",
                      help="such as cv-multiclass, or with local data sets; by default all of --data")
  parser.add_argument("--calibrators", nargs="+", metavar="NAME[:OPTION=VALUE,…]",
                      help="by default every registered calibrator")
  parser.add_argument("--predictions", type=pathlib.Path, help="with local: a folder of test predictions, .npz files")
  commands.add_numbers(parser, {"splits": 2})
  parser.add_argument("--out", type=pathlib.Path, help="where the results go")
  options = parser.parse_args(arguments)
  try:
    if options.data == "local":
      local.run(options.out or commands.RESULTS, options.predictions, options.splits, options.calibrators,
                options.benchmarks)
    else:
      files.run_all(pathlib.Path(options.data), options.out or commands.RESULTS / "calarena", options.published,
                    options.benchmarks, options.calibrators or files.CALIBRATORS)
  except (UserError, TypeError, ValueError) as error:
    raise SystemExit(f"error: {error}") from None
  return 0


if __name__ == "__main__":
  sys.exit(main())
