"""Small models for digits and quick runs."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from calib_jax.models.layers import BatchNorm, head

Array = jax.Array


class MLP(nn.Module):
  """Dense layers with ReLU on the flattened image, then a linear head."""

  num_classes: int
  hidden: Sequence[int] = (128, 128)
  dtype: Any = jnp.float32
  axis_name: str | None = None

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False, mask: Array | None = None, return_features: bool = False):
    """``[N, H, W, C]`` to float32 logits ``[N, num_classes]``, and the last hidden layer on request."""
    x = x.reshape(len(x), -1).astype(self.dtype)
    for i, width in enumerate(self.hidden, start=1):
      dense = nn.Dense(width, dtype=self.dtype, kernel_init=nn.initializers.he_normal(), name=f"group{i}_dense")
      x = nn.relu(dense(x))
    return head(x, self.num_classes, return_features)


class SimpleCNN(nn.Module):
  """3x3 convolutions with batch norm and ReLU, 2x2 max-pooling between them; global mean; linear head."""

  num_classes: int
  channels: Sequence[int] = (32, 64)
  dtype: Any = jnp.float32
  axis_name: str | None = None

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False, mask: Array | None = None, return_features: bool = False):
    """``[N, H, W, C]`` to float32 logits ``[N, num_classes]``, and the pooled features on request."""
    x = x.astype(self.dtype)
    for i, width in enumerate(self.channels, start=1):
      if i > 1:
        x = nn.max_pool(x, (2, 2), (2, 2))
      x = nn.Conv(width, (3, 3), use_bias=False, dtype=self.dtype, kernel_init=nn.initializers.he_normal(),
                  name=f"group{i}_conv")(x)
      x = nn.relu(BatchNorm(self.axis_name, self.dtype, name=f"group{i}_norm")(x, train=train, mask=mask))
    return head(jnp.mean(x.astype(jnp.float32), (1, 2)), self.num_classes, return_features)
