"""Checks of arguments, shared by losses, metrics and calibrators, and registries of functions by name.

``arguments`` has what a loss or a metric calls first. ``shapes`` and ``limits`` read dtypes, shapes and options, which
costs nothing under ``jit``; ``values`` reads arrays that are not traced.
"""

from calib_jax._checks.arguments import (
  batch,
  classified,
  counts,
  example_values,
  examples,
  masked,
  nan_out_of_range,
  paired,
  weights_and_where,
)
from calib_jax._checks.limits import choice, options, suggestion
from calib_jax._checks.shapes import (
  aligned,
  array,
  floating,
  gathered,
  is_readable,
  is_traced,
  mapped_axis,
  mask,
  narrowed,
  on_device,
  one_value_each,
  out_of_range,
  outputs_and_labels,
  over_classes,
  rank,
  same_shape,
)
from calib_jax._checks.values import (
  BINARY,
  CREDITS,
  LOOKED_AT,
  WAS_READ,
  are_checked,
  are_right_on_host,
  check_values,
  class_values,
  credits,
  is_on_host,
  is_outside,
  label_values,
  masked_class,
  pair_values,
  something_counts,
  sum_and_count,
  sum_tolerance,
  warn_of_probs,
  wrong_classes,
)

__all__ = ["BINARY", "CREDITS", "LOOKED_AT", "WAS_READ", "aligned", "are_checked", "are_right_on_host", "array",
           "batch", "check_values", "choice", "class_values", "classified", "counts", "credits", "example_values",
           "examples", "floating", "gathered", "is_on_host", "is_outside", "is_readable", "is_traced",
           "label_values", "mapped_axis", "mask", "masked", "masked_class", "nan_out_of_range", "narrowed",
           "on_device", "one_value_each", "options", "out_of_range", "outputs_and_labels", "over_classes",
           "pair_values", "paired", "rank", "same_shape", "something_counts", "suggestion", "sum_and_count",
           "sum_tolerance", "warn_of_probs", "weights_and_where", "wrong_classes"]
