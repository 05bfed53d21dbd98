"""The figure of the leaderboard: rankings of the methods above, and what they trade and depend on below."""

from collections.abc import Sequence
import itertools
import pathlib

import numpy as np
import pandas as pd
from scipy import stats

from calib_jax.evaluation.reports import style
from experiments.common import comparison, ranking, scores
from experiments.common.figures import png
from experiments.leaderboard import conditions
from experiments.leaderboard.methods import COMBINED
from experiments.leaderboard.page import BASELINE


def figure(rows: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws the leaderboard in one PNG; the lower panels leave out methods that have collapsed."""
  names = ranking.table(ranking.of_methods(rows, "nll", "none"))[0]
  order = sorted(names, key=ranking.means(rows, "nll", "none").get)
  above = 0.16 * len(order) + 1
  with png(path, 9.5, above + 3.2) as drawn:
    upper, lower = drawn.subfigures(2, 1, height_ratios=(above, 3.2))
    _ranks(upper.subplots(1, 3, width_ratios=(1.2, 0.8, 0.7)), rows, order)
    sizes, panels = conditions.by_size(rows), [_trade]
    panels += [_shifts] if scores.SHIFTED[0] in rows else []
    panels += [lambda axes, rows, order: _sizes(axes, sizes)] if sizes else []
    trained = ranking.trained(rows)  # A method that has collapsed would press all others into a corner.
    known = set(trained["method"])
    for draw, axes in zip(panels, np.ravel(lower.subplots(1, len(panels))), strict=True):
      draw(axes, trained, [name for name in order if name in known])


def _colour(name: str) -> str:
  return style.COLOURS[1] if name in COMBINED else style.COLOURS[0]


def _ranks(panels, rows: pd.DataFrame, order: Sequence[str]) -> None:
  before, after = (ranking.means(rows, "nll", calibrator) for calibrator in ("none", "TS"))
  names, values = ranking.table(ranking.of_methods(rows, "nll", "none"))
  ranks = dict(zip(names, ranking.mean_ranks(values), strict=True))
  left, middle, right = panels
  low, high = np.quantile([before[name] for name in order], (0.25, 0.75))
  most = high + 3 * (high - low)  # What lies beyond is drawn at the edge, with its number.
  for place, name in enumerate(order):
    left.plot([min(means[name], most) for means in (before, after)], [place, place], color=style.PALE, lw=1, zorder=1)
    if before[name] > most:
      beyond = " and ".join(f"{means[name]:.2f}" for means in (before, after) if means[name] > most)
      left.annotate(f"{beyond} →", (most, place), (4, 0), textcoords="offset points", fontsize=6, va="center")
    middle.plot(ranks[name], place, "o", color=style.INK, ms=3.5)
  for means, colour, label in ((before, style.COLOURS[0], "as trained"), (after, style.COLOURS[2], "after TS")):
    left.plot([min(means[name], most) for name in order], range(len(order)), "o", color=colour, ms=3.5, label=label)
  errors = conditions.by_convention(rows, "none")
  table = np.array([stats.rankdata([by_method[name] for name in order]) for by_method in errors.values()]).T
  right.imshow(table, aspect="auto", cmap="cividis")
  right.set_xticks(range(len(errors)), [name.replace("_", " ") for name in errors], rotation=90, fontsize=6)
  right.set_title("rank of ECE, by tool (blue: best)", fontsize=7)
  for axes, label in ((left, "NLL, nats"), (middle, "mean rank of NLL, as trained")):
    axes.set(ylim=(len(order) - 0.5, -0.5), xlabel=label)
  for axes in (middle, right):
    axes.set_yticks(range(len(order)), [])
  left.set_yticks(range(len(order)), order, fontsize=6)
  for label, name in zip(left.get_yticklabels(), order, strict=True):
    label.set_color(style.COLOURS[1] if name in COMBINED else style.INK)
  left.legend(frameon=False, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, handletextpad=0.3)


def _trade(axes, rows: pd.DataFrame, order: Sequence[str]) -> None:
  """Accuracy against ECE. The names of cross entropy and of methods that no other beats in both stand beside them."""
  accuracy, error = (ranking.means(rows, column, "none") for column in ("accuracy", "ece"))
  front = ranking.pareto([accuracy[name] for name in order], [error[name] for name in order])
  heights = itertools.cycle((5, 14, 23, 32))  # Points above the dot, so that the names of neighbours do not meet.
  for name, best in sorted(zip(order, front, strict=True), key=lambda pair: accuracy[pair[0]]):
    x, y = 100 * accuracy[name], 100 * error[name]
    axes.plot(x, y, "o", color=_colour(name), ms=6 if best else 3, alpha=1 if best else 0.6)
    if best or name == BASELINE:
      axes.annotate(name, (x, y), (0, next(heights)), textcoords="offset points", fontsize=6, ha="center",
                    arrowprops={"arrowstyle": "-", "lw": 0.4, "color": style.INK})
  axes.plot([], [], "o", color=style.COLOURS[0], ms=6, label="no other is better in both")
  axes.plot([], [], "o", color=style.COLOURS[1], ms=3, label="a combination of no paper")
  axes.set(xlabel="accuracy, %", ylabel="ECE as trained, %", ylim=(0, None))
  axes.legend(frameon=False, fontsize=6, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, handletextpad=0.3)


def _shifts(axes, rows: pd.DataFrame, order: Sequence[str]) -> None:
  for calibrator, colour, label in (("none", style.COLOURS[0], "as trained"), ("TS", style.COLOURS[2], "after TS")):
    clean, shifted = (ranking.means(rows, column, calibrator) for column in ("ece", "ece_shifted"))
    axes.plot([100 * clean[name] for name in order], [100 * shifted[name] for name in order], "o", color=colour, ms=3,
              label=label)
  axes.set(xlabel="ECE, clean images, %", ylabel="ECE, corrupted images, %", ylim=(0, None))
  axes.legend(frameon=False, fontsize=6, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, handletextpad=0.3)


def _sizes(axes, by_label: dict[str, dict[str, comparison.BySeed]]) -> None:
  for i, (label, by_number) in enumerate(by_label.items()):
    means = [by_seed.mean for by_seed in by_number.values()]
    axes.plot(range(len(means)), means, marker=style.MARKERS[i], color=style.COLOURS[i], ms=3.5, lw=1, label=label)
    axes.set_xticks(range(len(means)), list(by_number))
  axes.set(xlabel="validation examples for the calibrator", ylabel="NLL, nats, mean over methods")
  axes.legend(frameon=False, fontsize=6)
