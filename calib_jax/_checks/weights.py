"""Weights of examples, of which an integer w equals w copies, beside ``where``, which says which of them count.

Functions that take both hand one array on, the ``counts`` ``[N]`` of ``counts``: numbers, 0 for an example that does
not count, or bools where no weights were given, so that what is computed without weights stays what it is.
"""

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax._checks.shapes import array, gathered, is_readable, mask

Array = jax.Array


def weights_and_where(weights, where, labels) -> tuple[Array | None, Array | None]:
  """The weights, or None, and which rows count: those of ``where`` whose weight is not 0; or None for all."""
  if weights is None:
    return None, array(where, "where")
  weights, where = real_weights(weights, where, np.shape(labels)), mask(where, np.shape(labels))
  return weights, (weights != 0) & (True if where is None else where)


def real_weights(weights, where, shape: tuple[int, ...]) -> Array:
  """The weights of ``weights_and_where``, for losses: a row of weight 0 counts there, as it has a gradient in it."""
  weights, where = jnp.asarray(array(weights, "weights")), mask(where, shape)
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
  return jnp.where(wrong, jnp.nan, weights)


def counts(weights: Array | None, where: Array, dtype) -> Array:
  """The weights of flattened rows, 0 where ``where`` ``[N]`` is False; without weights or rows ``where`` itself."""
  if weights is None or not len(where):
    return where
  return jnp.where(where, gathered(weights).reshape(-1), 0).astype(dtype)
