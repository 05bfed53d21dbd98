"""The figures of a report, from the results of an evaluation."""

from collections.abc import Callable, Mapping
import contextlib
import json
import pathlib
import re

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from calib_jax import metrics
from calib_jax.evaluation import Results
from calib_jax.evaluation import results as names
from calib_jax.evaluation.verdict import class_gaps, class_name
from calib_jax.reports import curves
from calib_jax.reports.reliability import reliability_grid
from calib_jax.reports.style import legend_below, styled

CORRUPTED = re.compile(r"(.+)_([1-5])")
LOGGED = ("train/loss", "validation/nll")
MOST_PANELS, MOST_LINES = 9, 7


@styled
def figures(results: Results, log: pathlib.Path | None = None) -> dict[str, Figure]:
  """Draws every figure that the results have data for.

  Args:
    results: the results.
    log: the ``metrics.jsonl`` of a run, whose curves are drawn.
  Returns: the figures by name, in the order of the report.
  """
  set_name = next(iter(results.tables))
  rows = {_label(results, row): values for row, values in results.values[set_name].items()}
  pairs = {label: (values.confidence.ravel(), values.correct.ravel()) for label, values in rows.items()}
  cells = {label: results.tables[set_name][row[0]][row[1]]
           for label, row in zip(rows, results.values[set_name], strict=True)}
  num_bins = results.settings["num_bins"]
  panels = {f"{label}\nECE {_percent(cells[label]['ece'])}\nnoise floor {100 * cells[label]['ece']['floor']:.1f}%": pair
            for label, pair in list(pairs.items())[:MOST_PANELS]}
  drawn = {"reliability": reliability_grid(panels, num_bins=num_bins)}
  if np.mean(next(iter(pairs.values()))[0] > 0.99) > 0.5:
    drawn["reliability_log_odds"] = reliability_grid(panels, num_bins=num_bins, log_odds=True)
  lines = dict(list(pairs.items())[:MOST_LINES])
  drawn["accuracy_confidence"] = _with_legend(curves.accuracy_confidence_plot, lines)
  drawn["risk_coverage"] = _with_legend(curves.risk_coverage_plot, lines)
  num_classes = results.settings["sets"][set_name]["num_classes"]
  gaps = {label: class_gaps(values, num_classes) for label, values in list(rows.items())[:2]}
  if np.isfinite(next(iter(gaps.values())).error).any():
    classes = [_text(class_name(results, k)) for k in range(num_classes)]
    drawn["classes"] = _with_legend(lambda found: curves.class_gaps_plot(found, classes), gaps)
  if errors := _by_severity(results, set_name):
    drawn["severity"] = _with_legend(curves.severity_plot, errors)
  if logged := _logged(log):
    drawn["training"] = _with_legend(curves.training_plot, logged)
  if len(cells) > 1:
    drawn["pareto"] = _with_legend(curves.pareto_plot, {
      label: (row["accuracy"], row["ece"]) for label, row in list(cells.items())[:MOST_LINES]})
  return drawn


def _text(label: str) -> str:
  """Returns a label as Matplotlib takes it: a dollar sign in a user's label is no formula."""
  return label.replace("$", r"\$")


def _label(results: Results, row: tuple[str, str]) -> str:
  return _text(names.row_name(results, row))


def _percent(cell: Mapping[str, float]) -> str:
  return f"{100 * cell['estimate']:.1f}% [{100 * cell['low']:.1f}, {100 * cell['high']:.1f}]"


def _with_legend(draw: Callable[..., Axes], data: Mapping) -> Figure:
  axes = draw(data)
  legend_below(axes.figure, axes)
  return axes.figure


def _by_severity(results: Results, test_set: str) -> dict[str, dict[int, tuple[float, float]]]:
  """Returns the mean ECE over corruption types and its within-subject standard error, by row and severity."""
  found: dict[int, dict[str, str]] = {}
  for name in results.tables:
    match = CORRUPTED.fullmatch(name)
    if match and results.settings["sets"][name]["kind"] == "shifted":
      found.setdefault(int(match[2]), {})[match[1]] = name
  errors: dict[str, dict[int, tuple[float, float]]] = {}
  rows = list(results.values[test_set])[:MOST_LINES]
  for severity in sorted(found):
    values = np.array([[results.tables[name][model][label]["ece"]["estimate"] for model, label in rows]
                       for name in found[severity].values()], np.float32)
    error = float(metrics.within_subject_sem(values)) if min(values.shape) > 1 else 0.0
    for row, mean in zip(rows, values.mean(0), strict=True):
      start = (results.tables[test_set][row[0]][row[1]]["ece"]["estimate"], 0.0)
      errors.setdefault(_label(results, row), {0: start})[severity] = (float(mean), error)
  return errors


def _logged(log: pathlib.Path | None) -> dict[str, tuple[list[float], list[float]]]:
  """Returns the mean over seeds of what a run logged, by the name of the value."""
  found: dict[str, dict[int, list[float]]] = {name: {} for name in LOGGED}
  if log is None or not log.exists():
    return {}
  for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
    with contextlib.suppress(ValueError, TypeError, KeyError):  # A damaged line must not stop the page.
      entry = json.loads(line)
      for name in LOGGED:
        if name in entry:
          found[name].setdefault(entry["step"], []).append(float(entry[name]))
  return {name: ([*by_step], [float(np.mean(values)) for values in by_step.values()])
          for name, by_step in found.items() if len(by_step) > 1}
