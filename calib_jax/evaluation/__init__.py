"""The second floor: files of predictions come in, and a verdict, tables, figures and a page go out.

``predictions`` reads files and fits calibrators to them; the modules of this package and ``sections`` measure them, in
``results``; ``verdict`` says what to do and why; ``reports`` writes it all down.
"""

from calib_jax._system import lazy
from calib_jax.evaluation.columns import COLUMNS, Column
from calib_jax.evaluation.measure_models import evaluate
from calib_jax.evaluation.measures import measure, per_example
from calib_jax.evaluation.predictions.fitting import UNCALIBRATED, FittedRows, Model, calibrated, fit
from calib_jax.evaluation.predictions.loading import load, load_labels
from calib_jax.evaluation.predictions.predictions import KINDS, Predictions, Subgroups, save
from calib_jax.evaluation.predictions.row_ids import SameRows
from calib_jax.evaluation.results import (
  SHORT_TABLE,
  Estimate,
  EvaluatedSet,
  Interval,
  Recommendation,
  Results,
  Row,
  Values,
  Verdict,
)
from calib_jax.evaluation.sections.detection import detection

__all__ = ["COLUMNS", "KINDS", "SHORT_TABLE", "UNCALIBRATED", "Column", "Estimate", "EvaluatedSet", "FittedRows",
           "Interval", "Model", "Predictions", "Recommendation", "Results", "Row", "SameRows", "Subgroups", "Values",
           "Verdict", "calibrated", "detection", "evaluate", "fit", "judge", "load", "load_labels", "markdown",
           "measure", "note", "per_example", "save", "to_csv", "to_html", "to_json", "to_latex", "to_rows"]

# Names of rooms that import this one, which are found when they are first used.
__getattr__, __dir__ = lazy.names(__name__, {
  "judge": "calib_jax.evaluation.verdict.judge", "markdown": "calib_jax.evaluation.reports.markup", **dict.fromkeys(
    ("note", "to_csv", "to_html", "to_json", "to_latex", "to_rows"), "calib_jax.evaluation.reports.formats")})
