"""Densely connected networks (Huang et al. 2017)."""

from collections.abc import Sequence
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from calib_jax._checks.registry import register
from calib_jax.training.models.layers import MODELS, Backbone, BatchNorm, Features, conv, stem_conv, stem_pool

Array = jax.Array
HE_IN = nn.initializers.he_normal()


class DenseLayer(nn.Module):
  """Appends ``growth`` channels of norm, ReLU and 3x3 convolution; a ``bottleneck`` of 1x1 to four times so many."""

  growth: int
  bottleneck: bool
  dtype: Any
  axis_name: str | None

  @nn.compact
  def __call__(self, x: Array, *, train: bool, mask: Array | None) -> Array:
    """Maps ``[N, H, W, C]`` to ``[N, H, W, C + growth]``."""
    y = nn.relu(BatchNorm(self.axis_name, self.dtype, name="norm1")(x, train=train, mask=mask))
    if self.bottleneck:
      y = conv(4 * self.growth, 1, dtype=self.dtype, name="conv1", init=HE_IN)(y)
      y = nn.relu(BatchNorm(self.axis_name, self.dtype, name="norm2")(y, train=train, mask=mask))
    last = "conv2" if self.bottleneck else "conv1"
    return jnp.concatenate([x, conv(self.growth, 3, dtype=self.dtype, name=last, init=HE_IN)(y)], axis=-1)


def halved(x: Array) -> Array:
  """Returns means of 2x2 pixels, without a last odd row or column. Flax's pooling fails with strict dtype promotion."""
  n, height, width, channels = x.shape
  x = x[:, : height // 2 * 2, : width // 2 * 2]
  return jnp.mean(x.reshape(n, height // 2, 2, width // 2, 2, channels), (2, 4))


@register(MODELS, "densenet121")
class DenseNet(Backbone):
  """A DenseNet has groups of dense layers with a norm, a 1x1 convolution and 2x2 mean pooling between groups.

  Kernels are initialised from N(0, 2 / fan-in). DenseNet-121 on 1,000 classes has 7,978,856 parameters, DenseNet-161
  28,681,000; DenseNet-40 of growth 12 on 10 classes, without bottlenecks, has 1,019,722.

  Attributes:
    layers: the number of dense layers of each group.
    growth: the number of channels that a dense layer adds.
    stem_channels: the number of channels of the first convolution.
    bottleneck: whether it is a DenseNet-BC, with 1x1 convolutions in the layers and half the channels after each group.
    stem: "cifar" or "imagenet", as for ``resnet50``.
  """

  layers: Sequence[int] = (6, 12, 24, 16)
  growth: int = 32
  stem_channels: int = 64
  bottleneck: bool = True
  stem: str = "cifar"

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False, mask: Array | None = None) -> Features:
    """Maps images ``[N, H, W, C]`` to pooled features and the map before pooling."""
    def activated(y, name):
      return nn.relu(BatchNorm(self.axis_name, self.dtype, name=name)(y, train=train, mask=mask))

    x = stem_conv(x.astype(self.dtype), self.stem_channels, self.stem, HE_IN)
    if self.stem == "imagenet":  # The other stem has no norm, because the first dense layer begins with one.
      x = stem_pool(activated(x, "stem_norm"))
    for group, layers in enumerate(self.layers, start=1):
      if group > 1:
        x = activated(x, f"group{group - 1}_transition_norm")
        channels = x.shape[-1] // (2 if self.bottleneck else 1)
        x = conv(channels, 1, dtype=self.dtype, name=f"group{group - 1}_transition_conv", init=HE_IN)(x)
        x = halved(x)
      for layer in range(1, layers + 1):
        x = DenseLayer(self.growth, self.bottleneck, self.dtype, self.axis_name,
                       name=f"group{group}_layer{layer}")(x, train=train, mask=mask)
    x = activated(x, f"group{len(self.layers)}_norm")
    return Features.pooled(x)


register(MODELS, "densenet40")(
  functools.partial(DenseNet, layers=(12, 12, 12), growth=12, stem_channels=16, bottleneck=False))
register(MODELS, "densenet161")(functools.partial(DenseNet, layers=(6, 12, 36, 24), growth=48, stem_channels=96))
