"""Studies: experiments of cells, such as a metric and a sample size, whose rows a page or a table of docs shows."""

from collections.abc import Callable, Iterable, Sequence
import pathlib
import time
from typing import NamedTuple

import pandas as pd
from scipy import stats

from calib_jax._system.files import write_text
from experiments.common import commands, markdown
from experiments.common.rows import append, frame, keys, pack, texts


class Study(NamedTuple):
  """Cells to run, and the table of their rows, which are kept in a file; cells that it holds are not run again."""

  name: str  # Of the file of its rows.
  key: tuple[str, ...]  # The columns that name a cell.
  cells: Sequence[tuple]  # The values of these columns, of every cell.
  # Takes the values of a cell, and returns its rows without these columns, or with other values in some.
  measured: Callable[..., Iterable[dict[str, object]]]
  table: Callable[[pd.DataFrame], str]  # Takes all rows, and returns the Markdown table or page.
  folder: pathlib.Path = commands.RESULTS
  draw: Callable[[pd.DataFrame, pathlib.Path], object] | None = None  # Draws all rows in a ``.png`` beside the page.

  @property
  def path(self) -> pathlib.Path:
    """The file of its rows."""
    return self.folder / f"{self.name}.csv"

  def page(self) -> str:
    """Returns the table of the rows that there are."""
    return self.table(frame(self.path))

  def run(self) -> None:
    """Runs the cells that have no row yet; rows are appended as they come, so that it can be stopped."""
    done, started = keys(texts(self.path), self.key), time.monotonic()
    missing = [cell for cell in self.cells if tuple(map(str, cell)) not in done]
    for i, cell in enumerate(missing, 1):
      append(self.path, [dict(zip(self.key, cell, strict=True)) | row for row in self.measured(*cell)])
      print(f"{', '.join(map(str, cell))}: {commands.left(started, i, len(missing))}", flush=True)

  def publish(self) -> None:
    """Runs the cells that have no row yet, and writes the page and the figure beside their file."""
    self.run()
    pack(self.path)
    write_text(self.path.with_suffix(".md"), self.page())
    if self.draw:
      self.draw(frame(self.path), self.path.with_suffix(".png"))
    print(f"{self.path.with_suffix('.md')} holds the table.")


def main(module: str, text: str, study: Study, arguments: Sequence[str] | None = None) -> None:
  """Is the command of a module whose page is that of a study; ``text`` is the docstring of the module."""
  options = commands.parser(module, text, results=True).parse_args(arguments)
  study._replace(folder=options.workdir).publish()


def in_docs(module: str, text: str, page: str | pathlib.Path, *studies: Study) -> None:
  """Is the command of a module whose studies have their tables in a page; ``text`` is the docstring of the module."""
  commands.parser(module, text).parse_args()
  for study in studies:
    study.run()
  write(page, module, *(study.page() for study in studies))


def write(page: str | pathlib.Path, module: str, *tables: str) -> None:
  """Writes tables between the marks of a module in a page of docs, or in one of another path."""
  path = commands.ROOT / "docs" / page
  text = markdown.between(path.read_text(encoding="utf-8"), f"<!-- Written by python -m {module} -->",
                        "<!-- End of what is written by it -->", *tables)
  write_text(path, text)


def percent(shares: pd.Series) -> pd.Series:
  """Returns shares as percentages with one decimal."""
  return (100 * shares).map("{:.1f}".format)


def covered(rows: pd.DataFrame) -> pd.Series:
  """Returns coverage and mean width in percent; bold if below 93% and what chance does in one of 100 simulations."""
  chance = stats.binom.cdf((rows.covered * rows.repeats).round(), rows.repeats, 0.95)
  is_low = (rows.covered < 0.93) & (chance < 0.01)
  shares = percent(rows.covered)
  return shares.mask(is_low, "**" + shares + "**") + " (" + percent(rows.width) + ")"
