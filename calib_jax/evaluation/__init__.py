"""Evaluates predictions before and after each calibrator, in tables of metrics with intervals."""

from calib_jax.evaluation.detection import detection
from calib_jax.evaluation.fitting import UNCALIBRATED, Fitted, apply, calibrate, calibrated, evaluate, fit
from calib_jax.evaluation.measures import JOINT, METRICS, Metric, Values, measure, per_example
from calib_jax.evaluation.predictions import KINDS, Predictions, load, save
from calib_jax.evaluation.results import Model, Results, judge, markdown, note, to_csv, to_json, to_latex, to_rows

__all__ = [
  "JOINT",
  "KINDS",
  "METRICS",
  "UNCALIBRATED",
  "Fitted",
  "Metric",
  "Model",
  "Predictions",
  "Results",
  "Values",
  "apply",
  "calibrate",
  "calibrated",
  "detection",
  "evaluate",
  "fit",
  "judge",
  "load",
  "markdown",
  "measure",
  "note",
  "per_example",
  "save",
  "to_csv",
  "to_json",
  "to_latex",
  "to_rows",
]
