"""Sums and lists over the global batch, which may be spread over the devices of a mapped axis."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from calib_jax._numerics.binning import array_module

Array = jax.Array


def global_sum(x: Array, axis_name: str | None) -> Array:
  """The sum over examples (axis 0), and over the devices of ``axis_name``."""
  total = jnp.sum(x, axis=0)
  return total if axis_name is None else jax.lax.psum(total, axis_name)


def shares(weights: Array, dtype: DTypeLike, axis_name: str | None) -> Array:
  """The ``weights`` ``[N]``, bools or numbers, divided by their sum over the global batch; 0 if nothing counts."""
  if weights.dtype != jnp.bool_:
    # The largest becomes 1, which changes no share, so that weights of any size neither overflow nor underflow.
    largest = jax.lax.stop_gradient(jnp.max(weights, initial=0))
    largest = largest if axis_name is None else jax.lax.pmax(largest, axis_name)
    weights = weights / jnp.where(largest > 0, largest, 1)
  weights = weights.astype(dtype)
  total = global_sum(weights, axis_name)
  return weights / jnp.where(total == 0, 1, total)


def weighted(weights: Array, values: Array) -> Array:
  """``weights * values`` of losses that may be infinite: 0 where the weight is 0."""
  return weights * jnp.where((weights == 0) & (values == jnp.inf), 0, values)


def gather(x: Array, axis_name: str | None) -> Array:
  """The examples of every device, in the order of the global batch: ``[n, ...]`` to ``[N, ...]``."""
  if axis_name is None:
    return x
  if x.dtype == jnp.bool_:
    return gather(x.astype(jnp.int32), axis_name) > 0
  # Each device's array is 0 except at its own examples, and the arrays are summed. With ``all_gather``, whose result
  # ``jax.shard_map`` does not know to be the same on all devices, it would add up the gradients of their equal losses.
  everywhere = jnp.zeros((jax.lax.axis_size(axis_name), *x.shape), x.dtype).at[jax.lax.axis_index(axis_name)].set(x)
  return jax.lax.psum(everywhere, axis_name).reshape(-1, *x.shape[1:])


def root(x: Array, norm: float) -> Array:
  """``x ** (1 / norm)`` for arrays ``x >= 0`` of JAX or NumPy, with gradient 0 at 0."""
  xp = array_module(x)
  positive = ~(x <= 0)  # A NaN is not hidden.
  return xp.where(positive, xp.where(positive, x, 1) ** (1 / norm), 0)
