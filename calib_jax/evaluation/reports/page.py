"""Writes a self-contained HTML page of an evaluation: verdict, tables, figures, config and environment."""

import base64
from collections.abc import Mapping
import html
import itertools
import json
import pathlib
import re
from typing import Any

import jinja2
import markupsafe

from calib_jax import evaluation
from calib_jax._system.errors import printable
from calib_jax._system.files import write_text
from calib_jax.evaluation import sections
from calib_jax.evaluation.columns import COLUMNS, GROUPS
from calib_jax.evaluation.reports import formats
from calib_jax.evaluation.reports.drawing import FIGURES
from calib_jax.evaluation.reports.report_figure import Logs, ReportFigure, Shown
from calib_jax.evaluation.verdict import decisions

TEMPLATE = pathlib.Path(__file__).with_suffix(".html")
MARKS = ("The best is bold where it is better than every other row by an interval of paired differences that excludes "
         "zero. Rows in grey italics lose more than a point of accuracy.")


def write(path: pathlib.Path, results: evaluation.Results, *, title: str, figures: Mapping[str, pathlib.Path],
          config: Mapping[str, Any], environment: Mapping[str, Any], command: str, logs: Logs = None) -> None:
  """Writes the page.

  Args:
    path: the file to write.
    results: what the page is about.
    title: the title of the page.
    figures: SVG files by name, in the order of the page.
    config: the config to print; none if empty.
    environment: the environment to print.
    command: the command that repeats the evaluation.
    logs: what the figure of training was drawn from, as ``figures`` takes it.
  """
  tables = sections.tables(results)
  first, others = ([table for table in tables if table.first is is_first] for is_first in (True, False))
  shown, template = Shown(results, logs), jinja2.Environment(autoescape=True)
  template.filters["stacked"] = _stacked
  page = template.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
    title=title, sentences=results.verdict.lines, note=f"{evaluation.note(results)} {MARKS}",
    first=len(first), tables=[*first, _marked(results, "Results"), *_every_metric(results), *others],
    figures=[_picture(name, file, shown) for name, file in figures.items()], command=command,
    config=json.dumps(config, indent=2) if config else "", environment=json.dumps(environment, indent=2),
    parameters=json.dumps(formats.parameters(results), indent=2))
  write_text(path, printable(page, lines=True))


def _picture(name: str, file: pathlib.Path, shown: Shown) -> dict[str, Any]:
  """Returns a figure of what is shown, as the template takes it."""
  figure = FIGURES.get(name, ReportFigure())
  title, caption = name.replace("_", " "), figure.caption + (figure.pooled if shown.results.num_seeds > 1 else "")
  alt = f"{title[0].upper()}{title[1:]}: {figure.finding(shown) or caption}"
  return {"name": title, "caption": caption, "alt": alt, "data": base64.b64encode(file.read_bytes()).decode(),
          "wide": figure.wide, "summary": figure.summary, "is_open": figure.is_open(shown.results)}


def _stacked(text: str) -> markupsafe.Markup:
  """Returns a cell as markup, with an interval in a line of its own, so that more columns fit."""
  if isinstance(text, markupsafe.Markup):
    return text
  number, bracket, interval = text.partition(" [")
  is_interval = bracket and re.fullmatch(r"[-\d.]+, [-\d.]+\]", interval)
  return markupsafe.Markup(f"{html.escape(number)} <small>[{interval}</small>" if is_interval else html.escape(text))


def _every_metric(results: evaluation.Results) -> list[sections.Table]:
  """Returns the tables of ``GROUPS``."""
  table = _marked(results, "", every=True)
  titles = {column.heading: column.group for column in COLUMNS.values()}
  # The first columns are names, for every table. One that is no metric, such as p, belongs to the metric before it.
  of_columns = list(itertools.accumulate(table.head, lambda last, name: titles.get(name, last), initial=""))[1:]
  tables = []
  for title in [title for title in GROUPS if title in of_columns]:
    columns = [i for i, of_column in enumerate(of_columns) if of_column in ("", title)]
    rows = [[row[i] for i in columns] for row in table.rows]
    tables.append(sections.Table(title, [table.head[i] for i in columns], rows, table.grey))
  return tables


def _marked(results: evaluation.Results, title: str, *, every: bool = False) -> sections.Table:
  """Returns a table with the best in bold and the rows marked that lose accuracy."""
  head, *body = evaluation.to_rows(results, every=every)
  rows = [[markupsafe.Markup(f"<strong>{_stacked(text)}</strong>") if is_best else text
           for text, is_best in zip(cells, best, strict=True)]
          for cells, best in zip(body, formats.bold(results, head, every=every), strict=True)]
  grey = [i for i, (_, evaluated, key, _) in enumerate(results.rows) if decisions.lost_accuracy(evaluated, key)]
  return sections.Table(title, head, rows, grey)
