"""The figures of a report: each is registered where it stands, with its caption and its place on the page."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import pathlib

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from calib_jax.evaluation import Results, Row

MOST_PANELS, MOST_LINES = 9, 7

Logs = pathlib.Path | Mapping[str, pathlib.Path] | None


@dataclasses.dataclass(frozen=True)
class Shown:
  """What figures are drawn from.

  Attributes:
    results: the results.
    logs: the ``metrics.jsonl`` of a run, or those of several runs by name.
    width: a key of ``style.WIDTHS``; None for widths that suit the page.
  """

  results: Results
  logs: Logs = None
  width: str | None = None

  @functools.cached_property
  def rows(self) -> dict[str, Row]:
    """The rows of the test set by name."""
    return self.results.named(self.results.first[1].rows)

  @property
  def lines(self) -> dict[str, Row]:
    """The first rows, as many as one pair of axes can show."""
    return dict(list(self.rows.items())[:MOST_LINES])


def pooled_pairs(rows: Mapping[str, Row]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Returns the confidences ``[N]`` of all seeds of each row, and which predictions are correct."""
  return {name: (row.values.confidence.ravel(), row.values.correct.ravel()) for name, row in rows.items()}


@dataclasses.dataclass(frozen=True)
class ReportFigure:
  """A figure of the page.

  Attributes:
    draw: a function of what is shown to axes, which get a legend, or to a figure; None without data for it.
    caption: the caption.
    place: figures are in the order of this number.
    pooled: what the caption adds where there are several seeds.
    wide: whether the figure is as wide as the page.
    summary: if not empty, the figure can be folded under this title.
    is_open: a function of the results: whether the figure is not folded at first.
    finding: a function of what is shown to what the figure says of it, for those who do not see it.
  """

  draw: Callable[[Shown], Axes | Figure | None] = lambda shown: None
  caption: str = ""
  place: int = 100
  pooled: str = ""
  wide: bool = False
  summary: str = ""
  is_open: Callable[[Results], bool] = lambda results: True
  finding: Callable[[Shown], str] = lambda shown: ""


FIGURES: dict[str, ReportFigure] = {}
