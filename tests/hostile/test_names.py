"""Names that somebody else chose are shown by tables of every format, and never obeyed."""

import re

from hypothesis import strategies as st

from calib_jax.reports import markup
from tests.hostile.judge import attacked

PIECES = ("<script>alert(1)</script>", "<img src=x onerror=alert(2)>", "</td></table>", "<!--", "]]>", "=1+1", "|",
          "=cmd|' /C calc'!A0", "@SUM(1)", "+1+1", "-1+1", "\t=1", "\x1b[2J", "\x1b]0;x\x07", "\n", "\r\n", "$$",
          "\\input{/etc/passwd}", "\\|", "%", "&", "_", "#", "^", "~", "{", "}", "\u202egpj.exe", "\ud800", "x" * 5000,
          "[a](javascript:alert(1))", "![a](http://x)", "{{ 7 * 7 }}", "\x9b2J", "\u2028", "-", "0", "`", "**", "'")


@attacked(st.lists(st.sampled_from(PIECES), min_size=2, max_size=4).map("".join), PIECES, number=50)
def test_names_in_tables(_, name):
  row = markup.markdown([["name", "x"], [name, "1"]]).splitlines()[2]
  assert row.isprintable() and not re.search("<[A-Za-z/!?]", row) and "](" not in row and len(row) < 1500
  assert len(re.findall(r"(?<!\\)\|", row)) == 3
  cell = markup.csv_text(name)
  assert cell.isprintable() and not re.match(r"[=+@\t\r]|-[^\d.]", cell)
  line = markup.booktabs([["name", "x"], [name, "1"]], 1).splitlines()[4]
  commands = set(re.findall(r"\\([A-Za-z]+|.)", line)) - set("$%_&#{}\\")
  assert line.isprintable() and all(command.startswith("text") for command in commands)
  assert len(re.findall(r"(?<!\\)&", line)) == 1 and not re.search(r"(?<!\\)[$%_#]|[~^<>|]", line)
