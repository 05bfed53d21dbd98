"""Small models, for digits and quick runs."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from calib_jax._checks.registry import register
from calib_jax.models.layers import MODELS, Backbone, BatchNorm, Features

Array = jax.Array


@register(MODELS, "mlp")
class MLP(Backbone):
  """Dense layers with ReLU, applied to the flattened image; ``hidden`` lists their widths."""

  hidden: Sequence[int] = (128, 128)

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False, mask: Array | None = None) -> Features:
    """Maps images ``[N, H, W, C]`` to the output of the last hidden layer."""
    x = x.reshape(len(x), -1).astype(self.dtype)
    for i, width in enumerate(self.hidden, start=1):
      dense = nn.Dense(width, dtype=self.dtype, kernel_init=nn.initializers.he_normal(), name=f"group{i}_dense")
      x = nn.relu(dense(x))
    return Features(x.astype(jnp.float32))


@register(MODELS, "simple_cnn")
class SimpleCNN(Backbone):
  """3x3 convolutions with batch norm and ReLU, with 2x2 max-pooling between them; ``channels`` lists their widths."""

  channels: Sequence[int] = (32, 64)

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False, mask: Array | None = None) -> Features:
    """Maps images ``[N, H, W, C]`` to pooled features and the map before pooling."""
    x = x.astype(self.dtype)
    for i, width in enumerate(self.channels, start=1):
      if i > 1:
        x = nn.max_pool(x, (2, 2), (2, 2))
      x = nn.Conv(width, (3, 3), use_bias=False, dtype=self.dtype, kernel_init=nn.initializers.he_normal(),
                  name=f"group{i}_conv")(x)
      x = nn.relu(BatchNorm(self.axis_name, self.dtype, name=f"group{i}_norm")(x, train=train, mask=mask))
    return Features.pooled(x)
