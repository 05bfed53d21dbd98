"""Reads a run's config from a file, the command line or ``config.json``, and refuses what cannot work."""

from calib_jax.training.config.cells import cells
from calib_jax.training.config.checks import check, get, is_file, is_published, ood_name
from calib_jax.training.config.load import (
  CALIBRATORS,
  SECTIONS,
  complete,
  data_options,
  from_json,
  load,
  printed,
  to_json,
)

__all__ = ["CALIBRATORS", "SECTIONS", "cells", "check", "complete", "data_options", "from_json", "get",
           "is_file", "is_published", "load", "ood_name", "printed", "to_json"]
