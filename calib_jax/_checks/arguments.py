"""What losses and metrics do with their arrays first: dtypes, shapes, labels, and rows that are ignored.

The inputs are masked, not only the result, because a NaN in a row that is ignored would reach the gradient as 0 * NaN.
Where labels cannot be read, because they are traced or ``check_values(False)`` was called, a label out of range raises
no error but makes the loss NaN, as in optax: a loss per example ends with ``example_values``, and ``batch`` makes the
logits of the row NaN.

Weights of examples, where an integer w equals w copies, stand beside ``where``, which says which of them count.
Functions that take both hand one array on, the ``counts`` ``[N]`` of ``counts``: numbers, 0 for an example that does
not count, or bools where no weights were given, so that what is computed without weights stays what it is.
"""

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
from calib_jax._checks.values import label_values, warn_of_probs

Array = jax.Array
FEWEST = 10  # Rows from which on logits that are probabilities are no chance.


def weights_and_where(weights, where, labels) -> tuple[Array | None, Array | None]:
  """The weights, or None, and which rows count: where ``where`` is True and the weight is not 0; or None for all."""
  if weights is None:
    return None, where if where is None else array(where, "where")
  weights, where = real_weights(weights, where, np.shape(labels)), mask(where, np.shape(labels))
  return weights, (weights != 0) & (True if where is None else where)


def real_weights(weights, where, shape: tuple[int, ...]) -> Array | np.ndarray:
  """The weights of ``weights_and_where``, for losses: a row of weight 0 counts there, as it has a gradient in it."""
  weights, where = array(weights, "weights"), mask(where, shape)
  if jnp.issubdtype(weights.dtype, jnp.integer):
    weights = weights.astype(jnp.float32)
  if not jnp.issubdtype(weights.dtype, jnp.floating):
    raise TypeError(f"weights must be real numbers: got dtype {weights.dtype}.")
  if weights.shape != shape:
    raise ValueError(f"weights must have shape {shape}, one value per example: got shape {weights.shape}.")
  wrong = ~((weights >= 0) & (weights < jnp.inf)) & (True if where is None else where)
  if is_readable(wrong) and np.any(wrong):
    first = int(np.argmax(wrong))
    raise ValueError(f"weights must be finite and at least 0: the first that is not, of row {first}, is "
                     f"{weights.reshape(-1)[first]:g}.")
  return weights if isinstance(wrong, np.ndarray) else jnp.where(wrong, jnp.nan, weights)


def counts(weights: Array | None, where: Array, dtype) -> Array:
  """The weights of flattened rows, 0 where ``where`` ``[N]`` is False; without weights or rows ``where`` itself."""
  if weights is None or not len(where):
    return where
  return jnp.where(where, gathered(weights).reshape(-1), 0).astype(dtype)


def examples(logits, labels, where=None, *, soft: bool = False) -> tuple[Array, Array]:
  """The arrays of a loss per example: logits ``[..., K]`` and labels as ``outputs_and_labels``, 0 in ignored rows."""
  passed, (logits, labels) = labels, outputs_and_labels(logits, labels, soft=soft)
  label_values(passed, logits.shape[-1], where)
  warn_of_probs(logits, where, fewest=FEWEST, what="losses")
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
  warn_of_probs(logits, where, fewest=FEWEST, what="losses")
  logits, labels, valid = masked(where, logits.shape[:-1], (logits, 0), (labels, 0))
  are_classes = label_values(passed, logits.shape[1], where)
  if labels.ndim == 1 and not are_classes:
    logits = nan_out_of_range(logits, labels, logits.shape[1])
  return logits, labels, valid if weights is None else counts(weights, valid, logits.dtype)


def classified(probs, labels, where, weights=None) -> tuple[Array, Array, Array]:
  """``(probs [N, K], labels [N], counts [N])``, flattened; ignored rows give class 0 probability 1; counts weigh."""
  probs, labels = outputs_and_labels(probs, labels, name="probs")
  certain = jax.nn.one_hot(jnp.zeros(1, jnp.int32), probs.shape[-1], dtype=probs.dtype)
  probs, labels, where = masked(where, labels.shape, (probs, certain), (labels, 0))
  return probs, labels, where if weights is None else counts(weights, where, probs.dtype)


def paired(scores, values, where, weights=None, *, names: tuple[str, str] = ("confidence", "correct")
           ) -> tuple[Array, Array, Array]:
  """``(scores [N], values [N] as floats, counts [N])``, flattened; ignored rows are zeros; counts are weights."""
  scores, values = floating(scores, names[0]), jnp.asarray(array(values, names[1]))
  same_shape(scores, values, names)
  scores, values, where = masked(where, scores.shape, (scores, 0), (values.astype(scores.dtype), 0))
  return scores, values, where if weights is None else counts(weights, where, scores.dtype)


def nan_out_of_range(values: Array, labels: Array, num_classes: int) -> Array:
  """``values`` ``[N, ...]`` or ``[...]`` of examples, NaN where an integer label ``[...]`` is not in ``[0, K)``."""
  if not isinstance(labels, jax.core.Tracer) and is_readable(labels) and not np.any(
      out_of_range(np.asarray(labels), num_classes)):
    return values
  outside = out_of_range(labels, num_classes)
  return jnp.where(jnp.expand_dims(outside, range(labels.ndim, values.ndim)), jnp.nan, values)


def masked(where, shape: tuple[int, ...], *arrays_and_blanks) -> tuple[Array, ...]:
  """Arrays whose leading axes ``shape`` are flattened, blank in the rows that are ignored, and ``where`` ``[N]``."""
  counted, flat = jnp.ones(shape, bool) if where is None else mask(where, shape), []
  for x, blank in ((counted, None), *arrays_and_blanks):
    x = gathered(x) if any(jax.typeof(x).sharding.spec) else x
    x = x.reshape(-1, *x.shape[len(shape):])
    if where is not None and flat:
      x = jnp.where(jnp.expand_dims(flat[0], range(1, x.ndim)), x, blank)
    flat.append(x)
  return *flat[1:], flat[0]


def _blank_unless(where: Array, x: Array, blank) -> Array:
  """``x`` ``[..., K]`` or ``[...]`` with ``blank`` in the rows whose ``where`` ``[...]`` is False."""
  return jnp.where(jnp.expand_dims(where, range(where.ndim, x.ndim)), x, blank)
