"""Says where to cut, whether a cut from before holds, what sets hold and what acts cost, as far as it is asked."""

from collections.abc import Mapping
import math
from typing import Any

from calib_jax.evaluation.numbers import distinct_texts
from calib_jax.evaluation.predictions.fitting import UNCALIBRATED
from calib_jax.evaluation.results import Interval, Recommendation, Results, RowKey
from calib_jax.evaluation.verdict import decisions
from calib_jax.evaluation.verdict.reasons import MOST, listed
from calib_jax.thresholds.selective import written
from calib_jax.thresholds.sets import ALL_CLASSES

FAILS = "cut_fails"  # The kind of the recommendation that says it.
ALWAYS = "less_than_always_"


def recommendation(results: Results, row: RowKey) -> list[Recommendation]:
  """Says where to cut the confidences of a row, or whether a cut from before holds, by a test on all sets at once."""
  asked, (label, by_set) = results.asked, _by_set(results, row)
  use = next(iter(by_set.values()), {})
  if "cut" not in use:
    return []
  broken = [name for name, judged in by_set.items() if judged.get("p_value", 1.0) <= (1 - asked.level) / len(by_set)]
  shown = f"more than {100 * asked.risk:g}% errors are shown on {listed(broken)}" if broken else ""
  if asked.stored:
    text = f"The cut {written(use['cut'])} of {label} "
    text += f"no longer holds: {shown}" if broken else "is not shown to fail"
  else:
    text = _sentence(use)
    if broken:
      text = (f"{shown[0].upper()}{shown[1:]}, against what {use['chosen_on'].partition(', by ')[0]} says: "
              f"{use['guarantee']}")
    others = [] if not math.isnan(use["cut"]) else [
      (name, other) for name, other in results.sections["uses"][next(iter(by_set))].items()
      if "guarantee" in other and not math.isnan(other["cut"])]
    if others:  # What a row of the table has is not denied.
      name, other = max(others, key=lambda pair: pair[1].get("accepted", 0))
      text = (f"For {label} no cut is shown to have ≤ {100 * asked.risk:g}% errors, and for {name} one is: "
              f"{other['guarantee']}")
  kind = FAILS if broken else "no_cut" if math.isnan(use["cut"]) else "automate"
  numbers = {key: use[key] for key in ("cut", "accepted", "p_value") if key in use}
  return [Recommendation(kind, label, f"{text}.", {"risk": asked.risk, **numbers})]


def too_high(results: Results, row: RowKey) -> list[Recommendation]:
  """Says whether the ECE of a row is shown to be above the asked limit on a set, with the noise floor beside it."""
  limit = results.asked and results.asked.ece_limit
  if limit is None:
    return []
  errors = {name: evaluated.rows[row].estimates["ece"] for name, evaluated in results.measured.items()
            if row in evaluated.rows}
  broken = {name: error for name, error in errors.items()
            if decisions.is_above(error, limit, len(errors)) and not results.sets[name].has_few_units}
  name, error = max(broken.items(), key=lambda item: item[1].low) if broken else next(iter(errors.items()))
  floor = "" if error.floor is None else f", where a calibrated model would show {100 * error.floor:.1f}% as noise"
  text = (f"The ECE on {name} is {100 * error.value:.1f}%{floor}: more than {100 * limit:g}% is "
          f"{'shown' if broken else 'not shown'}.")
  return [Recommendation(FAILS if broken else "ece_holds", row[1], text,
                         {"ece": error.value, "low": error.low, "limit": limit})]


def not_bounded(results: Results, row: RowKey) -> list[Recommendation]:
  """Says whether the true error of a row is shown to be at most the asked limit on every set."""
  asked = results.asked
  if not asked or asked.upper_limit is None:
    return []
  sets = {name: evaluated for name, evaluated in results.measured.items() if row in evaluated.rows}
  bounds = {name: decisions.most(evaluated, row, asked.level, len(sets)) for name, evaluated in sets.items()}
  if unknown := [name for name, bound in bounds.items() if bound is None]:
    text = f"No upper bound of the error on {unknown[0]} is known for groups, weights, graded answers or several seeds"
    return [Recommendation(FAILS, row[1], f"{text}.", {"limit": asked.upper_limit})]
  name = max(bounds, key=lambda name: bounds[name])
  holds = bounds[name] <= asked.upper_limit
  text = (f"The true error on {name}, of confidences rounded to 5%, is at most {100 * bounds[name]:.1f}%, "
          f"{100 * asked.level:g}% sure: a promise of {100 * asked.upper_limit:g}% "
          f"{'holds' if holds else 'is not shown'}.")
  return [Recommendation("ece_holds" if holds else FAILS, row[1], text,
                         {"upper": bounds[name], "limit": asked.upper_limit})]


def _sentence(use: Mapping[str, Any]) -> str:
  return use["guarantee"][0].upper() + use["guarantee"][1:]


def reasons(results: Results, row: RowKey) -> list[str]:
  """Says what a cut and sets were chosen on, and what each set says of them and of the costs of acts."""
  label, by_set = _by_set(results, row)
  sentences, use = [], next(iter(by_set.values()), {})
  if "chosen_on" in use:
    what = ["cut"] * ("cut" in use) + ["rule of sets"] * (results.asked.coverage is not None)
    judge = f"judged on {listed(list(by_set))}" if results.asked.judges else "not judged, for which --test is needed"
    sentences.append(f"The {' and '.join(what)} by {label} {'are' if len(what) > 1 else 'is'} chosen on "
                     f"{use['chosen_on']}, and {judge}.")
  for name, judged in list(by_set.items())[:MOST]:
    once = ", each group counts once" if results.measured[name].num_groups is not None else ""
    if "accepted" in judged and not math.isnan(judged["cut"]):
      share = f", of which {_percent(judged['errors'])} are errors{once}" if judged["accepted"] else ""
      sentences.append(f"On {name} the cut accepts {100 * judged['accepted']:.0f}% of the cases{share}.")
    if "set_size" in judged:
      sentences.append(f"On {name} {_percent(judged['set_coverage'])} of the sets hold the true class, with "
                       f"{judged['set_size']:.2f} classes on average{once}.")
    if "quantile" in judged:
      sentences.append(f"{ALL_CLASSES[0].upper()}{ALL_CLASSES[1:]}.")
    if "cost" in judged:
      sentences.append(f"On {name} the acts by {label} cost {_amount(judged['cost'])} per case{once}; "
                       f"{_savings(judged)}.")
  return sentences


def _savings(judged: Mapping[str, Any]) -> str:
  """Says what acts cost less than one act for all cases, and less than without calibration."""
  always = {name: less for name, less in judged.items() if name.startswith(ALWAYS)}
  name, less = min(always.items(), key=lambda item: item[1].estimate)
  is_shown = min(x.low for x in always.values()) > 0  # Of each act, so that no correction for their number is needed.
  text = (f"any one act for all cases {'costs more' if is_shown else 'is not shown to cost more'}, "
          f"{name.removeprefix(ALWAYS)} {_amount(less)}")
  if change := judged.get("less_than_uncalibrated"):
    text += f"; calibration {'saves' if change.low > 0 else 'is not shown to save:'} {_amount(change)}"
  return text


def _percent(share: Interval) -> str:
  """A share in percent with its interval."""
  return f"{100 * share.estimate:.1f}% ({100 * share.low:.1f} to {100 * share.high:.1f}%)"


def _amount(amount: Interval) -> str:
  """An amount with its interval."""
  estimate, low, high = distinct_texts(amount.estimate, amount.low, amount.high)
  return f"{estimate} ({low} to {high})"


def _by_set(results: Results, row: RowKey) -> tuple[str, dict[str, Mapping[str, Any]]]:
  """The name of a row, or of a cut from before, and what it is good for by set."""
  label = next(iter(results.asked.stored), row[1]) if results.asked else row[1]
  name = results.row_name((row[0], label))
  content = results.sections.get("uses", {})
  return ("the uncalibrated model" if label == UNCALIBRATED else label,
          {key: by_row[name] for key, by_row in content.items() if name in by_row})
