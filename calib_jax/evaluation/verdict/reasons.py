"""The sentences after the first line of a verdict, which say what it rests on.

Sentences have the ECE as it is computed, beside its noise floor and its p-value. Differences of two ECEs are of the
errors without their bias.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from calib_jax.evaluation.numbers import counted, distinct_texts, error_text, p_text, points
from calib_jax.evaluation.predictions import automatic
from calib_jax.evaluation.predictions.fitting import UNCALIBRATED
from calib_jax.evaluation.results import EvaluatedSet, Interval, Results, RowKey
from calib_jax.evaluation.subgroups import FEWEST, Subgroup, class_gaps
from calib_jax.evaluation.verdict import decisions
from calib_jax.intervals.resamples import LEVEL

MOST = 5  # Models and sets that have sentences.
CORRECTED = f"corrected for {decisions.TESTS} tests"


def reasons(results: Results, row: RowKey) -> list[str]:
  """Returns the sentences, of the row that is recommended; some may be empty."""
  _, evaluated = results.first
  model, label = row
  models = list(dict.fromkeys(name for name, _ in evaluated.rows))
  others = [name for name in models if name != model]
  sentence = confidence(results, (model, UNCALIBRATED), is_lowered=label != UNCALIBRATED)
  after = _after(results, evaluated, row) if label != UNCALIBRATED else ""
  bound = _at_most(results, row)
  return [(f"{model}: {sentence}" if others else sentence) + bound * (not after), after and after + bound,
          *(_against(evaluated, name, model) for name in others[:MOST]), _one_seed(evaluated, models),
          _options(results, row), _classes(results, evaluated, row), *_subgroups(results, row), *_sets(results, row),
          *_detection(results, row),
          *(_not_used(results, evaluated, (name, other), label) for name, other in evaluated.rows
            if name == model and other not in (UNCALIBRATED, label)),
          *(f"{label} ended at a bound of its range: its fit set does not determine it."
            for name, label in evaluated.rows
            if name == model and label != UNCALIBRATED and is_at_bound(results, model, label)),
          _conventions(results), *results.failed.values()]


def confidence(results: Results, row: RowKey, *, is_lowered: bool = False) -> str:
  """Says what ``decisions.fault`` is, with the ECE and the mean confidence.

  ``is_lowered`` says that a calibrator is shown to lower the log loss, the fourth of ``decisions.TESTS``.
  """
  _, evaluated = results.first
  error, excess = evaluated.rows[row].estimates["ece"], decisions.excess_of(evaluated.rows[row])
  p, fault = p_text(error.p_value, "ece", results.num_resamples), decisions.fault(evaluated, row)
  measured = (f"its ECE is {100 * error.value:.1f}%, and a perfectly calibrated model of this size would show "
              f"{100 * error.floor:.1f}% (p {p if p.startswith('≤') else f'= {p}'})")
  if fault == "mean":
    is_above = decisions.is_miscalibrated(error, decisions.TESTS)
    return (f"{offset_text(excess).capitalize()} ({CORRECTED}): {measured}"
            f"{'' if is_above else ', so that the ECE alone does not show it'}.")
  mean = f"the mean confidence is {points(excess)} {'above' if excess.estimate > 0 else 'below'} the accuracy"
  if fault == "places":
    return f"The confidence is wrong in places: {measured}; no error of its mean is shown: {mean} ({CORRECTED})."
  why = (f", which must be below {decisions.SIGNIFICANCE / decisions.TESTS:g} in one of {decisions.TESTS} tests"
         if decisions.is_miscalibrated(error) else "")
  begin = ("Only the confidence of classes is shown to be wrong" if fault == "classes" else
           "Only the log loss shows a miscalibration" if is_lowered else
           f"{units(evaluated)} would hide much miscalibration" if fault == "few" else
           "Of all examples together, no miscalibration can be shown" if decisions.worse_subgroups(results, row) else
           "No miscalibration can be shown")
  return f"{begin}: {measured}{why}; {mean} ({CORRECTED})."


def _after(results: Results, evaluated: EvaluatedSet, row: RowKey) -> str:
  """Says what a calibrator leaves of the ECE."""
  none = row[0], UNCALIBRATED
  before, after = (evaluated.rows[x].estimates["ece"] for x in (none, row))
  change = {"better": "lowers the ECE", "worse": "raises the ECE"}.get(
    decisions.compared(evaluated, "ece", row, none))
  left = ("more than noise is left" if decisions.is_miscalibrated(after) else
          "what is left is not told apart from noise")
  numbers = f"{100 * before.value:.1f} → {100 * after.value:.1f}%"
  change = f"{change}, {numbers}" if change else (
    f"changes the ECE, {numbers}, which {units(evaluated)} do not show to be lower or higher")
  return f"{row[1]} {change}: {left} ({error_text(after, results.num_resamples)})."


def _at_most(results: Results, row: RowKey) -> str:
  """Says how large the true error is at most, or "" if no bound is known or the first line has one.

  The bound is for predictions that do not depend on the labels, which calibrators of the other folds have seen.
  """
  has_one = results.asked and results.asked.upper_limit is not None
  bound = None if has_one or (results.is_crossed and row[1] != UNCALIBRATED) else (
    decisions.most(results.first[1], row, LEVEL))
  return "" if bound is None else (f" The true error, of confidences rounded to 5%, is at most {100 * bound:.1f}%, 95% "
                                   "sure.")


def _not_used(results: Results, evaluated: EvaluatedSet, row: RowKey, used: str) -> str:
  """Says what speaks against a calibrator that is not recommended."""
  (model, label), none = row, (row[0], UNCALIBRATED)
  name = label if label != automatic.AUTO else named(results, model, label)[0]
  lost = decisions.lost_accuracy(evaluated, row, none)
  if lost and decisions.compared(evaluated, "accuracy", row, none) == "worse":
    return f"{name} loses {100 * lost:.1f} points of accuracy."
  if decisions.compared(evaluated, "nll", row, none) == "worse":
    losses = distinct_texts(*(evaluated.rows[x].estimates["nll"].value for x in (none, row)))
    return f"{name} raises the log loss, {' → '.join(losses)}."
  if decisions.compared(evaluated, "nll", row, (model, used)) != "better":
    return f"{name} is not shown to have a lower log loss than {'no calibration' if used == UNCALIBRATED else used}."
  return ""


def _against(evaluated: EvaluatedSet, name: str, first: str) -> str:
  """Says what the accuracy, the NLL and the ECE of a model are against the first one's, before calibration."""
  own, other = (name, UNCALIBRATED), (first, UNCALIBRATED)
  changes = {metric: decisions.difference(evaluated, metric, own, other) for metric in ("accuracy", "nll", "ece")}
  if changes["ece"] is None:
    return f"{name} has other examples than {first}, so that their difference has no interval."
  differences = [_change(changes["accuracy"], "accuracy", 100, 1, " points"), _change(changes["nll"], "NLL", 1, 3),
                 _change(changes["ece"], "debiased ECE", 100, 1, " points")]
  return f"Before calibration, {name} against {first}: {'; '.join(differences)}."


def _change(change: Interval, of: str, scale: float, digits: int, unit: str = "") -> str:
  """Says that a metric is higher or lower, with its interval, or that no difference can be shown."""
  if not decisions.side(change):
    return f"no difference in {of} can be shown"
  low, high = sorted(abs(scale * end) for end in (change.low, change.high))
  return (f"the {of} is {scale * abs(change.estimate):.{digits}f}{unit} {'higher' if change.estimate > 0 else 'lower'} "
          f"(95% interval {low:.{digits}f} to {high:.{digits}f})")


def _one_seed(evaluated: EvaluatedSet, models: Sequence[str]) -> str:
  """Says how models of one seed are compared with models of several."""
  seeds = {model: len(evaluated.rows[model, UNCALIBRATED].estimates["ece"].per_seed or (0,)) for model in models}
  single = [model for model, number in seeds.items() if number == 1]
  if max(seeds.values()) == 1 or not single:
    return ""
  return (f"{listed(single)} {'has' if len(single) == 1 else 'have'} one seed: in differences it is taken to vary from "
          "seed to seed as much as the model that it is compared with.")


def _classes(results: Results, evaluated: EvaluatedSet, row: RowKey) -> str:
  clause = classes(results, evaluated, row)
  return f"{clause[0].upper()}{clause[1:]}." if clause else ""


def _options(results: Results, row: RowKey) -> str:
  """Says how many options rows of multiple choice have, and the accuracy relative to guessing among them."""
  options = results.sections.get("options", {}).get(results.first[0], {}).get(results.row_name(row))
  if options is None:
    return ""
  reached = options.above_guessing
  return (f"Rows have {options.fewest} to {options.most} options, {options.mean:.1f} on average. Guessing has an "
          f"accuracy of {100 * options.guess:.1f}%, and of what it lacks {100 * reached.estimate:.1f}% are reached "
          f"(95% interval {100 * reached.low:.1f} to {100 * reached.high:.1f}).")


def _subgroups(results: Results, row: RowKey) -> list[str]:
  """Says of each division whose subgroups are not shown to be worse what the largest offset is."""
  shown, sentences = {by for by, _, _ in decisions.worse_subgroups(results, row)}, []
  for by, subgroups in decisions.subgroups(results, row).items():
    few = [name for name, x in subgroups.items() if x.is_few]
    compared = {name: x for name, x in subgroups.items() if x.worse_p_value is not None}
    if compared and by not in shown:
      name, largest = next(iter(compared.items()))
      sentences.append(f"By {by}, no subgroup is shown to be worse than the others together; the largest offset is "
                       f"that of {name}, {subgroup_text(results, row, largest)}.")
    if few:
      units = "examples" if results.first[1].num_groups is None else "groups of examples"
      sentences.append(f"By {by}, {listed(few)} {'has' if len(few) == 1 else 'have'} fewer than {FEWEST} {units}, too "
                       "few to compare with the others.")
  return sentences


def units(evaluated: EvaluatedSet) -> str:
  """Returns how many examples, or groups of them, say something."""
  number, noun = (evaluated.num_examples, "example") if evaluated.num_groups is None else (
    evaluated.num_groups, "group")
  return counted(number, noun)


def direction(offset: float) -> str:
  """Returns which way a confidence is wrong."""
  return "overconfident" if offset > 0 else "underconfident"


def offset_text(offset: Interval) -> str:
  """Returns which way a confidence is wrong, and by how much, with its interval."""
  return f"{direction(offset.estimate)} by {points(offset)}"


def subgroup_text(results: Results, row: RowKey, subgroup: Subgroup) -> str:
  """Returns which way a subgroup is wrong, by an interval that holds for all that it was chosen from (Bonferroni)."""
  number = sum(x.worse_p_value is not None for of_array in decisions.subgroups(results, row).values()
               for x in of_array.values())
  of_several = f" (corrected for {number} subgroups)" if number > 1 else ""
  return f"{offset_text(decisions.widened(subgroup.offset, max(number, 1)).within(-1, 1))}{of_several}"


def _sets(results: Results, row: RowKey) -> list[str]:
  """Says what a row is worth on the sets after the first one."""
  sentences, none = [], (row[0], UNCALIBRATED)
  sets = [(name, evaluated) for name, evaluated in list(results.measured.items())[1:] if row in evaluated.rows]
  every = len(sets)
  # Of the labels of a multi-label file, those without a fault would fill the first screen.
  sets = [(name, evaluated) for name, evaluated in sets if not name.startswith(f"{results.first[0]}: ")
          or decisions.is_miscalibrated(evaluated.rows[row].estimates["ece"])]
  for name, evaluated in sets[:MOST]:
    after = evaluated.rows[row].estimates
    sentence = (f"On {name}: accuracy {100 * after['accuracy'].value:.1f}%, "
                f"{error_text(after['ece'], results.num_resamples)}")
    if row != none:
      change = {"better": "lowers", "worse": "raises"}.get(decisions.compared(evaluated, "nll", row, none))
      losses = distinct_texts(evaluated.rows[none].estimates["nll"].value, after["nll"].value)
      sentence += (f"; {row[1]} {change} the log loss, {' → '.join(losses)}" if change else
                   f"; no effect of {row[1]} on the log loss is shown")
    sentences.append(f"{sentence}.")
  if every > len(sets):
    after = "" if row == none else f" after {row[1]}"
    sentences.append(f"No miscalibration{after} is shown on {every - len(sets)} labels, which are in the table.")
  return sentences + ([f"{len(sets) - MOST} more sets are in the table."] if len(sets) > MOST else [])


def _detection(results: Results, row: RowKey) -> list[str]:
  sentences = []
  for name, by_score in detection(results, row)[:MOST]:
    score, measured = next(iter(by_score.items()))
    area = measured["auroc"]
    sentences.append(f"The confidence ({score}) ranks examples of {results.first[0]} above those of {name} with an "
                     f"AUROC of {100 * area.estimate:.1f}% (95% interval {100 * area.low:.1f} to "
                     f"{100 * area.high:.1f}).")
  return sentences


def _conventions(results: Results) -> str:
  """Says that tools disagree about rows whose difference is real."""
  name, evaluated = results.first
  rows = {results.row_name(row): row for row in evaluated.rows}
  by_convention = {convention: {rows[row]: error for row, error in errors.items() if row in rows}
                   for convention, errors in results.sections.get("conventions", {}).get(name, {}).items()}
  lowest = decisions.disagree(by_convention, evaluated)
  if not lowest:
    return ""
  names = ", ".join(results.row_name(row) for row in lowest)
  return f"Which row has the lowest calibration error depends on the tool that computes it: {names}."


def detection(results: Results, row: RowKey) -> list[tuple[str, dict[str, Any]]]:
  """Returns how well each confidence score detects each out-of-distribution set with a row."""
  by_set = results.sections.get("detection", {})
  return [(name, by_model[row[0]][row[1]]) for name, by_model in by_set.items() if row[1] in by_model.get(row[0], {})]


def named(results: Results, model: str, label: str) -> tuple[str, float | None]:
  """Returns a calibrator with what ``auto`` chose and its temperature, and the temperature, a mean over seeds."""
  calibrator, params = results.fitted[model][label]
  chosen = automatic.names(calibrator, params)
  phrases, temperature = [automatic.phrase(chosen)] if label == automatic.AUTO else [], None
  if set(chosen) == {"temperature_scaling"}:
    temperature = float(np.mean([automatic.own(p)["temperature"] for p in params]))
    phrases.append(f"T = {temperature:.2f}")
  return f"{label} ({', '.join(phrases)})" if phrases else label, temperature


def is_at_bound(results: Results, model: str, label: str) -> bool:
  """Returns whether the fit of a calibrator to a seed ended at a bound of its range."""
  _, params = results.fitted[model][label]
  return any(bool(np.any(automatic.own(p).get("at_bound", False))) for p in params)


def classes(results: Results, evaluated: EvaluatedSet, row: RowKey) -> str:
  """Says which predicted classes have a gap that is not chance, or ""."""
  if not decisions.have_classes(evaluated, row):
    return ""
  gaps = class_gaps(evaluated.rows[row].values, evaluated.num_classes)
  wrong = sorted(decisions.miscalibrated_classes(gaps), key=lambda k: -abs(gaps.gap[k]))
  margins = decisions.margins(gaps)
  if not wrong:
    return ""
  names = [f"{results.class_name(k)} ({direction(gaps.gap[k])} by {100 * abs(gaps.gap[k]):.1f} ± "
           f"{100 * margins[k]:.1f} points)" for k in wrong[:3]]
  more, when = f" and {len(wrong) - 3} more" if len(wrong) > 3 else "", f" after {row[1]}" * (row[1] != UNCALIBRATED)
  return (f"predictions of class {', '.join(names)}{more} are miscalibrated{when} (corrected for "
          f"{evaluated.num_classes:,} classes and {decisions.TESTS} tests)")


def listed(names: Sequence[str]) -> str:
  """Returns some names and how many more there are.

  >>> listed(["a"]), listed(["a", "b", "c"]), listed(list("abcdefg"))
  ('a', 'a, b and c', 'a, b, c, d, e and 2 more')
  """
  more = f"{len(names) - MOST} more" if len(names) > MOST else ""
  *most, last = [*names[:MOST], *([more] if more else [])]
  return f"{', '.join(most)} and {last}" if most else last
