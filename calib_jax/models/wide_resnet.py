"""Wide residual networks (Zagoruyko & Komodakis 2016)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from calib_jax.models.layers import BatchNorm

Array = jax.Array


class WideResNet(nn.Module):
  """WRN-``depth``-``width`` for 32x32 images: three groups of n pre-activation blocks of two 3x3 convolutions.

  ``depth`` = 6n + 4; the groups have 16, 32 and 64 times ``width`` channels, the last two start with stride 2. Where
  the shape changes, the shortcut is a 1x1 convolution of the activated input, as in the authors' code. Convolutions
  start from N(0, 2 / fan-out). No dropout. WRN-28-10 on 10 classes has 36,479,194 parameters.
  """

  num_classes: int
  depth: int = 28
  width: int = 10
  dtype: Any = jnp.float32
  axis_name: str | None = None

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False, mask: Array | None = None, return_features: bool = False):
    """``[N, H, W, C]`` to float32 logits ``[N, num_classes]``, and the pooled features on request."""
    if self.depth < 10 or self.depth % 6 != 4:
      raise ValueError(f"depth of a wide_resnet must be 6n + 4 with n >= 1, such as 10, 16 or 28: got {self.depth}.")

    def conv(features, kernel, stride=1):
      return nn.Conv(features, (kernel, kernel), (stride, stride), padding=kernel // 2, use_bias=False,
                     dtype=self.dtype, kernel_init=nn.initializers.variance_scaling(2.0, "fan_out", "normal"))

    def activated(y):
      return nn.relu(BatchNorm(self.axis_name, self.dtype)(y, train=train, mask=mask))

    x = conv(16, 3)(x.astype(self.dtype))
    for group, features in enumerate((16 * self.width, 32 * self.width, 64 * self.width)):
      for block in range((self.depth - 4) // 6):
        stride = 2 if group > 0 and block == 0 else 1
        y = activated(x)
        shortcut = conv(features, 1, stride)(y) if stride > 1 or x.shape[-1] != features else x
        y = conv(features, 3, stride)(y)
        x = shortcut + conv(features, 3)(activated(y))
    x = jnp.mean(activated(x).astype(jnp.float32), (1, 2))
    logits = nn.Dense(self.num_classes)(x)
    return (logits, x) if return_features else logits
