"""Checks of arguments, shared by losses, metrics and calibrators, and registries of functions by name."""

from calib_jax._checks.arguments import (
  Function,
  arguments,
  check_values,
  class_values,
  is_traced,
  label_values,
  masked_class,
  pair_values,
  something_counts,
  warn_of_probs,
)
from calib_jax._checks.limits import (
  choice,
  limited,
  number,
  options,
  suggestion,
)
from calib_jax._checks.shapes import (
  aligned,
  batch,
  classified,
  floating,
  gathered,
  is_readable,
  mask,
  one_value_each,
  out_of_range,
  over_classes,
  paired,
  rank,
  same_shape,
  scores_and_labels,
)

__all__ = ["Function", "aligned", "arguments", "batch", "check_values", "choice", "class_values", "classified",
           "floating", "gathered", "is_readable", "is_traced", "label_values", "limited", "mask", "masked_class",
           "number", "one_value_each", "options", "out_of_range", "over_classes", "pair_values", "paired", "rank",
           "same_shape", "scores_and_labels", "something_counts", "suggestion", "warn_of_probs"]
