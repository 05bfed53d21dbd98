"""Wide and pre-activation residual networks (He et al. 2016b; Zagoruyko & Komodakis 2016)."""

import functools
from typing import Any

import flax.linen as nn
import jax

from calib_jax._checks.registry import register
from calib_jax.models.layers import MODELS, Backbone, BatchNorm, Features, conv

Array = jax.Array


class PreActivationBlock(nn.Module):
  """Norm, ReLU and 3x3 convolution, twice, added to the input, or to a 1x1 convolution of it if the shape changes."""

  features: int
  stride: int
  dtype: Any
  axis_name: str | None

  @nn.compact
  def __call__(self, x: Array, *, train: bool, mask: Array | None) -> Array:
    """Maps ``[N, H, W, C]`` to ``[N, H / stride, W / stride, features]``."""
    y = nn.relu(BatchNorm(self.axis_name, self.dtype, name="norm1")(x, train=train, mask=mask))
    if self.stride > 1 or x.shape[-1] != self.features:
      x = conv(self.features, 1, self.stride, dtype=self.dtype, name="shortcut_conv")(y)
    y = conv(self.features, 3, self.stride, dtype=self.dtype, name="conv1")(y)
    y = nn.relu(BatchNorm(self.axis_name, self.dtype, name="norm2")(y, train=train, mask=mask))
    return x + conv(self.features, 3, dtype=self.dtype, name="conv2")(y)


class PostActivationBlock(nn.Module):
  """Two 3x3 convolutions with norms, ReLU between and after the sum; a new shape has a 1x1 shortcut with norm."""

  features: int
  stride: int
  dtype: Any
  axis_name: str | None

  @nn.compact
  def __call__(self, x: Array, *, train: bool, mask: Array | None) -> Array:
    """Maps ``[N, H, W, C]`` to ``[N, H / stride, W / stride, features]``."""
    def normed(y, name):
      return BatchNorm(self.axis_name, self.dtype, name=name)(y, train=train, mask=mask)

    y = nn.relu(normed(conv(self.features, 3, self.stride, dtype=self.dtype, name="conv1")(x), "norm1"))
    y = normed(conv(self.features, 3, dtype=self.dtype, name="conv2")(y), "norm2")
    if self.stride > 1 or x.shape[-1] != self.features:
      x = normed(conv(self.features, 1, self.stride, dtype=self.dtype, name="shortcut_conv")(x), "shortcut_norm")
    return nn.relu(x + y)


@register(MODELS, "wide_resnet")
class WideResNet(Backbone):
  """WRN-``depth``-``width`` for 32x32 images has three groups of n pre-activation blocks.

  The groups have 16, 32 and 64 times ``width`` channels, and the last two start with stride 2. ``depth`` is 6n + 4 as
  its authors count, or 6n + 2 as others count, who leave out the shortcuts: WRN-26-10 is then the same network as
  WRN-28-10, WRN-32 the same as WRN-34, and PreResNet-56 is the network of depth 56 and width 1. If the shape changes,
  the shortcut is a 1x1 convolution of the activated input, as in the authors' code. Kernels are initialised from
  N(0, 2 / fan-out). There is no dropout. WRN-28-10 on 10 classes has 36,479,194 parameters.

  With ``post_activation`` it is the network of the code of Mukhoti et al. 2020, which is named WRN-26-10 there: the
  first convolution has a norm and a ReLU, blocks end with their ReLU, and shortcuts have norms (36,481,434 parameters).
  """

  depth: int = 28
  width: int = 10
  post_activation: bool = False

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False, mask: Array | None = None) -> Features:
    """Maps images ``[N, H, W, C]`` to pooled features and the map before pooling."""
    if self.depth < 8 or self.depth % 6 not in (2, 4):
      raise ValueError("depth of a wide_resnet must be 6n + 4 (or 6n + 2 without the shortcuts) with n >= 1, such as "
                       f"10, 16 or 28: got {self.depth}.")
    x = conv(16, 3, dtype=self.dtype, name="stem_conv")(x.astype(self.dtype))
    block_type = PostActivationBlock if self.post_activation else PreActivationBlock
    if self.post_activation:
      x = nn.relu(BatchNorm(self.axis_name, self.dtype, name="stem_norm")(x, train=train, mask=mask))
    for group in (1, 2, 3):
      for block in range((self.depth - 2) // 6):
        stride = 2 if group > 1 and block == 0 else 1
        x = block_type(8 * 2**group * self.width, stride, self.dtype, self.axis_name,
                       name=f"group{group}_block{block}")(x, train=train, mask=mask)
    if self.post_activation:
      return Features.pooled(x)
    x = nn.relu(BatchNorm(self.axis_name, self.dtype, name="group3_norm")(x, train=train, mask=mask))
    return Features.pooled(x)


for _name, _depth, _width in (("preresnet56", 56, 1), ("wide_resnet28_10", 28, 10), ("wide_resnet26_10", 26, 10),
                              ("wide_resnet32", 32, 10)):
  register(MODELS, _name)(functools.partial(WideResNet, depth=_depth, width=_width))
