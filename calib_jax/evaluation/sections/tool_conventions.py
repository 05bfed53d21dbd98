"""Calibration errors of the test set as other tools compute them."""

from collections.abc import Mapping, Sequence

import numpy as np

from calib_jax import metrics
from calib_jax.evaluation.predictions.fitting import Model
from calib_jax.evaluation.results import Results, Values
from calib_jax.evaluation.sections import SECTIONS, Section, Table
from calib_jax.metrics.conventions import OF_RECORDS, of_arrays


def compute(results: Results, models: Mapping[str, Model]) -> dict[str, dict[str, dict[str, float]]]:
  """Computes the mean error over seeds by set, convention and row, if there are several and no weights."""
  name, evaluated = results.first
  if len(evaluated.rows) < 2 or evaluated.num_effective is not None:
    return {}
  conventions = [x for x in metrics.CONVENTIONS if x not in OF_RECORDS]
  errors = results.named({row: _errors(measured.values, conventions) for row, measured in evaluated.rows.items()})
  return {name: {convention: {row: by_convention[convention] for row, by_convention in errors.items()}
                 for convention in conventions}}


def _errors(values: Values, conventions: Sequence[str]) -> dict[str, float]:
  seeds = range(values.confidence.shape[1])
  return {name: float(np.mean([of_arrays(name, values.confidence[:, s], values.correct[:, s]) for s in seeds]))
          for name in conventions}


def table(content: Mapping[str, Mapping[str, Mapping[str, float]]], results: Results) -> Table:
  """Returns the errors of each row by convention, and which row has the lowest."""
  by_convention = next(iter(content.values()))
  names = list(next(iter(by_convention.values())))
  rows = [[convention, min(errors, key=errors.get), *(f"{100 * errors[name]:.2f}" for name in names)]
          for convention, errors in by_convention.items()]
  return Table("Calibration error in %, by the conventions of other tools (ECE as each computes it)",
               ["convention", "lowest", *names], rows)


SECTIONS["conventions"] = Section(compute, table, in_json=2, on_page=5)
