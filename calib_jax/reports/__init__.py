"""Draws figures of predictions and writes an HTML page. It needs Matplotlib and Jinja2.

Functions such as ``reliability_diagram`` return Matplotlib axes, for your own notebooks.
"""

from calib_jax.reports.curves import (
  accuracy_confidence_plot,
  class_gaps_plot,
  pareto_plot,
  risk_coverage_plot,
  severity_plot,
  training_plot,
)
from calib_jax.reports.features import angle_matrix, class_angles, keep_over_epochs, logit_map
from calib_jax.reports.figures import figures
from calib_jax.reports.page import write, write_streamed
from calib_jax.reports.positive_class import positive_pairs
from calib_jax.reports.reliability import confidence_histogram, picture, reliability_diagram, reliability_grid
from calib_jax.reports.style import legend_below, save

__all__ = ["accuracy_confidence_plot", "angle_matrix", "class_angles", "class_gaps_plot", "confidence_histogram",
           "figures", "keep_over_epochs", "legend_below", "logit_map", "pareto_plot", "picture", "positive_pairs",
           "reliability_diagram", "reliability_grid", "risk_coverage_plot", "save", "severity_plot", "training_plot",
           "write", "write_streamed"]
