"""Evaluates predictions of any framework: python -m calib_jax.evaluation --fit val.npz --test test.npz.

Each file is an ``.npz`` with ``labels`` ``[N]`` and ``logits`` (or ``probs``) ``[N, K]``, a pair LOGITS.npy,LABELS.npy,
a .csv or a .parquet. Calibrators are fitted to --fit and evaluated on each --test. Without --test they are
cross-validated on --fit, and without --fit the predictions of --test are only measured.
"""

import argparse
from collections.abc import Callable, Sequence
import dataclasses
import pathlib

import numpy as np

from calib_jax import evaluation
from calib_jax._system.environment import environment
from calib_jax._system.errors import UserError
from calib_jax._system.files import write_text
from calib_jax.cli import inputs, shared
from calib_jax.evaluation import folds, formats, streamed
from calib_jax.evaluation.results import NAMELESS
from calib_jax.evaluation.verdict import verdict
from calib_jax.run import outputs


def main(arguments: list[str] | None = None) -> int:
  """Runs the command line; returns the exit code, which is 2 after a mistake of the user and else 0."""
  parser = argparse.ArgumentParser(prog="python -m calib_jax.evaluation", description=__doc__.splitlines()[0],
                                   allow_abbrev=False)
  parser.add_argument("--fit", metavar="FILE", help="validation predictions, to which calibrators are fitted")
  parser.add_argument("--test", metavar="FILE", action="append", default=[], help="test predictions; may be repeated")
  parser.add_argument("--ood", metavar="FILE", action="append", default=[],
                      help="out-of-distribution predictions, whose labels do not matter; may be repeated")
  parser.add_argument("--compare", nargs="+", metavar="RUN_OR_FILE", default=[],
                      help="directories of runs, or files of predictions of the first --test, to compare with")
  parser.add_argument("--folds", type=int, default=5, help="folds of cross-validation, without --test")
  parser.add_argument("--groups", metavar="KEY", default="",
                      help="the array whose equal values mark examples that belong together")
  shared.add_options(parser)
  return shared.run(parser.parse_args(arguments), _evaluate)


def _evaluate(options: argparse.Namespace) -> None:
  """Reads everything, evaluates, and then writes everything."""
  _check(options)
  labelled = inputs.labelled(options.calibrators) if options.fit else {}
  if len(options.test) == 1 and not options.ood and not options.compare and streamed.is_large(options.test[0]):
    if options.fit:
      raise UserError(f"{options.test[0]} is so large that it is only measured: leave out --fit.")
    _streamed(options)
    return
  note = shared.note
  fit = evaluation.load(options.fit, groups=options.groups, say=note) if options.fit else None
  sets = {name: evaluation.load(path, groups=options.groups, say=note)
          for name, path in _named(options.test or [options.fit]).items()}
  sets |= {name: evaluation.load(path, say=note)._replace(kind="out_of_distribution")
           for name, path in _named(options.ood, sets).items()}
  _check_sets(options, fit, sets, note)
  out_of_fold = None
  if fit and not options.test:
    note(f"cross-validation over {options.folds} folds: every number is of examples that were not fitted to.")
    out_of_fold = folds.out_of_fold(fit, labelled, options.folds)
  fitted = evaluation.fit([fit], labelled, note if options.json == "-" else print) if fit else {}
  models = {NAMELESS: evaluation.Model({name: [part] for name, part in sets.items()}, fitted, out_of_fold)}
  test_set = next(iter(sets))
  for path in options.compare:
    other = inputs.model(path, test_set, labelled, note)
    models[inputs.fresh(path, models)] = dataclasses.replace(other, sets={
      name: parts for name, parts in other.sets.items() if name in sets})
  results = evaluation.judge(models, num_bins=options.num_bins,
                             num_resamples=inputs.resamples(options.num_resamples, models))
  shared.write(options, results, fitted, title=", ".join(results.sets))


def _check(options: argparse.Namespace) -> None:
  """Raises a UserError for options that cannot work together."""
  if not options.fit and not options.test:
    raise UserError("name the predictions: --fit val.npz --test test.npz, or one of the two.")
  if options.calibrators and not options.fit:
    raise UserError("--calibrators need predictions to be fitted to: --fit val.npz.")
  shared.check_range("folds", options.folds, 2)


def _check_sets(options: argparse.Namespace, fit: evaluation.Predictions | None,
                sets: dict[str, evaluation.Predictions], note: Callable[[str], None]) -> None:
  """Raises a UserError for sets that do not belong together, and says which are the same."""
  parts = {**({"--fit": fit} if fit else {}), **sets}
  inputs.check_alike(parts)
  for name, other in inputs.same_predictions(parts) if options.test else ():
    note(f"warning: {name} and {other} hold the same predictions"
         + ("; calibrators are judged on what they were fitted to: for cross-validation, leave out --test."
            if other == "--fit" else "."))
  if fit and len(np.unique(fit.labels)) == 1:
    raise UserError(f"{options.fit}: all labels are {fit.labels[0]}, so no calibrator can be fitted.")


def _named(paths: Sequence[str], taken: Sequence[str] = ()) -> dict[str, str]:
  """Returns the paths by a short name each."""
  named: dict[str, str] = {}
  for path in paths:
    named[inputs.fresh(path, [*taken, *named])] = path
  return named


def _streamed(options: argparse.Namespace) -> None:
  """Measures a pair of .npy that is too large for memory."""
  if options.groups:
    raise UserError("--groups is for files that fit into memory: a streamed file is counted row by row, as if no two "
                    "rows belonged together. Divide the file, or leave --groups out.")
  shared.note(streamed.NOTE)
  results, histogram = streamed.measure(options.test[0], num_resamples=options.num_resamples)
  rows = formats.to_lines(results)
  text, table = formats.to_json(results), formats.markdown(rows)
  if options.json and options.json != "-":
    write_text(pathlib.Path(options.json), text)
  if options.out:
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    for name, content in (("json", text), ("csv", formats.to_csv(results)), ("md", table),
                          ("tex", formats.booktabs(rows, 1))):
      write_text(out / f"results.{name}", content)
    if missing := outputs.missing_for_figures():
      shared.note(outputs.NO_FIGURES.format(" and ".join(missing)))
    else:
      from calib_jax import reports

      (out / "figures").mkdir(exist_ok=True)
      name, evaluated = results.first
      picture = reports.save(reports.reliability_grid({name: (histogram, None)}, width=options.figure_width),
                             out / "figures" / "reliability", [*options.figures, "svg"])
      reports.write_streamed(out / "report.html", rows, *verdict(results), title=name,
                             note=f"{evaluated.num_examples:,} rows. {streamed.NOTE}",
                             reliability=picture, environment=environment(), command=outputs.command())
  print(text if options.json == "-" else table, end="")
