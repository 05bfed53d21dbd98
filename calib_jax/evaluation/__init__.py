"""Evaluates predictions before and after each calibrator, in tables of metrics with intervals."""

from calib_jax.evaluation.fitting import Fitted, Model, calibrated, evaluate, fit
from calib_jax.evaluation.formats import markdown, note, to_csv, to_html, to_json, to_latex, to_rows
from calib_jax.evaluation.measures import JOINT, METRICS, Metric, measure, per_example
from calib_jax.evaluation.models import judge
from calib_jax.evaluation.predictions import KINDS, Predictions, load, load_labels, save
from calib_jax.evaluation.results import (
  COLUMNS,
  UNCALIBRATED,
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

__all__ = ["COLUMNS", "JOINT", "KINDS", "METRICS", "UNCALIBRATED", "Estimate", "EvaluatedSet", "Fitted", "Interval",
           "Metric", "Model", "Predictions", "Recommendation", "Results", "Row", "Values", "Verdict", "calibrated",
           "detection", "evaluate", "fit", "judge", "load", "load_labels", "markdown", "measure", "note", "per_example",
           "save", "to_csv", "to_html", "to_json", "to_latex", "to_rows"]
