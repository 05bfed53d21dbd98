"""Shows results as tables of text, JSON, CSV, Markdown, LaTeX and HTML; decides nothing."""

from collections.abc import Iterable, Mapping, Sequence
import csv
import dataclasses
import html
import io
import json
import math
import re
from typing import Any

import numpy as np

from calib_jax._system.errors import printable
from calib_jax.evaluation import sections
from calib_jax.evaluation.columns import BESIDE_ERRORS, COLUMNS, Column, numbers_of
from calib_jax.evaluation.numbers import cell, digits_of, p_text
from calib_jax.evaluation.predictions import automatic
from calib_jax.evaluation.reports.markup import booktabs, csv_text, markdown, markdown_text
from calib_jax.evaluation.results import FEWEST_UNITS, EvaluatedSet, Results, Row
from calib_jax.evaluation.verdict import decisions
from calib_jax.evaluation.verdict.reasons import listed

FLOORED = "ece"  # The metric whose noise floor and p-value tables have.
LARGEST_SHOWN = 16  # Numbers of a fitted parameter that the results repeat.
# What rows cost that stand beside the rows of one network, by what their names hold.
COSTS = {r", ensemble of \d+\b": "An ensemble of n takes n times as long to train and to predict as one member.",
         r", \d+ samples\b": "In a prediction, n samples repeat the network n times from its first random layer on.",
         r", Laplace\b": "A Laplace approximation takes one more pass over the training images."}
WEIGHTED = (" Every mean, bin and interval is weighted. A noise floor and its p are of a model whose confidences are "
            "right for examples of every weight; what counts examples, such as AURC, is left out.")
NUMBERS = ("estimate", "low", "high", "value", "floor", "p_value")  # The columns of CSV.


def text(results: Results) -> str:
  """Returns the verdict, the note, the short table and the tables of sections in Markdown that a terminal shows too."""
  first, *reasons = (markdown_text(line) for line in results.verdict.lines)
  listed = "\n".join(f"- {reason}" for reason in reasons)
  tables = "".join(f"\n{markdown_text(table.title)}\n\n{markdown([table.head, *table.rows])}"
                   for table in sections.tables(results, in_text=True))
  return f"{first}\n\n{listed}\n\n{markdown_text(note(results))}\n\n{markdown(to_rows(results))}{tables}"


def note(results: Results) -> str:
  """Returns the sentences that say what the numbers of the table are."""
  seeds = results.num_seeds
  of_size: dict[str, list[str]] = {}
  for name, evaluated in results.sets.items():
    size = f"{evaluated.num_examples:,}, {f'K = {evaluated.num_classes:,}' if evaluated.num_classes else 'records'}"
    worth = evaluated.num_effective
    size += "" if worth is None else f", weights that make them worth {worth:,.1f} equal {_units(evaluated)}"
    of_size.setdefault(size, []).append(name)
  sizes = "; ".join(f"{listed(names)}: N = {size}" for size, names in of_size.items())
  selections = results.sections.get("selection", {})
  chosen = "".join(f" {automatic.AUTO} chose {automatic.phrase([selection.chosen for selection in of_seeds])}"
                   f"{f' for {model}' if len(selections) > 1 else ''}." for model, of_seeds in selections.items())
  names = {model for _, _, (model, _), _ in results.rows}
  units = _units(results.first[1])
  costs = "".join(f" {sentence}" for pattern, sentence in COSTS.items() if any(re.search(pattern, x) for x in names))
  means = f"Means over {seeds} seeds, w" if seeds > 1 else "W"
  intervals = f"ithout intervals, which need {FEWEST_UNITS} or more of them" if results.first[1].has_few_units else (
    f"ith 95% bootstrap intervals over {units}{' and seeds' if seeds > 1 else ''} ({results.num_resamples:,} "
    "resamples)")
  return printable(
    f"{sizes}. {means}{intervals}. The ECE has "
    f"{results.num_bins} bins and is as computed; the noise floor is the ECE that a perfectly calibrated model with "
    "these confidences would show on as many examples, and p the probability of an ECE as large as this if the model "
    "is calibrated. Debiased errors are without the bias that the size of the set causes; they have the intervals, and "
    f"rows are compared by them.{WEIGHTED if results.first[1].num_effective else ''}{chosen}{costs}"
    f"{''.join(f' {sentence}' for sentence in results.notes)}")


def _units(evaluated: EvaluatedSet) -> str:
  """Returns what intervals are over."""
  return "examples" if evaluated.num_groups is None else "groups of examples"


@dataclasses.dataclass(frozen=True)
class ShownColumn:
  """What a column of a table shows."""

  column: Column  # The column of the evaluation.
  number: str  # "" for its value, with the interval if it is no calibration error; else one of ``BESIDE_ERRORS``.

  @property
  def heading(self) -> str:
    """What stands above it."""
    heading, is_ece = self.column.heading, self.column.name == FLOORED
    return {"": heading, "floor": "noise floor %" if is_ece else f"noise floor of {heading}",
            "p": "p" if is_ece else f"p of {heading}",
            "debiased": "debiased ECE %" if is_ece else f"debiased {heading}"}[self.number]

  def cell(self, row: Row, num_resamples: int, *, has_interval: bool = True) -> str:
    """Returns the number of a row as text; "" if the row has none."""
    estimate, scale = row.estimates.get(self.column.name), self.column.scale
    if estimate is None:
      return ""
    if self.number == "p":
      return p_text(estimate.p_value, self.column.name, num_resamples)
    if self.number == "debiased" or not self.column.bias:
      return cell(estimate, scale) if has_interval else f"{scale * estimate.estimate:.{digits_of(scale)}f}"
    return f"{scale * (estimate.floor if self.number == 'floor' else estimate.value):.{digits_of(scale)}f}"


def columns(names: Iterable[str]) -> list[ShownColumn]:
  """Returns what columns show that are called as in ``SHORT_TABLE``; an unknown name is a UserError."""
  return [ShownColumn(*number) for number in numbers_of(names)]


def _shown(results: Results, every: bool) -> list[ShownColumn]:
  """Returns the columns of the short table, or of all that was measured."""
  if not every:
    return columns(results.columns)
  return [ShownColumn(column, number) for column in map(COLUMNS.get, results.rows[0][-1].estimates) for number in (
    "", *(BESIDE_ERRORS if column.name == FLOORED else ["debiased"] if column.bias and not column.is_debiased else []))]


def to_rows(results: Results, *, every: bool = False) -> list[list[str]]:
  """Formats results as the cells of a table, without intervals where there are too few groups or such weights.

  Args:
    results: the results.
    every: whether to show every metric instead of ``results.columns``.

  Returns:
    Rows of text, the heading first; a cell is ``estimate [low, high]``, or a calibration error as computed.
  """
  shown = _shown(results, every)
  head = ["evaluated on", "trained with", "calibrated by", *(column.heading for column in shown)]
  rows = [[set_name, *key, *(column.cell(row, results.num_resamples, has_interval=not evaluated.has_few_units)
                             for column in shown)]
          for set_name, evaluated, key, row in results.rows]
  # One set is named in the note, and predictions without a model have the name of their set.
  places = [i for i in range(len(head))
            if i > 1 or len({row[i] for row in rows}) > 1 or (i and rows[0][i] not in results.sets)]
  return [[row[i] for i in places] for row in [head, *rows]]


def bold(results: Results, head: Sequence[str], *, every: bool = False) -> list[list[bool]]:
  """Returns which cells of the rows of ``to_rows`` after its ``head`` are better than all others of their set.

  Errors as computed are bold only where they are also the lowest: rows are compared by the errors without their bias.
  """
  by_heading = {shown.heading: shown for shown in _shown(results, every) if shown.number in ("", "debiased")}

  def is_best(heading, evaluated, row):
    if heading not in by_heading or not decisions.is_best(evaluated, by_heading[heading].column.name, row):
      return False
    column = by_heading[heading].column
    values = {key: other.estimates[column.name].value for key, other in evaluated.rows.items()}
    return by_heading[heading].number == "debiased" or not column.bias or values[row] == min(values.values())

  return [[is_best(name, evaluated, key) for name in head] for _, evaluated, key, _ in results.rows]


def to_json(results: Results) -> str:
  """Returns every number as JSON; numbers that are not finite are null."""
  tables, differences = {}, {}
  for name, evaluated in results.measured.items():
    tables[name] = {model: {} for model, _ in evaluated.rows}
    for (model, label), row in evaluated.rows.items():
      tables[name][model][label] = row.estimates
    differences[name] = [
      {"row": results.row_name(row), "minus": results.row_name(other),
       **{metric: {"difference": change.estimate, "low": change.low, "high": change.high}
          for metric, change in changes.items()}} for (row, other), changes in evaluated.differences.items()]
  sizes = {name: {key: getattr(evaluated, key) for key in ("num_examples", "num_classes", "num_seeds", "kind")}
           for name, evaluated in results.sets.items()}
  for name, evaluated in results.sets.items():
    sizes[name] |= {} if evaluated.num_effective is None else {"num_effective": evaluated.num_effective}
  settings = {"num_bins": results.num_bins, "num_resamples": results.num_resamples, "level": results.level,
              "sets": sizes} | ({"notes": results.notes} if results.notes else {})
  verdict = {"first_line": results.verdict.first_line, **vars(results.verdict)}
  content = {"verdict": verdict, "settings": settings, "results": tables, "differences": differences,
             **results.sections, "parameters": parameters(results)}
  return json.dumps(plain(content), indent=2).replace("\x7f", r"\u007f") + "\n"  # json lets this one through.


def parameters(results: Results) -> dict[str, dict[str, list[dict[str, Any]]]]:
  """Returns the params of every model, calibrator and seed, without params of many numbers."""
  return {model: {label: [_few(p) for p in params] for label, (_, params) in fitted.items()}
          for model, fitted in results.fitted.items()}


def _few(params: Mapping[str, Any]) -> dict[str, Any]:
  if automatic.CHOSEN in params:
    (name, params), = params[automatic.CHOSEN].items()
    return {automatic.CHOSEN: name, **_few(params)}
  return {name: np.asarray(value).tolist() for name, value in params.items()
          if not isinstance(value, dict) and np.size(value) <= LARGEST_SHOWN}


def plain(value: Any) -> Any:
  """Returns dataclasses as dicts, without what is None in them, and numbers that are not finite as None."""
  if dataclasses.is_dataclass(value):
    value = {key: child for key, child in vars(value).items() if child is not None}
  if isinstance(value, Mapping):
    return {key: plain(child) for key, child in value.items()}
  if isinstance(value, list | tuple):
    return [plain(child) for child in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value


def to_csv(results: Results) -> str:
  """Returns one line for each number: set, model, calibrator, metric, estimate, low, high, value, floor, p-value.

  A name that a spreadsheet would compute as a formula, such as ``=1+1``, begins with an apostrophe.
  """
  text = io.StringIO()
  writer = csv.writer(text, lineterminator="\n")
  writer.writerow(["set", "model", "calibrator", "metric", *NUMBERS])
  for set_name, _, key, row in results.rows:
    for name, estimate in row.estimates.items():
      numbers = (getattr(estimate, number) for number in NUMBERS)
      writer.writerow([*map(csv_text, (set_name, *key, name)), *("" if x is None else f"{x:.9g}" for x in numbers)])
  return text.getvalue()


def to_latex(results: Results) -> str:
  r"""Returns a booktabs table, with the best in bold where it is better than every other row of its set."""
  rows = to_rows(results)
  return booktabs(rows, len(rows[0]) - len(results.columns), bold(results, rows[0]))


def to_html(results: Results) -> str:
  """Returns the note and the table as a notebook shows them."""
  head, *body = to_rows(results)
  rows = [f"<tr>{''.join(f'<{tag}>{html.escape(text)}</{tag}>' for text in cells)}</tr>"
          for tag, cells in [("th", head), *(("td", cells) for cells in body)]]
  return printable(f"<p>{html.escape(note(results))}</p><table>{''.join(rows)}</table>")
