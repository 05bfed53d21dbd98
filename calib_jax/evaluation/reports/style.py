"""The style of the figures: one column wide, with colours for the colour-blind, and text that stays text in PDF."""

from collections.abc import Callable, Sequence
import functools
import pathlib
import re
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from calib_jax._system import files
from calib_jax._system.errors import cut, printable

# Okabe and Ito's colours, which people with any colour vision can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, PALE = "#333333", "#9aa5b1"
WIDTH = 3.4  # Inches, a column of a paper.
WIDTHS = {"single": WIDTH, "double": 7.0}  # A column, and both columns with the space between them.
FORMATS = ("pdf", "png", "svg")
STYLE: dict[str, Any] = {"font.size": 8, "axes.titlesize": 8, "axes.spines.top": False, "axes.spines.right": False,
         "axes.edgecolor": INK, "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
         "pdf.fonttype": 42, "svg.hashsalt": "calib_jax", "savefig.facecolor": "white"}


def styled(function: Callable[..., Any]) -> Callable[..., Any]:
  """A function that draws in this style."""
  @functools.wraps(function)
  def drawn(*args, **options):
    with matplotlib.rc_context(STYLE):
      return function(*args, **options)

  return drawn


def new_axes(height: float = WIDTH) -> Axes:
  """Returns the axes of a new figure that no window shows."""
  return Figure(figsize=(WIDTH, height), layout="constrained").subplots()


def plain(text: str, *, lines: bool = False, longest: int = 60) -> str:
  """Returns a text of the user's as Matplotlib draws it: without formulas, in lines of at most ``longest`` characters.

  It may be of several ``lines``. This function leaves the text that it returns as it is, which does not begin with an
  underscore, because Matplotlib's legends leave out such labels.
  """
  shown = "\n".join(cut(printable(line), longest) for line in (text.split("\n") if lines else [text]))
  return re.sub(r"(?<!\\)\$", r"\\$", f"{' ' * shown.startswith('_')}{shown}")


def legend_below(figure: Figure, axes: Axes) -> None:
  """Adds a legend below the figure, where no data are, in two columns if the labels are short enough.

  The figure grows by the height of the legend, so that the axes keep theirs.
  """
  handles, labels = axes.get_legend_handles_labels()
  columns = 2 if max(map(len, labels), default=0) <= 25 * figure.get_figwidth() / WIDTH else 1
  if handles:
    figure.set_figheight(figure.get_figheight() + 0.17 * -(-len(handles) // columns))
    figure.legend(handles, [plain(label) for label in labels], loc="outside lower center", ncols=columns, frameon=False,
                  handlelength=1.6)


def save(figure: Figure, stem: pathlib.Path, formats: Sequence[str] = FORMATS) -> pathlib.Path:
  """Writes a figure as PDF, PNG and SVG. Each file appears only once it is complete.

  Args:
    figure: the figure.
    stem: the path of the files without their suffix.
    formats: some of ``pdf``, ``png`` and ``svg``.

  Returns:
    The path of the SVG.
  """
  # Without dates, the same figure gives the same bytes.
  dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
  for suffix in formats:
    metadata = dates.get(suffix)
    with matplotlib.rc_context(STYLE):
      files.write(stem.with_suffix(f".{suffix}"), lambda file, suffix=suffix, metadata=metadata: figure.savefig(
        file, format=suffix, dpi=200, metadata=metadata))
  return stem.with_suffix(".svg")
