"""Sums and lists over the global batch, which may be spread over the devices of a mapped axis."""

import jax
import jax.numpy as jnp

from calib_jax._numerics.binning import array_module

Array = jax.Array


def global_sum(x: Array, axis_name: str | None) -> Array:
  """The sum over examples (axis 0), and over the devices of ``axis_name``."""
  total = jnp.sum(x, axis=0)
  return total if axis_name is None else jax.lax.psum(total, axis_name)


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


def own(x: Array, size: int, axis_name: str | None) -> Array:
  """This device's ``size`` examples out of those of every device, as ``gather`` joins them."""
  return x if axis_name is None else jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(axis_name) * size, size)


def root(x: Array, norm: float) -> Array:
  """``x ** (1 / norm)`` for arrays ``x >= 0`` of JAX or NumPy, with gradient 0 at 0."""
  xp = array_module(x)
  positive = ~(x <= 0)  # A NaN is not hidden.
  return xp.where(positive, xp.where(positive, x, 1) ** (1 / norm), 0)
