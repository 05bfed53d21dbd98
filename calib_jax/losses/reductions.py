"""What every batch loss begins and ends with: checked and masked inputs, and sums over the global batch."""

import jax
import jax.numpy as jnp

from calib_jax import checks

Array = jax.Array


def prepare(logits, labels, where) -> tuple[Array, Array, Array]:
  """``(logits [N, K], labels [N], where [N])``, checked; rows that do not count are replaced by zeros.

  The inputs are masked, not only the result: a NaN in a row that does not count would reach the gradient as 0 * NaN.
  """
  logits, labels = checks.scores_and_labels(logits, labels)
  checks.rank(logits, 2, "logits", "[N, K]")
  where = checks.mask(where, labels.shape)
  if where is None:
    return logits, labels, jnp.ones(labels.shape, bool)
  return jnp.where(where[:, None], logits, 0), jnp.where(where, labels, 0), where


def global_sum(x: Array, axis_name: str | None) -> Array:
  """The sum over examples (axis 0), and over the devices of ``axis_name``."""
  total = jnp.sum(x, axis=0)
  return total if axis_name is None else jax.lax.psum(total, axis_name)


def root(x: Array, norm: float) -> Array:
  """``x ** (1 / norm)`` for ``x >= 0``, with gradient 0 at 0."""
  positive = ~(x <= 0)  # NaN is not hidden.
  return jnp.where(positive, jnp.where(positive, x, 1) ** (1 / norm), 0)


def gather(x: Array, axis_name: str | None) -> Array:
  """The examples of every device, in the order of the global batch: ``[n, ...]`` to ``[N, ...]``."""
  return x if axis_name is None else jax.lax.all_gather(x, axis_name, tiled=True)


def own(x: Array, size: int, axis_name: str | None) -> Array:
  """This device's ``size`` examples of the global batch: what ``gather`` joined."""
  return x if axis_name is None else jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(axis_name) * size, size)
