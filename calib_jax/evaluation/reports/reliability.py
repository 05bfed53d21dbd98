"""Reliability diagrams: accuracy against confidence by bin, with intervals, a smooth curve and a histogram."""

from collections.abc import Mapping, Sequence
import functools
import io
from typing import Any

import jax
from matplotlib.axes import Axes
from matplotlib.figure import Figure
import matplotlib.image
import numpy as np

from calib_jax import _checks as checks
from calib_jax import metrics
from calib_jax._system.errors import printable
from calib_jax.evaluation import Predictions, Results
from calib_jax.evaluation.numbers import error_text
from calib_jax.evaluation.reports.report_figure import FIGURES, MOST_PANELS, ReportFigure, Shown, pooled_pairs
from calib_jax.evaluation.reports.style import COLOURS, INK, PALE, WIDTH, WIDTHS, legend_below, new_axes, plain, styled
from calib_jax.evaluation.resampled_errors import Ordered, units

FEW = 5  # Bins with fewer examples are hollow, because their accuracy says little.
TICKS = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)
NEAR_TICKS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)  # For axes that hold few of TICKS.
POOLED = (" The predictions of all seeds are pooled, and their intervals take them for independent; the ECE in the "
          "titles is the mean over seeds.")
TALLER = 3.2  # How many times as high as its histogram a diagram is.
CELLS = 1000  # Equal cells of [0, 1] whose sums the smooth curve is made of.


@styled
def reliability_diagram(confidence: np.ndarray, correct: np.ndarray, *, num_bins: int = 15, log_odds: bool = False,
                        axes: Axes | None = None, weights: np.ndarray | None = None) -> Axes:
  """Draws accuracy against confidence by bin, with 95% intervals, and a smooth curve with its 95% band.

  A bin's point is at its mean confidence and accuracy, with Wilson's interval, which is too wide for credits. It is
  hollow if the bin has fewer than five examples. The curve is a kernel mean of ``correct``. With weights, a bin has as
  many examples as equal ones say as much, (Σ w)² / Σ w².

  Args:
    confidence: floats ``[N]``.
    correct: bools ``[N]``, zeros and ones, or credits in [0, 1], whose means the bins show.
    num_bins: the number of equal-width bins.
    log_odds: whether to draw on axes of log-odds, with equal-mass bins, for confidences that are mostly near 1.
    axes: where to draw; None for a new figure.
    weights: floats ``[N]`` above 0, the weights of the predictions; None where all are equal.

  Returns:
    The axes.

  >>> axes = reliability_diagram(np.array([0.6, 0.7, 0.9, 0.8]), np.array([True, False, True, True]))
  >>> axes.get_xlabel()
  'confidence'
  """
  axes = new_axes() if axes is None else axes
  confidence, correct = np.asarray(confidence, np.float32), np.asarray(checks.credits(confidence, correct))
  weights = None if weights is None else np.asarray(weights, np.float64)
  counts, means, accuracy, _ = _bins(confidence, correct, num_bins, log_odds, weights)
  used = counts > 0
  counts, means, accuracy = counts[used], means[used], accuracy[used]
  low, high = _wilson(accuracy, counts)
  if log_odds:  # An accuracy of 1 is at infinity, so that points stay half an example away from it.
    edge = 0.5 / counts
    accuracy, means = np.clip(accuracy, edge, 1 - edge), np.clip(means, 1e-7, 1 - 1e-7)
    low, high = np.clip(low, edge, 1 - edge), np.clip(high, edge, 1 - edge / 10)
  full = counts >= FEW
  diagonal = 1 / (1 + np.exp(-np.linspace(-16, 16, 200))) if log_odds else [0, 1]
  axes.plot(diagonal, diagonal, "--", color=INK, linewidth=0.8, label="perfect calibration")
  if not log_odds:
    x, y, error = _smooth(confidence, correct, weights)
    axes.fill_between(x, np.clip(y - error, 0, 1), np.clip(y + error, 0, 1), color=COLOURS[0], alpha=0.2, linewidth=0)
    axes.plot(x, y, color=COLOURS[0], linewidth=1.2, label="smooth curve, 95% band")
  spread = np.maximum([accuracy - low, high - accuracy], 0)
  axes.errorbar(means, accuracy, spread, fmt="none", ecolor=COLOURS[1], elinewidth=0.9, capsize=1.5)
  for chosen, face, label in ((full, COLOURS[1], "bin, 95% interval"), (~full, "white", f"bin of fewer than {FEW}")):
    if chosen.any():  # An empty line that is not clipped would count as a point in the figure's corner.
      axes.plot(means[chosen], accuracy[chosen], "o", color=COLOURS[1], markersize=4, markerfacecolor=face,
                clip_on=False, zorder=3, label=label)
  if log_odds:
    axes.set(xscale="logit", yscale="logit")
    _log_odds_axes([axes], *((0.7 * values.min(), 1 - 0.7 * (1 - values.max()))
                             for values in (means, np.concatenate([low, high, means]))))
    axes.tick_params("x", rotation=45)
  else:
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
  axes.set(xlabel="confidence", ylabel="accuracy")
  return axes


@styled
def confidence_histogram(confidence: np.ndarray, *, num_bins: int = 15, axes: Axes | None = None,
                         weights: np.ndarray | None = None) -> Axes:
  """Draws a histogram of confidences, on a logarithmic axis if more than half of them are in one bin.

  Args:
    confidence: floats ``[N]``.
    num_bins: the number of equal-width bins.
    axes: where to draw; None for a new figure.
    weights: example weights ``[N]``, floats above 0; None where all are equal.

  Returns:
    The axes.
  """
  axes = new_axes(height=WIDTH / 3) if axes is None else axes
  confidence = np.asarray(confidence, np.float32)
  counts, *_, share = _bins(confidence, np.zeros(len(confidence), bool), num_bins, False, weights)
  counts = counts if weights is None else share * np.sum(weights)
  edges = np.linspace(0, 1, len(counts) + 1)
  axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=PALE, edgecolor="white", linewidth=0.6)
  axes.set(xlim=(0, 1), xlabel="confidence", ylabel="examples" if weights is None else "weight")
  if counts.max() > counts.sum() / 2:
    _log_counts(axes)
  return axes


def _log_counts(axes: Axes) -> None:
  """Gives a histogram a logarithmic axis."""
  axes.set_yscale("log")
  axes.set_ylim(bottom=0.5)
  axes.set_ylabel(axes.get_ylabel().removesuffix(" (log)") + " (log)")


def _log_odds_axes(every: Sequence[Axes], x_limits: tuple[float, float], y_limits: tuple[float, float]) -> None:
  """Gives axes of log-odds the same limits and ticks."""
  for axis, limits in (("x", x_limits), ("y", y_limits)):
    near = sum(limits[0] <= tick <= limits[1] for tick in TICKS) < 4
    shown = [tick for tick in (NEAR_TICKS if near else TICKS) if limits[0] <= tick <= limits[1]]
    for axes in every:
      axes.set(**{f"{axis}lim": limits, f"{axis}ticks": shown, f"{axis}ticklabels": [f"{tick:g}" for tick in shown]})
      axes.minorticks_off()


@styled
def reliability_grid(panels: Mapping[str, tuple[Any, ...]], *, num_bins: int = 15, log_odds: bool = False,
                     width: str | None = None) -> Figure:
  """Draws several reliability diagrams side by side, each above its histogram, all on the same axes.

  Args:
    panels: ``(confidence [N], correct [N])`` by title, and as a third element weights ``[N]``, if there are any.
    num_bins: the number of bins.
    log_odds: whether to draw on axes of log-odds, without histograms.
    width: ``"single"`` or ``"double"``, a column of a paper with two panels in a row, or both with four; None for 2.5
      inches a panel, with at most five in a row.

  Returns:
    The figure.
  """
  most = {"single": 2, "double": 4, None: 5}[width]
  rows = -(-len(panels) // most)
  columns = -(-len(panels) // rows)  # As many in each row: four are two rows of two.
  each = 1 if log_odds else 2
  inches = WIDTHS[width] if width else max(2.5 * columns, WIDTH)
  panel = max(min(inches / columns, 2.5), 1.6)  # The height of a diagram, about its width.
  figure = Figure(figsize=(inches, ((panel + 0.1) if log_odds else 1.4 * panel) * rows + 0.5), layout="constrained")
  grid = figure.subplots(each * rows, columns, squeeze=False, height_ratios=([1] if log_odds else [TALLER, 1]) * rows)
  for i, (title, (confidence, correct, *weights)) in enumerate(panels.items()):
    axes, weighted = grid[each * (i // columns), i % columns], {"weights": weights[0]} if weights else {}
    reliability_diagram(confidence, correct, num_bins=num_bins, log_odds=log_odds, axes=axes, **weighted)
    axes.set_title(plain(title, lines=True))
    axes.set_anchor("N")  # Titles are then above the place that the layout has for the axes.
    if not log_odds:
      axes.set_xlabel("")
      below = grid[2 * (i // columns) + 1, i % columns]
      confidence_histogram(confidence, num_bins=num_bins, axes=below, **weighted)
      below.set_box_aspect(1 / TALLER)  # As wide as the square above, so that bars are below their points.
      below.set_anchor("N")
  upper, lower = grid[::each].flat[:len(panels)], grid[1::2].flat[:len(panels)]
  if log_odds:
    _log_odds_axes(upper, *((min(x), max(y)) for x, y in (
      zip(*(axes.get_xlim() for axes in upper), strict=True), zip(*(axes.get_ylim() for axes in upper), strict=True))))
  else:
    is_log, most_examples = any(axes.get_yscale() == "log" for axes in lower), max(axes.get_ylim()[1] for axes in lower)
    for axes in lower:
      if is_log:
        _log_counts(axes)
      axes.set_ylim(top=most_examples)
  for axes in (*upper, *lower):
    if not axes.get_subplotspec().is_first_col():  # All have the axes of the first column.
      axes.set_ylabel("")
      axes.tick_params("y", labelleft=False)
  for i in range(len(panels), rows * columns):
    for row in range(each):
      grid[each * (i // columns) + row, i % columns].set_visible(False)
  legend_below(figure, max((axes for axes in grid.flat), key=lambda axes: len(axes.get_legend_handles_labels()[0])))
  return figure


def _report(shown: Shown, *, log_odds: bool = False) -> Figure:
  """Draws the first rows under titles with their errors."""
  rows, titles = dict(list(shown.rows.items())[:MOST_PANELS]), []
  for name, row in rows.items():
    error, floor, p_value = error_text(row.estimates["ece"], shown.results.num_resamples).split(", ")
    titles.append(f"{printable(name)}\n{error}, {p_value}\n{floor}")
  return reliability_grid(dict(zip(titles, pooled_pairs(rows).values(), strict=True)), num_bins=shown.results.num_bins,
                          log_odds=log_odds, width=shown.width)


def _is_steep(results: Results) -> bool:
  """Returns whether most confidences of the first row are above 0.99, so that axes of log-odds show more."""
  row = next(iter(results.first[1].rows.values()))
  return bool(np.mean(row.values.confidence > 0.99) > 0.5)


def _finding(shown: Shown) -> str:
  lines = []
  for name, row in list(shown.rows.items())[:MOST_PANELS]:
    excess, error = 100 * row.excess.estimate, row.estimates["ece"]
    lines.append(f"the mean confidence of {name} is {abs(excess):.1f} points {'above' if excess > 0 else 'below'} its "
                 f"accuracy, and its ECE is {100 * error.value:.1f}% where a calibrated model would show "
                 f"{100 * error.floor:.1f}%")
  return f"{'; '.join(lines)}."


FIGURES["reliability"] = ReportFigure(
  _report, "Accuracy against confidence. Points are bins with 95% intervals, hollow with fewer than five examples; the "
  "curve is a kernel mean with its 95% band. Below are the confidences.", place=10, wide=True, pooled=POOLED,
  finding=_finding)


def _log_odds_finding(shown: Shown) -> str:
  lines = []
  for name, (confidence, correct, *weights) in list(pooled_pairs(shown.rows).items())[:MOST_PANELS]:
    top = np.argsort(-confidence, kind="stable")[:-(-len(correct) // 10)]
    means = (100 * np.average(x[top], weights=weights[0][top] if weights else None) for x in (confidence, correct))
    lines.append(f"{name} {' and '.join(f'{x:.2f}%' for x in means)}")
  return f"mean confidence and accuracy of the most confident tenth: {'; '.join(lines)}."


FIGURES["reliability_log_odds"] = ReportFigure(
  functools.partial(_report, log_odds=True),
  "The same on axes of log-odds, which separate confidences near 1, and with bins of equal size.", place=20,
  wide=True, pooled=POOLED, summary="Reliability on axes of log-odds", is_open=_is_steep, finding=_log_odds_finding)


def picture(title: str, predictions: Predictions, *, num_bins: int = 15) -> np.ndarray:
  """Draws the reliability diagram of ``predictions`` as an image, for event files.

  Args:
    title: the title above the diagram.
    predictions: the predictions of one model.
    num_bins: the number of bins.

  Returns:
    ``[H, W, 4]`` in [0, 1].
  """
  confidence, correct = metrics.top_label(jax.nn.softmax(predictions.logits), predictions.labels)
  figure = reliability_grid({title: (np.asarray(confidence), np.asarray(correct))}, num_bins=num_bins)
  file = io.BytesIO()
  figure.savefig(file, dpi=160)
  file.seek(0)
  return matplotlib.image.imread(file)


def _bins(confidence, correct, num_bins: int, equal_mass: bool, weights=None) -> tuple[np.ndarray, ...]:
  """Returns counts, mean confidences, accuracies and shares of bins; 0 where a bin is empty."""
  if correct.dtype != bool:  # Integers count correct examples, and not credits.
    count, mean, _, share = _bins(confidence, np.zeros(len(correct), bool), num_bins, equal_mass, weights)
    credit = metrics.reliability(confidence, correct, num_bins=num_bins, weights=weights,
                                 binning="equal_mass" if equal_mass else "equal_width").accuracy
    return count, mean, np.nan_to_num(credit), share
  ordered = Ordered(confidence, num_bins, units(weights))
  sums = ordered.sums(np.ones((1, len(correct)), bool), correct)
  (size,), (num_correct,), (gap,) = sums.equal_mass if equal_mass else sums.equal_width
  count = size
  if weights is not None:  # Bins are ranges of the order, so that their sums of squares are between their ends.
    weight, ends = ordered.weights.astype(float), np.append(0, np.cumsum(size))
    squares = np.diff(np.interp(ends, np.append(0, weight.cumsum()), np.append(0, (weight**2).cumsum())))
    count = size**2 / np.where(squares > 0, squares, 1)
  divisor = np.maximum(size, 1)
  return count, (num_correct + gap) / divisor, num_correct / divisor, size / size.sum()


def _wilson(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns Wilson's 95% interval of a share of ``count`` examples."""
  z = 1.96
  middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
  margin = z / (1 + z**2 / count) * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
  return middle - margin, middle + margin


def _smooth(confidence, correct, weights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns a kernel mean of ``correct`` where there are confidences: places, values and half-widths of a 95% band."""
  index, weights = np.minimum((confidence * CELLS).astype(int), CELLS - 1), np.ones(1) if weights is None else weights
  weights = weights / weights.mean() * np.ones(len(confidence))
  cells, num_correct, squares = (np.bincount(index, x, CELLS) for x in (weights, weights * correct, weights**2))
  place = (np.arange(CELLS) + 0.5) / CELLS
  used = cells > 0
  cells, num_correct, squares, place = cells[used], num_correct[used], squares[used], place[used]
  total = cells.sum()
  mean = (cells * place).sum() / total
  deviation = np.sqrt((cells * (place - mean) ** 2).sum() / total)
  width = max(1.06 * deviation * (total**2 / squares.sum()) ** -0.2, 0.02)
  x = np.linspace(place.min(), place.max(), 200) if len(place) > 1 else place
  kernel = np.exp(-(((x[:, None] - place) / width) ** 2) / 2)
  weight = (kernel * cells).sum(1)
  y = (kernel * num_correct).sum(1) / weight
  # An outcome of probability y has the variance y (1 - y); their weighted mean has this times Σ weight².
  variance = np.maximum(y * (1 - y), 1e-4) * (kernel**2 * squares).sum(1) / weight**2
  return x, y, 1.96 * np.sqrt(variance)
