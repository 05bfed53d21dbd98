"""Markdown: tables, marked parts of pages, and whole pages from templates.

A template (Jinja2) stands beside the module that fills it and holds the sentences of a page; the module computes the
numbers. Paragraphs in ``{% filter wrap %}`` are wrapped after their fields are filled, those in ``{% filter line %}``
are one line.
"""

from collections.abc import Iterable, Sequence
import textwrap

import jinja2

from experiments.common.commands import ROOT


def table(headings: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
  r"""Returns a table, without the end of its last line.

  >>> table(["metric", "value"], [["ECE", 0.1], ["KS", 0.2]])
  '| metric | value |\n|---|---|\n| ECE | 0.1 |\n| KS | 0.2 |'
  """
  first = "|".join(f" {heading} " if heading != "" else " " for heading in headings)
  lines = (f"| {' | '.join(map(str, cells))} |" for cells in rows)
  return "\n".join([f"|{first}|", "|---" * len(headings) + "|", *lines])


def between(text: str, begin: str, end: str, *parts: str) -> str:
  r"""Returns a text with the n-th of ``parts`` between the n-th ``begin`` and the ``end`` that follows it.

  >>> between("a<old>b", "<", ">", "new")
  'a<\n\nnew\n>b'
  """
  before, *rest = text.split(begin)
  return before + "".join(f"{begin}\n\n{part}\n{end}{after.split(end, 1)[1]}"
                          for part, after in zip(parts, rest, strict=True))


def wrapped(text: str, bullet: str = "", width: int = 118) -> list[str]:
  """Returns the lines of a paragraph, after a bullet if there is one."""
  return textwrap.wrap(" ".join(text.split()), width, initial_indent=bullet, subsequent_indent=" " * len(bullet),
                       break_long_words=False, break_on_hyphens=False)


_TEMPLATES = jinja2.Environment(loader=jinja2.FileSystemLoader(ROOT / "experiments"), undefined=jinja2.StrictUndefined,
                                trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
_TEMPLATES.filters |= {"wrap": lambda *options: "\n".join(wrapped(*options)) + "\n",
                       "line": lambda text: " ".join(text.split()) + "\n"}
_TEMPLATES.globals |= {"table": table, "zip": zip}


def filled(template: str, **values: object) -> str:
  """Returns a template with its fields filled; its name is its path in ``experiments``."""
  return _TEMPLATES.get_template(template).render(values)
