"""The reliability of the positive class of binary and multi-label predictions: its probability against its share."""

from collections.abc import Mapping
import dataclasses

import numpy as np

from calib_jax.evaluation.numbers import cell, p_text
from calib_jax.evaluation.predictions.fitting import Model
from calib_jax.evaluation.results import Estimate, Results, Row
from calib_jax.evaluation.sections import SECTIONS, Section, Table


@dataclasses.dataclass(frozen=True)
class PositiveClass:
  """The probability of class 1, a mean over examples and seeds."""

  probability: float  # Its mean.
  share: float  # The share of examples of class 1.
  # The class-wise ECE. Of two classes it is the ECE of class 1: the bins of class 0 are the same, mirrored.
  ece: Estimate


def compute(results: Results, models: Mapping[str, Model]) -> dict[str, dict[str, PositiveClass]]:
  """Measures the positive class of each row, by set, where there are two classes."""
  return {name: results.named({key: _of(row) for key, row in evaluated.rows.items()})
          for name, evaluated in results.measured.items() if evaluated.num_classes == 2}


def _of(row: Row) -> PositiveClass:
  values = row.values
  probability = np.where(values.predicted == 1, values.confidence, 1 - values.confidence)
  probability, share = (float(values.mean(x).mean()) for x in (probability, values.labels))
  return PositiveClass(probability, share, row.estimates["classwise"])


def table(content: Mapping[str, Mapping[str, PositiveClass]], results: Results) -> Table:
  """Returns the positive class of each row."""
  rows = [[set_name, row, *(f"{100 * x:.2f}" for x in (of.probability, of.share, of.ece.value, of.ece.floor)),
           p_text(of.ece.p_value, "classwise", results.num_resamples), cell(of.ece, 100)]
          for set_name, by_row in content.items() for row, of in by_row.items()]
  return Table(f"Reliability of the positive class, {results.class_name(1)}",
               ["evaluated on", "row", "mean probability %", "share of the class %", "ECE of the class %",
                "noise floor %", "p", "debiased ECE of the class %"], rows)


SECTIONS["positive_class"] = Section(compute, table, in_json=7, on_page=0)
