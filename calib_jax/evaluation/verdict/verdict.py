"""Says what to do by what an evaluation shows, and only what an interval or a p-value supports.

The first line recommends, and the sentences of ``reasons`` say what it rests on. ``decisions`` has the rules.
"""

from collections.abc import Collection, Mapping, Sequence

from calib_jax.evaluation import few_errors
from calib_jax.evaluation.numbers import counted, distinct_texts, ends, error_text, points
from calib_jax.evaluation.predictions import fitting
from calib_jax.evaluation.predictions.fitting import UNCALIBRATED
from calib_jax.evaluation.results import (
  FEWEST_UNITS,
  EvaluatedSet,
  Recommendation,
  Results,
  Row,
  RowKey,
  Verdict,
)
from calib_jax.evaluation.verdict import decisions, reasons, uses
from calib_jax.evaluation.verdict.reasons import classes, detection, is_at_bound, listed, named


def verdict(results: Results) -> Verdict:
  """Returns what to do with the model, or with the best one of several, and sentences that say why."""
  test_set, evaluated = results.first
  models = list(dict.fromkeys(model for model, _ in evaluated.rows))
  if evaluated.has_few_units:
    return _few_units(results, models[0])
  calibrators = {model: [label for name, label in evaluated.rows if name == model and label != UNCALIBRATED]
                 for model in models}
  determined = {model: [label for label in labels if not is_at_bound(results, model, label)]
                for model, labels in calibrators.items()}
  rival = _models(evaluated, determined) if len(models) > 1 else None
  model = rival.subject if rival and rival.kind == "prefer" else models[0]
  labels = calibrators[model]
  label = decisions.to_use(evaluated, model, determined[model])
  calibration = _nothing_to_calibrate(results, model, set(labels) - set(determined[model])) or _guess(results, model)
  row = model, UNCALIBRATED if calibration else label or UNCALIBRATED
  off = _off(results, row, labels)
  calibration = calibration or (_use(results, model, label, len(determined[model])) if label else
                                _as_it_is(results, model, labels))
  recommendations = (rival, calibration if calibration.kind != "mend" or test_set not in off else None,
                     _unreliable(off, row, labels), _subgroup(results, row), *_undetected(results, row),
                     *uses.recommendation(results, row), *uses.too_high(results, row),
                     *uses.not_bounded(results, row))
  sentences = [*reasons.reasons(results, row), *uses.reasons(results, row)]
  return Verdict(tuple(x for x in recommendations if x), tuple(filter(None, sentences)), row)


def _models(evaluated: EvaluatedSet, calibrators: Mapping[str, Sequence[str]]) -> Recommendation:
  """Says which model is better by log loss and accuracy, two tests.

  Each model has the one of its calibrators that is recommended for it, or none if models do not have the same ones.
  """
  models = list(calibrators)
  first, *others = [(model, (labels == calibrators[models[0]] and decisions.to_use(evaluated, model, labels))
                     or UNCALIBRATED) for model, labels in calibrators.items()]
  rows = [first, *(row for row in others if decisions.difference(evaluated, "nll", row, first))]
  if len(rows) == 1:
    return Recommendation("undecided", "", f"{models[0]} has other examples than {listed(models[1:])}, so that they "
                          "are not compared.")
  nll, accuracy = ({row: evaluated.rows[row].estimates[name].value for row in rows} for name in ("nll", "accuracy"))
  order = sorted(rows, key=nll.get)
  by_loss, by_accuracy = (decisions.best(evaluated, name, rows, 2) for name in ("nll", "accuracy"))
  leader = by_loss or by_accuracy or order[0]
  runner_up = next(row for row in order if row != leader)
  after = f" after {leader[1]}" if leader[1] != UNCALIBRATED and {label for _, label in rows} == {leader[1]} else ""
  names = {row: row[0] if after or row[1] == UNCALIBRATED else f"{row[0]} with {row[1]}" for row in rows}
  of = f"{names[runner_up]}{f', the next of {len(rows)} models' if len(rows) > 2 else ''}"
  low, high = distinct_texts(nll[leader], nll[runner_up])
  shares = "{:.1f} against {:.1f}% accuracy".format(*(100 * accuracy[row] for row in (leader, runner_up)))
  gain, more = (decisions.widened(decisions.difference(evaluated, name, *pair), 2)
                for name, pair in (("nll", (runner_up, leader)), ("accuracy", (leader, runner_up))))
  kind, numbers = "prefer", {"log_loss": nll[leader], "log_loss_of_other": nll[runner_up],
                             "accuracy": accuracy[leader], "accuracy_of_other": accuracy[runner_up]}
  if by_loss and by_accuracy and by_accuracy != by_loss:
    kind, text = "undecided", (
      f"{names[leader]} has the lower log loss{after}, {low} against {high} of {of}, and {names[by_accuracy]} the "
      f"higher accuracy, {100 * accuracy[by_accuracy]:.1f} against {100 * accuracy[leader]:.1f}%.")
  elif by_loss:
    is_shown = decisions.side(decisions.difference(evaluated, "accuracy", leader, runner_up))
    text = (f"Use {names[leader]}: log loss{after} {low} against {high} of {of} (lower by {ends(gain)}, corrected for "
            f"2 tests), {shares}{'' if is_shown else ' (no difference in accuracy is shown)'}.")
  elif by_accuracy:
    text = (f"Use {names[leader]}: {shares} of {of} ({100 * more.low:.1f} to {100 * more.high:.1f} points more, "
            f"corrected for 2 tests); no model is shown to have the lowest log loss{after} ({low} against {high}).")
  else:
    kind, text = "undecided", (f"No model is shown to be the best: log loss{after} {low} of {names[leader]} against "
                               f"{high} of {of}, {shares}.")
  return Recommendation(kind, leader[0], text, numbers)


def _few_units(results: Results, model: str) -> Verdict:
  """Says that so few groups, or such weights, decide nothing, and what was measured."""
  _, evaluated = results.first
  row = evaluated.rows[model, UNCALIBRATED]
  line = (f"Nothing is decided: intervals over {counted(evaluated.num_groups, 'group')} say nothing, and need "
          f"{FEWEST_UNITS} or more." if evaluated.num_effective is None else
          f"Nothing is decided: weights make {reasons.units(evaluated)} worth {evaluated.num_effective:.1f} equal "
          f"ones, and intervals need {FEWEST_UNITS} or more.")
  error, excess = row.estimates["ece"], row.excess.estimate
  what = "examples" if evaluated.num_groups is None else "groups"
  measured = (f"The ECE is {100 * error.value:.1f}%, and the mean confidence is {100 * abs(excess):.1f} points "
              f"{'above' if excess > 0 else 'below'} the accuracy, of these {what}.")
  key = model, UNCALIBRATED
  return Verdict((Recommendation("undecided", model, line), *uses.recommendation(results, key),
                  *uses.too_high(results, key), *uses.not_bounded(results, key)),
                 (measured, *results.failed.values()), key)


def _nothing_to_calibrate(results: Results, model: str, at_bound: Collection[str]) -> Recommendation | None:
  """Says that predictions which are all right determine no temperature, if calibrators ended at their bound."""
  _, evaluated = results.first
  accuracy = evaluated.rows[model, UNCALIBRATED].estimates["accuracy"].value
  if accuracy < 1 or not at_bound:
    return None
  return Recommendation("undecided", model, "The predictions are always right here"
                        f"{_of_model(evaluated, model)}: nothing to calibrate; T is not determined.",
                        {"accuracy": accuracy})


def _guess(results: Results, model: str) -> Recommendation | None:
  """Says that a model is no better than guessing, by its row of the lowest log loss, if that is so."""
  _, evaluated = results.first
  rows = [row for (name, _), row in evaluated.rows.items() if name == model and row.values is not None]
  row = min(rows, key=lambda row: row.estimates["nll"].value, default=None)
  guess = row and decisions.guess(row)
  if not guess:
    return None
  (kind, guessed), nll = guess, row.estimates["nll"].value
  own, of_guess = f"{nll:.2f}", f"{guessed:.2f}"
  text = (f"log loss {own} is that of {kind}" if own == of_guess else
          f"log loss {own}, and that of {kind} is {of_guess}")
  return Recommendation("undecided", model, f"No better than guessing{_of_model(evaluated, model)}: {text}.",
                        {"log_loss": nll, "log_loss_of_guess": guessed})


def _use(results: Results, model: str, label: str, number: int) -> Recommendation:
  """Recommends one of ``number`` calibrators by the log loss that it removes, and says what it does to the accuracy."""
  _, evaluated = results.first
  before, after = (model, UNCALIBRATED), (model, label)
  nll, accuracy = ([evaluated.rows[row].estimates[name].value for row in (before, after)]
                   for name in ("nll", "accuracy"))
  change = decisions.difference(evaluated, "accuracy", after, before)
  if not evaluated.num_classes:
    one_map = fitting.of_confidences(results.fitted.get(model, {}), label)
    ending = f"and the ranking {decisions.ranking(evaluated.rows[before], evaluated.rows[after], one_map)}"
  elif change.low == change.high == 0:
    ending = "at equal accuracy"
  else:
    ending = "and accuracy {:.1f} → {:.1f}%".format(*(100 * x for x in accuracy))
    low, high = sorted(100 * abs(end) for end in (change.low, change.high))
    ending += (f" ({low:.1f} to {high:.1f} points {'more' if change.estimate > 0 else 'less'})"
               if decisions.side(change) else ", where no difference is shown")
  name, temperature = named(results, model, label)
  gain = decisions.gain(evaluated, model, label, number)
  numbers = {"log_loss_before": nll[0], "log_loss_after": nll[1], "gain_low": gain.low, "gain_high": gain.high,
             "accuracy_before": accuracy[0], "accuracy_after": accuracy[1],
             **({} if temperature is None else {"temperature": temperature})}
  return Recommendation(
    "use", label, f"Use {name}{_of_model(evaluated, model)}: log loss {' → '.join(distinct_texts(*nll))} (lower by "
    f"{ends(gain)}, {_tests(number)}) {ending}.", numbers)


def _tests(number: int) -> str:
  """Says for how many tests the interval of the gain of one of ``number`` calibrators is corrected."""
  return f"corrected for {decisions.TESTS * number} tests"


def _as_it_is(results: Results, model: str, labels: Sequence[str]) -> Recommendation:
  """Says whether a model that no calibrator is shown to improve can stay as it is."""
  _, evaluated = results.first
  row, of = evaluated.rows[model, UNCALIBRATED], _of_model(evaluated, model)
  kind = decisions.fault(evaluated, (model, UNCALIBRATED))
  fault = _miscalibration(results, evaluated, (model, UNCALIBRATED), kind)
  num_units = evaluated.num_units
  numbers = {"ece": row.estimates["ece"].value, "excess": row.excess.estimate}
  gains = {label: decisions.gain(evaluated, model, label, len(labels)) for label in labels}
  lowering = [label for label, gain in gains.items() if gain.low > 0]  # But they lose accuracy, or are at a bound.
  none_helps = ("no calibrator is shown to lower the log loss" if len(labels) > 1 else
                "".join(f"{label} is not shown to lower the log loss" for label in labels))
  if row.values is not None and (errors := few_errors.num_wrong(row.values)) < decisions.FEWEST_ERRORS:
    few = (f"{reasons.units(evaluated)} without an error are" if not errors else
           f"errors in {counted(errors, 'group')} of {evaluated.num_groups:,} are" if evaluated.num_groups else
           f"{counted(errors, 'error')} among {reasons.units(evaluated)} {'is' if errors == 1 else 'are'}")
    none_helps = f"{few} too few to choose a calibrator by"
  if lowering:
    none_helps = f"no calibrator but {listed(lowering)}, which cannot be recommended, is shown to lower the log loss"
  if fault and labels:
    num_classes = evaluated.num_classes if decisions.have_classes(evaluated, (model, UNCALIBRATED)) else 0
    least = decisions.least_gain(row, num_classes)
    possible = {label: gain for label, gain in gains.items() if gain.high >= least and label not in lowering}
    if not possible:
      return Recommendation("mend", model, f"Try another calibrator{of}: {fault}, and {none_helps}.",
                            numbers | {"least_gain": least})
    label = max(possible, key=lambda label: gains[label].estimate)
    more = "examples or seeds" if evaluated.num_seeds > 1 else "examples"
    return Recommendation("undecided", model, f"Whether {label} mends {model if of else 'the model'} is not shown: "
                          f"{fault}; it changes the log loss by {ends(-gains[label])} ({_tests(len(labels))}), and "
                          f"more {more} would tell.",
                          numbers | {"gain_low": gains[label].low, "gain_high": gains[label].high, "least_gain": least})
  if fault:
    return Recommendation("calibrate", model, f"Calibrate {model if of else 'the model'}: {fault}.", numbers)
  if kind == "few":
    # Where all of n examples, or groups of them, are right, up to 3 / n of others may be wrong.
    most = 100 * min(max(-row.excess.low, row.excess.high, 3 / num_units), 1.0)
    return Recommendation("undecided", model, f"{_too_few(evaluated, row, num_units)} too few to tell{of}: the mean "
                          f"confidence may be off by {most:.0f} points.", numbers)
  return Recommendation("keep", model, f"Keep {model if of else 'the model'} as it is: {evaluated.num_examples:,} "
                        f"examples show no miscalibration{f', and {none_helps}' if labels else ''}.", numbers)


def _too_few(evaluated: EvaluatedSet, row: Row, num_units: float) -> str:
  """Returns what is too few, such as "1 example is": seeds if their examples would do, or else groups or examples."""
  number, noun = evaluated.num_groups or evaluated.num_examples, "example" if evaluated.num_groups is None else "group"
  if row.values is not None and not decisions.is_wide(row.values.excess(), num_units):
    number, noun = row.values.confidence.shape[1], "seed"
  elif evaluated.num_effective is not None:
    return f"{counted(number, noun)}, whose weights make them worth {num_units:.1f} equal ones, are"
  return f"{counted(number, noun)} {'is' if number == 1 else 'are'}"


def _miscalibration(results: Results, evaluated: EvaluatedSet, row: RowKey, kind: str) -> str:
  """Returns what ``decisions.fault`` of a row is, in words, or ""."""
  measured = evaluated.rows[row]
  if kind == "mean":
    return f"{reasons.offset_text(decisions.excess_of(measured))} ({reasons.CORRECTED})"
  if kind == "places":
    return f"the confidence is wrong in places ({error_text(measured.estimates['ece'], results.num_resamples)})"
  return classes(results, evaluated, row) if kind == "classes" else ""


def _off(results: Results, row: RowKey, labels: Sequence[str]) -> dict[str, list[float]]:
  """Returns the errors, without their bias, of sets on which a row is wrong: its own, or all calibrators'."""
  off = {}
  for name, evaluated in results.measured.items():
    errors = {label: evaluated.rows[row[0], label].estimates["ece"] for label in (UNCALIBRATED, *labels)
              if (row[0], label) in evaluated.rows and not evaluated.has_few_units}
    is_off = {label: decisions.is_off(error, len(results.measured)) for label, error in errors.items()}
    if is_off.get(row[1]) and (labels or name != results.first[0]):
      chosen = (labels or [UNCALIBRATED]) if all(is_off.values()) else [row[1]]
      off[name] = [errors[label].estimate for label in chosen if label in errors]
  return off


def _unreliable(off: Mapping[str, Sequence[float]], row: RowKey, labels: Sequence[str]) -> Recommendation | None:
  """Warns of sets by what ``_off`` returns."""
  if not off:
    return None
  errors = [error for of_set in off.values() for error in of_set]
  low, high = f"{100 * min(errors):.0f}", f"{100 * max(errors):.0f}"
  after = "" if row[1] == UNCALIBRATED else f" after {row[1]}"
  if len(labels) > 1 and all(len(of_set) == len(labels) for of_set in off.values()):
    after = " after every calibrator"
  return Recommendation("do_not_rely", ", ".join(off), f"Do not rely on these probabilities on {listed(list(off))}: "
                        f"off by {low if low == high else f'{low} to {high}'} points{after}, shown to be "
                        f"more than {100 * decisions.OFF:g}.",
                        {"least": min(errors), "most": max(errors)})


def _subgroup(results: Results, row: RowKey) -> Recommendation | None:
  """Names the subgroup of the test set that is shown to be worse than the other examples, the worst of several."""
  worse = decisions.worse_subgroups(results, row)
  if not worse:
    return None
  (by, name, subgroup), *more = worse
  after = "" if row[1] == UNCALIBRATED else f" after {row[1]}"
  own, of_others = (reasons.direction(x.estimate) for x in (subgroup.offset, subgroup.offset_of_others))
  text = (f"Subgroup {name} of {by} is worse than the others together{after}: "
          f"{reasons.subgroup_text(results, row, subgroup)}, and the others "
          f"{'' if own == of_others else f'{of_others} '}by {points(subgroup.offset_of_others)}")
  ending = f"; {counted(len(more), 'more subgroup')} {'is' if len(more) == 1 else 'are'} worse too." if more else "."
  return Recommendation("subgroup", name, text + ending, {
    "offset": subgroup.offset.estimate, "offset_of_others": subgroup.offset_of_others.estimate,
    "p_value": subgroup.worse_p_value})


def _undetected(results: Results, row: RowKey) -> list[Recommendation]:
  """Warns of out-of-distribution sets that no confidence score is shown to tell from the test set."""
  undetected = []
  for name, by_score in detection(results, row):
    areas = {score: x["auroc"] for score, x in by_score.items()}
    if all(x.low <= 0.5 for x in areas.values()):
      best = max(areas.values(), key=lambda x: x.estimate)
      undetected.append(Recommendation(
        "do_not_rely", name, f"Do not rely on the confidence to tell {name} from {results.first[0]}: AUROC "
        f"{100 * best.estimate:.0f}% (95% interval {100 * best.low:.0f} to {100 * best.high:.0f}).",
        {score: x.estimate for score, x in areas.items()}))
  return undetected


def _of_model(evaluated: EvaluatedSet, model: str) -> str:
  """Returns " for MODEL" where there are several models, and else ""."""
  return f" for {model}" if len({name for name, _ in evaluated.rows}) > 1 else ""
