"""Copies the table and the figure of a finished `make demo` into docs/demo.md, and both, smaller, into the README.

Run: python docs/demo.py   (where it leaves no difference for ``git diff``, they are those of the run byte for byte)
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
  """Returns the figure of the README: four diagrams in a row, 7 inches wide."""
  from calib_jax import evaluation
  from calib_jax.evaluation import reports
  from calib_jax.training.run import Run

  panels = {}
  for folder, method in ((RUN / "baseline", "cross entropy"), (RUN, "focal + soft avuc")):
    run = Run.load(folder)
    for label, estimates in run.evaluate()["test"].items():
      rows = evaluation.per_example(evaluation.calibrated(run.calibrators(), label, run.saved("test")))
      name = method if label == evaluation.UNCALIBRATED else "+ temperature scaling"
      panels[f"{method if len(panels) % 2 else ''}\n{name}\nECE {100 * estimates['ece'].value:.1f}%".strip("\n")] = (
        rows.confidence.ravel(), rows.correct.ravel())
  with tempfile.TemporaryDirectory() as folder:
    reports.save(reports.reliability_grid(panels, width="double"), pathlib.Path(folder) / "figure", ["svg"])
    return (pathlib.Path(folder) / "figure.svg").read_bytes()


def main() -> None:
  """Writes both pages and both figures."""
  sys.path.insert(0, str(ROOT))
  from calib_jax import evaluation

  table = (RUN / "results.md").read_text(encoding="utf-8").rpartition("\n\n")[2]
  for path, new in {README: evaluation.markdown(short(cells(table))), PAGE: table}.items():
    text = path.read_text(encoding="utf-8")
    path.write_text(PLACE.sub(lambda place, new=new: place[1] + new + place[3], text), encoding="utf-8")
  FIGURE.write_bytes((RUN / "figures" / "reliability.svg").read_bytes())
  NARROW.write_bytes(narrow())


if __name__ == "__main__":
  main()
