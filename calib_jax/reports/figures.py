"""The figures of a report, from the results of an evaluation."""

from collections.abc import Callable, Mapping
import contextlib
import pathlib

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from calib_jax._system.errors import UserError, printable
from calib_jax._system.files import parse_json
from calib_jax.evaluation import Results
from calib_jax.evaluation import results as names
from calib_jax.evaluation.verdict import class_gaps, class_name
from calib_jax.reports import curves
from calib_jax.reports.reliability import reliability_grid
from calib_jax.reports.style import legend_below, styled

LOGGED = ("train/loss", "validation/nll")
MOST_PANELS, MOST_LINES = 9, 7


@styled
def figures(results: Results, log: pathlib.Path | Mapping[str, pathlib.Path] | None = None) -> dict[str, Figure]:
  """Draws every figure that the results have data for.

  Args:
    results: the results.
    log: the ``metrics.jsonl`` of a run, whose curves are drawn, or those of several runs by name.

  Returns:
    The figures by name, in the order of the report.
  """
  set_name = next(iter(results.tables))
  rows = {names.row_name(results, row): values for row, values in results.values[set_name].items()}
  pairs = {label: (values.confidence.ravel(), values.correct.ravel()) for label, values in rows.items()}
  cells = {label: results.tables[set_name][row[0]][row[1]]
           for label, row in zip(rows, results.values[set_name], strict=True)}
  num_bins = results.settings["num_bins"]
  panels = {f"{printable(label)}\nECE {_percent(cells[label]['ece'])}\n"
            f"noise floor {100 * cells[label]['ece']['floor']:.1f}%": pair
            for label, pair in list(pairs.items())[:MOST_PANELS]}
  drawn = {"reliability": reliability_grid(panels, num_bins=num_bins),
           "reliability_log_odds": reliability_grid(panels, num_bins=num_bins, log_odds=True)}
  lines = dict(list(pairs.items())[:MOST_LINES])
  drawn["accuracy_confidence"] = _with_legend(curves.accuracy_confidence_plot, lines)
  drawn["risk_coverage"] = _with_legend(curves.risk_coverage_plot, lines)
  num_classes = results.settings["sets"][set_name]["num_classes"]
  gaps = {label: class_gaps(values, num_classes) for label, values in list(rows.items())[:2]}
  if np.isfinite(next(iter(gaps.values())).error).any():
    classes = [class_name(results, k) for k in range(num_classes)]
    drawn["classes"] = _with_legend(lambda found: curves.class_gaps_plot(found, classes), gaps)
  if results.severity:
    drawn["severity"] = _with_legend(curves.severity_plot, {
      label: {level: (found["mean"], found["within_subject_sem"]) for level, found in by_level.items()}
      for label, by_level in list(results.severity.items())[:MOST_LINES]})
  if logged := _of_runs(log):
    drawn["training"] = _with_legend(curves.training_plot, logged)
  if len(cells) > 1:
    drawn["pareto"] = _with_legend(curves.pareto_plot, {
      label: (row["accuracy"], row["ece"]) for label, row in list(cells.items())[:MOST_LINES]})
  return drawn


def is_steep(results: Results) -> bool:
  """Returns whether most confidences of the first row are above 0.99, so that axes of log-odds show more."""
  values = next(iter(next(iter(results.values.values())).values()))
  return bool(np.mean(values.confidence > 0.99) > 0.5)


def _percent(cell: Mapping[str, float]) -> str:
  return f"{100 * cell['estimate']:.1f}% [{100 * cell['low']:.1f}, {100 * cell['high']:.1f}]"


def _with_legend(draw: Callable[..., Axes], data: Mapping) -> Figure:
  axes = draw(data)
  legend_below(axes.figure, axes)
  return axes.figure


def _of_runs(log: pathlib.Path | Mapping[str, pathlib.Path] | None) -> dict[str, tuple[list[float], list[float]]]:
  """Returns what runs logged, by the name of the value, which begins with that of the run if there are several."""
  if not isinstance(log, Mapping):
    return _logged(log)
  return {f"{run}: {name}": curve for run, path in log.items() for name, curve in _logged(path).items()}


def _logged(log: pathlib.Path | None) -> dict[str, tuple[list[float], list[float]]]:
  """Returns the mean over seeds of what a run logged, by the name of the value."""
  found: dict[str, dict[int, list[float]]] = {name: {} for name in LOGGED}
  if log is None or not log.is_file():
    return {}
  for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
    with contextlib.suppress(UserError, ValueError, TypeError, KeyError):  # A damaged line must not stop the page.
      entry = parse_json(line, "a line")
      for name in LOGGED:
        if name in entry:
          found[name].setdefault(entry["step"], []).append(float(entry[name]))
  return {name: ([*by_step], [float(np.mean(values)) for values in by_step.values()])
          for name, by_step in found.items() if len(by_step) > 1}
