"""The figure of the positive class of binary predictions."""

from collections.abc import Mapping

from matplotlib.figure import Figure
import numpy as np

from calib_jax.evaluation import Row
from calib_jax.evaluation.reports.reliability import POOLED, reliability_grid
from calib_jax.evaluation.reports.report_figure import FIGURES, MOST_PANELS, ReportFigure, Shown, pooled_weights


def positive_pairs(rows: Mapping[str, Row]) -> dict[str, tuple[np.ndarray, ...]]:
  """Returns by row the probabilities ``[N]`` of class 1 of all seeds, which examples are of it and, if any, weights."""
  pairs = {}
  for name, row in rows.items():
    values = row.values
    probability = np.where(values.predicted == 1, values.confidence, 1 - values.confidence)
    pairs[name] = probability.ravel(), (values.labels == 1).ravel(), *pooled_weights(row)
  return pairs


def _draw(shown: Shown) -> Figure | None:
  if not shown.results.sections.get("positive_class", {}).get(shown.results.first[0]):
    return None
  panels = positive_pairs(dict(list(shown.rows.items())[:MOST_PANELS]))
  figure = reliability_grid(panels, num_bins=shown.results.num_bins, width=shown.width)
  for axes in figure.axes:
    if axes.get_ylabel() == "accuracy":
      axes.set_ylabel("share of the class")
    elif axes.get_xlabel():
      axes.set_xlabel("probability of the positive class")
  return figure


def _finding(shown: Shown) -> str:
  by_row = shown.results.sections["positive_class"][shown.results.first[0]]
  lines = (f"{name} {100 * of.probability:.1f}% and {100 * of.share:.1f}%"
           for name, of in list(by_row.items())[:MOST_PANELS])
  return f"mean probability of the positive class, and its share: {'; '.join(lines)}."


FIGURES["positive_class"] = ReportFigure(
  _draw, "The share of the positive class against its probability. Points are bins with 95% intervals, hollow with "
  "fewer than five examples; the curve is a kernel mean with its 95% band. Below are the probabilities.", place=15,
  wide=True, pooled=POOLED, finding=_finding)
