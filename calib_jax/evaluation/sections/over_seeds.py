"""Means over seeds with their standard errors, and Cohen's d against the first model with the same calibrator."""

from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np

from calib_jax import metrics
from calib_jax.evaluation.columns import numbers_of
from calib_jax.evaluation.numbers import digits_of
from calib_jax.evaluation.predictions.fitting import Model
from calib_jax.evaluation.results import EvaluatedSet, Results, RowKey
from calib_jax.evaluation.sections import SECTIONS, Section, Table


@dataclasses.dataclass(frozen=True)
class Effect:
  """A metric over seeds."""

  mean: float  # Its mean.
  sem: float  # The standard error of the mean.
  cohens_d: float | None  # The effect size against the first model, or None; see ``effect_size``.


def compute(results: Results, models: Mapping[str, Model]) -> dict[str, dict[str, dict[str, Effect]]]:
  """Computes the effects of the rows with several seeds, by set, row and metric."""
  by_set = {name: results.named(_effects(evaluated)) for name, evaluated in results.measured.items()}
  return {name: effects for name, effects in by_set.items() if effects}


def _effects(evaluated: EvaluatedSet) -> dict[RowKey, dict[str, Effect]]:
  first = next(iter(evaluated.rows))[0]
  effects = {}
  for (model, label), row in evaluated.rows.items():
    baseline = evaluated.rows.get((first, label)) if model != first else None
    if len(row.estimates["nll"].per_seed) > 1:
      effects[model, label] = {name: Effect(
        estimate.value, float(metrics.sem(np.array(estimate.per_seed, np.float32))),
        effect_size(estimate.per_seed, baseline.estimates[name].per_seed) if baseline else None)
        for name, estimate in row.estimates.items()}
  return effects


def effect_size(own: Sequence[float], baseline: Sequence[float]) -> float | None:
  """Returns Cohen's d, or None unless both have several seeds, and some of these differ."""
  own, baseline = np.array(own, np.float32), np.array(baseline, np.float32)
  if len(baseline) < 2 or np.ptp(own) == np.ptp(baseline) == 0:
    return None
  return float(metrics.cohens_d(own, baseline))


def table(content: Mapping[str, Mapping[str, Mapping[str, Effect]]], results: Results) -> Table:
  """Returns the main metrics over seeds."""
  shown = {column.name: column for column, _ in numbers_of(results.columns)}
  rows = [[set_name, row, *(_text(effects[name], column.scale) if name in effects else ""
                              for name, column in shown.items())]
          for set_name, by_row in content.items() for row, effects in by_row.items()]
  baseline = next(iter(results.first[1].rows))[0]
  return Table(f"Over seeds: mean ± standard error, and Cohen's d against {baseline}",
               ["evaluated on", "row", *(column.heading for column in shown.values())], rows)


def _text(effect: Effect, scale: float) -> str:
  size = "" if effect.cohens_d is None else f", d = {effect.cohens_d:.1f}"
  mean, sem = (f"{scale * x:.{digits_of(scale)}f}" for x in (effect.mean, effect.sem))
  return f"{mean} ± {sem}{size}"


SECTIONS["seeds"] = Section(compute, table, in_json=3, on_page=2)
