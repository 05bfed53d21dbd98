"""What the commands ``evaluation`` and ``compare`` share: options, errors and outputs."""

import argparse
from collections.abc import Callable, Mapping
import pathlib
import sys
import time
from typing import Any

from calib_jax import calibrators
from calib_jax._system import capacity, compilation
from calib_jax._system.errors import UserError, printable
from calib_jax._system.files import stem, write_text
from calib_jax.evaluation import choice, formats
from calib_jax.evaluation.fitting import Fitted
from calib_jax.evaluation.results import Results
from calib_jax.run import outputs

FITTED = "calibrator.npz"


def add_options(parser: argparse.ArgumentParser) -> None:
  """Adds the options that the commands share, and makes messages about wrong ones printable."""
  parser.error = lambda message: argparse.ArgumentParser.error(parser, printable(message))
  parser.add_argument("--calibrators", nargs="+", metavar="NAME[:OPTION=VALUE,…]", default=[],
                      help="by default temperature scaling for the NLL and for SB-ECE; auto selects one by "
                      "cross-validation on what it is fitted to")
  parser.add_argument("--num_bins", type=int, default=15)
  parser.add_argument("--num_resamples", type=int, help="resamples of the intervals; by default 1,000, and fewer (at "
                      "least 200) for more than 10,000 examples")
  parser.add_argument("--out", metavar="DIR", help="the directory for tables, figures, page and fitted calibrators")
  parser.add_argument("--figures", nargs="+", choices=("pdf", "png"), default=[],
                      help="formats of the figures beside SVG, which the page has")
  parser.add_argument("--figure_width", choices=("single", "double"),
                      help="the width of all figures, a column of a paper or both; by default what suits the page")
  parser.add_argument("--json", metavar="FILE", help="also writes results.json there; - prints it, and nothing else")


def run(options: argparse.Namespace, evaluate: Callable[[argparse.Namespace], None]) -> int:
  """Calls ``evaluate``; a mistake of the user becomes one sentence. Returns the exit code, 0 or 2."""
  options.started = time.monotonic()
  capacity.share_freed()
  try:
    compilation.check_address()
    check_range("num_bins", options.num_bins, 1)
    check_range("num_resamples", options.num_resamples, 2)
    evaluate(options)
    return 0
  except (UserError, TypeError, ValueError) as error:
    print(f"error: {printable(error)}", file=sys.stderr)
  except OSError as error:
    print(f"error: {printable(error.filename or options.out)}: {error.strerror}.", file=sys.stderr)
  return 2


def check_range(name: str, value: int | None, low: int) -> None:
  """Raises a UserError unless the option is absent or from ``low`` to 1,000,000."""
  if value is not None and not low <= value <= 1_000_000:
    raise UserError(f"--{name} must be from {low} to 1,000,000: got {value}.")


def note(text: str) -> None:
  """Prints a sentence that is not part of the output."""
  print(printable(text), file=sys.stderr)


def write(options: argparse.Namespace, results: Results, fitted: Fitted, *, title: str,
          config: Mapping[str, Any] | None = None, logs: Mapping[str, pathlib.Path] | None = None) -> None:
  """Prints the table or the JSON, and writes files.

  Args:
    options: the options of the command.
    results: what the evaluation found.
    fitted: the calibrators to write.
    title: the title of the page.
    config: what the page shows as the config.
    logs: what training logged, by the name of the run.
  """
  def say(text: str) -> None:
    if options.json != "-":
      print(printable(text, lines=True), flush=True)

  if options.json == "-":
    print(formats.to_json(results), end="")
  elif options.json:
    write_text(pathlib.Path(options.json), formats.to_json(results))
  if not options.out:
    say(f"{formats.note(results)}\n\n{formats.markdown(formats.to_rows(results))}")
    return
  out = pathlib.Path(options.out)
  out.mkdir(parents=True, exist_ok=True)
  if fitted:
    (out / "calibrators").mkdir(exist_ok=True)
  for label, (fitted_calibrator, (params,)) in fitted.items():
    if label == choice.AUTO:
      fitted_calibrator, params = choice.chosen(params)
    calibrators.save(out / "calibrators" / f"{stem(label)}.npz", params, fitted_calibrator)
    if label == next(iter(fitted)):
      calibrators.save(out / FITTED, params, fitted_calibrator)
  outputs.write(results, out, title=title, config=config, log=logs, say=say,
                seconds=time.monotonic() - options.started,
                formats=options.figures, width=options.figure_width)
