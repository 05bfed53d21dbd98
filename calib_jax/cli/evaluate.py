"""Evaluates predictions of any framework: calib-jax evaluate --fit val.npz --test test.npz.

Each file is an ``.npz`` with ``labels`` ``[N]`` and ``logits`` (or ``probs``) ``[N, K]``, a pair LOGITS.npy,LABELS.npy,
a .csv, .tsv, .jsonl or .parquet; one column is the probability or the log-odds of class 1. A file with ``confidence``
and ``correct`` holds records, of answers that are right or wrong. Calibrators are fitted to --fit and evaluated on each
--test. Without --test they are cross-validated on --fit, and without --fit the predictions of --test are only measured.
With --ensemble several files after each of these are pooled.
"""

import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import itertools

import numpy as np

from calib_jax import calibrators, evaluation, metrics
from calib_jax._system.errors import UserError
from calib_jax.cli import asked, inputs, parsers, shared
from calib_jax.evaluation.predictions import covariates, ensembles, fitting
from calib_jax.evaluation.predictions.calibrated import Calibrated
from calib_jax.evaluation.predictions.fitting import UNCALIBRATED, FittedRows, calibrated
from calib_jax.evaluation.predictions.headers import listed
from calib_jax.evaluation.predictions.joining import aligned, aligned_labels
from calib_jax.evaluation.predictions.predictions import differing
from calib_jax.evaluation.predictions.row_ids import SameRows

MEMBERS = "members"  # The name in tables of the mean of an ensemble's members.
EXAMPLES = ("calib-jax evaluate --fit val.npz --test test.npz --out report",
            "calib-jax evaluate --fit val.csv --test test.csv --by task --calibrators temperature_scaling",
            "calib-jax evaluate --fit val.jsonl --test test.jsonl --risk 0.05 --fail_if 'risk>0.05'")
MOST_LABELS = 20  # Labels of a multi-label file that are shown one by one: the worst, if it has more.


def main(arguments: list[str] | None = None) -> int:
  """Runs the command line; returns the exit code, which is 2 after a mistake of the user and else 0."""
  parser = parsers.parser("evaluate", __doc__, "[--fit FILE] [--test FILE ...] [options]", EXAMPLES)
  groups = parsers.groups(parser)
  files, calibration, subgroups = groups["files"], groups["calibration"], groups["subgroups"]
  files.add_argument("--fit", metavar="FILE", nargs="+", default=[],
                     help="validation predictions, to which calibrators are fitted")
  files.add_argument("--test", metavar="FILE", nargs="+", action="append", default=[],
                     help="test predictions; repeat --test for more sets; the first line of the result is about the "
                     "first set")
  files.add_argument("--ood", metavar="FILE", nargs="+", action="append", default=[],
                     help="out-of-distribution predictions, whose labels are not used; may be repeated")
  files.add_argument("--ensemble", action="store_true", help="each of --fit, --test and --ood names one file of each "
                     "member of an ensemble, in the same order")
  files.add_argument("--compare", nargs="+", metavar="RUN_OR_FILE", default=[],
                     help="directories of runs, or files of predictions of the first --test, to compare with; rows "
                     "join by a column id, or else by their order")
  files.add_argument("--task", choices=("binary", "multilabel"), help="binary checks that there are two classes; in "
                     "multilabel files scores and labels are [N, L], and each label is a binary problem")
  calibration.add_argument("--folds", type=int, default=5, help="folds of cross-validation, which is what is done "
                           "without --test; by default 5")
  subgroups.add_argument("--groups", metavar="KEY", default="",
                         help="the column or array whose equal values mark examples that depend on each other")
  subgroups.add_argument("--by", metavar="KEY", nargs="+", default=[], help="the columns or arrays whose values "
                         "divide the test examples into subgroups, such as tasks, which are reported one by one")
  subgroups.add_argument("--fit_by", metavar="KEY", default="", help="also fits the calibrators to each subgroup of "
                         "this column, shrunk to all examples where it has few, and reports the subgroups as --by does")
  subgroups.add_argument("--judged", metavar="KEY", default="", help="the column of a judge's verdicts on all "
                         "records, where correct, a person's verdict, is missing in some: they sharpen the accuracy")
  subgroups.add_argument("--weights", metavar="KEY", default="", help="the column of the weights of the examples, "
                         "numbers of at least 0 whose ratios alone matter; --fit and every --test must have it")
  asked.add_options(groups["cuts"])
  shared.add_options(groups)
  options = parser.parse_args(arguments)
  if options.fit_by and options.fit_by not in options.by:
    options.by = [*options.by, options.fit_by]
  return shared.run(options, _ensemble if options.ensemble else _models)


def _models(options: argparse.Namespace) -> shared.Inputs:  # noqa: C901
  """Reads models; the first has calibrators."""
  _check(options)
  cautions, labelled = [], inputs.labelled(options.calibrators)
  fit_file = next(iter(options.fit), None)
  of_fit = ([options.fit_by] if options.fit_by else []) if options.test else options.by
  of_labels = {fit_file: _read(fit_file, options, of_fit)} if options.fit else {}
  fit = of_labels[fit_file][""] if options.fit else None
  sets, notes, same = {}, [], SameRows() if options.compare else None
  for path in itertools.chain(*options.test) if options.test else [fit_file]:
    name = inputs.fresh(path, sets)
    read = functools.partial(_read, path, options, options.by, same=None if sets else same)
    if of_labels and options.task == "multilabel":
      parts = aligned_labels(read, next(iter(of_labels.values())), (path, next(iter(of_labels))), shared.note)
    else:
      parts = read()
    of_labels[name] = parts
    labels = _worst_labels(parts, options.num_bins)
    if len(labels) < len(parts) - 1:
      notes.append(f"{name} has {len(parts) - 1} labels: the {MOST_LABELS} of the largest calibration errors (of their "
                   f"uncalibrated probabilities, equal mass, norm 2{'' if options.weights else ', debiased'}) are also "
                   "shown one by one, the worst first.")
    sets |= {name: parts[""], **{_of_label(name, label): parts[label] for label in labels}}
  for path in itertools.chain(*options.ood):
    sets[inputs.fresh(path, sets)] = _read(path, options)[""]._replace(kind="out_of_distribution")
  joined = _check_sets({"--fit": fit} if fit else {}, sets, options)
  fit, sets = joined.get("--fit"), {name: joined[name] for name in sets}
  if fit and not labelled:
    labelled = calibrators.recommended(*fit.logits.shape, records=fit.records, is_ragged=fit.is_ragged)
  out_of_fold = None
  if fit and not options.test:
    shared.note(f"cross-validation over {options.folds} folds: every number is of examples that were not fitted to.")
    out_of_fold = fitting.out_of_fold(fit, labelled, options.folds)
  fitted = evaluation.fit([fit], labelled, cautions.append, options.fit_by) if fit else {}
  for name, part in sets.items() if options.fit_by else ():
    if new := sorted(set(part.subgroups[options.fit_by].names) - set(fit.subgroups[options.fit_by].names)):
      shared.note(f"--fit has no {options.fit_by} {listed(new)}, so that these rows of {name} have the calibrators of "
                  "all examples.")
  test_set = next(iter(sets))
  models = {test_set: evaluation.Model({name: [part] for name, part in sets.items()}, fitted, out_of_fold)}
  compared = {}
  for path in options.compare:
    name = inputs.fresh(path, models)
    compared[name] = path
    if options.task == "multilabel":
      read = functools.partial(_read, path, options, same=same)
      parts = aligned_labels(read, of_labels[test_set], (name, test_set), shared.note)
      parts = {_of_label(test_set, label) if label else test_set: part for label, part in parts.items()}
      models[name] = evaluation.Model({key: [parts[key]] for key in sets if key in parts}, {})
      continue
    other = inputs.model(path, test_set, labelled, cautions.append, like={test_set: sets[test_set]}, same=same,
                         **shared.reading(options))
    models[name] = dataclasses.replace(other, sets={key: parts for key, parts in other.sets.items() if key in sets})
  inputs.check_models(models, test_set, compared)
  for name in compared if options.weights else ():
    if differing([part.labels for part in models[name].sets[test_set]], [sets[test_set].labels]):
      raise UserError(f"{name} has other examples than {test_set}, so that their weights are not known: leave it out "
                      "of --compare.")
  return shared.Inputs(models, fitted, dict.fromkeys(cautions), notes=notes, asked=asked.asked(
    options, sets[test_set], _chosen_on(options, fit, sets, labelled, fitted, out_of_fold), fitted, shared.note))


def _chosen_on(options: argparse.Namespace, fit: evaluation.Predictions | None,
               sets: Mapping[str, evaluation.Predictions], labelled: Mapping[str, calibrators.Calibrator],
               fitted: FittedRows, out_of_fold: Mapping[str, Sequence[Calibrated]] | None
               ) -> dict[str, tuple[Calibrated, str]]:
  """Returns predictions by label on which a cut and sets are chosen: what judges them and what fits are others."""
  if options.cut is not None or options.risk is options.sets is None:
    return {}
  part = _read(options.choose, options, [options.fit_by] if options.fit_by else ())[""] if options.choose else fit
  excluded = {name: of_set for name, of_set in sets.items() if options.test}
  excluded |= {"--fit": fit} if options.choose and fitted else {}
  part = aligned({**excluded, options.choose or "--fit": part}, shared.note if options.choose else lambda note: None)[
    options.choose or "--fit"]
  for name, of_set in excluded.items():
    if np.array_equal(part.logits, of_set.logits):
      raise UserError(f"{options.choose or '--fit'} and {name} hold the same predictions: a cut must be chosen on "
                      "others than those that a calibrator is fitted to, or that judge it.")
  if options.choose:
    return {label: (calibrated(fitted, label, [part])[0], options.choose) for label in (UNCALIBRATED, *fitted)}
  if out_of_fold is None:
    out_of_fold = fitting.out_of_fold(fit, labelled, options.folds, fitted, options.fit_by)
  crossed = ", each example calibrated without its fold, so that the guarantee is approximate"
  return {label: (parts[0], f"{options.fit[0]}{crossed if label in fitted else ''}")
          for label, parts in out_of_fold.items()}


def _ensemble(options: argparse.Namespace) -> shared.Inputs:
  """Reads the members of an ensemble, and makes their ensemble."""
  _check(options)
  cautions: list[str] = []

  def read(paths, by=()):
    same = SameRows()
    parts = [_read(path, options, by, same=same)[""] for path in paths]
    numbered = {f"{path} ({i})" if path in paths[:i] else path: part
                for i, (path, part) in enumerate(zip(paths, parts, strict=True))}
    parts = list(aligned(numbered, shared.note).values())
    for path, part in zip(paths, parts, strict=True):
      if not ensembles.are_of_the_same(part, parts[0]):
        raise UserError(f"{path} must have the same examples as {paths[0]}, in the same order or with a column id: "
                        "their labels or their numbers of classes differ, so they are no members of one ensemble.")
    return parts

  fit = read(options.fit)
  sets = {inputs.fresh(paths[0], []): read(paths, options.by) for paths in options.test}
  sets |= {inputs.fresh(paths[0], sets): [part._replace(kind="out_of_distribution") for part in read(paths)]
           for paths in options.ood}
  of_fit = {f"--fit {i}": part for i, part in enumerate(fit, 1)}
  of_sets = {f"{name} {i}": part for name, parts in sets.items() for i, part in enumerate(parts, 1)}
  joined = _check_sets(of_fit, of_sets, options)
  fit = [joined[name] for name in of_fit]
  sets = {name: [joined[f"{name} {i}"] for i in range(1, len(parts) + 1)] for name, parts in sets.items()}
  labelled = inputs.labelled(options.calibrators)
  if fit and not labelled:
    labelled = calibrators.recommended(*fit[0].logits.shape, records=fit[0].records, is_ragged=fit[0].is_ragged)
  members = evaluation.Model(sets, evaluation.fit(fit, labelled, cautions.append) if fit else {})
  pooled = ensembles.models(MEMBERS, members, fit)
  return shared.Inputs({MEMBERS: members, **pooled}, next(iter(pooled.values())).fitted, dict.fromkeys(cautions))


def _read(path: str, options: argparse.Namespace, by: Sequence[str] = (), order: Sequence[str] = (),
          same: SameRows | None = None) -> dict[str, evaluation.Predictions]:
  """Returns the predictions of a file under "", and of each label of a multi-label file under its name.

  Labels of a multi-label file have the ``order``, or the file's; rows that of the files read with ``same`` before.
  """
  reading = {"groups": options.groups, "by": by, "weights": options.weights, "same": same, **shared.reading(options)}
  if order:  # The file has been read before, and said how.
    reading["say"] = lambda note: None
  columns = covariates.wanted(inputs.labelled(options.calibrators))
  if options.task == "multilabel":
    if columns:
      raise UserError("covariate_temperature_scaling is for one label an example: leave it out, or --task=multilabel.")
    del reading["ignore_label"], reading["form"]
    return evaluation.load_labels(path, order=order, **reading)
  part = evaluation.load(path, columns=columns, judged=options.judged, **reading)
  if columns and part.records:
    raise UserError(f"{path} holds records, to which covariate_temperature_scaling is not fitted: leave it out.")
  if options.task == "binary" and part.records:
    raise UserError(f"{path} holds records, which have no classes: leave out --task=binary, or name the probability of "
                    "class 1 prob and the classes label.")
  if options.task == "binary" and part.logits.shape[1] != 2:
    raise UserError(f"{path} has {part.logits.shape[1]} classes: --task=binary is for two.")
  return {"": part}


def _of_label(name: str, label: str) -> str:
  """Returns the name of the set of one label of a multi-label file."""
  return f"{name}: {'label ' if label.isdigit() else ''}{label}"


def _worst_labels(parts: Mapping[str, evaluation.Predictions], num_bins: int) -> list[str]:
  """Returns the labels of a multi-label file, or the ``MOST_LABELS`` of the largest errors, the worst first."""
  def error(label):
    part = parts[label]
    source = Calibrated.of(part)
    probability = source.probs(slice(None), source.log_probs())[:, 1]
    return float(metrics.calibration_error(  # An error of counts has no weights.
      probability, part.labels == 1, num_bins=num_bins, binning="equal_mass", norm=2, debias=part.weights is None,
      weights=part.weights))

  labels = [label for label in parts if label]
  return labels if len(labels) <= MOST_LABELS else sorted(labels, key=error, reverse=True)[:MOST_LABELS]


def _check(options: argparse.Namespace) -> None:
  """Raises a UserError for options that cannot work together."""
  if not options.fit and not options.test:
    raise UserError("name the predictions: --fit val.npz --test test.npz, or one of the two.")
  if options.calibrators and not options.fit:
    raise UserError("--calibrators need predictions to be fitted to: --fit val.npz.")
  if options.task == "multilabel" and options.ignore_label is not None:
    raise UserError("--ignore_label is the label of whole rows, which multi-label files do not have: leave it out.")
  if options.ensemble:
    files = [*([options.fit] if options.fit else []), *options.test, *options.ood]
    if not options.test or len(files[0]) < 2 or any(len(paths) != len(files[0]) for paths in files):
      raise UserError("--ensemble needs --test, and after it, --fit and --ood one file of each member, two or more: "
                      "--fit val1.npz val2.npz --test test1.npz test2.npz --ensemble.")
    if options.compare or options.task:
      raise UserError("--ensemble goes without --compare and --task, which are for single models: leave them out.")
  elif len(options.fit) > 1:
    raise UserError(f"--fit must be one file, or with --ensemble one of each member: got {len(options.fit)}.")
  shared.check_range("folds", options.folds, 2)
  asked.check(options)
  if options.fit_by and not (options.fit and options.test):
    raise UserError("--fit_by needs --fit and --test: it is fitted to the former and judged on the latter.")
  for flag, others in (("fit_by", ("ensemble", "multilabel", "ood")),
                       ("weights", ("ood", "risk", "cut", "sets", "costs", "judged")),
                       ("judged", ("ensemble", "multilabel", "ood"))):
    if getattr(options, flag) and (clashing := asked.given(options, *others)):
      why = ", which counts examples" if flag == "weights" and clashing[0] != "--ood" else ""
      raise UserError(f"--{flag} cannot be combined with {' and '.join(clashing)}{why}: leave one of them out.")


def _check_sets(fit: dict[str, evaluation.Predictions], sets: dict[str, evaluation.Predictions],
                options: argparse.Namespace) -> dict[str, evaluation.Predictions]:
  """Returns all sets with their classes joined by name, and says which are the same.

  Sets that do not belong together, or to ``--fit``, are a UserError.
  """
  parts = aligned({**fit, **sets}, shared.note)
  fit, sets = ({name: parts[name] for name in names} for names in (fit, sets))
  graded = [name for name, part in parts.items() if part.weights is not None and not options.weights]
  if graded and (clashing := asked.given(options, "risk", "cut", "sets", "costs")):
    raise UserError(f"{graded[0]} has graded answers, which {' and '.join(clashing)} cannot count: leave "
                    f"{'it' if len(clashing) == 1 else 'them'} out, or write correct = (grade >= 0.5), for example.")
  if options.ood and any(part.records for part in parts.values()):
    raise UserError("--ood is for predictions of classes: records have no class, so leave it out.")
  for name, other in inputs.same_predictions(parts) if options.test else ():
    shared.note(f"warning: {name} and {other} hold the same predictions"
                + ("; calibrators are judged on what they were fitted to" if other in fit and name in sets else "")
                + (": for cross-validation, leave out --test." if other == "--fit" else "."))
  for name, part in sets.items() if options.test else ():
    for of_fit, other in fit.items():
      shared_rows = inputs.shared_rows(part, other)
      if 0 < shared_rows < len(part.labels):
        shared.note(f"warning: {shared_rows:,} of the {len(part.labels):,} rows of {name} hold the scores of rows of "
                    f"{of_fit}: calibrators are judged in part on what they were fitted to.")
  for name, part in fit.items():
    if len(np.unique(part.labels)) == 1:
      raise UserError(f"{options.fit[0] if name == '--fit' else name}: all labels are {part.labels[0]}, so no "
                      "calibrator can be fitted.")
  return parts
