"""Text as LaTeX, Markdown and CSV that show it and obey nothing in it."""

from collections.abc import Sequence
import contextlib
import html
import re
import unicodedata

from calib_jax._system.errors import cut, printable


def booktabs(rows: Sequence[Sequence[str]], num_texts: int, best: Sequence[Sequence[bool]] | None = None) -> str:
  """Returns rows of text, the heading first, as a booktabs table whose first ``num_texts`` columns are no numbers.

  The cells ``best`` of the rows after the heading are bold.
  """
  def line(cells, bold):
    return " & ".join(rf"\textbf{{{_escaped(cell)}}}" if b else _escaped(cell)
                      for cell, b in zip(cells, bold, strict=True)) + r" \\"

  plain, (head, *body) = [False] * len(rows[0]), rows
  heading = " & ".join("$p$" if cell == "p" else _escaped(cell) for cell in head) + r" \\"
  return "\n".join([r"\begin{tabular}{" + "l" * num_texts + "r" * (len(head) - num_texts) + "}", r"\toprule",
                    heading, r"\midrule",
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


def csv_text(name: str) -> str:
  """Returns a name as text of one line that no spreadsheet takes for a formula; a number such as -0.5 is none."""
  name = printable(name)
  with contextlib.suppress(ValueError):
    float(name)
    return name
  # Wide characters, which a Japanese spreadsheet also reads as these four, are normalised.
  is_formula = unicodedata.normalize("NFKC", name).lstrip().startswith(("=", "+", "-", "@"))
  return f"'{name}" if is_formula else name
