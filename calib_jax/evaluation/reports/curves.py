"""Curves over confidence thresholds, classes, severities, epochs and rows of a table."""

from collections.abc import Mapping, Sequence
import contextlib
import pathlib

from matplotlib.axes import Axes
import numpy as np
from scipy import special

from calib_jax._system.errors import UserError
from calib_jax._system.files import parse_json
from calib_jax.evaluation import Estimate
from calib_jax.evaluation.reports.report_figure import FIGURES, ReportFigure, Shown, pooled_pairs
from calib_jax.evaluation.reports.style import COLOURS, INK, MARKERS, WIDTH, new_axes, plain, styled
from calib_jax.evaluation.resampled_errors import Ordered, risk_curve
from calib_jax.evaluation.subgroups import ClassGaps, class_gaps

MOST_POINTS = 400  # Points of a curve.
LOGGED = ("train/loss", "validation/nll")
Curve = tuple[list[int], list[float]]  # Steps and values.


def _line(i: int) -> dict:
  return {"color": COLOURS[i % len(COLOURS)], "linestyle": ("-", "--", "-.", ":")[i // len(COLOURS) % 4]}


def _from_zero(axes: Axes) -> None:
  """Begins the vertical axis just below 0, so that points at 0 are whole."""
  axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])


@styled
def risk_coverage_plot(panels: Mapping[str, tuple[np.ndarray, np.ndarray]], *, axes: Axes | None = None) -> Axes:
  """Draws the share of errors among the most confident predictions against their share, with exact 95% bands.

  Args:
    panels: ``(confidence [N], correct [N])`` by label.
    axes: where to draw; None for a new figure.

  Returns:
    The axes.
  """
  axes = new_axes(height=0.75 * WIDTH) if axes is None else axes
  for i, (label, (confidence, correct)) in enumerate(panels.items()):
    confidence, correct = np.asarray(confidence), np.asarray(correct)
    sums = Ordered(confidence, 1).sums(np.ones((1, len(correct)), int), correct)
    count, risk = risk_curve(sums.size[0], sums.correct[0])
    shown = np.unique(np.linspace(min(9, len(count) - 1), len(count) - 1, MOST_POINTS).astype(int))
    coverage, risk, count = count[shown] / len(count), risk[shown], count[shown]
    wrong = risk * count  # The exact interval, because the surest may all be right (Clopper & Pearson 1934).
    low = special.betaincinv(wrong, count - wrong + 1, 0.025)
    high = special.betainccinv(wrong + 1, count - wrong, 0.025)
    axes.fill_between(coverage, 100 * np.nan_to_num(low), 100 * np.nan_to_num(high, nan=1.0), linewidth=0, alpha=0.12,
                      color=_line(i)["color"])
    axes.plot(coverage, 100 * risk, linewidth=1.2, label=plain(label), **_line(i))
  axes.set(xlim=(0, 1), xlabel="coverage: share of predictions kept", ylabel="errors among them, %")
  axes.set_ylim(bottom=0)
  return axes


def _risk_coverage_finding(shown: Shown) -> str:
  lines = []
  for name, (confidence, correct) in pooled_pairs(shown.lines).items():
    half = np.argsort(-confidence, kind="stable")[:-(-len(correct) // 2)]
    lines.append(f"{name} {100 * np.mean(~correct[half]):.1f}% and {100 * np.mean(~correct):.1f}%")
  return f"errors among the more confident half, and among all: {'; '.join(lines)}."


def _risk_coverage(shown: Shown) -> Axes | None:
  if shown.results.first[1].num_effective is not None:
    return None  # It counts examples.
  axes, asked = risk_coverage_plot(pooled_pairs(shown.lines)), shown.results.asked
  if asked is None or asked.risk is None:
    return axes
  axes.axhline(100 * asked.risk, color=INK, linewidth=0.8, linestyle=":", label=f"{100 * asked.risk:g}%, as asked")
  by_row = shown.results.sections["uses"][shown.results.first[0]]
  for i, name in enumerate(shown.lines):
    if by_row.get(name, {}).get("accepted"):
      use, errors = by_row[name], by_row[name]["errors"]
      axes.errorbar(use["accepted"], 100 * errors.estimate, fmt=MARKERS[i % len(MARKERS)], markersize=3.5,
                    yerr=[[100 * (errors.estimate - errors.low)], [100 * (errors.high - errors.estimate)]],
                    color=_line(i)["color"], capsize=2, label=f"cut {use['cut']:.4g} of {plain(name)}")
  return axes


FIGURES["risk_coverage"] = ReportFigure(
  _risk_coverage,
  "Share of errors among the most confident predictions, with 95% bands.", place=40,
  pooled=" The predictions of all seeds are pooled, and their intervals take them for independent.",
  finding=_risk_coverage_finding)


@styled
def accuracy_confidence_plot(panels: Mapping[str, tuple[np.ndarray, np.ndarray]], *, axes: Axes | None = None) -> Axes:
  """Draws the accuracy of the predictions whose confidence is at least a threshold, against the threshold.

  Args:
    panels: ``(confidence [N], correct [N])`` by label, and as a third element weights ``[N]``, if there are any.
    axes: where to draw; None for a new figure.

  Returns:
    The axes.
  """
  axes = new_axes(height=0.75 * WIDTH) if axes is None else axes
  axes.plot([0, 1], [0, 100], "--", color=INK, linewidth=0.8, label="accuracy = threshold")
  for i, (label, (confidence, correct, *weights)) in enumerate(panels.items()):
    order = np.argsort(np.asarray(confidence), kind="stable")
    ordered, right = np.asarray(confidence)[order], np.asarray(correct)[order]
    weight = weights[0][order] if weights else np.ones(len(right), int)
    above = np.cumsum((right * weight)[::-1])[::-1] / np.cumsum(weight[::-1])[::-1]
    threshold = np.linspace(0, 1, MOST_POINTS)
    place = np.searchsorted(ordered, threshold)
    enough = place <= len(ordered) - min(5, len(ordered))  # The accuracy of fewer than five examples says little.
    axes.plot(threshold[enough], 100 * above[place[enough]], linewidth=1.2, label=plain(label), **_line(i))
  axes.set(xlim=(0, 1), ylim=(0, 101), xlabel="threshold on confidence", ylabel="accuracy above it, %")
  return axes


def _accuracy_confidence_finding(shown: Shown) -> str:
  lines = []
  for name, (confidence, correct, *weights) in pooled_pairs(shown.lines).items():
    above, weight = confidence >= 0.9, weights[0] if weights else np.ones(len(correct))
    right = 100 * np.average(correct[above], weights=weight[above]) if above.any() else 0.0
    accuracy = f", and {right:.1f}% of them are right" if above.any() else ""
    lines.append(f"{name} {100 * np.average(above, weights=weight):.0f}% of predictions{accuracy}")
  return f"with a confidence of at least 0.9: {'; '.join(lines)}."


FIGURES["accuracy_confidence"] = ReportFigure(
  lambda shown: accuracy_confidence_plot(pooled_pairs(shown.lines)),
  "Accuracy of the predictions whose confidence is at least a threshold.", place=30,
  pooled=" The predictions of all seeds are pooled.", finding=_accuracy_confidence_finding)


@styled
def class_gaps_plot(gaps: Mapping[str, ClassGaps], names: Sequence[str], *, most: int = 15, axes: Axes | None = None
                    ) -> Axes:
  """Draws the confidence minus the accuracy of each predicted class with 95% intervals, the worst class first.

  Args:
    gaps: the gaps of each row by label; the first row decides which classes are worst.
    names: the names of the K classes.
    most: the number of classes that are drawn.
    axes: where to draw; None for a new figure.

  Returns:
    The axes.
  """
  first = next(iter(gaps.values()))
  predicted = np.flatnonzero(np.isfinite(first.error))
  order = predicted[np.argsort(-np.abs(first.gap[predicted]), kind="stable")][:most]
  axes = new_axes(height=0.9 + 0.22 * max(len(order), 3)) if axes is None else axes
  axes.axvline(0, color=INK, linewidth=0.8, linestyle="--")
  for i, (label, of_row) in enumerate(gaps.items()):
    place = np.arange(len(order)) + 0.25 * (i - (len(gaps) - 1) / 2)
    axes.errorbar(100 * of_row.gap[order], place, xerr=196 * of_row.error[order], fmt=MARKERS[i % len(MARKERS)],
                  color=COLOURS[i % len(COLOURS)], markersize=3.5, elinewidth=0.9, label=plain(label))
  axes.set_yticks(np.arange(len(order)), [plain(names[k], longest=30) for k in order])
  axes.set_ylim(len(order) - 0.5, -0.5)
  axes.set(xlabel="confidence minus accuracy, points", ylabel="predicted class")
  return axes


def _classes(shown: Shown) -> Axes | None:
  num_classes = shown.results.first[1].num_classes
  if not num_classes:  # Records.
    return None
  gaps = {name: class_gaps(row.values, num_classes) for name, row in list(shown.rows.items())[:2]}
  if not np.isfinite(next(iter(gaps.values())).error).any():
    return None
  return class_gaps_plot(gaps, [shown.results.class_name(k) for k in range(num_classes)])


def _classes_finding(shown: Shown) -> str:
  name, row = next(iter(shown.rows.items()))
  gaps = class_gaps(row.values, shown.results.first[1].num_classes)
  worst = np.nanargmax(np.where(np.isfinite(gaps.error), np.abs(gaps.gap), -1))
  direction = "over" if gaps.gap[worst] > 0 else "under"
  return (f"the worst class of {name} is {shown.results.class_name(worst)}, {direction}confident by "
          f"{100 * abs(gaps.gap[worst]):.1f} ± {196 * gaps.error[worst]:.1f} points.")


FIGURES["classes"] = ReportFigure(
  _classes, "Confidence minus accuracy of each predicted class with 95% intervals, the worst class first. Right of 0, "
  "predictions are overconfident.", place=50, pooled=" The predictions of all seeds are pooled.",
  finding=_classes_finding)


@styled
def pareto_plot(points: Mapping[str, tuple[Estimate, Estimate]], *, axes: Axes | None = None) -> Axes:
  """Draws the debiased ECE of rows against their accuracy, with 95% intervals of both, as tables have them.

  Args:
    points: the estimates ``(accuracy, ECE)`` by label.
    axes: where to draw; None for a new figure.

  Returns:
    The axes.
  """
  axes = new_axes(height=0.75 * WIDTH) if axes is None else axes
  for i, (label, (accuracy, error)) in enumerate(points.items()):
    spread = [[[100 * (x.estimate - x.low)], [100 * (x.high - x.estimate)]] for x in (accuracy, error)]
    axes.errorbar(100 * accuracy.estimate, 100 * error.estimate, xerr=spread[0], yerr=spread[1], markersize=5,
                  fmt=MARKERS[i % len(MARKERS)], color=COLOURS[i % len(COLOURS)], elinewidth=0.8, label=plain(label))
  axes.set(xlabel="accuracy, %", ylabel="debiased ECE, %")
  _from_zero(axes)
  return axes


def _pareto(shown: Shown) -> Axes | None:
  points = {name: (row.estimates["accuracy"], row.estimates["ece"]) for name, row in shown.lines.items()}
  return pareto_plot(points) if len(points) > 1 else None


def _pareto_finding(shown: Shown) -> str:
  lines = (f"{name} {100 * row.estimates['accuracy'].estimate:.1f}% and {100 * row.estimates['ece'].estimate:.1f}%"
           for name, row in shown.lines.items())
  return f"accuracy and debiased ECE: {'; '.join(lines)}."


FIGURES["pareto"] = ReportFigure(
  _pareto, "Debiased ECE against accuracy with 95% intervals, as in the table. Lower right is better.", place=80,
  finding=_pareto_finding)


@styled
def severity_plot(errors: Mapping[str, Mapping[int, tuple[float, float]]], *, axes: Axes | None = None) -> Axes:
  """Draws the debiased ECE against the severity of corruptions, the mean over corruption types with its error.

  Args:
    errors: ``{label: {severity: (mean, standard error)}}``; severity 0 is the test set. Where a standard error is nan,
      none is drawn.
    axes: where to draw; None for a new figure.

  Returns:
    The axes.
  """
  axes = new_axes(height=0.75 * WIDTH) if axes is None else axes
  for i, (label, by_severity) in enumerate(errors.items()):
    severity, (mean, error) = list(by_severity), 100 * np.nan_to_num(np.array(list(by_severity.values()))).T
    axes.errorbar(severity, mean, error, fmt=MARKERS[i % len(MARKERS)] + "-", markersize=3.5, linewidth=1.2,
                  color=COLOURS[i % len(COLOURS)], label=plain(label))
  axes.set(xlabel="severity (0: test set)", ylabel="debiased ECE, %", xticks=sorted(set().union(*errors.values())))
  _from_zero(axes)
  return axes


@styled
def training_plot(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, axes: Axes | None = None) -> Axes:
  """Draws logged losses against steps.

  Args:
    curves: ``(steps, values)`` by the name of the loss.
    axes: where to draw; None for a new figure.

  Returns:
    The axes.
  """
  axes = new_axes(height=0.75 * WIDTH) if axes is None else axes
  for i, (label, (steps, values)) in enumerate(curves.items()):
    axes.plot(steps, values, linewidth=1.2, label=plain(label), **_line(i))
  axes.set(xlabel="training step", ylabel="loss; NLL in nats")
  axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
  return axes


def logged_by_runs(logs: pathlib.Path | Mapping[str, pathlib.Path] | None) -> dict[str, Curve]:
  """Returns what runs logged, by the name of the value, which begins with the run's name if there are several."""
  if not isinstance(logs, Mapping):
    return logged(logs)
  return {f"{run}: {name}": curve for run, path in logs.items() for name, curve in logged(path).items()}


def logged(log: pathlib.Path | None) -> dict[str, Curve]:
  """Returns the mean over seeds of what a run logged, by the name of the value."""
  values: dict[str, dict[int, list[float]]] = {name: {} for name in LOGGED}
  if log is None or not log.is_file():
    return {}
  for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
    # A damaged line must not stop the page.
    with contextlib.suppress(UserError, ValueError, TypeError, KeyError, OverflowError):
      entry = parse_json(line, "a line")
      for name in LOGGED:
        if name in entry:
          step, value = int(entry["step"]), float(entry[name])
          values[name].setdefault(step, []).append(value)
  return {name: ([*by_step], [float(np.mean(of_seeds)) for of_seeds in by_step.values()])
          for name, by_step in values.items() if len(by_step) > 1}


def _training(shown: Shown) -> Axes | None:
  curves = logged_by_runs(shown.logs)
  return training_plot(curves) if curves else None


def _training_finding(shown: Shown) -> str:
  lines = (f"{name} from {values[0]:.3g} at step {steps[0]:,} to {values[-1]:.3g} at step {steps[-1]:,}"
           for name, (steps, values) in logged_by_runs(shown.logs).items())
  return f"{'; '.join(lines)}."


FIGURES["training"] = ReportFigure(
  _training, "The loss that training minimises, and the NLL of the validation split in nats; means over seeds.",
  place=70, finding=_training_finding)
