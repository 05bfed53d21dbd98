"""Evaluates models before and after calibration, and says what to do."""

from collections.abc import Mapping, Sequence
import dataclasses

from calib_jax._system import compilation
from calib_jax.evaluation.asked import Asked
from calib_jax.evaluation.measure_models import measure_models
from calib_jax.evaluation.predictions.fitting import Model
from calib_jax.evaluation.results import SHORT_TABLE, Results
from calib_jax.evaluation.verdict.verdict import verdict


@compilation.running_once()
def judge(models: Mapping[str, Model], *, num_bins: int = 15, num_resamples: int = 1000,
          columns: Sequence[str] = SHORT_TABLE, asked: Asked | None = None, notes: Sequence[str] = ()) -> Results:
  """Evaluates models before and after calibration on all of their sets.

  Args:
    models: the models by name. The first set of the first one is the test set, which all have. The first model is the
      one that others are compared with.
    num_bins: the number of bins of calibration errors.
    num_resamples: the number of resamples of the intervals.
    columns: the columns of the short table; the parts of the log loss are computed if they are among them.
    asked: what is asked of the confidences of the first model, such as where to cut; None for nothing.
    notes: sentences on the input, which stand beside the tables.

  Returns:
    The results, with the verdict.
  """
  results = measure_models(models, num_bins=num_bins, num_resamples=num_resamples, columns=columns, asked=asked,
                           notes=notes)
  return dataclasses.replace(results, verdict=verdict(results))
