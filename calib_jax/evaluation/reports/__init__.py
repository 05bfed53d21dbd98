"""Makes tables of results, and draws figures and writes an HTML page, which need Matplotlib and Jinja2.

Functions such as ``reliability_diagram`` return Matplotlib axes, for your own notebooks.
"""

from calib_jax._system import lazy

# The files of the public names, which are imported when they are first used, because tables need no Matplotlib.
_PLACES = {name: f"{__name__}.{place}" for place, names in {
  "curves": ("accuracy_confidence_plot", "class_gaps_plot", "pareto_plot", "risk_coverage_plot", "severity_plot",
             "training_plot"),
  "features": ("angle_matrix", "class_angles", "keep_over_epochs", "logit_map"),
  "drawing": ("figures",),
  "page": ("write",),
  "positive_class": ("positive_pairs",),
  "reliability": ("confidence_histogram", "picture", "reliability_diagram", "reliability_grid"),
  "style": ("legend_below", "save"),
}.items() for name in names}

__all__ = sorted(_PLACES)

__getattr__, __dir__ = lazy.names(__name__, _PLACES)
