"""Tables and marked parts of Markdown pages."""

from collections.abc import Iterable, Sequence


def table(headings: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
  r"""Returns a table, without the end of its last line.

  >>> table(["metric", "value"], [["ECE", 0.1], ["KS", 0.2]])
  '| metric | value |\n|---|---|\n| ECE | 0.1 |\n| KS | 0.2 |'
  """
  first, *others = (f"| {' | '.join(map(str, cells))} |" for cells in [headings, *rows])
  return "\n".join([first, "|---" * len(headings) + "|", *others])
