"""Pre-activation residual networks of two 3x3 convolutions a block (He et al. 2016b; Zagoruyko & Komodakis 2016)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from calib_jax.models.layers import BatchNorm, conv, head

Array = jax.Array


class PreActivationBlock(nn.Module):
  """Norm, ReLU, 3x3, norm, ReLU, 3x3, added to the input; where the shape changes, to a 1x1 of the activated input."""

  features: int
  stride: int
  dtype: Any
  axis_name: str | None

  @nn.compact
  def __call__(self, x: Array, *, train: bool, mask: Array | None) -> Array:
    """``[N, H, W, C]`` to ``[N, H / stride, W / stride, features]``."""
    y = nn.relu(BatchNorm(self.axis_name, self.dtype, name="norm1")(x, train=train, mask=mask))
    if self.stride > 1 or x.shape[-1] != self.features:
      x = conv(self.features, 1, self.stride, dtype=self.dtype, name="shortcut_conv")(y)
    y = conv(self.features, 3, self.stride, dtype=self.dtype, name="conv1")(y)
    y = nn.relu(BatchNorm(self.axis_name, self.dtype, name="norm2")(y, train=train, mask=mask))
    return x + conv(self.features, 3, dtype=self.dtype, name="conv2")(y)


class WideResNet(nn.Module):
  """WRN-``depth``-``width`` for 32x32 images: three groups of n pre-activation blocks.

  ``depth`` is 6n + 4 as its authors count, or 6n + 2 without the shortcuts, as others do (WRN-26-10 is WRN-28-10 then,
  WRN-32 WRN-34, and PreResNet-56 the one of width 1). The groups have 16, 32 and 64 times ``width`` channels, the last
  two start with stride 2. Where the shape changes, the shortcut is a 1x1 convolution of the activated input, as in the
  authors' code. Convolutions start from N(0, 2 / fan-out), the head as Flax's dense layers. No dropout. WRN-28-10 on 10
  classes has 36,479,194 parameters.
  """

  num_classes: int
  depth: int = 28
  width: int = 10
  dtype: Any = jnp.float32
  axis_name: str | None = None

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False, mask: Array | None = None, return_features: bool = False):
    """``[N, H, W, C]`` to float32 logits ``[N, num_classes]``, and the pooled features on request."""
    if self.depth < 8 or self.depth % 6 not in (2, 4):
      raise ValueError("depth of a wide_resnet must be 6n + 4 (or 6n + 2, shortcuts not counted) with n >= 1, such as "
                       f"10, 16 or 28: got {self.depth}.")
    x = conv(16, 3, dtype=self.dtype, name="stem_conv")(x.astype(self.dtype))
    for group in (1, 2, 3):
      for block in range((self.depth - 2) // 6):
        stride = 2 if group > 1 and block == 0 else 1
        x = PreActivationBlock(8 * 2**group * self.width, stride, self.dtype, self.axis_name,
                               name=f"group{group}_block{block}")(x, train=train, mask=mask)
    x = nn.relu(BatchNorm(self.axis_name, self.dtype, name="group3_norm")(x, train=train, mask=mask))
    return head(jnp.mean(x.astype(jnp.float32), (1, 2)), self.num_classes, return_features)
