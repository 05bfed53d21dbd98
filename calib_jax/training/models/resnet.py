"""Residual networks (He et al. 2016) for CIFAR and ImageNet, wide ones, and stochastic depth (Huang et al. 2016)."""

from collections.abc import Sequence
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from calib_jax._checks.registry import register
from calib_jax.training.models.layers import (
  MODELS,
  Backbone,
  BatchNorm,
  Features,
  conv,
  random_key,
  stem_conv,
  stem_pool,
)

Array = jax.Array


class Block(nn.Module):
  """The base class of residual blocks; ``stride`` is the stride of the first 3x3 convolution."""

  features: int
  stride: int
  dtype: Any
  axis_name: str | None


class BasicBlock(Block):
  """Two 3x3 convolutions with norms, used with probability ``survival`` (Huang et al. 2016, Eq. 5).

  ReLUs are between them and after the sum with the shortcut. Where the shape changes, the shortcut is a 1x1 convolution
  with norm if it ``projects``, and else shortcut A of He et al., which has no parameters.
  """

  survival: float = 1.0
  projects: bool = False

  @nn.compact
  def __call__(self, x: Array, *, train: bool, mask: Array | None) -> Array:
    """Maps ``[N, H, W, C]`` to ``[N, H / stride, W / stride, features]``."""
    def normed(y, name):
      return BatchNorm(self.axis_name, self.dtype, name=name)(y, train=train, mask=mask)

    y = nn.relu(normed(conv(self.features, 3, self.stride, dtype=self.dtype, name="conv1")(x), "norm1"))
    y = normed(conv(self.features, 3, dtype=self.dtype, name="conv2")(y), "norm2")
    if self.survival < 1:
      key = random_key(self, train)
      taken = self.survival if key is None else jax.random.bernoulli(key, self.survival)
      y = y * jnp.asarray(taken, y.dtype)
    if not self.projects:
      x = x[:, :: self.stride, :: self.stride]
      missing = self.features - x.shape[-1]
      x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (missing // 2, missing - missing // 2)))
    elif x.shape != y.shape:
      x = normed(conv(self.features, 1, self.stride, dtype=self.dtype, name="shortcut_conv")(x), "shortcut_norm")
    return nn.relu(x + y)


class Bottleneck(Block):
  """A 1x1, a 3x3 with the stride, and a 1x1 convolution to four widths; a new shape has a 1x1 shortcut with norm."""

  @nn.compact
  def __call__(self, x: Array, *, train: bool, mask: Array | None) -> Array:
    """Maps ``[N, H, W, C]`` to ``[N, H / stride, W / stride, 4 * features]``."""
    def normed(y, name):
      return BatchNorm(self.axis_name, self.dtype, name=name)(y, train=train, mask=mask)

    y = nn.relu(normed(conv(self.features, 1, dtype=self.dtype, name="conv1")(x), "norm1"))
    y = nn.relu(normed(conv(self.features, 3, self.stride, dtype=self.dtype, name="conv2")(y), "norm2"))
    y = normed(conv(4 * self.features, 1, dtype=self.dtype, name="conv3")(y), "norm3")
    if x.shape != y.shape:
      x = normed(conv(4 * self.features, 1, self.stride, dtype=self.dtype, name="shortcut_conv")(x), "shortcut_norm")
    return nn.relu(x + y)


class PreActivationBlock(Block):
  """Norm, ReLU and 3x3 convolution, twice, added to the input, or to a 1x1 convolution of it if the shape changes."""

  @nn.compact
  def __call__(self, x: Array, *, train: bool, mask: Array | None) -> Array:
    """Maps ``[N, H, W, C]`` to ``[N, H / stride, W / stride, features]``."""
    y = nn.relu(BatchNorm(self.axis_name, self.dtype, name="norm1")(x, train=train, mask=mask))
    if self.stride > 1 or x.shape[-1] != self.features:
      x = conv(self.features, 1, self.stride, dtype=self.dtype, name="shortcut_conv")(y)
    y = conv(self.features, 3, self.stride, dtype=self.dtype, name="conv1")(y)
    y = nn.relu(BatchNorm(self.axis_name, self.dtype, name="norm2")(y, train=train, mask=mask))
    return x + conv(self.features, 3, dtype=self.dtype, name="conv2")(y)


class PreActivationBottleneck(Block):
  """Norm, ReLU and convolution, thrice, as in ``Bottleneck``, added to the input.

  If the shape changes, it is added to a 1x1 convolution of the input itself, before its norm.
  """

  @nn.compact
  def __call__(self, x: Array, *, train: bool, mask: Array | None) -> Array:
    """Maps ``[N, H, W, C]`` to ``[N, H / stride, W / stride, 4 * features]``."""
    def activated(y, name):
      return nn.relu(BatchNorm(self.axis_name, self.dtype, name=name)(y, train=train, mask=mask))

    y = conv(self.features, 1, dtype=self.dtype, name="conv1")(activated(x, "norm1"))
    y = conv(self.features, 3, self.stride, dtype=self.dtype, name="conv2")(activated(y, "norm2"))
    y = conv(4 * self.features, 1, dtype=self.dtype, name="conv3")(activated(y, "norm3"))
    if x.shape != y.shape:
      x = conv(4 * self.features, 1, self.stride, dtype=self.dtype, name="shortcut_conv")(x)
    return x + y


class CifarResNet(Backbone):
  """ResNet-``depth`` for 32x32 images has three groups of n basic blocks of 16, 32 and 64 channels; depth is 6n + 2.

  ``last_survival`` below 1 gives stochastic depth: the probability that a block survives falls linearly, from nearly 1
  at the first block to ``last_survival`` at the last (0.5 in the paper). Kernels are initialised from
  N(0, 2 / fan-out). ResNet-110 on 10 classes has 1,727,962 parameters.
  """

  depth: int = 20
  last_survival: float = 1.0

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False, mask: Array | None = None) -> Features:
    """Maps images ``[N, H, W, C]`` to pooled features and the map before pooling."""
    if self.depth < 8 or self.depth % 6 != 2:
      raise ValueError(f"depth of a CIFAR ResNet must be 6n + 2 with n >= 1, such as 8, 20 or 110: got {self.depth}.")
    if not 0 < self.last_survival <= 1:
      raise ValueError(f"last_survival must be in (0, 1]: got {self.last_survival}.")
    x = conv(16, 3, dtype=self.dtype, name="stem_conv")(x.astype(self.dtype))
    x = nn.relu(BatchNorm(self.axis_name, self.dtype, name="stem_norm")(x, train=train, mask=mask))
    blocks = (self.depth - 2) // 6
    for group in (1, 2, 3):
      for block in range(blocks):
        relative_depth = ((group - 1) * blocks + block + 1) / (3 * blocks)
        block_type = self.repeated(BasicBlock, "train") if block and self.last_survival == 1 else BasicBlock
        x = block_type(8 * 2**group, 2 if group > 1 and block == 0 else 1, self.dtype, self.axis_name,
                       1 - relative_depth * (1 - self.last_survival),
                       name=f"group{group}_block{block}")(x, train=train, mask=mask)
    return Features.pooled(x)


@register(MODELS, "preresnet")
class PreResNet(Backbone):
  """PreResNet-``depth`` for 32x32 images has three groups of pre-activation blocks (He et al. 2016b); depth is 6n + 2.

  Groups have n blocks of 16, 32 and 64 channels or, as ``"bottleneck"``, four times as many. The code of Zhou et al.
  2025 has n bottlenecks a group too, so that its PreResNet-56 has 83 layers and 868,634 parameters on 10 classes; that
  of basic blocks, which is ``preresnet56``, has 855,578. Kernels are initialised from N(0, 2 / fan-out).
  """

  depth: int = 56
  block: str = "bottleneck"

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False, mask: Array | None = None) -> Features:
    """Maps images ``[N, H, W, C]`` to pooled features and the map before pooling."""
    blocks = {"basic": PreActivationBlock, "bottleneck": PreActivationBottleneck}
    if self.depth < 8 or self.depth % 6 != 2:
      raise ValueError(f"depth of a preresnet must be 6n + 2 with n >= 1, such as 20 or 56: got {self.depth}.")
    if self.block not in blocks:
      raise ValueError(f"block of a preresnet must be one of {', '.join(blocks)}: got {self.block!r}.")
    x = conv(16, 3, dtype=self.dtype, name="stem_conv")(x.astype(self.dtype))
    for group in (1, 2, 3):
      for number in range((self.depth - 2) // 6):
        block_type = self.repeated(blocks[self.block], "train") if number else blocks[self.block]
        x = block_type(8 * 2**group, 2 if group > 1 and number == 0 else 1, self.dtype, self.axis_name,
                       name=f"group{group}_block{number}")(x, train=train, mask=mask)
    x = nn.relu(BatchNorm(self.axis_name, self.dtype, name="group3_norm")(x, train=train, mask=mask))
    return Features.pooled(x)


@register(MODELS, "resnet50")
class ResNet(Backbone):
  """A ResNet has four groups of bottlenecks with 4 times 64, 128, 256 and 512 channels.

  The stride of a block is in its 3x3 convolution, as in all published PyTorch weights. Kernels are initialised from
  N(0, 2 / fan-out). ResNet-50 on 1,000 classes has 25,557,032 parameters.

  Attributes:
    blocks: the number of bottlenecks of each group; (3, 4, 6, 3) is ResNet-50.
    stem: "imagenet" for a 7x7 convolution and 3x3 max-pooling, both with stride 2; "cifar" for a 3x3 convolution.
    pool_side: the features are the means of so many by so many parts of the last map. The code of Mukhoti et al. 2020
      has 2 for the 64x64 images of Tiny ImageNet, which gives 8,192 features.
  """

  blocks: Sequence[int] = (3, 4, 6, 3)
  stem: str = "cifar"
  pool_side: int = 1

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False, mask: Array | None = None) -> Features:
    """Maps images ``[N, H, W, C]`` to pooled features and the map before pooling."""
    x = stem_conv(x.astype(self.dtype), 64, self.stem)
    x = nn.relu(BatchNorm(self.axis_name, self.dtype, name="stem_norm")(x, train=train, mask=mask))
    x = stem_pool(x) if self.stem == "imagenet" else x
    for group, blocks in enumerate(self.blocks, start=1):
      for block in range(blocks):
        block_type = self.repeated(Bottleneck, "train") if block else Bottleneck
        x = block_type(32 * 2**group, 2 if group > 1 and block == 0 else 1, self.dtype, self.axis_name,
                       name=f"group{group}_block{block}")(x, train=train, mask=mask)
    return Features.pooled(x, self.pool_side)


@register(MODELS, "wide_resnet")
class WideResNet(Backbone):
  """WRN-``depth``-``width`` for 32x32 images has three groups of n pre-activation blocks.

  The networks are from He et al. 2016b and Zagoruyko & Komodakis 2016. The groups have 16, 32 and 64 times
  ``width`` channels, and the last two start with stride 2. ``depth`` is 6n + 4 as its authors count, or 6n + 2 as
  others count, who leave out the shortcuts: WRN-26-10 is then the same network as WRN-28-10, WRN-32 the same as WRN-34,
  and PreResNet-56 is the network of depth 56 and width 1. If the shape changes, the shortcut is a 1x1 convolution of
  the activated input, as in the authors' code. Kernels are initialised from N(0, 2 / fan-out). There is no dropout.
  WRN-28-10 on 10 classes has 36,479,194 parameters.

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
    first, options = (BasicBlock, {"projects": True}) if self.post_activation else (PreActivationBlock, {})
    if self.post_activation:
      x = nn.relu(BatchNorm(self.axis_name, self.dtype, name="stem_norm")(x, train=train, mask=mask))
    for group in (1, 2, 3):
      for block in range((self.depth - 2) // 6):
        block_type = self.repeated(first, "train") if block else first
        stride = 2 if group > 1 and block == 0 else 1
        x = block_type(8 * 2**group * self.width, stride, self.dtype, self.axis_name, **options,
                       name=f"group{group}_block{block}")(x, train=train, mask=mask)
    if self.post_activation:
      return Features.pooled(x)
    x = nn.relu(BatchNorm(self.axis_name, self.dtype, name="group3_norm")(x, train=train, mask=mask))
    return Features.pooled(x)


for _depth in (8, 20, 56, 110):
  register(MODELS, f"resnet{_depth}")(functools.partial(CifarResNet, depth=_depth))
register(MODELS, "resnet110_stochastic_depth")(functools.partial(CifarResNet, depth=110, last_survival=0.5))
# The ResNet-110 of the code of Mukhoti et al. 2020 and of those who build on it has bottlenecks, and 27 times as many
# parameters as the network of He et al. 2016.
register(MODELS, "resnet110_bottleneck")(functools.partial(ResNet, blocks=(3, 4, 26, 3)))
register(MODELS, "preresnet56_bottleneck")(functools.partial(PreResNet, depth=56))
register(MODELS, "resnet152")(functools.partial(ResNet, blocks=(3, 8, 36, 3)))
for _name, _depth, _width in (("preresnet56", 56, 1), ("wide_resnet28_10", 28, 10), ("wide_resnet26_10", 26, 10),
                              ("wide_resnet32", 32, 10)):
  register(MODELS, _name)(functools.partial(WideResNet, depth=_depth, width=_width))
