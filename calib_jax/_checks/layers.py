"""The arguments of functions that take features and a last layer in place of logits."""

import math

import jax
import jax.numpy as jnp

from calib_jax._checks.limits import options
from calib_jax._checks.shapes import array, gathered, mask, out_of_range
from calib_jax._checks.values import label_values

Array = jax.Array


def layer(features, kernel, bias, labels, where, chunk) -> tuple[Array, Array, Array | None, Array, Array, Array]:
  """The arrays of a last layer, flattened; ``outside`` ``[N]`` says which labels that count are no class."""
  options(chunk=(chunk, "integer [2, inf)"))
  features, kernel = _floats(features, "features"), _floats(kernel, "kernel")
  bias = None if bias is None else _floats(bias, "bias")
  if kernel.ndim != 2 or features.shape[-1:] != kernel.shape[:1] or kernel.shape[1] < 2:
    raise ValueError("kernel must be [D, K] for features [..., D], with K at least 2: "
                     f"got features {features.shape} and kernel {kernel.shape}.")
  num_classes, shape = kernel.shape[1], features.shape[:-1]
  if bias is not None and bias.shape != (num_classes,):
    raise ValueError(f"bias must have shape ({num_classes},), one number for each class: got shape {bias.shape}.")
  labels = array(labels, "labels")
  if labels.dtype.kind not in "iu":
    raise TypeError(f"labels must be integers in [0, {num_classes}), because distributions would be as large as the "
                    f"logits: got dtype {labels.dtype}.")
  if labels.shape != shape:
    raise ValueError("labels must have the shape of features without its last axis: "
                     f"got features {features.shape} and labels {labels.shape}.")
  label_values(labels, num_classes, where)
  where = jnp.ones(shape, bool) if where is None else mask(where, shape)
  outside = out_of_range(labels, num_classes) & where
  features = jnp.where(where[..., None], features, 0)
  labels = jnp.where(outside | ~where, 0, labels).astype(jnp.int32)
  count = math.prod(shape)
  features, labels, where, outside = (gathered(x).reshape(count, *x.shape[len(shape):])
                                      for x in (features, labels, where, outside))
  return features, kernel, bias, labels, where, outside


def _floats(x, name: str) -> Array:
  x = jnp.asarray(array(x, name))
  if not jnp.issubdtype(x.dtype, jnp.floating):
    raise TypeError(f"{name} must be floating point: got dtype {x.dtype}.")
  return x
