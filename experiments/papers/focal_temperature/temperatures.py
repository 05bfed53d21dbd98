"""Figure 8 of Komisarenko & Kull 2024: the temperature of the lowest ECE for each γ of the focal calibration map.

Run: python -m experiments.papers.focal_temperature.temperatures NAME=PREDICTIONS.npz … [--workdir=DIR]

Each file holds `logits` (or `probs`) and `labels` of a validation split, such as that of a network that table.py trains
with the focal loss. γ and T are those of the paper's grids (Section 5.1), and the ECE has 15 equal-mass bins. The page
has the lines of T on γ.
"""

from collections.abc import Sequence
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from calib_jax.calibrators.focal_temperature import GAMMAS, TEMPERATURES, objective_value
from calib_jax.evaluation.predictions.loading import load
from calib_jax.evaluation.reports import style
from experiments.common import commands, markdown, rows, studies
from experiments.common.figures import png

NAME = "focal_temperature_temperatures"


@jax.jit
def _errors(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """The ECE for each T of the grid and each γ, ``[T, γ]``."""
  value = objective_value("ece", logits, labels, jnp.ones(labels.shape, bool))
  return jax.lax.map(lambda t: value(t, jnp.asarray(GAMMAS, logits.dtype)), jnp.asarray(TEMPERATURES, logits.dtype))


def best(logits: np.ndarray, labels: np.ndarray) -> list[rows.Row]:
  """Returns a row for each γ of the grid: the best temperature and its ECE in percent."""
  errors = np.asarray(_errors(jnp.asarray(logits), jnp.asarray(labels)))
  return [{"gamma": f"{gamma:g}", "temperature": f"{TEMPERATURES[i]:.2f}", "ece": f"{100 * error:.4f}"}
          for gamma, i, error in zip(GAMMAS, errors.argmin(0), errors.min(0), strict=True)]


def line(part: pd.DataFrame) -> tuple[float, float, float]:
  """Returns the slope and the intercept of the line of T on γ by least squares, and its R²."""
  gamma, temperature = part["gamma"].to_numpy(), part["temperature"].to_numpy()
  slope, intercept = np.polyfit(gamma, temperature, 1)
  residual = temperature - slope * gamma - intercept
  return float(slope), float(intercept), float(1 - np.sum(residual**2) / np.sum((temperature - temperature.mean())**2))


def page(results: pd.DataFrame) -> str:
  """Returns the page in Markdown."""
  return markdown.filled("papers/focal_temperature/temperatures.md.jinja", gammas=GAMMAS, lines=[
    (name, line(part), part.loc[part["ece"].idxmin()]) for name, part in results.groupby("name", sort=False)])


def draw(results: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws T against γ, with the lines, in one PNG."""
  with png(path, 4.2, 3.0) as figure:
    axes = figure.subplots()
    for i, (name, part) in enumerate(results.groupby("name", sort=False)):
      slope, intercept, _ = line(part)
      colour = style.COLOURS[i % len(style.COLOURS)]
      axes.plot(part["gamma"], part["temperature"], style.MARKERS[i % len(style.MARKERS)], color=colour, ms=3.5,
                label=style.plain(str(name)))
      axes.plot(part["gamma"], slope * part["gamma"] + intercept, color=colour, lw=0.8)
    axes.set(xlabel="gamma of the focal calibration map", ylabel="temperature of the lowest ECE")
    style.legend_below(figure, axes)


def main(arguments: Sequence[str] | None = None) -> None:
  """Finds the temperatures of each file that has no rows yet, and writes the page and the figure."""
  parser = commands.parser(__spec__.name, __doc__, results=True)
  parser.add_argument("predictions", nargs="+", metavar="NAME=FILE", help="a name for the page, and an .npz file")
  options = parser.parse_args(arguments)
  files = commands.named_files(options.predictions)
  studies.Study(NAME, ("name",), [(name,) for name in files], lambda name: best(*load(files[name])[:2]), page,
                options.workdir, draw).publish()


if __name__ == "__main__":
  main()
