"""Evaluates predictions of any framework: python -m calib_jax.evaluation --fit val.npz --test test.npz.

Each file is an ``.npz`` with ``labels`` ``[N]`` and ``logits`` (or ``probs``) ``[N, K]``, a pair LOGITS.npy,LABELS.npy,
a .csv or a .parquet. Calibrators are fitted to --fit and evaluated on each --test. Without --test they are
cross-validated on --fit, and without --fit the predictions of --test are only measured.
"""

import argparse
import ast
from collections.abc import Callable, Sequence
import pathlib
import sys

import numpy as np

from calib_jax import calibrators, checks, evaluation, report_files
from calib_jax.errors import UserError, short
from calib_jax.evaluation import folds, streaming
from calib_jax.evaluation.results import NAMELESS
from calib_jax.files import write_text
from calib_jax.registry import options as registry_options

ENOUGH = 10_000_000  # Examples times resamples from which on fewer resamples are drawn.


def main(arguments: list[str] | None = None) -> int:
  """Runs the command line; returns the exit code, which is 2 after a mistake of the user and else 0."""
  parser = argparse.ArgumentParser(prog="python -m calib_jax.evaluation", description=__doc__.splitlines()[0],
                                   allow_abbrev=False)
  parser.add_argument("--fit", metavar="FILE", help="validation predictions, to which calibrators are fitted")
  parser.add_argument("--test", metavar="FILE", action="append", default=[], help="test predictions; may be repeated")
  parser.add_argument("--ood", metavar="FILE", action="append", default=[],
                      help="out-of-distribution predictions, whose labels do not matter; may be repeated")
  parser.add_argument("--calibrators", nargs="+", metavar="NAME[:OPTION=VALUE,…]", default=[],
                      help="by default temperature scaling for the NLL and for SB-ECE")
  parser.add_argument("--compare", nargs="+", metavar="RUN_OR_FILE", default=[],
                      help="directories of runs, or files of predictions of the first --test, to compare with")
  parser.add_argument("--folds", type=int, default=5, help="folds of cross-validation, without --test")
  parser.add_argument("--groups", metavar="KEY", default="",
                      help="the array whose equal values mark examples that belong together")
  parser.add_argument("--num_bins", type=int, default=15)
  parser.add_argument("--num_resamples", type=int, help="resamples of the intervals; by default 1,000, and fewer (at "
                      "least 200) for more than 10,000 examples")
  parser.add_argument("--out", metavar="DIR", help="the directory for tables, figures, page and fitted calibrators")
  parser.add_argument("--json", metavar="FILE", help="also writes results.json there; - prints it, and nothing else")
  options = parser.parse_args(arguments)
  try:
    _run(options)
    return 0
  except (UserError, TypeError, ValueError) as error:
    print(f"error: {error}", file=sys.stderr)
  except OSError as error:
    print(f"error: {error.filename or options.out}: {error.strerror}.", file=sys.stderr)
  return 2


def _run(options: argparse.Namespace) -> None:
  """Reads everything, evaluates, and then writes everything."""
  _check(options)
  labelled = {} if not options.fit else {text: calibrator(text) for text in options.calibrators} or {
    "TS": calibrators.temperature_scaling(),
    "TS-SB-ECE": calibrators.temperature_scaling(objective="soft_binned_ece", form="bin")}

  def note(text: str) -> None:
    print(text, file=sys.stderr)

  if len(options.test) == 1 and not options.ood and not options.compare and streaming.is_large(options.test[0]):
    if options.fit:
      raise UserError(f"{options.test[0]} is so large that it is only measured: leave out --fit.")
    _streamed(options, note)
    return
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
  for path in options.compare:
    models[_fresh(path, models)] = _compared(path, next(iter(sets)), labelled, note)
  largest = max(len(part.labels) for part in sets.values())
  results = evaluation.judge(models, num_bins=options.num_bins,
                             num_resamples=options.num_resamples or min(1000, max(200, ENOUGH // largest)))
  _write(options, results, fitted)


def _check(options: argparse.Namespace) -> None:
  """Raises a UserError for options that cannot work together."""
  if not options.fit and not options.test:
    raise UserError("name the predictions: --fit val.npz --test test.npz, or one of the two.")
  if options.calibrators and not options.fit:
    raise UserError("--calibrators need predictions to be fitted to: --fit val.npz.")
  for name, low in (("num_bins", 1), ("num_resamples", 2), ("folds", 2)):
    value = getattr(options, name)
    if value is not None and not low <= value <= 1_000_000:
      raise UserError(f"--{name} must be from {low} to 1,000,000: got {value}.")


def _check_sets(options: argparse.Namespace, fit: evaluation.Predictions | None,
                sets: dict[str, evaluation.Predictions], note: Callable[[str], None]) -> None:
  """Raises a UserError for sets that do not belong together, and says which are the same."""
  parts = {**({"--fit": fit} if fit else {}), **sets}
  names = list(parts)
  for i, name in enumerate(names):
    if parts[name].logits.shape[1] != parts[names[0]].logits.shape[1]:
      raise UserError(f"the predictions of {name} have {parts[name].logits.shape[1]} classes, those of {names[0]} "
                      f"{parts[names[0]].logits.shape[1]}.")
    if not options.test:
      continue
    for other in names[:i]:
      if np.array_equal(parts[name].logits, parts[other].logits):
        note(f"warning: {name} and {other} hold the same predictions"
             + ("; calibrators are judged on what they were fitted to: for cross-validation, leave out --test."
                if other == "--fit" else "."))
  if fit and len(np.unique(fit.labels)) == 1:
    raise UserError(f"{options.fit}: all labels are {fit.labels[0]}, so no calibrator can be fitted.")


def calibrator(text: str) -> calibrators.Calibrator:
  """Returns the calibrator of a text such as ``temperature_scaling:objective=ece,num_bins=10``.

  Raises: UserError for an unknown name or option.
  """
  name, _, rest = text.partition(":")
  checks.choice("calibrator name", name, calibrators.CALIBRATORS)
  known, given = registry_options(calibrators.CALIBRATORS[name], positional=True), {}
  for pair in filter(None, rest.split(",")):
    option, equals, value = pair.partition("=")
    if option == "base":
      checks.choice("base", value, calibrators.CALIBRATORS)
      known |= registry_options(calibrators.CALIBRATORS[value], positional=True)
    if option not in known or not equals:
      raise UserError(f"{name} has no option {short(option)}; options look like {name}:OPTION=VALUE, and it has "
                      f"{', '.join(known) or 'none'}.{checks.suggestion(option, known)}")
    try:
      given[option] = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
      given[option] = value
  return calibrators.get(name, **given)


def _named(paths: Sequence[str], taken: Sequence[str] = ()) -> dict[str, str]:
  """Returns the paths by a short name each."""
  named: dict[str, str] = {}
  for path in paths:
    named[_fresh(path, [*taken, *named])] = path
  return named


def _fresh(path: str, taken: Sequence[str]) -> str:
  stem = pathlib.Path(path.split(",")[0]).stem or path
  return stem if stem not in taken else next(f"{stem} {i}" for i in range(2, 10_000) if f"{stem} {i}" not in taken)


def _compared(path: str, test_set: str, labelled: dict[str, calibrators.Calibrator], note: Callable[[str], None]
              ) -> evaluation.Model:
  """Returns the model of a file of test predictions, or of a run with its validation predictions."""
  folder = pathlib.Path(path) / "predictions"
  if not folder.is_dir():
    return evaluation.Model({test_set: [evaluation.load(path, say=note)]}, {})
  validation, test = ([evaluation.load(file) for file in sorted(folder.glob(f"{split}_seed*.npz"))]
                      for split in ("validation", "test"))
  if not test or len(validation) != len(test):
    raise UserError(f"{folder} must hold predictions of the validation and the test split, one file a seed.")
  return evaluation.Model({test_set: test}, evaluation.fit(validation, labelled, note))


def _streamed(options: argparse.Namespace, note: Callable[[str], None]) -> None:
  """Measures a pair of .npy that is too large for memory."""
  note("The predictions are streamed: their metrics are those of CalibrationHistogram, without intervals.")
  text = streaming.to_json(streaming.measure(options.test[0]))
  if options.json and options.json != "-":
    write_text(pathlib.Path(options.json), text)
  if options.out:
    pathlib.Path(options.out).mkdir(parents=True, exist_ok=True)
    write_text(pathlib.Path(options.out) / "results.json", text)
  print(text, end="")


def _write(options: argparse.Namespace, results: evaluation.Results, fitted: evaluation.Fitted) -> None:
  """Prints the table or the JSON, and writes files."""
  def say(text: str) -> None:
    if options.json != "-":
      print(text, flush=True)

  if options.json == "-":
    print(evaluation.to_json(results), end="")
  elif options.json:
    write_text(pathlib.Path(options.json), evaluation.to_json(results))
  if not options.out:
    say(f"{evaluation.note(results)}\n\n{evaluation.markdown(evaluation.to_rows(results))}")
    return
  out = pathlib.Path(options.out)
  (out / "calibrators").mkdir(parents=True, exist_ok=True)
  for label, (fitted_calibrator, params) in fitted.items():
    calibrators.save(out / "calibrators" / f"{label.replace('/', '_')}.npz", params[0], fitted_calibrator)
  report_files.write(results, out, title=", ".join(results.settings["sets"]), say=say)


if __name__ == "__main__":
  sys.exit(main())
