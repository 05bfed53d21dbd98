"""Draws reliability diagrams: accuracy against confidence by bin, with the gaps and a histogram of confidences."""

from collections.abc import Mapping, Sequence
import functools
import io
import pathlib
from typing import BinaryIO, NamedTuple

import jax
import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
import matplotlib.image
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
import numpy as np

from calib_jax import metrics
from calib_jax.evaluation import Predictions

ACCURACY, OVER, UNDER, INK = "#3b6ea5", "#d1495b", "#e9a23b", "#333333"


class Panel(NamedTuple):
  """One diagram.

  Attributes:
    title: the title above it.
    confidence: ``[N]``, the probability of the predicted class.
    correct: ``[N]``, whether the prediction is correct.
    error: the ECE to print on it, ``{"estimate", "low", "high"}``.
  """

  title: str
  confidence: np.ndarray
  correct: np.ndarray
  error: Mapping[str, float]


def panel(title: str, predictions: Sequence[Predictions], error: Mapping[str, float]) -> Panel:
  """Returns one diagram for the predictions of all seeds together.

  Args:
    title: the title above the diagram.
    predictions: the predictions, one element a seed.
    error: the ECE to print on it, ``{"estimate", "low", "high"}``.
  Returns: the panel.
  """
  top = [metrics.top_label(jax.nn.softmax(part.logits), part.labels) for part in predictions]
  return Panel(title, *(np.concatenate(parts) for parts in zip(*top, strict=True)), error)


def draw(panels: Sequence[Sequence[Panel]], path: pathlib.Path | BinaryIO, *, num_bins: int = 15) -> None:
  """Draws a grid of reliability diagrams, each above its histogram of confidences, and writes it as a PNG.

  Args:
    panels: the rows of the grid.
    path: the file to write.
    num_bins: the number of bins.
  """
  rows, columns = len(panels), len(panels[0])
  style = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK,
           "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}
  with matplotlib.rc_context(style):
    figure = Figure(figsize=(3.4 * columns, 4.4 * rows), layout="constrained")
    grid = figure.subplots(2 * rows, columns, squeeze=False, height_ratios=[3.4, 1] * rows)
    for i, row in enumerate(panels):
      for j, panel in enumerate(row):
        _diagram(grid[2 * i, j], panel, num_bins, legend=i == 0 and j == 0)
        _histogram(grid[2 * i + 1, j], panel, num_bins)
        if j == 0:
          grid[2 * i, j].set_ylabel("accuracy")
          grid[2 * i + 1, j].set_ylabel("predictions")
    figure.savefig(path, dpi=160)


def picture(title: str, predictions: Predictions, *, num_bins: int = 15) -> np.ndarray:
  """Draws the reliability diagram of ``predictions`` as an image, for event files.

  Args:
    title: the title above the diagram.
    predictions: the predictions of one model.
    num_bins: the number of bins.
  Returns: ``[H, W, 4]`` in [0, 1].
  """
  probs = jax.nn.softmax(predictions.logits)
  error = metrics.bootstrap(functools.partial(metrics.expected_calibration_error, num_bins=num_bins), probs,
                            predictions.labels, key=jax.random.key(0), num_resamples=200, method="bias_corrected")
  error = dict(zip(("estimate", "low", "high"), map(float, error), strict=True))
  file = io.BytesIO()
  draw([[panel(title, [predictions], error)]], file, num_bins=num_bins)
  file.seek(0)
  return matplotlib.image.imread(file)


def _diagram(axes: Axes, panel: Panel, num_bins: int, *, legend: bool) -> None:
  bins = jax.tree.map(np.asarray, metrics.reliability(panel.confidence, panel.correct, num_bins=num_bins))
  used = bins.counts > 0
  middle, width = (bins.edges[:-1] + bins.edges[1:])[used] / 2, np.diff(bins.edges)[used]
  accuracy, confidence = bins.accuracy[used], bins.mean_confidence[used]
  low, high = np.minimum(accuracy, confidence), np.maximum(accuracy, confidence)
  # Bins with less than 1% of the predictions are drawn paler, because their accuracy is uncertain.
  weight = np.clip(bins.counts[used] / (0.01 * bins.counts.sum()), 0.3, 1.0)
  for x, w, a, c, lo, hi, alpha in zip(middle, width, accuracy, confidence, low, high, weight, strict=True):
    gap = OVER if c > a else UNDER
    axes.bar(x, lo, w, color=ACCURACY, alpha=0.75 * alpha, edgecolor="white", linewidth=0.8)
    axes.bar(x, hi - lo, w, bottom=lo, color=gap, alpha=0.45 * alpha, edgecolor="white", linewidth=0.8, hatch="///")
    axes.hlines(a, x - w / 2, x + w / 2, color=ACCURACY, linewidth=2, alpha=alpha)
  axes.plot(confidence, confidence, "_", color=INK, markersize=8, markeredgewidth=1.4)
  axes.plot([0, 1], [0, 1], "--", color=INK, linewidth=0.9, alpha=0.7)
  axes.set(xlim=(0, 1), ylim=(0, 1))
  axes.set_title(panel.title, parse_math=False)  # A dollar sign in a user's label is no formula.
  axes.tick_params(labelbottom=False)
  estimate, lower, upper = (100 * panel.error[key] for key in ("estimate", "low", "high"))
  axes.text(0.97, 0.05, f"ECE {estimate:.2f}%\n95% [{lower:.2f}, {upper:.2f}]", ha="right", va="bottom",
            bbox={"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "#bbbbbb", "alpha": 0.92})
  if legend:
    handles = [Line2D([], [], color=ACCURACY, linewidth=2, label="accuracy"),
               Line2D([], [], color=INK, marker="_", linestyle="", markersize=8, label="mean confidence"),
               Patch(facecolor=OVER, alpha=0.45, hatch="///", edgecolor="white", label="gap: overconfident"),
               Patch(facecolor=UNDER, alpha=0.45, hatch="///", edgecolor="white", label="gap: underconfident"),
               Patch(facecolor=ACCURACY, alpha=0.25, label="pale: few predictions")]
    axes.legend(handles=handles, loc="upper left", frameon=False, fontsize=7.5, handlelength=1.4)


def _histogram(axes: Axes, panel: Panel, num_bins: int) -> None:
  counts, edges = np.histogram(panel.confidence, bins=num_bins, range=(0, 1))
  axes.bar((edges[:-1] + edges[1:]) / 2, counts, np.diff(edges), color="#9aa5b1", edgecolor="white", linewidth=0.8)
  mean, accuracy = float(np.mean(panel.confidence)), float(np.mean(panel.correct))
  axes.axvline(mean, color=INK, linewidth=1.2)
  axes.axvline(accuracy, color=ACCURACY, linewidth=1.2, linestyle="--")
  axes.text(0.03, 0.92, f"mean confidence {100 * mean:.1f}% (line)\naccuracy {100 * accuracy:.1f}% (dashed)",
            transform=axes.transAxes, va="top", fontsize=7.5)
  axes.set(xlim=(0, 1), xlabel="confidence")
  axes.margins(y=0.1)
