"""Do the printed cells follow from the rows? An audit that reads CSV files and pages, and shares no code with them.

Run: python -m experiments.audit [--out=experiments/results]

Every cell "mean ± standard error" of the tables of results, of the rankings of methods and of those on corrupted images
is computed anew from the rows beside its page: means over seeds, and the standard error over seeds and, for columns
whose rows have it, test images, by a jackknife over their blocks. Cells that differ by more than their last digit are
printed, and the exit code is then 1.

So are sentences that compare ways to train or to calibrate without saying by what: those of the guides in ``COMPARING``
outside of what a command writes must say "shown", which is of a test that Holm's method corrects, or "mean".
"""

import argparse
import pathlib
import re
import sys
from typing import NamedTuple

import numpy as np
import pandas as pd

COLUMNS = {  # The column and the factor of each heading.
  "accuracy %": ("accuracy", 100), "NLL": ("nll", 1), "Brier": ("brier", 1), "ECE %": ("ece", 100),
  "ECE %, equal width, norm 1": ("ece", 100), "ECE %, equal mass, norm 2": ("ece_equal_mass_l2", 100),
  "ECE %, equal mass, norm 1": ("adaptive", 100), "MCE %": ("mce", 100), "KS %": ("ks", 100), "AURC %": ("aurc", 100),
  "sweep %": ("sweep", 100), "classwise ECE %, equal width": ("classwise", 100),
  "marginal ECE %, equal mass, norm 2": ("marginal", 100), "train accuracy %": ("accuracy_train", 100),
  "train ECE %": ("ece_train", 100), "ECE % on corrupted images": ("ece_shifted", 100)}
CORRUPTED = {"accuracy %": ("accuracy_shifted", 100), "NLL": ("nll_shifted", 1), "ECE %": ("ece_shifted", 100)}
DIFFERENCES = ("NLL", "Brier", "NLL after TS")  # Which rankings print less the value of cross entropy.
BASELINE = "cross entropy"
COMPARING = ("choose", "losses", "beyond_the_loss", "results", "calibrators", "selective_risk")  # Pages of docs.
COMPARATIVE = (r"\b(?:better|worse|lower|higher|best|worst|lowest|highest|beats?|gains?|loses|outperforms?|helps?|"
               r"hurts?|slightly|more accurate)\b")
WRITTEN = (r"<!-- Written by.*?<!-- End of what is written by it -->|<!-- The top.*?<!-- Its end. -->|"
           r"```.*?```|`[^`\n]*`")
UNIT = 1e-5  # Of the numbers in columns of test images.


class Sample(NamedTuple):
  """Values ``[S]`` by seed, and their mean without each block of test images, less the mean of these: ``[B]``."""

  values: pd.Series
  blocks: np.ndarray

  def less(self, other: "Sample") -> "Sample":
    """Returns the differences of the same seeds."""
    both = bool(len(self.blocks)) and len(self.blocks) == len(other.blocks)
    return Sample((self.values - other.values).dropna(), self.blocks - other.blocks if both else np.zeros(0))

  def numbers(self) -> np.ndarray:
    """Returns the mean, and its standard error over seeds and images; of one seed, over images."""
    of_seeds = self.values.sem() if len(self.values) > 1 else 0.0
    of_images = self.blocks.std() * (len(self.blocks) - 1) ** 0.5 if len(self.blocks) else 0.0
    return np.array([self.values.mean(), np.hypot(of_seeds, of_images)])


Rows = dict[tuple[str, str, str], pd.DataFrame]  # The rows of all seeds by task, method and calibrator.


def sample(rows: Rows, column: str, task: str, method: str, calibrator: str) -> Sample:
  """Returns the values of a column of one method after one calibrator."""
  part = rows[task, method, calibrator]
  values = pd.Series(part[column].to_numpy(float), part["seed"].to_numpy())
  texts = part.get(f"images_{column}", [])
  blocks = [np.array(text.split(), float) for text in texts if text]
  return Sample(values, UNIT * np.sum(blocks, axis=0) / len(values) if blocks else np.zeros(0))


def rows_beside(page: pathlib.Path) -> Rows:
  """Returns the rows from which a page was made; none if they are not those of methods, calibrators and seeds."""
  for suffix in (".csv", ".csv.gz"):
    if (path := page.with_suffix(suffix)).exists():
      rows = pd.read_csv(path, dtype=str, keep_default_na=False)
      if {"task", "method", "calibrator", "seed"} <= set(rows):
        return dict(tuple(rows.groupby(["task", "method", "calibrator"], sort=False)))
  return {}


def tables(text: str):
  """Yields the heading above each table of a page, its column headings, and its lines of cells."""
  title, header = "", []
  for line in text.splitlines():
    if line.startswith("## "):
      title, header = line[3:], []
    elif not line.startswith("|"):
      header = []
    elif not header:
      header = [cell.strip() for cell in line[1:-1].split("|")]
    elif not line.startswith("|---"):
      yield title, header, [cell.strip() for cell in re.split(r"(?<!\\)\|", line[1:-1])]


def audit(page: pathlib.Path) -> tuple[int, list[str]]:
  """Returns how many cells of a page were computed anew, and a line for each one that differs."""
  rows, checked, wrong = rows_beside(page), 0, []
  tasks, methods = ({key[i] for key in rows} for i in (0, 1))
  columns_of_rows = set().union(*[*rows.values()][:1])
  for title, header, cells in tables(page.read_text(encoding="utf-8")):
    method = cells[0] if cells[0] in methods else re.sub(r"\*\*|\*$", "", cells[0])
    is_ranking, is_corrupted = "wins %" in header, title == "On corrupted images"
    is_table = header[1] == "calibrated by"
    if header[0] != "trained with" or not (is_ranking or is_corrupted or is_table) or method not in methods:
      continue
    task = title if title in tasks else min(tasks)
    for name, cell in zip(header, cells, strict=True):
      heading = name.replace("°", "").removesuffix(" after TS")
      column, factor = (CORRUPTED if is_corrupted else COLUMNS).get(heading, ("", 0))
      mean = re.search(r"-?\d+\.(\d+)", cell)
      if column not in columns_of_rows or not mean:
        continue
      calibrator = cells[1].strip("*") if is_table else "TS" if name.endswith(" after TS") else "none"
      value = sample(rows, column, task, method, calibrator)
      if is_ranking and name in DIFFERENCES and method != BASELINE:
        value = value.less(sample(rows, column, task, BASELINE, calibrator))
      if not np.isfinite(value.values).all() or value.values.empty:
        continue
      checked += 1
      printed, expected = [float(x) for x in re.findall(r"[-+]?\d+\.\d+", cell)], factor * value.numbers()
      unit = 10.0 ** -len(mean[1])
      if len(printed) > 2 or not np.allclose(printed, expected[:len(printed)], rtol=0, atol=1.5 * unit):
        wrong.append(f"{page.name}: {method}, {calibrator}, {name}: printed {cell}, from the rows {expected}")
  return checked, wrong


def unnamed(text: str) -> list[str]:
  """Returns the sentences and cells of a page that compare, and say neither "shown" nor "mean".

  >>> unnamed("Focal is better. Its mean ECE is lower. | a | it gains much |")
  ['Focal is better.', 'it gains much']
  """
  text = re.sub(WRITTEN, "", text, flags=re.DOTALL)
  parts = re.split(r"(?<=[.:;])\s+|\s*\|\s*|\n\n|\n- ", text)
  return [" ".join(part.split()) for part in parts
          if re.search(COMPARATIVE, part) and not re.search(r"\b(?:shown|means?)\b", part)]


def main() -> int:
  """Audits all pages; returns the exit code."""
  parser = argparse.ArgumentParser(prog="python -m experiments.audit", description=__doc__.partition("\n")[0])
  parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("experiments/results"))
  out, total, every_wrong = parser.parse_args().out, 0, []
  for page in sorted(out.glob("*.md")):
    checked, wrong = audit(page)
    total, every_wrong = total + checked, every_wrong + wrong
    if checked:
      print(f"{page.name}: {checked} cells, {len(wrong)} differ")
  guides = pathlib.Path(__file__).parent.parent / "docs"
  sentences = [f"{name}.md: {text}" for name in COMPARING
               for text in unnamed((guides / f"{name}.md").read_text(encoding="utf-8"))]
  print("\n".join([*every_wrong, *sentences, f"{total} cells, {len(every_wrong)} differ; {len(sentences)} sentences "
                   "compare and say neither shown nor mean"]))
  return 1 if every_wrong or sentences else 0


if __name__ == "__main__":
  sys.exit(main())
