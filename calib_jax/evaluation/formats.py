"""Shows results as tables of text, JSON, CSV, Markdown, LaTeX and HTML; decides nothing."""

from collections.abc import Mapping, Sequence
import contextlib
import csv
import dataclasses
import html
import io
import json
import math
import re
from typing import Any
import unicodedata

import numpy as np

from calib_jax._system.errors import cut, printable
from calib_jax.evaluation import choice, decisions
from calib_jax.evaluation.measures import METRICS, num_redraws
from calib_jax.evaluation.results import NAMELESS, Estimate, Interval, Results

FLOORED = "ece"  # The metric whose noise floor and p-value the short table has.
LARGEST_SHOWN = 16  # Numbers of a fitted parameter that the results repeat.
NUMBERS = ("estimate", "low", "high", "value", "floor", "p_value")  # The columns of CSV.


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of the page.

  Attributes:
    title: the heading above it.
    head: the headings of the columns.
    rows: the cells of each row, texts or markup.
    grey: the numbers of the rows that are shown in grey.
  """

  title: str
  head: Sequence[str]
  rows: Sequence[Sequence[str]]
  grey: Sequence[int] = ()


def note(results: Results) -> str:
  """Returns the sentences that say what the numbers of the table are."""
  seeds = results.num_seeds
  sizes = ", ".join(f"{name}: N = {evaluated.num_examples:,}, K = {evaluated.num_classes:,}"
                    for name, evaluated in results.sets.items())
  selections = results.sections.get("selection", {})
  chosen = "".join(f" {choice.AUTO} chose {choice.phrase([selection.chosen for selection in of_seeds])}"
                   f"{f' for {model}' if len(selections) > 1 else ''}." for model, of_seeds in selections.items())
  return printable(
    f"{sizes}. {f'Means over {seeds} seeds, w' if seeds > 1 else 'W'}ith 95% bootstrap intervals over "
    f"{'examples and seeds' if seeds > 1 else 'examples'} "
    f"({results.num_resamples:,} resamples). ECE with {results.num_bins} bins. The bias that the "
    "size of the set causes is subtracted from calibration errors and their intervals (results.json also has the "
    "errors before that, \"value\"), but not from the noise floor, which is the ECE that a perfectly calibrated "
    "model with these confidences would have; p is the probability of an ECE as large as this if the model is "
    f"calibrated.{chosen}")


def to_rows(results: Results, *, every: bool = False) -> list[list[str]]:
  """Formats results as the cells of a table.

  Args:
    results: the results.
    every: whether to show every metric instead of the main ones.

  Returns:
    Rows of text, the heading first; a cell is ``estimate [low, high]``.
  """
  shown = {key: METRICS[key] for key in results.rows[0][-1].estimates if every or METRICS[key].is_main}
  head = ["evaluated on", "trained with", "calibrated by"]
  for key, metric in shown.items():
    head += [metric.heading, *(["noise floor %", "p"] if key == FLOORED else [])]
  rows = []
  for set_name, _, (model, label), row in results.rows:
    cells = [set_name, model, label]
    for key, metric in shown.items():
      estimate = row.estimates[key]
      cells.append(cell(estimate, metric.scale))
      if key == FLOORED:
        cells += [f"{100 * estimate.floor:.2f}", p_text(estimate.p_value, key, results.num_resamples)]
    rows.append(cells)
  # One set is named in the note, and predictions without a model have no name.
  columns = [i for i in range(len(head))
             if i > 1 or len({row[i] for row in rows}) > 1 or (i and rows[0][i] != NAMELESS)]
  return [[row[i] for i in columns] for row in [head, *rows]]


def to_lines(results: Results) -> list[list[str]]:
  """Formats results of one row, each metric a row of text, in percent with three digits, the heading first."""
  ((_, _, _, row),) = results.rows
  lines = [["metric", "% [95% interval]", "noise floor %", "p"]]
  for name, estimate in row.estimates.items():
    has_floor = estimate.floor is not None
    lines.append([name, cell(estimate, 100, 3), f"{100 * estimate.floor:.3f}" if has_floor else "",
                  p_text(estimate.p_value, name, results.num_resamples) if has_floor else ""])
  return lines


def bold(results: Results, head: Sequence[str]) -> list[list[bool]]:
  """Returns which cells of the rows of ``to_rows`` after its ``head`` are better than all others of their set."""
  mains = {metric.heading: key for key, metric in METRICS.items()}
  return [[name in mains and decisions.is_best(evaluated, mains[name], key) for name in head]
          for _, evaluated, key, _ in results.rows]


def cell(number: Estimate | Interval, scale: float, digits: int | None = None) -> str:
  """Returns ``estimate [low, high]``, by default percent with two digits and others with four."""
  digits = digits or digits_of(scale)
  estimate, low, high = (f"{scale * x:.{digits}f}" for x in (number.estimate, number.low, number.high))
  return f"{estimate} [{low}, {high}]"


def p_text(p_value: float, metric: str, num_resamples: int) -> str:
  """Returns a p-value as text, such as "0.012", or "≤ 0.001" for the smallest that so many redraws can give.

  A bound is rounded up, and no p-value is "0.000".

  >>> p_text(1 / 201, "ece", 200), p_text(0.5, "ece", 200), p_text(2e-4, "ece", 10_000)
  ('≤ 0.005', '0.500', '≤ 0.001')
  """
  smallest = 1 / (1 + num_redraws(metric, num_resamples))
  if p_value <= max(smallest * (1 + 1e-6), 5e-4):
    return f"≤ {math.ceil(1000 * p_value - 1e-3) / 1000:.3f}"
  return f"{p_value:.3f}"


def digits_of(scale: float) -> int:
  """Returns how many digits after the point numbers of a scale have: two of percent, and else four."""
  return 2 if scale == 100 else 4


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
  settings = {"num_bins": results.num_bins, "num_resamples": results.num_resamples, "level": results.level,
              "sets": sizes}
  content = {"settings": settings, "results": tables, "differences": differences, **results.sections,
             "parameters": parameters(results)}
  return json.dumps(plain(content), indent=2).replace("\x7f", r"\u007f") + "\n"  # json lets this one through.


def parameters(results: Results) -> dict[str, dict[str, list[dict[str, Any]]]]:
  """Returns the params of every model, calibrator and seed, without those of many numbers."""
  return {model: {label: [_few(p) for p in params] for label, (_, params) in fitted.items()}
          for model, fitted in results.fitted.items()}


def _few(params: Mapping[str, Any]) -> dict[str, Any]:
  if choice.CHOSEN in params:
    (name, params), = params[choice.CHOSEN].items()
    return {choice.CHOSEN: name, **_few(params)}
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


def csv_text(name: str) -> str:
  """Returns a name as text of one line that no spreadsheet takes for a formula; a number such as -0.5 is none."""
  name = printable(name)
  with contextlib.suppress(ValueError):
    float(name)
    return name
  # Wide characters, which a Japanese spreadsheet also reads as these four, are normalised.
  is_formula = unicodedata.normalize("NFKC", name).lstrip().startswith(("=", "+", "-", "@"))
  return f"'{name}" if is_formula else name


def to_latex(results: Results) -> str:
  r"""Returns a booktabs table, with the best in bold where it is better than every other row of its set."""
  rows = to_rows(results)
  headings = {metric.heading for metric in METRICS.values()} | {"noise floor %", "p"}
  return booktabs(rows, sum(name not in headings for name in rows[0]), bold(results, rows[0]))


def to_html(results: Results) -> str:
  """Returns the note and the table as a notebook shows them."""
  head, *body = to_rows(results)
  rows = [f"<tr>{''.join(f'<{tag}>{html.escape(text)}</{tag}>' for text in cells)}</tr>"
          for tag, cells in [("th", head), *(("td", cells) for cells in body)]]
  return printable(f"<p>{html.escape(note(results))}</p><table>{''.join(rows)}</table>")


def booktabs(rows: Sequence[Sequence[str]], num_texts: int, best: Sequence[Sequence[bool]] | None = None) -> str:
  r"""Formats rows of text as a booktabs table.

  Args:
    rows: the rows, the heading first.
    num_texts: the number of columns of text, which come first; the others are numbers.
    best: which cells of the rows after the heading are bold; None for none.

  Returns:
    The table.
  """
  def line(cells, bold):
    return " & ".join(rf"\textbf{{{_escaped(cell)}}}" if b else _escaped(cell)
                      for cell, b in zip(cells, bold, strict=True)) + r" \\"

  plain, (head, *body) = [False] * len(rows[0]), rows
  return "\n".join([r"\begin{tabular}{" + "l" * num_texts + "r" * (len(head) - num_texts) + "}", r"\toprule",
                    line(head, plain), r"\midrule",
                    *(line(*pair) for pair in zip(body, best or [plain] * len(body), strict=True)),
                    r"\bottomrule", r"\end{tabular}"]) + "\n"


def _escaped(text: str) -> str:
  """Returns ``text`` as LaTeX that prints it: a backslash in a user's label is no command."""
  names = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar"}
  text = "".join(rf"\text{names[c]}{{}}" if c in names else r"$\leq$" if c == "≤"
                 else f"\\{c}" if c in "%_&#${}" else c
                 for c in printable(text))
  # At the beginning of a row these would be options of the end of the row above.
  return f"{{{text[0]}}}{text[1:]}" if text.startswith(("[", "*")) else text


def markdown_text(text: str) -> str:
  """Returns a text of one line as Markdown that shows it: names in it are neither HTML nor links."""
  return html.escape(printable(text), quote=False).replace("](", "]\\(")


def markdown(rows: Sequence[Sequence[str]]) -> str:
  """Formats rows of text as a Markdown table whose columns are also aligned in a terminal.

  Markup in a cell is escaped, because Markdown may hold HTML, and a long cell is cut.

  Args:
    rows: the rows, the heading first.

  Returns:
    The table.
  """
  # Backslashes before a bar are doubled, because an even number of them would leave it bare.
  rows = [[re.sub(r"(\\*)\|", r"\1\1\\|", markdown_text(cut(printable(cell)))) for cell in row] for row in rows]
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
  return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]) + "\n"
