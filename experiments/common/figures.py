"""Figures of pages, in the style of the library's reports."""

from collections.abc import Iterator, Mapping
import contextlib
import pathlib

import matplotlib
from matplotlib.figure import Figure

from calib_jax._system import files
from calib_jax.evaluation.reports import style


@contextlib.contextmanager
def png(path: pathlib.Path, width: float, height: float, *, rc: Mapping[str, object] = style.STYLE, dpi: int = 160
        ) -> Iterator[Figure]:
  """Gives a figure of so many inches to draw in, and writes it as PNG once all is drawn."""
  with matplotlib.rc_context(rc):
    figure = Figure(figsize=(width, height), layout="constrained")
    yield figure
    files.write(path, lambda file: figure.savefig(file, format="png", dpi=dpi))
