"""Draws figures of predictions and writes an HTML page. It needs Matplotlib and Jinja2."""

from calib_jax.reports.features import angle_matrix, class_angles, keep_over_epochs, logit_map
from calib_jax.reports.page import write
from calib_jax.reports.reliability import Panel, draw, panel, picture

__all__ = ["Panel", "angle_matrix", "class_angles", "draw", "keep_over_epochs", "logit_map", "panel", "picture",
           "write"]
