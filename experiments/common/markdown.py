"""Tables and marked parts of Markdown pages."""

from collections.abc import Iterable, Sequence
import textwrap


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


def wrapped(text: str, bullet: str = "") -> list[str]:
  """Returns the lines of a paragraph, after a bullet if there is one."""
  return textwrap.wrap(" ".join(text.split()), 118, initial_indent=bullet, subsequent_indent=" " * len(bullet),
                       break_long_words=False, break_on_hyphens=False)
