"""Says in plain words what an evaluation found, and only what an interval or a p-value supports."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from calib_jax.evaluation import choice
from calib_jax.evaluation.fitting import UNCALIBRATED
from calib_jax.evaluation.measures import Values
from calib_jax.evaluation.results import Results, verdicts

POINT = 0.01
MOST_MODELS = 5  # Models that are compared with the first in sentences.


class ClassGaps(NamedTuple):
  """How the confidence of each predicted class differs from its accuracy.

  Attributes:
    gap: ``[K]``, the mean confidence minus the accuracy of the examples that are predicted to be of the class; nan for
      a class that is never predicted.
    error: ``[K]``, the standard error of the gap.
    count: ``[K]``, the number of examples; the seeds of an example count once.
  """

  gap: np.ndarray
  error: np.ndarray
  count: np.ndarray


def class_gaps(values: Values, num_classes: int) -> ClassGaps:
  """Computes the gap of each predicted class, over the predictions of all seeds together.

  Args:
    values: the values of each example.
    num_classes: K.

  Returns:
    The gaps.
  """
  excess, predicted = (values.confidence - values.correct).ravel(), values.predicted.ravel()
  count, total, squares = (np.bincount(predicted, weights, num_classes) for weights in (None, excess, excess**2))
  with np.errstate(invalid="ignore", divide="ignore"):
    gap = total / count
    # The predictions of an example by several seeds are not independent, so they count as one.
    examples = count / values.confidence.shape[1]
    error = np.sqrt(np.maximum(squares / count - gap**2, 0) / np.maximum(examples - 1, 1))
  return ClassGaps(gap, np.where(examples > 1, error, np.nan), examples)


def verdict(results: Results) -> list[str]:
  """Returns sentences about the first model on the first set: its confidence, and what calibration does to it.

  Args:
    results: the results.

  Returns:
    The sentences.
  """
  set_name = next(iter(results.tables))
  model = next(iter(results.tables[set_name]))
  table = results.tables[set_name][model]
  row, values = table[UNCALIBRATED], results.values[set_name][model, UNCALIBRATED]
  others = [name for name in results.tables[set_name] if name != model]
  sentences = [f"{model}: {_confidence(row, values)}" if others else _confidence(row, values)]
  labels = [label for label in table if label != UNCALIBRATED]
  if not labels:
    return [*sentences, *_classes(results, values, set_name), *_models(results, set_name, model, others)]
  first = labels[0]
  sentences.append(_calibrated(results, set_name, model, first))
  better = [label for label in labels[1:]
            if verdicts(results, set_name, "ece", (model, label)).get((model, first)) == "better"]
  if better:
    best = min(better, key=lambda label: table[label]["ece"]["estimate"])
    change = results.differences[set_name][(model, best), (model, first)]["ece"]
    sentences.append(f"{best} lowers the ECE by a further {-100 * change['difference']:.1f} points "
                     f"(95% interval {-100 * change['high']:.1f} to {-100 * change['low']:.1f}).")
  elif len(labels) > 1:
    sentences.append(f"No other calibrator has an ECE that is lower than that of {first} beyond its interval.")
  for label in labels:
    lost = row["accuracy"]["value"] - table[label]["accuracy"]["value"]
    if lost > POINT and verdicts(results, set_name, "accuracy", (model, label)).get((model, UNCALIBRATED)) == "worse":
      sentences.append(f"{label} loses {100 * lost:.1f} points of accuracy.")
  final = min(labels, key=lambda label: table[label]["ece"]["estimate"])
  sentences += _classes(results, results.values[set_name][model, final], set_name, f" after {final}")
  return sentences + _models(results, set_name, model, others) + _stability(results, set_name)


def _models(results: Results, set_name: str, first: str, others: Sequence[str]) -> list[str]:
  """Returns a sentence on the ECE of each other model against the first, before calibration."""
  sentences = []
  for name in others[:MOST_MODELS]:
    rows = (name, UNCALIBRATED), (first, UNCALIBRATED)
    found = results.differences[set_name]
    sign, change = (1, found[rows]["ece"]) if rows in found else (-1, found.get(rows[::-1], {}).get("ece"))
    if change is None:
      sentences.append(f"{name} has other examples than {first}, so that their difference has no interval.")
    elif change["low"] <= 0 <= change["high"]:
      sentences.append(f"Before calibration, no difference between the ECE of {name} and that of {first} can be shown.")
    else:
      side = "above" if sign * change["difference"] > 0 else "below"
      ends = sorted(abs(100 * change[key]) for key in ("low", "high"))
      sentences.append(f"Before calibration, the ECE of {name} is {100 * abs(change['difference']):.1f} points {side} "
                       f"that of {first} (95% interval {ends[0]:.1f} to {ends[1]:.1f}).")
  return sentences


def _confidence(row: dict, values: Values) -> str:
  excess = (values.confidence - values.correct).mean(axis=1)
  return confidence_sentence(row, float(excess.mean()), 1.96 * float(excess.std()) / np.sqrt(len(excess)))


def confidence_sentence(row: dict, gap: float, margin: float) -> str:
  """Says whether confidences are too high or too low.

  Args:
    row: the cells of a row of a table, of which that of the ECE is used.
    gap: the mean confidence minus the accuracy.
    margin: half the width of the 95% interval of the gap.

  Returns:
    The sentence.
  """
  floor, value, p = row["ece"]["floor"], row["ece"]["value"], row["ece"]["p_value"]
  measured = (f"its ECE is {100 * value:.1f}%, and a perfectly calibrated model of this size would show "
              f"{100 * floor:.1f}% (p = {p:.3f})")
  if abs(gap) > margin and p < 0.05:
    side = "Overconfident" if gap > 0 else "Underconfident"
    return f"{side} by {100 * abs(gap):.1f} ± {100 * margin:.1f} points: {measured}."
  if p < 0.05:
    return f"The confidence is right on average and wrong in places: {measured}."
  return f"No miscalibration can be shown: {measured}."


def _calibrated(results: Results, set_name: str, model: str, label: str) -> str:
  """Returns the sentence about the first calibrator."""
  table = results.tables[set_name][model]
  before, after = table[UNCALIBRATED]["ece"], table[label]["ece"]
  factories, name = results.factories.get(model, {}).get(label, []), label
  if set(factories) == {"temperature_scaling"}:  # Others may have a temperature too, beside what else they learn.
    mean = np.mean([p["temperature"] for p in results.parameters[model][label]])
    name = f"A temperature of {mean:.2f} ({label})"
  elif label == choice.AUTO:
    name = f"{label} chose {choice.phrase(factories)}, which"
  change = verdicts(results, set_name, "ece", (model, label)).get((model, UNCALIBRATED))
  if change == "worse":
    return f"{name} makes the ECE worse: {100 * after['value']:.1f}%."
  if change is None:
    return f"{name} does not change the ECE beyond its interval: {100 * after['value']:.1f}%."
  removed = 100 * (1 - after["estimate"] / max(before["estimate"], 1e-12))
  is_left = "is above" if after["p_value"] < 0.05 else "cannot be told from"
  return (f"{name} removes {removed:.0f}% of the calibration error; what is left ({100 * after['value']:.1f}%) "
          f"{is_left} the {100 * after['floor']:.1f}% that a perfectly calibrated model of this size would show.")


def _classes(results: Results, values: Values, set_name: str, when: str = "") -> list[str]:
  """Returns a sentence about the classes whose gap is not chance, by intervals for all classes at once."""
  num_classes = results.settings["sets"][set_name]["num_classes"]
  gaps = class_gaps(values, num_classes)
  quantile = ndtri(1 - 0.025 / num_classes)
  sure = [k for k in range(num_classes) if gaps.count[k] >= 30 and abs(gaps.gap[k]) > quantile * gaps.error[k]]
  if not sure:
    return []
  sure = sorted(sure, key=lambda k: -abs(gaps.gap[k]))
  names = [f"{class_name(results, k)} ({'over' if gaps.gap[k] > 0 else 'under'}confident by "
           f"{100 * abs(gaps.gap[k]):.1f} points)" for k in sure[:3]]
  more = f" and {len(sure) - 3} more" if len(sure) > 3 else ""
  return [f"Predictions of class {', '.join(names)}{more} are miscalibrated{when}."]


def class_name(results: Results, k: int) -> str:
  """Returns the name of a class, or its number."""
  return results.classes[k] if results.classes else str(k)


def _stability(results: Results, set_name: str) -> list[str]:
  """Returns a sentence on whether the row of the lowest error depends on how tools compute it."""
  winners = {name: min(errors, key=errors.get) for name, errors in results.stability.get(set_name, {}).items()}
  if not winners:
    return []
  names = sorted(set(winners.values()), key=lambda row: (-list(winners.values()).count(row), row))
  if len(names) == 1:
    return [f"{names[0]} has the lowest calibration error by each of {len(winners)} tools' conventions."]
  counts = "; ".join(f"{name} ({list(winners.values()).count(name)})" for name in names)
  return [f"Which row has the lowest calibration error depends on the convention of {len(winners)} tools: {counts}."]
