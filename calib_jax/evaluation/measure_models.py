"""Measures models before and after calibration, on all of their sets."""

from collections.abc import Hashable, Mapping, Sequence
import dataclasses

import numpy as np

from calib_jax._system import progress
from calib_jax._system.errors import UserError
from calib_jax.evaluation import sections
from calib_jax.evaluation.asked import Asked
from calib_jax.evaluation.measures import NotNumbers, measure, per_example
from calib_jax.evaluation.predictions.calibrated import Calibrated
from calib_jax.evaluation.predictions.fitting import UNCALIBRATED, Model
from calib_jax.evaluation.predictions.predictions import Predictions, differing
from calib_jax.evaluation.results import SHORT_TABLE, Estimate, EvaluatedSet, Results, Row, RowKey, Values, over_seeds


def measure_models(models: Mapping[str, Model], *, num_bins: int = 15, num_resamples: int = 1000,
                   columns: Sequence[str] = SHORT_TABLE, asked: Asked | None = None, notes: Sequence[str] = ()
                   ) -> Results:
  """Measures models before and after calibration on all of their sets: ``judge`` without its verdict."""
  models = _with_groups(models)
  first = next(iter(models.values()))
  values, failed = _values(models, num_bins, columns)
  models = {name: dataclasses.replace(model, fitted={
    label: fitted for label, fitted in model.fitted.items() if (name, label) not in failed})
    for name, model in models.items()}
  sets = {name: _evaluated({model_name: model.sets[name] for model_name, model in models.items() if name in model.sets},
                           name, {row: of_row for row, of_row in of_set.items() if row not in failed},
                           num_bins=num_bins, num_resamples=num_resamples)
          for name, of_set in values.items()}
  progress.at("computing what the sections of the page show")
  fitted = {name: model.fitted for name, model in models.items()}
  results = Results(num_bins, num_resamples, sets, fitted, classes=next(iter(first.sets.values()))[0].classes,
                    columns=tuple(columns), asked=asked, failed=failed,
                    is_crossed=first.out_of_fold is not None, notes=tuple(notes))
  return dataclasses.replace(results, sections=sections.computed(results, models))


def _values(models: Mapping[str, Model], num_bins: int, columns: Sequence[str]
            ) -> tuple[dict[str, dict[RowKey, Values]], dict[RowKey, str]]:
  """Returns the values of each row by set, and a sentence for each row whose predictions are not numbers somewhere."""
  values: dict[str, dict[RowKey, Values]] = {}
  failed: dict[RowKey, str] = {}
  for model_name, model in models.items():
    for name, (part, *_) in model.sets.items():
      of_set = values.setdefault(name, {})
      progress.at(f"reading the predictions of {name}")
      for label in model.labels:
        try:
          if part.kind == "out_of_distribution":  # Its labels have no meaning.
            _check_numbers(model.calibrated(name, label))
          else:
            of_set[model_name, label] = per_example(model.calibrated(name, label), num_bins=num_bins,
                                                    metrics_on_request=columns)
        except NotNumbers as error:
          if label == UNCALIBRATED:
            raise UserError(f"{model_name} on {name}: {error}.") from None
          who = f"{label} of {model_name}" if len(models) > 1 else label
          failed[model_name, label] = f"{who} is left out, because its fit failed: on {name}, {error}."
  return values, failed


def _check_numbers(parts: Sequence[Calibrated]) -> None:
  """Raises NotNumbers if predictions of a set that is not measured are NaN."""
  for source in parts:
    for _, _, log_probs in source.chunks():
      if num_nan := int(np.isnan(log_probs).any(1).sum()):
        raise NotNumbers(f"{num_nan:,} of {len(log_probs):,} predictions are not numbers")


def _with_groups(models: Mapping[str, Model]) -> dict[str, Model]:
  """Gives groups, weights and subgroups of the first model's examples to the same ones of others, read without them."""
  first = next(iter(models.values()))

  def grouped(name, part):
    same = first.sets.get(name, [part])[0]
    if not np.array_equal(part.labels, same.labels):
      return part
    return part._replace(groups=same.groups if part.groups is None else part.groups,
                         weights=same.weights if part.weights is None else part.weights,
                         subgroups=part.subgroups or same.subgroups)

  return {model_name: dataclasses.replace(model, sets={
    name: [grouped(name, part) for part in parts] for name, parts in model.sets.items()})
    for model_name, model in models.items()}


def _of_the_same_examples(rows: Mapping[Hashable, Values]) -> list[dict[Hashable, Values]]:
  """Divides rows into those that are compared, because they have the same labels and weights in the same order."""
  parts: list[dict[Hashable, Values]] = []
  for row, values in rows.items():
    firsts = [(part, next(iter(part.values()))) for part in parts]
    alike = (part for part, first in firsts if differing(values.labels.T, first.labels.T) is None
             and (values.weights is first.weights or np.array_equal(values.weights, first.weights)))
    if (part := next(alike, None)) is None:
      parts.append(part := {})
    part[row] = values
  return parts


def _evaluated(by_model: Mapping[str, Sequence[Predictions]], name: str, rows: Mapping[RowKey, Values], **options
               ) -> EvaluatedSet:
  """Evaluates the rows of one set; ``by_model`` has the predictions of each model on it."""
  part = next(iter(by_model.values()))[0]
  num_groups = None if part.groups is None else len(np.unique(part.groups))
  num_classes = 0 if part.records else part.logits.shape[1]
  evaluated = EvaluatedSet(len(part.labels), num_classes, max(map(len, by_model.values())), part.kind, num_groups,
                           num_effective=next((float(values.num_units) for values in rows.values()
                                               if values.weights is not None), None))
  estimates, differences = {}, {}
  progress.at(f"computing the intervals of {name}")
  for alike in _of_the_same_examples(rows):
    measured = measure(alike, **options)
    estimates |= measured[0]
    differences |= measured[1]
  excess = {row: over_seeds(values.excess(), values.mean(values.confidence - values.correct)).within(-1, 1)
            for row, values in rows.items()}
  return dataclasses.replace(evaluated, differences=differences, rows={
    row: Row(estimates[row], excess[row], values) for row, values in rows.items()})


def evaluate(calibrated: Mapping[str, Sequence[Predictions | Calibrated]], *, num_bins: int = 15,
             num_resamples: int = 1000) -> dict[str, dict[str, Estimate]]:
  """Computes every metric with a bootstrap interval.

  Args:
    calibrated: predictions by label, as ``calibrated`` returns them; test sets of all seeds must have the same size.
    num_bins: the number of bins of calibration errors.
    num_resamples: the number of resamples of the bootstrap.

  Returns:
    ``{calibrator: {metric: estimate}}``, in fractions and nats. The interval of an estimate is by ``metrics.bootstrap``
    over test examples, which are drawn jointly for all seeds. With several seeds it covers the randomness of training
    too.
  """
  rows = {label: per_example(parts, num_bins=num_bins) for label, parts in calibrated.items()}
  return measure(rows, num_bins=num_bins, num_resamples=num_resamples)[0]
