"""What the commands ``evaluation`` and ``compare`` share: options, errors and outputs."""

import argparse
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import contextlib
import os
import pathlib
import sys
import time
from typing import Any, NamedTuple
import webbrowser

import numpy as np

from calib_jax import calibrators, evaluation
from calib_jax._system import capacity, progress
from calib_jax._system.errors import UserError, printable
from calib_jax._system.files import check_local, stem, write_npz, write_text
from calib_jax.evaluation.asked import Asked
from calib_jax.evaluation.columns import ClasswiseError, numbers_of
from calib_jax.evaluation.predictions import automatic, logs, subgroup_fits
from calib_jax.evaluation.predictions.fitting import FittedRows, Model
from calib_jax.evaluation.predictions.predictions import Predictions
from calib_jax.evaluation.reports import formats, outputs
from calib_jax.evaluation.results import SHORT_TABLE, Results
from calib_jax.evaluation.verdict.reasons import MOST, listed
from calib_jax.evaluation.verdict.uses import FAILS

FITTED = "calibrator.npz"
ENOUGH, FEWEST = 10_000_000, 200  # Examples times resamples from which on fewer resamples are drawn, and how few.


def add_options(groups: Mapping[str, argparse._ArgumentGroup]) -> None:
  """Adds the options that the commands share."""
  files, calibration, output = groups["files"], groups["calibration"], groups["output"]
  files.add_argument("--logits", action="store_true", help="reads scores as logits, even if they seem probabilities")
  files.add_argument("--percent", action="store_true", help="reads probabilities as percentages, from 0 to 100")
  files.add_argument("--ignore_label", type=int, metavar="LABEL",
                     help="leaves out rows with this label, such as -100, which are not scored")
  files.add_argument("--form", choices=(*logs.FORMS, logs.TABLE), default="",
                     help="what a log is, or table for none, where its keys do not tell")
  calibration.add_argument("--calibrators", nargs="+", metavar="NAME[:OPTION=VALUE,…]", default=[],
                           help="the calibrators to fit, by default those that the evidence recommends for so many "
                           "examples and classes; auto selects one by cross-validation on what it is fitted to")
  output.add_argument("--num_bins", type=int, default=15, help="bins of the calibration errors and the reliability "
                      "diagrams; by default 15")
  output.add_argument("--num_resamples", type=int, help="resamples of the intervals; by default 1,000, and fewer (at "
                      "least 200) for more than 10,000 examples")
  output.add_argument("--columns", metavar="NAME,…", default=",".join(SHORT_TABLE),
                      help="the columns of the short table, of the terminal, results.md and results.tex: metrics of "
                      "results.json such as accuracy,nll,ece, and of calibration errors also NAME_floor, NAME_p and "
                      "NAME_debiased")
  output.add_argument("--out", metavar="DIR", help="the directory for tables, figures, page and fitted calibrators")
  output.add_argument("--figures", nargs="+", choices=("pdf", "png"), default=[],
                      help="formats of the figures beside SVG, which the page has")
  output.add_argument("--figure_width", choices=("single", "double"),
                      help="the width of the figures of --figures, a column of a paper or both; by default both from "
                      "three rows on, and else that of the page, whose figures stay as they are")
  output.add_argument("--open", action="store_true", help="opens the page that --out writes in the browser")
  output.add_argument("--save_probs", action="store_true", help="also writes the calibrated probabilities of each set "
                      "to the directory of --out")
  output.add_argument("--json", metavar="FILE", help="also writes the content of results.json to this file, or with - "
                      "prints it and nothing else")


class Inputs(NamedTuple):
  """What a command judges."""

  models: Mapping[str, Model]  # The models by name.
  fitted: FittedRows  # The calibrators to write.
  cautions: Iterable[str]  # Sentences on calibrators that are known to hurt.
  config: Mapping[str, Any] | None = None  # What the page shows as the config.
  logs: Mapping[str, pathlib.Path] | None = None  # What training logged, by the name of the run.
  asked: Asked | None = None  # What is asked of the confidences of the first model.
  notes: Sequence[str] = ()  # Sentences that stand beside the tables.


def run(options: argparse.Namespace, read: Callable[[argparse.Namespace], Inputs]) -> int:
  """Reads, judges and then writes everything; returns the exit code of ``answered``, or 3 if ``fail_if`` is true."""
  options.started = time.monotonic()
  capacity.share_freed()

  def judged():
    for name in ("out", "json"):
      if getattr(options, name):
        check_local(f"--{name}", getattr(options, name))
    check_range("num_bins", options.num_bins, 1)
    check_range("num_resamples", options.num_resamples, 2)
    formats.columns(options.columns.split(","))
    if options.open and not options.out:
      raise UserError("--open opens the page that --out DIR writes: say where with --out.")
    if options.figure_width and not options.figures:
      raise UserError("--figure_width is of the formats of --figures: add --figures pdf, for example.")
    if options.save_probs and not options.out:
      raise UserError("--save_probs writes into the directory of --out: say which.")
    with progress.shown(note) if sys.stderr.isatty() else contextlib.nullcontext():
      inputs = read(options)
      _check_columns(options.columns.split(","), [
        part for model in inputs.models.values() for parts in model.sets.values() for part in parts])
      largest = max(len(parts[0].labels) for model in inputs.models.values() for parts in model.sets.values())
      results = evaluation.judge(
        inputs.models, num_bins=options.num_bins, columns=options.columns.split(","), asked=inputs.asked,
        notes=inputs.notes, num_resamples=options.num_resamples or min(1000, max(FEWEST, ENOUGH // largest)))
      write(options, results, inputs)
      fails = any(x.kind == FAILS for x in results.verdict.recommendations)
      return 3 if fails and options.fail_if else 0

  return answered(judged, options.out)


def _check_columns(names: Collection[str], every_part: Collection[Predictions]) -> None:
  """Raises a UserError for columns of classes where predictions are records, and of counts where they have weights."""
  for name, (column, _) in zip(names, numbers_of(names), strict=True):
    if isinstance(column.compute, ClasswiseError) and any(part.records for part in every_part):
      raise UserError(f"records have no {name}, because they have no classes: leave it out of --columns.")
    if not column.weighted and any(part.weights is not None for part in every_part):
      raise UserError(f"{name} counts examples, so that it is not defined with --weights or graded answers: leave it "
                      "out of --columns.")


def answered(action: Callable[[], int | None], out: str | None) -> int:
  """Calls ``action``, which writes to ``out``, and returns its exit code; 2 and a sentence after a user's mistake."""
  try:
    return action() or 0
  except BrokenPipeError:  # What reads the output, such as head, has seen enough.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
  except (UserError, TypeError, ValueError) as error:
    print(f"error: {printable(error)}", file=sys.stderr)
  except OSError as error:
    print(f"error: {printable(error.filename or out)}: {error.strerror}.", file=sys.stderr)
  return 2


def check_range(name: str, value: int | None, low: int) -> None:
  """Raises a UserError unless the option is absent or from ``low`` to 1,000,000."""
  if value is not None and not low <= value <= 1_000_000:
    raise UserError(f"--{name} must be from {low} to 1,000,000: got {value}.")


def note(text: str) -> None:
  """Prints a sentence that is not part of the output."""
  print(printable(text), file=sys.stderr)


def reading(options: argparse.Namespace) -> dict[str, Any]:
  """Returns what the options say of how files are read, as arguments of ``evaluation.load``."""
  return {"logits": options.logits, "percent": options.percent, "ignore_label": options.ignore_label,
          "form": options.form, "say": note}


def write(options: argparse.Namespace, results: Results, inputs: Inputs) -> None:
  """Prints the verdict and the table, or the JSON, writes files with the fitted calibrators, and prints cautions."""
  def say(text: str) -> None:
    if options.json != "-":
      print(printable(text, lines=True), flush=True)

  if options.json == "-":
    print(formats.to_json(results), end="")
  elif options.json:
    write_text(pathlib.Path(options.json), formats.to_json(results))
  if options.out:
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    failed = {label for _, label in results.failed}
    used = next((x.subject for x in results.verdict.recommendations if x.kind == "use"), None)
    _save(inputs.fitted, failed, used, out)
    if options.save_probs:
      _save_probs(next(iter(inputs.models.values())), failed, out)
    outputs.write(results, out, title=title(results), config=inputs.config, log=inputs.logs, say=say,
                  seconds=time.monotonic() - options.started, figures=options.figures, width=options.figure_width)
    page = out / "report.html"
    names = [f"{path.name}{'/' if path.is_dir() else ''}" for path in sorted(out.iterdir()) if path != page]
    say(f"\n{out} holds {', '.join(names)}.")
    if page.exists():
      say(f"The page: {page.resolve()}")
      if options.open:
        webbrowser.open(page.resolve().as_uri())
  else:
    say(formats.text(results))
  for caution in inputs.cautions:
    note(caution)


def _save(fitted: FittedRows, failed: Collection[str], used: str | None, out: pathlib.Path) -> None:
  """Writes fitted calibrators by label, and the one to be ``used``, or else the first, also as ``FITTED``."""
  labels = [label for label in fitted if label not in failed]
  main = used if used in labels else next(iter(labels), None)
  for label in labels:
    calibrator, (params,) = fitted[label]
    if label == automatic.AUTO:
      calibrator, params = automatic.chosen(params)
    written = calibrators.Fitted(calibrator, params, fitted.num_classes, fitted.classes)
    (out / "calibrators").mkdir(exist_ok=True)
    for path in (out / "calibrators" / f"{stem(label)}.npz", *([out / FITTED] if label == main else [])):
      (subgroup_fits.save if calibrator.name == subgroup_fits.NAME else calibrators.save)(path, written)


def _save_probs(model: Model, failed: Collection[str], out: pathlib.Path) -> None:
  """Writes the first seed's probabilities and labels of each set by each calibrator, ``probs/SET_CALIBRATOR.npz``.

  Labels are names where classes have some; the kind, groups and weights, by which graded answers count, stand beside.
  """
  (out / "probs").mkdir(exist_ok=True)
  for name in model.sets:
    for label in (label for label in model.fitted if label not in failed):
      predicted = model.calibrated(name, label)[0]
      probs = np.empty(predicted.part.logits.shape, np.float32)
      for rows, _, log_probs in predicted.chunks():
        probs[rows] = predicted.probs(rows, log_probs)
      part = predicted.part
      labels = np.array(part.classes)[part.labels] if part.classes else part.labels
      beside = {"classes": part.classes, "groups": part.groups, "weights": part.weights, "kind": part.kind}
      write_npz(out / "probs" / f"{stem(name)}_{stem(label)}.npz",
                **({"confidence": probs[:, 1], "correct": labels} if part.records else
                   {"probs": probs, "labels": labels}),
                **{key: np.asarray(x) for key, x in beside.items() if x is not None})


def title(results: Results) -> str:
  """Returns what was judged, as the title of the page: the models and the sets."""
  models = dict.fromkeys(model for _, _, (model, _), _ in results.rows)
  sets = ", ".join(results.sets) if len(results.sets) <= MOST else listed(list(results.sets))
  named = [model for model in models if model not in results.sets or len(models) > 1]
  return f"{' against '.join(named)} on {sets}" if named else f"Calibration on {sets}"
