"""What the confidences of the first model are good for: cuts, sets of classes and acts, as far as they are asked."""

from collections.abc import Mapping
from typing import Any
import warnings

import numpy as np

from calib_jax import metrics, thresholds
from calib_jax._system.errors import UserError
from calib_jax.evaluation.asked import Asked
from calib_jax.evaluation.numbers import cell
from calib_jax.evaluation.predictions.calibrated import Calibrated
from calib_jax.evaluation.predictions.fitting import UNCALIBRATED, Model, calibrated
from calib_jax.evaluation.results import Interval, Results, Values
from calib_jax.evaluation.sections import SECTIONS, Section, Table
from calib_jax.thresholds.means import binomial_interval, mean_interval
from calib_jax.thresholds.selective import shortest, written

ROUNDING = 1e-6  # Of confidences.
Use = dict[str, Any]  # Numbers, intervals and phrases of a row on a set by their names.


def compute(results: Results, models: Mapping[str, Model]) -> dict[str, dict[str, Use]]:
  """Chooses cuts and sets by each row of the first model, and judges them, and its acts, on each set."""
  asked, (name, model) = results.asked, next(iter(models.items()))
  if asked is None or asked.risk is asked.coverage is asked.costs is None:
    return {}
  chosen, content = {label: _chosen(asked, model, label) for label in model.labels}, {}
  for set_name, evaluated in results.measured.items():
    uses, paid = {}, {}
    for label, (rule, use) in chosen.items():
      values, use = evaluated.rows[name, label].values, dict(use)
      if "cut" in use and asked.judges:
        use |= _judged(use["cut"], values, asked)
      if rule or asked.costs is not None:
        probs = _probs(model.calibrated(set_name, label)[0])
      if rule:
        use |= _of_sets(rule(probs), values, asked.level)
        if rule.all_classes:
          use["quantile"] = float(rule.quantile)
      if asked.costs is not None:
        use |= _of_acts(probs, values, asked, paid, label)
      uses[name, label] = use
    content[set_name] = results.named(uses)
  return content


def _probs(source: Calibrated) -> np.ndarray:
  """Probabilities ``[N, K]`` of all examples."""
  return source.probs(slice(None), source.log_probs())


def _chosen(asked: Asked, model: Model, label: str) -> tuple[thresholds.SetRule | None, Use]:
  """The rule of the sets of a row, if it is asked and judged, and what is shown of its cut."""
  if label not in asked.chosen_on:
    return None, {"cut": asked.stored[label]} if label in asked.stored else {}
  source, where = asked.chosen_on[label]
  probs, labels, rule, use = _probs(source), source.part.labels, None, {"chosen_on": where}
  if not np.isfinite(probs).all():
    raise UserError(f"{label} gives no probabilities when it is fitted to a part of {where}: leave it out.")
  if asked.risk is not None:
    before = asked.chosen_on.get(UNCALIBRATED, asked.chosen_on[label])
    if label != UNCALIBRATED and (threshold := _mapped(asked, model, label, before[0])):
      use["chosen_on"] = f"{before[1]}, by the confidences before calibration, whose order stays"
    else:
      threshold = _threshold(asked, *_confidence_and_correct(probs, source), source)
    use |= {"guarantee": str(threshold), "cut": threshold.cut}
  if asked.coverage is not None and asked.judges:
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # The reasons say it.
      rule = thresholds.prediction_sets(probs, labels, coverage=asked.coverage, groups=source.part.groups)
  return rule, use


def _confidence_and_correct(probs: np.ndarray, source: Calibrated) -> tuple[np.ndarray, np.ndarray]:
  if source.part.records:
    return probs[:, 1], source.part.labels == 1
  return tuple(map(np.asarray, metrics.top_label(probs, source.part.labels)))


def _threshold(asked: Asked, confidence: np.ndarray, correct: np.ndarray, source: Calibrated) -> thresholds.Threshold:
  return thresholds.selective_threshold(confidence, correct, risk=asked.risk, level=asked.level,
                                        groups=source.part.groups)


def _mapped(asked: Asked, model: Model, label: str, source: Calibrated) -> thresholds.Threshold | None:
  """The threshold of the confidences before calibration, with the cut that accepts the same examples after it.

  It has the guarantee of the former, also where the calibrator is fitted to these examples; confidences of several
  folds, whose calibrators differ, would be in no such order. None if the calibrator changes the order or the classes.
  """
  calibrator, _ = model.fitted[label]
  if calibrator.together:
    return None
  (before, correct), (after, correct_after) = (_confidence_and_correct(_probs(x), x) for x in (
    source, calibrated(model.fitted, label, [source.part])[0]))
  values, place = np.unique(before, return_inverse=True)
  low, high = np.full((2, len(values)), [[np.inf], [-np.inf]])
  np.minimum.at(low, place, after)
  np.maximum.at(high, place, after)
  if (correct != correct_after).any() or (low[1:] < high[:-1] - ROUNDING).any():
    return None
  threshold = _threshold(asked, before, correct, source)
  if np.isnan(threshold.cut):
    return threshold
  first = int(np.searchsorted(values, values.dtype.type(threshold.cut)))
  lowest, below = low[first], high[first - 1] if first else -np.inf
  return threshold._replace(cut=shortest(lowest, below, after.dtype)) if lowest > below else None


def _judged(cut: float, values: Values, asked: Asked) -> Use:
  """What a set says of a cut."""
  check = thresholds.check_threshold(cut, values.confidence[:, 0], values.correct[:, 0], groups=values.groups,
                                     risk=asked.risk, level=asked.level)
  return {"accepted": check.accepted / len(values.confidence), "errors": Interval(check.risk, check.low, check.high),
          "p_value": check.p_value}


def _of_sets(sets: np.ndarray, values: Values, level: float) -> Use:
  """What sets of classes ``[N, K]`` hold."""
  held = sets[np.arange(len(sets)), values.labels[:, 0]].astype(np.float64)
  share = float(held.mean())
  ends = (share, *binomial_interval(share, len(held), level)) if values.groups is None else (
    mean_interval(held, (0.0, 1.0), level, values.groups))
  return {"set_coverage": Interval(*ends),
          "set_size": float(sets.sum(axis=1).mean()), "sets_of_one_class": float(np.mean(sets.sum(axis=1) == 1))}


def _of_acts(probs: np.ndarray, values: Values, asked: Asked, paid: dict[str, np.ndarray], label: str) -> Use:
  """What the acts of a row cost, which is added to ``paid``, less than other rules."""
  labels, options = values.labels[:, 0], {"level": asked.level, "groups": values.groups}
  decision = thresholds.decision_threshold(probs, asked.costs, labels, **options)
  paid[label] = asked.costs[decision.acts, labels]
  use = {"cost": Interval(decision.cost, *decision.interval), "cost_expected": decision.expected} | {
    f"less_than_always_{act}": Interval(saved, *ends) for act, saved, ends in zip(
      asked.acts, decision.saved.tolist(), decision.saved_interval.tolist(), strict=True)}
  if label != UNCALIBRATED:
    most = float(np.ptp(asked.costs, axis=0).max())
    use["less_than_uncalibrated"] = Interval(*mean_interval(paid[UNCALIBRATED] - paid[label], (-most, most), **options))
  return use


def table(content: Mapping[str, Mapping[str, Use]], results: Results) -> Table:
  """Returns all numbers, in fractions and units of cost."""
  names = list(dict.fromkeys(name for by_row in content.values() for use in by_row.values() for name in use
                             if name != "chosen_on"))
  rows = [[set_name, row, *(_text(use.get(name, ""), name) for name in names)]
          for set_name, by_row in content.items() for row, use in by_row.items()]
  return Table("What the confidences are good for, in fractions and units of cost",
               ["evaluated on", "row", *(name.replace("_", " ") for name in names)], rows)


def _text(value: Interval | float | str, name: str) -> str:
  """An entry as a cell; "none" of a cut that is not there, and of the errors of no examples."""
  if not isinstance(value, str) and np.isnan(value.estimate if isinstance(value, Interval) else value):
    return "none"
  if isinstance(value, float) and name == "cut":
    return written(value)  # Which can be given back.
  return cell(value, 1) if isinstance(value, Interval) else value if isinstance(value, str) else f"{value:.4g}"


SECTIONS["uses"] = Section(compute, table, in_json=8, on_page=-1, in_text=True)
