"""Copies the table and the figure of a finished `make demo` into docs/demo.md, and both, smaller, into the README.

Run: python docs/demo.py [--check]

With ``--check`` it changes nothing, and says whether they are those of the run byte for byte.
"""

from collections.abc import Sequence
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
RUN = ROOT / "runs" / "fashion_mnist_small_savuc"
README, PAGE = ROOT / "README.md", ROOT / "docs" / "demo.md"
FIGURE = ROOT / "docs" / "figures" / "fashion_mnist_small_savuc.svg"
NARROW = ROOT / "docs" / "figures" / "first_screen.svg"
PLACE = re.compile(r"(<!-- The table of `make demo`\. -->\n\n)(.*?)(\n<!-- Its end\. -->)", re.DOTALL)
HEADINGS = ("method", "accuracy %", "log loss", "ECE % (noise floor)")


def cells(table: str) -> list[list[str]]:
  """Returns the cells of a Markdown table, without the line under its heading."""
  rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
  return [rows[0], *rows[2:]]


def short(rows: Sequence[Sequence[str]]) -> list[list[str]]:
  """Returns the rows of the README's table: estimates without intervals, in words that need no legend."""
  column = {name.partition(",")[0]: i for i, name in enumerate(rows[0])}

  def number(row: Sequence[str], name: str, digits: int) -> str:
    return f"{float(row[column[name]].partition(' ')[0]):.{digits}f}"

  def method(row: Sequence[str]) -> str:
    fitted = {"none": "", "TS": " + temperature scaling"}[row[column["calibrated by"]]]
    return row[column["trained with"]].replace("_", " ") + fitted

  return [list(HEADINGS), *([method(row), number(row, "accuracy %", 1), number(row, "NLL", 3),
                             f"{number(row, 'ECE %', 1)} ({number(row, 'noise floor %', 1)})"] for row in rows[1:])]


def narrow() -> bytes:
  """Returns the figure of the README: two diagrams in a row, 3.4 inches wide."""
  from calib_jax import evaluation, reports
  from calib_jax.run import Run

  panels = {}
  for folder, method in ((RUN / "baseline", "cross entropy"), (RUN, "focal + soft avuc")):
    run = Run.load(folder)
    for label, estimates in run.evaluate()["test"].items():
      rows = evaluation.per_example(evaluation.calibrated(run.calibrators(), label, run.saved("test")))
      name = method if label == evaluation.UNCALIBRATED else "+ temperature scaling"
      panels[f"{method if len(panels) % 2 else ''}\n{name}\nECE {100 * estimates['ece'].value:.1f}%".strip("\n")] = (
        rows.confidence.ravel(), rows.correct.ravel())
  with tempfile.TemporaryDirectory() as folder:
    reports.save(reports.reliability_grid(panels, width="single"), pathlib.Path(folder) / "figure", ["svg"])
    return (pathlib.Path(folder) / "figure.svg").read_bytes()


def main() -> int:
  """Runs the command line; returns 1 if a check fails and else 0."""
  sys.path.insert(0, str(ROOT))
  from calib_jax import evaluation

  table = (RUN / "results.md").read_text(encoding="utf-8").rpartition("\n\n")[2]
  picture = (RUN / "figures" / "reliability.svg").read_bytes()
  pictures = {FIGURE: picture, NARROW: narrow()}
  wanted = {README: evaluation.markdown(short(cells(table))), PAGE: table}
  texts = {path: path.read_text(encoding="utf-8") for path in wanted}
  written = {path: PLACE.sub(lambda place, new=new: place[1] + new + place[3], texts[path])
             for path, new in wanted.items()}
  if sys.argv[1:] == ["--check"]:
    same = {f"table of {path.name}": written[path] == texts[path] for path in wanted}
    same |= {f"figure {path.name}": path.exists() and path.read_bytes() == new for path, new in pictures.items()}
    for name, is_same in same.items():
      print(f"the {name} is {'' if is_same else 'not '}that of {RUN.relative_to(ROOT)}")
    return 0 if all(same.values()) else 1
  for path, text in written.items():
    path.write_text(text, encoding="utf-8")
  for path, new in pictures.items():
    path.write_bytes(new)
  return 0


if __name__ == "__main__":
  sys.exit(main())
