"""Figure 8 of Komisarenko & Kull 2024: the temperature of the lowest ECE for each γ of the focal calibration map.

Run: python -m experiments.papers.focal_temperature.temperatures NAME=PREDICTIONS.npz … [--workdir=DIR]

Each file holds `logits` (or `probs`) and `labels` of a validation split, such as that of a network that table.py trains
with the focal loss. γ and T are those of the paper's grids (Section 5.1), and the ECE has 15 equal-mass bins. The
results are written to `focal_temperature_temperatures.csv`, and a page with the lines of T on γ and the figure beside
it.
"""

from collections.abc import Sequence
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from calib_jax._system import files
from calib_jax.calibrators.focal_temperature import GAMMAS, TEMPERATURES, objective_value
from calib_jax.predictions.loading import load
from calib_jax.reports import style
from experiments.common import commands, markdown, rows

NAME = "focal_temperature_temperatures"


@jax.jit
def _errors(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """The ECE for each T of the grid and each γ, ``[T, γ]``."""
  value = objective_value("ece", logits, labels, jnp.ones(labels.shape, bool))
  return jax.lax.map(lambda t: value(t, jnp.asarray(GAMMAS, logits.dtype)), jnp.asarray(TEMPERATURES, logits.dtype))


def best(name: str, logits: np.ndarray, labels: np.ndarray) -> list[rows.Row]:
  """Returns a row for each γ of the grid: the best temperature and its ECE in percent."""
  errors = np.asarray(_errors(jnp.asarray(logits), jnp.asarray(labels)))
  return [{"name": name, "gamma": f"{gamma:g}", "temperature": f"{TEMPERATURES[i]:.2f}", "ece": f"{100 * error:.4f}"}
          for gamma, i, error in zip(GAMMAS, errors.argmin(0), errors.min(0), strict=True)]


def line(part: pd.DataFrame) -> tuple[float, float, float]:
  """Returns the slope and the intercept of the line of T on γ by least squares, and its R²."""
  gamma, temperature = part["gamma"].to_numpy(), part["temperature"].to_numpy()
  slope, intercept = np.polyfit(gamma, temperature, 1)
  residual = temperature - slope * gamma - intercept
  return float(slope), float(intercept), float(1 - np.sum(residual**2) / np.sum((temperature - temperature.mean())**2))


def page(results: pd.DataFrame) -> str:
  """Returns the page in Markdown."""
  cells = []
  for name, part in results.groupby("name", sort=False):
    slope, intercept, fit = line(part)
    lowest = part.loc[part["ece"].idxmin()]
    cells.append([name, f"{slope:.2f} gamma + {intercept:.2f}", f"{fit:.3f}", f"{lowest['ece']:.2f}",
                  f"{lowest['gamma']:g}", f"{lowest['temperature']:.2f}"])
  return "\n".join([
    "# The best temperature for each gamma", "",
    "`python -m experiments.papers.focal_temperature.temperatures` wrote this page, after Figure 8 of Komisarenko & "
    "Kull 2024: the T of the lowest ECE (15 equal-mass bins) on validation images, for each gamma of the paper's grid "
    f"from {GAMMAS[0]:g} to {GAMMAS[-1]:g}. The paper says that T is close to linear in gamma.", "",
    markdown.table(["network", "line of T on gamma", "R²", "lowest ECE %", "at gamma", "and T"], cells), "",
    f"![The T of the lowest ECE rises with gamma, close to a line]({NAME}.png)"]) + "\n"


@style.styled
def draw(results: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws T against γ, with the lines, in one PNG."""
  axes = style.new_axes(4.2, 3.0)
  for i, (name, part) in enumerate(results.groupby("name", sort=False)):
    slope, intercept, _ = line(part)
    colour = style.COLOURS[i % len(style.COLOURS)]
    axes.plot(part["gamma"], part["temperature"], style.MARKERS[i % len(style.MARKERS)], color=colour, ms=3.5,
              label=style.plain(name))
    axes.plot(part["gamma"], slope * part["gamma"] + intercept, color=colour, lw=0.8)
  axes.set(xlabel="gamma of the focal calibration map", ylabel="temperature of the lowest ECE")
  style.legend_below(axes.figure, axes)
  files.write(path, lambda file: axes.figure.savefig(file, format="png", dpi=160))


def main(arguments: Sequence[str] | None = None) -> None:
  """Finds the temperatures of each file, and writes the page and the figure."""
  parser = commands.parser(__spec__.name, __doc__, results=True)
  parser.add_argument("predictions", nargs="+", metavar="NAME=FILE", help="a name for the page, and an .npz file")
  options = parser.parse_args(arguments)
  stem, results = options.workdir / NAME, []
  for text in options.predictions:
    name, _, path = text.rpartition("=")
    results += best(name or pathlib.Path(path).stem, *load(pathlib.Path(path))[:2])
  rows.write(stem.with_suffix(".csv"), results)
  table = rows.frame(stem.with_suffix(".csv"), text=["name"])
  for name, part in table.groupby("name", sort=False):
    print("{}: T = {:.2f} gamma + {:.2f}, R² {:.3f}".format(name, *line(part)), flush=True)
  files.write_text(stem.with_suffix(".md"), page(table))
  draw(table, stem.with_suffix(".png"))


if __name__ == "__main__":
  main()
