"""The theory of focal calibration beside temperature scaling: against float64 of the paper's formulas, and its page."""

import numpy as np
import pytest

from experiments.common import rows
from experiments.common.commands import RESULTS
from experiments.papers.focal_temperature import theory

ROWS = rows.frame(RESULTS / "focal_temperature_theory.csv")


def focal_map(logits, gamma):
  """Equation 1 as it is printed."""
  q = np.exp(logits - logits.max(-1, keepdims=True))
  q /= q.sum(-1, keepdims=True)
  weight = -1 / ((1 - q) ** gamma * (gamma * np.log(q) / (1 - q) - 1 / q))
  return weight / weight.sum(-1, keepdims=True)


def largest_difference(logits, gamma, inverse):
  scaled = np.exp(inverse * logits)
  return np.abs(focal_map(logits, gamma) - scaled / scaled.sum(-1, keepdims=True)).max()


@pytest.mark.parametrize("num_classes", [2, 3])
def test_no_other_temperature_is_closer(num_classes):
  grid = theory.logits_grid(num_classes)
  inverse, error = map(float, theory.closest(grid, 2.0))
  logits = np.asarray(grid, float)
  np.testing.assert_allclose(largest_difference(logits, 2.0, inverse), error, atol=1e-5)  # float32 probabilities
  others = [largest_difference(logits, 2.0, inverse + change) for change in np.linspace(-0.5, 0.5, 41)]
  assert min(others) > error - 1e-5


@pytest.mark.parametrize(("num_classes", "slope", "intercept"), [(2, 0.02, 0.03), (3, 0.02, 0.03), (4, 0.03, 0.13)])
def test_the_lines_are_near_the_published_ones(num_classes, slope, intercept):
  grid = theory.logits_grid(num_classes)
  for gamma in (0.5, 3.0, 7.0):  # The committed rows are what the experiment computes.
    kept = theory.inverse_temperature(ROWS, num_classes, gamma)
    np.testing.assert_allclose(float(theory.closest(grid, gamma)[0]), kept, rtol=2e-3)
  ours, published = theory.line(ROWS, num_classes, 7), theory.PUBLISHED[num_classes]
  assert abs(ours[0] - published[0]) < slope and abs(ours[1] - published[1]) < intercept


def test_proposition_3_bounds_the_map_and_the_tightest_bounds_lie_within():
  s = np.arange(1, 1001) / 100
  logits = np.stack([s, 0 * s], axis=-1)
  for gamma in (0.5, 1.0, 4.0):
    p = focal_map(logits, gamma)
    factor = np.log(p[:, 0] / p[:, 1]) / s
    low, high = theory.proposition_3(gamma)
    assert low < factor.min() and factor.max() < high
    tight_low, tight_high = map(float, theory.tightest(gamma))
    assert low < tight_low <= factor[5:].min() + 1e-3 and factor.max() - 1e-3 <= tight_high < high


def test_the_published_line_of_four_classes_is_compared_with_the_closest_t():
  committed = {(row["kind"], row["size"]): row for row in rows.read(RESULTS / "focal_temperature_theory_lines.csv")}
  row, = theory.line_row("probabilities", 10)
  assert {"kind": "probabilities", "size": "10"} | row == committed["probabilities", "10"]
  logits = np.asarray(theory.points("probabilities", 10), float)
  for gamma in theory.LINE_GAMMAS:
    error = largest_difference(logits, gamma, 0.47 * gamma + 0.85)
    np.testing.assert_allclose(float(row[f"published_{gamma:g}"]), error, atol=6e-4)
  for other in committed.values():
    for gamma in theory.LINE_GAMMAS:
      assert float(other[f"closest_{gamma:g}"]) <= float(other[f"published_{gamma:g}"])


def test_the_page_says_what_the_rows_bear_out():
  points, lines = (rows.texts(RESULTS / f"focal_temperature_theory_{part}.csv") for part in ("points", "lines"))
  equal = lines.assign(**{"published_0.5": "0.001"})
  pages = [theory.page(ROWS, points, x) for x in (lines, equal, equal.assign(published_5="0.2"))]
  assert ["Sampling explains" in x for x in pages] == [True, True, False]
  assert ["twice the error" in x for x in pages] == [True, False, False]


def test_lines_over_other_points_are_those_of_their_grids():
  grid = np.asarray(theory.simplex_grid(4, 10), float)
  np.testing.assert_allclose(grid.sum(1), 1, rtol=1e-6)
  np.testing.assert_allclose(10 * grid, np.round(10 * grid), atol=1e-5)
  assert len({tuple(np.round(10 * p).astype(int)) for p in grid}) == len(grid) == 84 and grid.min() > 0.09
  committed = {(row["kind"], row["size"]): row for row in rows.read(RESULTS / "focal_temperature_theory_points.csv")}
  row, = theory.points_row("probabilities", 10)
  assert {"kind": "probabilities", "size": "10"} | row == committed["probabilities", "10"]
