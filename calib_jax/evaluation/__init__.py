"""From predictions to tables of metrics with intervals, before and after each calibrator."""

from calib_jax.evaluation.predictions import Predictions, load, save
from calib_jax.evaluation.tables import COLUMNS, UNCALIBRATED, calibrate, evaluate, markdown, to_rows

__all__ = ["COLUMNS", "UNCALIBRATED", "Predictions", "calibrate", "evaluate", "load", "markdown", "save", "to_rows"]
