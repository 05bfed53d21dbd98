"""Sections of the report: what is computed beside the metrics of each row, and shown in a table and a figure.

Every module of this package is imported, so a new section is one new file, which adds itself to ``SECTIONS``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import re
from typing import Any

from calib_jax._checks.registry import import_modules
from calib_jax.evaluation.predictions.fitting import Model
from calib_jax.evaluation.results import Results


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of the page."""

  title: str  # The heading above it.
  head: Sequence[str]  # The headings of the columns.
  rows: Sequence[Sequence[str]]  # The cells of each row, texts or markup.
  grey: Sequence[int] = ()  # The numbers of the rows that are shown in grey.
  first: bool = False  # Whether the page has it before the results.


@dataclasses.dataclass(frozen=True)
class Section:
  """A section of the report."""

  # A function of the results, which have no sections yet, and of the models by name, to the content of the section. It
  # is empty where there is nothing to show. ``results.json`` has it under the section's name.
  compute: Callable[[Results, Mapping[str, Model]], Mapping[str, Any]]
  # A function of content that is not empty, and of the results, to its table on the page, or to several.
  table: Callable[[Mapping[str, Any], Results], Table | Iterable[Table]]
  in_json: int  # The sections are computed and written in the order of this number.
  on_page: int  # The tables are in the order of this number.
  # A function of content that is not empty, of the results, and of the module ``reports.curves``, to Matplotlib axes;
  # None for no figure.
  figure: Callable[[Mapping[str, Any], Results, Any], Any] | None = None
  caption: str = ""  # The caption of the figure.
  # A function of content that is not empty, and of the results, to a sentence that says what the figure shows.
  finding: Callable[[Mapping[str, Any], Results], str] = lambda content, results: ""
  figure_place: int = 100  # The place of the figure on the page, in tens.
  in_text: bool = False  # Whether the tables stand in the terminal and in ``results.md`` too.


SECTIONS: dict[str, Section] = {}
INTERVAL = re.compile(r" \[-?[\d.]+, -?[\d.]+\]$")  # As ``numbers.cell`` writes it.


def computed(results: Results, models: Mapping[str, Model]) -> dict[str, Mapping[str, Any]]:
  """Returns the content of every section; ``results`` and ``models`` are what ``Section.compute`` takes."""
  return {name: section.compute(results, models) for name, section in _sorted("in_json")}


def tables(results: Results, *, in_text: bool = False) -> list[Table]:
  """Returns the tables of the sections that have something to show, in the order of the page, or those ``in_text``."""
  shown = [section.table(content, results) for name, section in _sorted("on_page")
           if (content := results.sections.get(name)) and section.in_text >= in_text]
  few = {name for name, evaluated in results.sets.items() if evaluated.has_few_units}  # Their intervals say nothing.
  return [dataclasses.replace(table, rows=[[INTERVAL.sub("", cell) for cell in row] if row[0] in few else row
                               for row in table.rows])
          for tables in shown for table in ([tables] if isinstance(tables, Table) else tables)]


def _sorted(place: str) -> list[tuple[str, Section]]:
  return sorted(SECTIONS.items(), key=lambda item: getattr(item[1], place))


import_modules(__name__)
