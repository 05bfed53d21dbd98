"""The options of ``evaluate`` that ask where to cut, for sets of classes, and what acts cost."""

import argparse
from collections.abc import Callable, Collection, Mapping
import csv
import itertools
import math
import pathlib
import re

import numpy as np

from calib_jax import _checks as checks
from calib_jax._system.errors import UserError, short
from calib_jax.evaluation.asked import Asked
from calib_jax.evaluation.predictions.calibrated import Calibrated
from calib_jax.evaluation.predictions.fitting import UNCALIBRATED
from calib_jax.evaluation.predictions.predictions import Predictions
from calib_jax.evaluation.predictions.text_files import fields, lines_of

MOST_ACTS = 1000


def add_options(parser: argparse._ArgumentGroup) -> None:
  """Adds the options."""
  parser.add_argument("--risk", type=float, help="finds the lowest cut of the confidence above which at most this "
                      "share are errors, such as 0.05; it is chosen on --fit or --choose, and judged on --test")
  parser.add_argument("--level", type=float, default=0.95, help="the probability of that guarantee, by default 0.95")
  parser.add_argument("--cut", type=float, help="the cut of an earlier evaluation, which is tested on --test")
  parser.add_argument("--choose", metavar="FILE", help="predictions on which the cut and the sets are chosen, which "
                      "must be others than those of --fit; by default --fit, where the calibrator of an example was "
                      "not fitted to it")
  parser.add_argument("--sets", type=float, metavar="COVERAGE", help="sets of classes that hold the true one this "
                      "often, such as 0.9")
  parser.add_argument("--costs", metavar="FILE", help="a .csv of acts by classes, named in the header and in the "
                      "first column: what each act costs if the class is the true one")
  parser.add_argument("--fail_if", metavar="CONDITION", help="such as 'risk>0.05': the exit code is 3 if an exact test "
                      "shows on --test that more than this share of what the cut accepts are errors; or 'ece>0.1': if "
                      "the interval of the ECE on --test, without the noise of so few examples, is above this; or "
                      "'ece_upper>0.05': unless the true error is shown to be at most this")


def check(options: argparse.Namespace) -> None:  # noqa: C901
  """Raises a UserError for options that cannot work together; --fail_if gives --risk where that is not given."""
  options.ece_limit = options.upper_limit = None
  if options.fail_if is not None:
    match = re.fullmatch(r"(risk|ece|ece_upper) *> *(0\.[0-9]{1,9})", options.fail_if)
    if not match or (match[1] == "risk" and options.risk not in (None, float(match[2]))):
      raise UserError("--fail_if must be 'risk>NUMBER', such as 'risk>0.05', with the number of --risk if that is "
                      f"given, or 'ece>NUMBER' or 'ece_upper>NUMBER': got {short(options.fail_if)}.")
    setattr(options, {"ece": "ece_limit", "ece_upper": "upper_limit", "risk": "risk"}[match[1]], float(match[2]))
  for name in ("risk", "level", "sets"):
    if (value := getattr(options, name)) is not None:
      checks.options(**{name: (value, "(0, 1)")})
  chooses = (options.risk is not None and options.cut is None) or options.sets is not None
  for flag in given(options, "risk", "cut", "sets", "costs"):
    if others := given(options, "ensemble", "compare", "multilabel"):
      raise UserError(f"{flag} is for one model: leave out {' and '.join(others)}.")
  if options.cut is not None and (options.risk is None or not math.isfinite(options.cut) or not options.test):
    raise UserError("--cut must be a number, and needs the --risk that it was chosen for and a --test that judges it.")
  if options.cut is not None and options.fit and len(options.calibrators) != 1:
    raise UserError("--cut belongs to the confidences of one calibrator: name it by --calibrators, or leave out --fit "
                    "for those of the file.")
  if options.cut is not None and options.sets is not None:
    raise UserError("--sets are chosen, and --cut is not chosen again: leave out one of them.")
  if options.choose and not chooses:
    raise UserError("--choose is what --risk and --sets are chosen on: add one of them, and leave out --cut.")
  if chooses and not (options.fit or options.choose) and options.fail_if:
    raise UserError(f"--fail_if {short(options.fail_if)} is judged at a cut of the confidences: name the one in use by "
                    "--cut, or other predictions to choose one on by --fit or --choose.")
  if chooses and not (options.fit or options.choose):
    raise UserError("--risk and --sets choose on the predictions of --fit or --choose, and those of --test, which "
                    "judge, must be others: name both, or a cut from before by --cut.")
  if options.sets is not None and not options.test:
    raise UserError("--sets are judged on --test: name it.")
  if options.fail_if is not None and not options.test:
    raise UserError("--fail_if is judged on --test: name it.")


def given(options: argparse.Namespace, *names: str) -> list[str]:
  """Returns the options of ``names`` that were given, as they are written on the command line."""
  values = {**vars(options), "multilabel": options.task == "multilabel"}
  written = {"multilabel": "--task=multilabel"}
  if (options.fail_if or "").startswith("risk"):
    written["risk"] = "--fail_if"
  return [written.get(name, f"--{name}") for name in names if values[name] not in (None, False, "", [])]


def asked(options: argparse.Namespace, test: Predictions, chosen_on: Mapping[str, tuple[Calibrated, str]],
          fitted: Collection[str], say: Callable[[str], None]) -> Asked | None:
  """Returns what the options ask, or None; ``fitted`` has the labels of the fits."""
  if options.risk is options.sets is options.costs is options.ece_limit is options.upper_limit is None:
    return None
  if test.records and (options.sets or options.costs):
    raise UserError("--sets and --costs are for predictions of classes: records have no class, so leave them out.")
  costs, acts = read_costs(options.costs, test, say) if options.costs else (None, ())
  stored = {}
  if options.cut is not None:
    label = next(iter(options.calibrators), UNCALIBRATED)
    if (own := f"{label} by {options.fit_by}") in fitted:
      say(f"--cut belongs to the confidences of {own}.")
      label = own
    stored = {label: options.cut}
  return Asked(options.risk, options.level, stored, options.sets, costs, acts, chosen_on, bool(options.test),
               options.ece_limit, options.upper_limit)


def read_costs(path: str, test: Predictions, say: Callable[[str], None]) -> tuple[np.ndarray, tuple[str, ...]]:
  """Returns a matrix of costs, with the classes in the order of the predictions, and the names of its acts."""
  number, wanted = test.logits.shape[1], list(test.classes or map(str, range(test.logits.shape[1])))
  try:
    if not pathlib.Path(path).is_file():
      raise ValueError("it is no file")
    lines = csv.reader(lines_of(path), strict=True)
    names = [name.strip() for name in next(lines, [""])[1:]]
    rows = list(itertools.islice(fields(lines, len(names) + 1), MOST_ACTS))
    acts, costs = tuple(row[0].strip() for row in rows), np.array([[float(x) for x in row[1:]] for row in rows])
    if len(set(acts)) < len(acts) or len(acts) == MOST_ACTS or not np.isfinite(costs).all():
      raise ValueError("an act is there twice, there are too many, or a cost is not finite")
    if sorted(names) == sorted(wanted):
      return costs[:, [names.index(name) for name in wanted]], acts
    if test.classes or len(names) != number:
      raise ValueError(f"its header must name the classes {', '.join(wanted[:20])}")
  except (ValueError, csv.Error) as error:
    raise UserError(f"{path} must be a matrix of costs, acts by classes, with names in its header and first column: "
                    f"{error}.") from error
  say(f"{path}: the predictions name no classes, so its columns are taken in their order: {names[0]} is class 0.")
  return costs, acts
