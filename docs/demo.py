"""Copies the table and the figure of a finished `make demo` into the README.

Run: python docs/demo.py [--check]

With ``--check`` it changes nothing, and says whether they are those of the README byte for byte.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent
RUN = ROOT / "runs" / "fashion_mnist_small_savuc"
README, FIGURE = ROOT / "README.md", ROOT / "docs" / "figures" / "fashion_mnist_small_savuc.svg"
PLACE = re.compile(r"(<!-- The table of `make demo`\. -->\n\n).*?(\n<!-- Its end\. -->)", re.DOTALL)


def main() -> int:
  """Runs the command line; returns 1 if a check fails and else 0."""
  table = (RUN / "results.md").read_text(encoding="utf-8").rpartition("\n\n")[2]
  picture = (RUN / "figures" / "reliability.svg").read_bytes()
  text = README.read_text(encoding="utf-8")
  wanted = PLACE.sub(lambda place: place[1] + table + place[2], text)
  if sys.argv[1:] == ["--check"]:
    same = {"table": wanted == text, "figure": FIGURE.exists() and FIGURE.read_bytes() == picture}
    for name, is_same in same.items():
      print(f"the {name} of {RUN.relative_to(ROOT)} is {'' if is_same else 'not '}that of the README")
    return 0 if all(same.values()) else 1
  README.write_text(wanted, encoding="utf-8")
  FIGURE.write_bytes(picture)
  return 0


if __name__ == "__main__":
  sys.exit(main())
