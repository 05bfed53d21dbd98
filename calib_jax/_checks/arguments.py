"""What losses and metrics do with their arrays first: dtypes, shapes, labels, and rows that are ignored.

The inputs are masked, not only the result, because a NaN in a row that is ignored would reach the gradient as 0 * NaN.
Where labels cannot be read, because they are traced or ``check_values(False)`` was called, a label out of range raises
no error but makes the loss NaN, as in optax: a loss per example ends with ``example_values``, and ``batch`` makes the
logits of the row NaN.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax._checks.shapes import (
  aligned,
  array,
  floating,
  gathered,
  is_readable,
  mapped_axis,
  mask,
  out_of_range,
  outputs_and_labels,
  same_shape,
)
from calib_jax._checks.values import label_values
from calib_jax._checks.weights import counts, real_weights

Array = jax.Array


def examples(logits, labels, where=None, *, soft: bool = False) -> tuple[Array, Array]:
  """The arrays of a loss per example: logits ``[..., K]`` and labels as ``outputs_and_labels``, 0 in ignored rows."""
  passed, (logits, labels) = labels, outputs_and_labels(logits, labels, soft=soft)
  label_values(passed, logits.shape[-1], where)
  if where is None:
    return logits, labels
  where = aligned(mask(where, logits.shape[:-1]), logits)
  return _blank_unless(where, logits, 0), _blank_unless(where, labels, 0)


def example_values(values: Array, labels: Array, where, num_classes: int) -> Array:
  """The ``values`` ``[...]`` of a loss per example: 0 where ``where`` is False, NaN for a label out of range."""
  if labels.ndim == values.ndim:
    values = nan_out_of_range(values, labels, num_classes)
  return values if where is None else jnp.where(aligned(jnp.asarray(where), values), values, 0)


def batch(logits, labels, where, weights=None, *, axis_name: str | None = None, soft: bool = False
          ) -> tuple[Array, Array, Array]:
  """The arrays of a loss per batch or a fit: ``(logits [N, K], labels, counts [N])``, 0 in ignored rows."""
  if axis_name is not None:
    mapped_axis(axis_name)
  passed, (logits, labels) = labels, outputs_and_labels(logits, labels, soft=soft)
  if weights is not None:
    weights = real_weights(weights, where, logits.shape[:-1])
  logits, labels, valid = _masked(where, logits.shape[:-1], (logits, 0), (labels, 0))
  label_values(passed, logits.shape[1], where)
  if labels.ndim == 1:
    logits = nan_out_of_range(logits, labels, logits.shape[1])
  return logits, labels, counts(weights, valid, logits.dtype)


def classified(probs, labels, where, weights=None) -> tuple[Array, Array, Array]:
  """``(probs [N, K], labels [N], counts [N])``, flattened; ignored rows give class 0 probability 1; counts weigh."""
  probs, labels = outputs_and_labels(probs, labels, name="probs")
  certain = jax.nn.one_hot(jnp.zeros(1, jnp.int32), probs.shape[-1], dtype=probs.dtype)
  probs, labels, where = _masked(where, labels.shape, (probs, certain), (labels, 0))
  return probs, labels, counts(weights, where, probs.dtype)


def paired(scores, values, where, weights=None, *, names: tuple[str, str] = ("confidence", "correct")
           ) -> tuple[Array, Array, Array]:
  """``(scores [N], values [N] as floats, counts [N])``, flattened; ignored rows are zeros; counts are weights."""
  scores, values = floating(scores, names[0]), jnp.asarray(array(values, names[1]))
  same_shape(scores, values, names)
  scores, values, where = _masked(where, scores.shape, (scores, 0), (values.astype(scores.dtype), 0))
  return scores, values, counts(weights, where, scores.dtype)


def nan_out_of_range(values: Array, labels: Array, num_classes: int) -> Array:
  """``values`` ``[N, ...]`` or ``[...]`` of examples, NaN where an integer label ``[...]`` is not in ``[0, K)``."""
  if is_readable(labels) and not np.any(out_of_range(np.asarray(labels), num_classes)):
    return values
  outside = out_of_range(labels, num_classes)
  return jnp.where(jnp.expand_dims(outside, range(labels.ndim, values.ndim)), jnp.nan, values)


def _masked(where, shape: tuple[int, ...], *arrays_and_blanks) -> tuple[Array, ...]:
  """Arrays whose leading axes ``shape`` are flattened, blank in the rows that are ignored, and ``where`` ``[N]``."""
  where = mask(where, shape)
  flat = [(gathered(x).reshape(-1, *x.shape[len(shape):]), blank) for x, blank in arrays_and_blanks]
  if where is None:
    return *(x for x, _ in flat), jnp.ones(math.prod(shape), bool)
  where = gathered(where).reshape(-1)
  return *(_blank_unless(where, x, blank) for x, blank in flat), where


def _blank_unless(where: Array, x: Array, blank) -> Array:
  """``x`` ``[..., K]`` or ``[...]`` with ``blank`` in the rows whose ``where`` ``[...]`` is False."""
  return jnp.where(jnp.expand_dims(where, range(where.ndim, x.ndim)), x, blank)
