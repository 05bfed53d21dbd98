"""The top label from features and a last layer, for so many classes that the logits would not fit in memory."""

import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics import vocabulary

Array = jax.Array


def top_label_from_features(features: ArrayLike, kernel: ArrayLike, labels: ArrayLike, *,
                            bias: ArrayLike | None = None, chunk: int = 4096) -> tuple[Array, Array]:
  """The ``top_label`` of ``softmax(features @ kernel + bias)``, for ``chunk`` classes at a time.

  The metrics of ``(confidence, correct)`` follow from it, such as ``calibration_error``.

  Args:
    features: ``[..., D]`` floats.
    kernel: ``[D, K]`` floats, the last layer.
    labels: ``[...]`` integers in ``[0, K)``.
    bias: optional ``[K]`` floats.
    chunk: the number of classes whose logits are in memory at a time, at least 2.

  Returns:
    ``(confidence, correct)``, ``[...]`` floats and bools; where a label that is traced is out of range, NaN and False.
    O(NDK) time; memory for the logits of N rows and ``chunk`` classes.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  >>> features, kernel = jnp.array([[1.0], [-1.0]]), jnp.array([[3.0, 0.0, 1.0]])
  >>> confidence, correct = top_label_from_features(features, kernel, jnp.array([0, 2]), chunk=2)
  >>> confidence.round(1), correct
  (Array([0.8, 0.7], dtype=float32), Array([ True, False], dtype=bool))
  """
  labels = checks.array(labels, "labels")
  shape = labels.shape
  features, kernel, bias, labels, _, outside = checks.layer(features, kernel, bias, labels, None, chunk)
  confidence, correct = _compiled(features, kernel, bias, labels, chunk)
  return jnp.where(outside, jnp.nan, confidence).reshape(shape), (correct & ~outside).reshape(shape)


@functools.partial(jax.jit, static_argnums=4)
def _compiled(features: Array, kernel: Array, bias: Array | None, labels: Array, chunk: int) -> tuple[Array, Array]:
  rows = vocabulary.row_sums(features, kernel, bias, labels, chunk)
  return jax.nn.sigmoid(-vocabulary.top_odds(rows)), rows.top == labels
