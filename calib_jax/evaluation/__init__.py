"""Evaluates predictions before and after each calibrator, in tables of metrics with intervals."""

from calib_jax.evaluation.fitting import Fitted, Model, calibrated, evaluate, fit
from calib_jax.evaluation.formats import markdown, note, to_csv, to_json, to_latex, to_rows
from calib_jax.evaluation.measures import JOINT, METRICS, Metric, measure, per_example
from calib_jax.evaluation.models import judge
from calib_jax.evaluation.predictions import KINDS, Predictions, load, save
from calib_jax.evaluation.results import UNCALIBRATED, Estimate, EvaluatedSet, Interval, Results, Row, Values
from calib_jax.evaluation.sections.detection import detection

__all__ = ["JOINT", "KINDS", "METRICS", "UNCALIBRATED", "Estimate", "EvaluatedSet", "Fitted", "Interval", "Metric",
           "Model", "Predictions", "Results", "Row", "Values", "calibrated", "detection", "evaluate", "fit", "judge",
           "load", "markdown", "measure", "note", "per_example", "save", "to_csv", "to_json", "to_latex", "to_rows"]
