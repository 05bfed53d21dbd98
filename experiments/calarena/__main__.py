"""Calibrators, and the same ones of other packages, by the protocol of CalArena (Berta et al. 2026).

Run: python -m experiments.calarena [--predictions=DIR] [--splits=2] [--out=DIR]

The data sets are those of ``data_sets``; `--predictions` is a folder of saved predictions of networks. A row of
``{out}/calarena_local.csv`` is of a method, a package, an experiment, a split and a size: where the calibration half
has more than 1,000 examples, this package's methods are fitted to its first 500 as well. `OMP_NUM_THREADS=1
XLA_FLAGS=--xla_cpu_multi_thread_eigen=false` before the command gives products of matrices one thread each. What has
rows already is not run again.
"""

from collections.abc import Iterator, Sequence
import functools
import pathlib

from calib_jax._system.errors import UserError
from experiments.calarena import data_sets, measures, methods, page
from experiments.common import commands, studies
from experiments.common.calibrator_peers import PACKAGES, versions


def study(out: pathlib.Path, predictions: pathlib.Path | None, splits: int, calibrators: Sequence[str] | None,
          chosen: Sequence[str] | None) -> studies.Study:
  """Returns what is run; without names of calibrators or of chosen data sets, all are."""
  made = data_sets.experiments(predictions)
  if unknown := set(chosen or ()) - {dataset for dataset, _ in made}:
    raise UserError(f"no such data set: {', '.join(sorted(unknown))}.")

  @functools.lru_cache(maxsize=1)
  def examples(dataset: str, model: str, split: int) -> data_sets.Experiment:
    return made[dataset, model](split)

  def measured(dataset: str, model: str, split: int, method: str) -> Iterator[dict[str, object]]:
    for size, part in measures.sized(examples(dataset, model, split)).items():
      yield from ({"size": size, **row} for row in measures.measured(
        part, method, peers=size == "all", timed=size == "all" and not split))

  names = dict.fromkeys([*methods.names(calibrators), "temperature_scaling"])  # The page compares others with it.
  return studies.Study("calarena_local", ("dataset", "model", "split", "method"), [
    (dataset, model, split, name) for dataset, model in made if not chosen or dataset in chosen
    for split in range(splits) for name in names], measured, page.page, out, page.figure)


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs what has no row yet, and writes the page and the figure."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("--benchmarks", nargs="+", metavar="NAME", help="data sets; by default all")
  parser.add_argument("--calibrators", nargs="+", metavar="NAME[:OPTION=VALUE,…]",
                      help="by default those that the page has")
  parser.add_argument("--predictions", type=pathlib.Path, help="a folder of test predictions, .npz files")
  commands.add_numbers(parser, {"splits": 2})
  parser.add_argument("--out", type=commands.directory, default=commands.RESULTS, help="where the results go")
  options = parser.parse_args(arguments)
  if absent := [package for package in PACKAGES if package not in versions()]:
    print(f"Not installed, and left out: {', '.join(absent)}.", flush=True)
  try:
    study(options.out, options.predictions, options.splits, options.calibrators, options.benchmarks).publish()
  except (UserError, TypeError, ValueError) as error:
    raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
  main()
