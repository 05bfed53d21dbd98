"""Times of calib_jax, each beside a floor that is timed in turn in the same run.

Run: python -m experiments.benchmarks NAME … [--budget=SECONDS] [--only WORD …] [--minutes=9] [--out=DIR] [--scale=tiny]

A result is a median, and its ratio to the floor that of pairs of calls; `by processor` is the ratio of the seconds of
all processors, which other work on the machine changes less. With `--out` each result is written to `NAME.json` there
as it comes, with a table (`.md`), and the same command continues: results that are there are not measured again.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import json
import os
import sys
import tempfile
import time
from typing import NamedTuple

from calib_jax._system import compilation, environment
from calib_jax._system.errors import UserError
from calib_jax._system.files import read_json, write_text
from experiments.benchmarks import arrays, as_called, calibrators, starts, steps
from experiments.common import commands, markdown


class Benchmark(NamedTuple):
  """What is measured, by the name of its row and the most important first, and what each row is compared with."""

  rows: Callable[[argparse.Namespace], arrays.Rows]
  floor: str


BENCHMARKS = {
  "losses": Benchmark(arrays.loss_rows, "cross entropy's value and gradient"),
  "metrics": Benchmark(arrays.metric_rows, "a pass over the probabilities, or a sort"),
  "calibrators": Benchmark(calibrators.rows, "a log-softmax; for other packages, ours"),
  "training": Benchmark(steps.training_rows, "a hand-written step; for the others, the step"),
  "starts": Benchmark(starts.rows, "none"),
  "as_called": Benchmark(as_called.rows, "a read of the array, its maximum; none for fits and batches"),
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
  """Returns the options of the command."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("names", nargs="+", choices=list(BENCHMARKS), metavar="NAME", help=", ".join(BENCHMARKS))
  parser.add_argument("--budget", type=commands.amount, default=4.0, help="seconds of each comparison; 4 by default")
  parser.add_argument("--only", nargs="+", metavar="WORD", help="only rows whose names hold one of these words")
  parser.add_argument("--minutes", type=commands.amount, help="when to stop; no limit by default")
  parser.add_argument("--out", type=commands.directory, help="where results go; nowhere by default")
  parser.add_argument("--scale", choices=("tiny",), help="tiny only shows that everything runs")
  parser.add_argument("--data", nargs="+", default=[], help="for calibrators: predictions, or sizes such as 50000x1000")
  options = parser.parse_args(arguments)
  if options.scale == "tiny":
    options.budget = 0.0
  return options


def main(arguments: Sequence[str] | None = None) -> int:
  """Measures what has no result yet, until the time is over; returns 1 if something failed, 2 for a mistake."""
  started, options = time.monotonic(), parse(arguments)
  end = started + 60 * options.minutes if options.minutes is not None else float("inf")
  compilation.keep()
  try:
    with tempfile.TemporaryDirectory() as options.folder:
      return max([run(name, BENCHMARKS[name], options, end) for name in options.names])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2


def run(name: str, benchmark: Benchmark, options: argparse.Namespace, end: float) -> int:
  """Measures the rows of a benchmark that have no result yet; returns 1 if one failed."""
  path, failed = options.out and options.out / f"{name}.json", 0
  results = {"environment": environment.environment(), "cores": os.cpu_count(), "date": time.strftime("%B %Y"),
             "scale": options.scale, "rows": {}}
  if path and path.exists():
    results = read_json(path)
    if results["scale"] != options.scale:
      raise UserError(f"{path} holds results of --scale={results['scale']}: give another --out.")
  for row, measure in benchmark.rows(options).items():
    if row in results["rows"] or (options.only and not any(word in row for word in options.only)):
      continue
    if time.monotonic() > end:
      print(f"the {options.minutes:g} minutes are over; the same command goes on with: {row}", flush=True)
      break
    try:
      results["rows"][row] = dict(measure())
    except Exception as error:  # The other measurements may still succeed.
      failed = 1
      print(f"failed: {row}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
      continue
    print(f"{row}: " + ", ".join(f"{key} {text(value)}" for key, value in results["rows"][row].items()), flush=True)
    if path:
      write_text(path, json.dumps(results, indent=2) + "\n")
      write_text(path.with_suffix(".md"), page(name, benchmark.floor, results))
  print(f"\n{page(name, benchmark.floor, results)}", flush=True)
  return failed


def text(value: object) -> str:
  """Returns a value of a table: numbers have three digits or more.

  >>> text(0.001234), text(12345.6), text(True), text("")
  ('0.00123', '12346', 'True', '')
  """
  if not isinstance(value, float):
    return str(value)
  return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def page(name: str, floor: str, results: Mapping[str, object]) -> str:
  """Returns the results as Markdown below what they were measured on."""
  made = results["environment"]
  return (f"`{name}` of `experiments.benchmarks` on {len(made['devices'])} x {made['devices'][0]}, "
          f"{results['cores']} cores, JAX {made['packages']['jax']}, Python {made['python']}, {results['date']}. "
          f"Floor: {floor}.\n\n{tables(results['rows'])}\n")


def tables(rows: Mapping[str, Mapping[str, object]]) -> str:
  """Returns a Markdown table for each set of columns."""
  lines = {}
  for name, values in rows.items():
    lines.setdefault(tuple(values), []).append((name, *map(text, values.values())))
  return "\n\n".join(markdown.table(("row", *columns), cells) for columns, cells in lines.items())


if __name__ == "__main__":
  sys.exit(main())
