"""Layers shared by the models."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

Array = jax.Array


class BatchNorm(nn.Module):
  """Batch normalisation with the statistics of the GLOBAL batch, exact under padding.

  Sums and counts are added over ``axis_name`` and divided once, so that a batch padded unevenly over devices, or a
  device that holds only padding, gives the statistics of the true examples. (Flax's own layer averages the devices'
  means, which is exact only where every device holds as many examples.) Statistics and parameters are float32 whatever
  ``dtype``.
  """

  axis_name: str | None = None
  dtype: Any = jnp.float32
  momentum: float = 0.9
  epsilon: float = 1e-5

  @nn.compact
  def __call__(self, x: Array, *, train: bool, mask: Array | None = None) -> Array:
    """Normalises the last axis of ``x`` ``[N, ..., C]``; ``mask`` ``[N]`` says which examples count."""
    shape = (x.shape[-1],)
    scale = self.param("scale", nn.initializers.ones, shape)
    bias = self.param("bias", nn.initializers.zeros, shape)
    running_mean = self.variable("batch_stats", "mean", jnp.zeros, shape)
    running_var = self.variable("batch_stats", "var", jnp.ones, shape)
    if train:
      mean, var = self._moments(x.astype(jnp.float32), mask)
      if not self.is_initializing():
        running_mean.value += (1 - self.momentum) * (mean - running_mean.value)
        running_var.value += (1 - self.momentum) * (var - running_var.value)
    else:
      mean, var = running_mean.value, running_var.value
    factor = scale * jax.lax.rsqrt(var + self.epsilon)
    wide = (1,) * (x.ndim - 1) + shape
    return (x * factor.reshape(wide).astype(x.dtype)
            + (bias - mean * factor).reshape(wide).astype(x.dtype)).astype(self.dtype)

  def _moments(self, x: Array, mask: Array | None) -> tuple[Array, Array]:
    axes = tuple(range(x.ndim - 1))
    if mask is None:
      mask = jnp.ones(len(x), bool)
    weight = mask.astype(x.dtype).reshape((-1,) + (1,) * (x.ndim - 1))
    per_example = x.size // (len(x) * x.shape[-1])
    sums = (jnp.sum(mask, dtype=x.dtype) * per_example, jnp.sum(x * weight, axes), jnp.sum(x * x * weight, axes))
    if self.axis_name is not None and not self.is_initializing():
      sums = jax.lax.psum(sums, self.axis_name)
    count, total, square = sums
    count = jnp.maximum(count, 1)
    mean = total / count
    # Rounding may leave a tiny negative variance where a channel is constant.
    return mean, jnp.maximum(square / count - mean * mean, 0)
