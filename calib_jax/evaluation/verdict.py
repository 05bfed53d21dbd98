"""Says in plain words what an evaluation shows, and only what an interval or a p-value supports."""

import collections
from collections.abc import Sequence

import numpy as np

from calib_jax.evaluation import choice, decisions, formats
from calib_jax.evaluation.measures import class_gaps
from calib_jax.evaluation.results import UNCALIBRATED, EvaluatedSet, Interval, Results, Row, RowKey

MOST_MODELS = 5  # Models that are compared with the first in sentences.


def verdict(results: Results) -> list[str]:
  """Returns sentences about the first model on the test set: its confidence, and what calibration does to it."""
  _, evaluated = results.first
  model = next(iter(evaluated.rows))[0]
  others = [name for name in dict.fromkeys(name for name, _ in evaluated.rows) if name != model]
  labels = [label for name, label in evaluated.rows if name == model and label != UNCALIBRATED]
  confidence = _confidence(evaluated.rows[model, UNCALIBRATED], results.num_resamples)
  sentences = [f"{model}: {confidence}" if others else confidence]
  if labels:
    sentences += [*_calibrators(results, evaluated, model, labels),
                  *(_lost_accuracy(evaluated, model, label) for label in labels)]
  sentences += [_classes(results, evaluated, (model, labels[0] if labels else UNCALIBRATED)),
                *(sentence for name in others[:MOST_MODELS] for sentence in _against(evaluated, name, model)),
                _stability(results) if labels else ""]
  return [sentence for sentence in sentences if sentence]


def _confidence(row: Row, num_resamples: int) -> str:
  """Says whether confidences are too high or too low, by two of the tests of ``decisions.TESTS``."""
  error, excess = row.estimates["ece"], decisions.corrected(row.excess, decisions.TESTS)
  p = formats.p_text(error.p_value, "ece", num_resamples)
  is_above, side = decisions.is_miscalibrated(error, decisions.TESTS), decisions.side(excess)
  measured = (f"its ECE is {100 * error.value:.1f}%, and a perfectly calibrated model of this size would show "
              f"{100 * error.floor:.1f}% (p {p if p.startswith('≤') else f'= {p}'})")
  points = f"{100 * abs(excess.estimate):.1f} ± {50 * (excess.high - excess.low):.1f} points"
  direction = "above" if excess.estimate > 0 else "below"
  if side:
    sentence = f"{'Overconfident' if side > 0 else 'Underconfident'} by {points}: {measured}"
    return f"{sentence}{'' if is_above else ', so that the ECE alone does not show it'}."
  mean = f"the mean confidence is {points} {direction} the accuracy"
  if is_above:
    return f"The confidence is right on average and wrong in places: {measured}; {mean}."
  return f"No miscalibration can be shown: {measured}; {mean}."


def _calibrators(results: Results, evaluated: EvaluatedSet, model: str, labels: Sequence[str]) -> list[str]:
  """Says what the first calibrator does to the ECE, and whether another one does more."""
  first, *others = labels
  sentences = [_first_calibrator(results, evaluated, model, first)]
  # The one that is named was chosen by the test set, so its interval has to hold for all of them.
  differences = {label: decisions.difference(evaluated, "ece", (model, label), (model, first)) for label in others}
  changes = {label: decisions.corrected(change, len(others)) for label, change in differences.items() if change}
  better = {label: change for label, change in changes.items() if decisions.side(change) < 0}
  choice_of = f", corrected for the choice among {len(others)}" if len(others) > 1 else ""
  if better:
    best = min(better, key=lambda label: better[label].estimate)
    change = better[best]
    sentences.append(f"{best} lowers the ECE by a further {-100 * change.estimate:.1f} points "
                     f"(95% interval {-100 * change.high:.1f} to {-100 * change.low:.1f}{choice_of}).")
  elif changes:
    sentences.append(f"No other calibrator has an ECE that is lower than that of {first} beyond its interval"
                     f"{choice_of}.")
  return sentences


def _first_calibrator(results: Results, evaluated: EvaluatedSet, model: str, label: str) -> str:
  before, after = (evaluated.rows[model, x].estimates["ece"] for x in (UNCALIBRATED, label))
  name, (calibrator, params) = label, results.fitted[model][label]
  factories = choice.names(calibrator, params)
  if set(factories) == {"temperature_scaling"}:  # Others may have a temperature too, beside what else they learn.
    mean = np.mean([choice.own(p)["temperature"] for p in params])
    name = f"A temperature of {mean:.2f} ({label})"
  elif label == choice.AUTO:
    name = f"{label} chose {choice.phrase(factories)}, which"
  change = decisions.compared(evaluated, "ece", (model, label), (model, UNCALIBRATED))
  if change == "worse":
    return f"{name} makes the ECE worse: {100 * after.value:.1f}%."
  if not change:
    return f"{name} does not change the ECE beyond its interval: {100 * after.value:.1f}%."
  return (f"{name} lowers the ECE from {100 * before.value:.1f}% to {100 * after.value:.1f}% and leaves at most "
          f"{100 * after.high:.1f} points of calibration error; a perfectly calibrated model of this size would show "
          f"{100 * after.floor:.1f}%.")


def _lost_accuracy(evaluated: EvaluatedSet, model: str, label: str) -> str:
  before, after = (model, UNCALIBRATED), (model, label)
  lost = decisions.lost_accuracy(evaluated, after, before)
  is_worse = lost and decisions.compared(evaluated, "accuracy", after, before) == "worse"
  return f"{label} loses {100 * lost:.1f} points of accuracy." if is_worse else ""


def _against(evaluated: EvaluatedSet, name: str, first: str) -> list[str]:
  """Says what the accuracy, the NLL and the ECE of a model are against those of the first one, before calibration."""
  own, other = (name, UNCALIBRATED), (first, UNCALIBRATED)
  changes = {metric: decisions.difference(evaluated, metric, own, other) for metric in ("accuracy", "nll", "ece")}
  if changes["ece"] is None:
    return [f"{name} has other examples than {first}, so that their difference has no interval."]
  said = [_change(changes["accuracy"], "accuracy", 100, 1, " points"), _change(changes["nll"], "NLL", 1, 3),
          _change(changes["ece"], "ECE", 100, 1, " points")]
  return [f"Before calibration, {name} against {first}: {'; '.join(said)}."]


def _change(change: Interval, of: str, scale: float, digits: int, unit: str = "") -> str:
  """Says that a metric is higher or lower, with its interval, or that no difference can be shown."""
  if not decisions.side(change):
    return f"no difference in {of} can be shown"
  low, high = sorted(abs(scale * end) for end in (change.low, change.high))
  return (f"the {of} is {scale * abs(change.estimate):.{digits}f}{unit} {'higher' if change.estimate > 0 else 'lower'} "
          f"(95% interval {low:.{digits}f} to {high:.{digits}f})")


def _classes(results: Results, evaluated: EvaluatedSet, row: RowKey) -> str:
  """Says which classes have a gap that is not chance."""
  values, num_classes = evaluated.rows[row].values, evaluated.num_classes
  if values is None:
    return ""
  gaps = class_gaps(values, num_classes)
  classes = sorted(decisions.miscalibrated_classes(gaps), key=lambda k: -abs(gaps.gap[k]))
  if not classes:
    return ""
  names = [f"{class_name(results, k)} ({'over' if gaps.gap[k] > 0 else 'under'}confident by "
           f"{100 * abs(gaps.gap[k]):.1f} points)" for k in classes[:3]]
  more = f" and {len(classes) - 3} more" if len(classes) > 3 else ""
  when = f" after {row[1]}" if row[1] != UNCALIBRATED else ""
  return f"Predictions of class {', '.join(names)}{more} are miscalibrated{when}."


def class_name(results: Results, k: int) -> str:
  """Returns the name of a class, or its number."""
  return results.classes[k] if results.classes else str(k)


def _stability(results: Results) -> str:
  """Says whether the row of the lowest error depends on how tools compute it."""
  by_convention = results.sections.get("conventions", {}).get(results.first[0], {})
  wins = collections.Counter(map(decisions.lowest, by_convention.values()))
  names = sorted(wins, key=lambda row: (-wins[row], row))
  if len(names) < 2:
    return "".join(f"{name} has the lowest calibration error by each of {wins[name]} tools' conventions."
                   for name in names)
  counts = "; ".join(f"{name} ({wins[name]})" for name in names)
  return f"Which row has the lowest calibration error depends on the convention of {wins.total()} tools: {counts}."
