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
  """What figures are drawn from."""

  results: Results  # The results.
  logs: Logs = None  # The ``metrics.jsonl`` of a run, or of several runs by name.
  width: str | None = None  # A key of ``style.WIDTHS``; None for widths that suit the page.

  @functools.cached_property
  def rows(self) -> dict[str, Row]:
    """The rows of the test set by name."""
    return self.results.named(self.results.first[1].rows)

  @property
  def lines(self) -> dict[str, Row]:
    """The first rows, as many as one pair of axes can show."""
    return dict(list(self.rows.items())[:MOST_LINES])


def pooled_pairs(rows: Mapping[str, Row]) -> dict[str, tuple[np.ndarray, ...]]:
  """Returns the confidences ``[N]`` of all seeds of each row, which predictions are correct and, if any, weights."""
  return {name: (row.values.confidence.ravel(), row.values.correct.ravel(), *pooled_weights(row))
          for name, row in rows.items()}


def pooled_weights(row: Row) -> tuple[np.ndarray, ...]:
  """Returns the weights ``[N]`` of the examples of all seeds of a row, or nothing where all are equal."""
  weights, num_seeds = row.values.weights, row.values.confidence.shape[1]
  return () if weights is None else (np.repeat(weights, num_seeds),)


@dataclasses.dataclass(frozen=True)
class ReportFigure:
  """A figure of the page."""

  # A function of what is shown to axes, which get a legend, or to a figure; None without data for it.
  draw: Callable[[Shown], Axes | Figure | None] = lambda shown: None
  caption: str = ""  # The caption.
  place: int = 100  # Figures are in the order of this number.
  pooled: str = ""  # What the caption adds where there are several seeds.
  wide: bool = False  # Whether the figure is as wide as the page.
  summary: str = ""  # If not empty, the figure can be folded under this title.
  # A function of the results: whether the figure is not folded at first.
  is_open: Callable[[Results], bool] = lambda results: True
  # A function of what is shown to what the figure says of it, for those who do not see it.
  finding: Callable[[Shown], str] = lambda shown: ""


FIGURES: dict[str, ReportFigure] = {}
