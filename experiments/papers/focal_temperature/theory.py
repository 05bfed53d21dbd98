"""How close the focal calibration map is to temperature scaling: Komisarenko & Kull 2024, Sections 3.2 and 3.3.

Run: python -m experiments.papers.focal_temperature.theory [--workdir=experiments/results]

For two, three and four classes and γ from 0 to 10, the temperature T is found that brings temperature scaling closest
to the focal calibration map (the least of the largest difference of a probability), with a line of 1/T on γ; for two
classes also the bounds of Proposition 3 and the tightest ones. It writes `focal_temperature_theory.csv`, a page (`.md`)
and three figures (figures.py); numbers that the CSV already holds are not computed again. The lines of four classes are
also fitted over other sets of points and other γ (`focal_temperature_theory_points.csv` and `_lines.csv`), because the
published one differs.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from calib_jax.focal_map import log_focal_map
from experiments.common import commands, markdown, rows
from experiments.common.studies import Study

Array = jax.Array
NAME = "focal_temperature_theory"
GAMMAS = tuple(i / 4 for i in range(41))
RANGES = (5, 7, 10)  # Lines are fitted to γ from 0 to these: the paper does not say which γ its lines are fitted to.
PUBLISHED = {2: (0.95, 0.85), 3: (0.64, 0.91), 4: (0.47, 0.85)}  # Slope and intercept, pages 3 to 5.
PUBLISHED_ERROR = {2: 0.001, 3: 0.08, 4: 0.08}  # The largest difference of a probability, as it is described there.
SPACING = {2: 0.01, 3: 0.1, 4: 0.25}  # The spacing of the grid of logits.
WIDTH = {2: 20.0, 3: 10.0, 4: 10.0}  # Largest difference of two logits: from -10 to 10 for two classes, else -5 to 5.
CAPTIONS = (("2", 2, 0.5, 0.76), ("2", 2, 3.0, 0.36), ("5", 3, 1.0, 0.81), ("5", 3, 3.0, 0.46), ("7", 3, 0.5, 0.8),
            ("7", 3, 2.0, 0.46))
SHOWN = (0.5, 1, 2, 3, 4, 5, 7, 10)
CANDIDATES, LEVELS = 33, 4
# Other sets of points for four classes: the spacing of logits, or the parts that a probability is a multiple of.
POINTS = (("logits", 0.25), ("logits", 0.5), ("logits", 1), ("probabilities", 10), ("probabilities", 20),
          ("probabilities", 50))
LINE_GAMMAS = (0.5, 3.0, 5.0, 7.0, 10.0)  # Where the published line of four classes is compared with the closest T.


@functools.cache
def logits_grid(num_classes: int, spacing: float | None = None) -> Array:
  """All logits on a grid, ``[N, num_classes]``, up to a shift and the order of the classes, which change nothing.

  >>> logits_grid(3).shape
  (5151, 3)
  """
  spacing = spacing or SPACING[num_classes]
  steps = np.arange(0, WIDTH[num_classes] + spacing / 2, spacing)
  below = np.array(list(itertools.combinations_with_replacement(steps, num_classes - 1)))
  return jnp.asarray(np.pad(-below, ((0, 0), (1, 0))), jnp.float32)


@jax.jit
def closest(logits: Array, gamma: float) -> tuple[Array, Array]:
  """``(1/T, error)`` of the T that minimises the largest difference of a probability from the map, over the logits."""
  mapped = jnp.exp(log_focal_map(logits, gamma))

  def error(inverse):
    return jnp.max(jnp.abs(jax.nn.softmax(inverse * logits) - mapped))

  def level(carry, _):
    low, high = carry
    grid = low + (high - low) * jnp.linspace(0, 1, CANDIDATES)
    errors = jax.lax.map(error, grid)
    best = jnp.argmin(errors)
    return (grid[jnp.maximum(best - 1, 0)], grid[jnp.minimum(best + 1, CANDIDATES - 1)]), (grid[best], errors[best])

  start = (jnp.float32(0.5), gamma + jnp.float32(1.5))
  _, (inverse, errors) = jax.lax.scan(level, start, None, length=LEVELS)
  return inverse[-1], errors[-1]


def simplex_grid(num_classes: int, parts: int) -> Array:
  """All probabilities that are multiples of 1/parts and not 0, ``[N, num_classes]``.

  >>> simplex_grid(3, 10).shape
  (36, 3)
  """
  cuts = np.array(list(itertools.combinations(range(1, parts), num_classes - 1)))
  return jnp.asarray(np.diff(cuts, axis=1, prepend=0, append=parts) / parts, jnp.float32)


@functools.cache
def points(kind: str, size: float) -> Array:
  """Returns the logits of a set of ``POINTS``."""
  return logits_grid(4, size) if kind == "logits" else jnp.log(simplex_grid(4, int(size)))


@jax.jit
def difference(logits: Array, gamma: float, inverse: float) -> Array:
  """Returns the largest difference of a probability between the map and temperature scaling with 1/T ``inverse``."""
  return jnp.max(jnp.abs(jax.nn.softmax(inverse * logits) - jnp.exp(log_focal_map(logits, gamma))))


def fitted_line(logits: Array, gammas: np.ndarray) -> tuple[float, float, float]:
  """Returns the slope and the intercept of the line of 1/T on γ over a set of points, and the largest error."""
  inverse, error = np.array([closest(logits, float(gamma)) for gamma in gammas]).T
  return *np.polyfit(gammas, inverse, 1), error.max()


def line_row(kind: str, size: float) -> list[rows.Row]:
  """Returns the line of 1/T on γ for four classes, and at ``LINE_GAMMAS`` how far the closest T and it are off."""
  logits, (slope, intercept) = points(kind, size), PUBLISHED[4]
  values = dict(zip(("slope", "intercept"), fitted_line(logits, np.arange(2, 10.5, 0.5)), strict=False))
  for gamma in LINE_GAMMAS:
    values |= {f"closest_{gamma:g}": closest(logits, gamma)[1],
               f"published_{gamma:g}": difference(logits, gamma, slope * gamma + intercept)}
  return [{name: f"{float(value):.3f}" for name, value in values.items()}]


def points_row(kind: str, size: float) -> list[rows.Row]:
  """Returns the line of 1/T on γ up to 7 and the largest error for four classes, over a set of ``POINTS``."""
  logits = points(kind, size)
  values = zip(("slope", "intercept", "error"), fitted_line(logits, np.arange(0, 7.5, 0.5)), strict=True)
  return [{"number": str(len(logits)), **{name: f"{value:.3f}" for name, value in values}}]


def proposition_3(gamma: float) -> tuple[float, float]:
  """The bounds of Proposition 3 on 1/T: γ + 1 - ½ log(γ + 1) and γ + 1.

  >>> [round(1 / b, 3) for b in proposition_3(4)]  # The paper prints T = 0.238 and 0.2.
  [0.238, 0.2]
  """
  return gamma + 1 - float(np.log(gamma + 1)) / 2, gamma + 1


@jax.jit
def tightest(gamma: float) -> tuple[Array, Array]:
  """The tightest bounds on 1/T for logits in ±20: the extremes of the map's log-odds divided by the logit."""
  s = jnp.linspace(0.05, 20, 2000)
  log_p = log_focal_map(jnp.stack([s, jnp.zeros_like(s)], axis=-1), gamma)
  factor = (log_p[:, 0] - log_p[:, 1]) / s
  return jnp.min(factor), jnp.max(factor)


def row(num_classes: int, gamma: float) -> list[rows.Row]:
  """Returns the row of the CSV of one γ."""
  inverse, error = closest(logits_grid(num_classes), gamma)
  values = {"inverse_temperature": inverse, "error": error}
  bounds = dict.fromkeys(("bound_low", "bound_high", "tightest_low", "tightest_high"), "")
  if num_classes == 2:
    values |= dict(zip(bounds, (*proposition_3(gamma), *tightest(gamma)), strict=True))
  return [bounds | {name: f"{float(value):.5f}" for name, value in values.items()}]


def of_classes(results: pd.DataFrame, num_classes: int) -> pd.DataFrame:
  """Returns the rows of so many classes, in the order of γ."""
  return results[results["num_classes"] == num_classes].sort_values("gamma", ignore_index=True)


def inverse_temperature(results: pd.DataFrame, num_classes: int, gamma: float) -> float:
  """Returns the 1/T closest to the map of ``gamma``."""
  part = of_classes(results, num_classes)
  return float(part["inverse_temperature"][(part["gamma"] - gamma).abs().idxmin()])


def line(results: pd.DataFrame, num_classes: int, most: float) -> tuple[float, float]:
  """Returns the slope and the intercept of the least-squares line of 1/T on γ, for γ from 0 to ``most``."""
  part = of_classes(results, num_classes).query("gamma <= @most")
  slope, intercept = np.polyfit(part["gamma"], part["inverse_temperature"], 1)
  return float(slope), float(intercept)


def page(results: pd.DataFrame, over_points: pd.DataFrame, line_rows: pd.DataFrame) -> str:
  """Returns the Markdown of the results; the rows over other points are texts."""
  numbers = line_rows.drop(columns="kind").astype(float)
  nearest = numbers.loc[np.hypot(numbers["slope"] - PUBLISHED[4][0], numbers["intercept"] - PUBLISHED[4][1]).idxmin()]
  of_two = of_classes(results, 2)
  return markdown.filled(
    "papers/focal_temperature/theory.md.jinja", published=PUBLISHED, published_error=PUBLISHED_ERROR,
    lines=pd.DataFrame({most: {number: line(results, number, most) for number in PUBLISHED} for most in RANGES}),
    errors=results.groupby("num_classes")["error"].max(), gammas=LINE_GAMMAS, nearest=nearest,
    over_points=over_points.to_dict("records"), line_rows=line_rows.to_dict("records"),
    # What explains the published line of four classes, as far as the rows bear it out.
    sampling_explains=(abs(nearest["published_5"] - PUBLISHED_ERROR[4]) < 0.005
                       and line_rows["kind"][nearest.name] == "probabilities"),
    twice_the_error=(numbers["published_0.5"] / numbers["closest_0.5"]).between(1.75, 2.5).all(),
    captions=[(*caption, inverse_temperature(results, *caption[1:3])) for caption in CAPTIONS],
    bounds=of_two[of_two["gamma"].isin(SHOWN)])


def main(arguments=None) -> None:
  """Computes what has no row yet, and writes the page and the figures."""
  from experiments.papers.focal_temperature import figures

  folder = commands.parser(__spec__.name, __doc__, results=True).parse_args(arguments).workdir
  others = [Study(f"{NAME}_{end}", ("kind", "size"), POINTS, measured, str, folder)
            for end, measured in (("points", points_row), ("lines", line_row))]
  for study in others:
    study.run()
  Study(NAME, ("num_classes", "gamma"), tuple(itertools.product(PUBLISHED, GAMMAS)), row,
        lambda table: page(table, *(rows.texts(study.path) for study in others)), folder, figures.draw).publish()


if __name__ == "__main__":
  main()
