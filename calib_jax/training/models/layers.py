"""Layers that several models use.

The top-level name of a parameter starts with the group of its layer, up to the first underscore: ``stem``, ``group1``,
``group2``, …, ``head``. The layers of a group are frozen together.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from calib_jax import _checks as checks

Array = jax.Array

MODELS: dict[str, Callable[..., nn.Module]] = {}  # Backbones by name; see ``registry.register``.

# The initialisation of He et al. 2015 by fan-out, as in the reference code of the residual networks.
HE = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


def conv(features: int, kernel: int, stride: int = 1, *, dtype: Any, name: str, init: Any = HE) -> nn.Conv:
  """Returns a convolution without bias, padded evenly on all sides; Flax's "SAME" pads unevenly if the stride is 2."""
  return nn.Conv(features, (kernel, kernel), (stride, stride), padding=kernel // 2, use_bias=False, dtype=dtype,
                 kernel_init=init, name=name, conv_general_dilated=_conv_with_sliced_gradient)


_SLICE = 32  # Images whose part of a kernel's gradient a CPU computes at once.


def _conv_with_sliced_gradient(x: Array, kernel: Array, strides: Sequence[int], padding: Any, **options) -> Array:
  """``jax.lax.conv_general_dilated``, whose gradient of the kernel is summed over slices of the batch on CPUs.

  XLA:CPU copies the patches of all images for this gradient; those of 32 images stay in the cache. That takes a
  quarter off a step of a ResNet-8 of 128 images, and a tenth off one of a PreResNet-20. Other devices have no slices.
  """
  plain = functools.partial(jax.lax.conv_general_dilated, window_strides=strides, padding=padding, **options)
  if len(x) <= _SLICE:
    return plain(x, kernel)

  def of_kernel(x, kernel, cotangent):
    return jax.vjp(lambda kernel: plain(x, kernel), kernel)[1](cotangent)[0]

  def in_slices(x, kernel, cotangent):
    parts = [of_kernel(x[i:i + _SLICE], kernel, cotangent[i:i + _SLICE]) for i in range(0, len(x), _SLICE)]
    return functools.reduce(jnp.add, parts)

  @jax.custom_vjp
  def conv(x, kernel):
    return plain(x, kernel)

  def backward(saved, cotangent):
    x, kernel = saved
    of_x, = jax.vjp(lambda x: plain(x, kernel), x)[1](cotangent)
    return of_x, jax.lax.platform_dependent(x, kernel, cotangent, cpu=in_slices, default=of_kernel)

  conv.defvjp(lambda x, kernel: (plain(x, kernel), (x, kernel)), backward)
  return conv(x, kernel)


def stem_conv(x: Array, features: int, stem: str, init: Any = HE) -> Array:
  """Applies the first convolution of a network: 7x7 with stride 2 for the stem "imagenet", 3x3 for "cifar"."""
  checks.choice("stem", stem, ("cifar", "imagenet"))
  kernel, stride = (7, 2) if stem == "imagenet" else (3, 1)
  return conv(features, kernel, stride, dtype=x.dtype, name="stem_conv", init=init)(x)


def stem_pool(x: Array) -> Array:
  """Applies 3x3 max-pooling with stride 2, padded by 1 on all sides."""
  return nn.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))


class Backbone(nn.Module):
  """The base class of backbones. The other fields of a backbone are its options in a config."""

  dtype: Any = jnp.float32  # The type that it computes in; parameters are float32.
  axis_name: str | None = None  # The mapped axis over which batch statistics are shared.

  def repeated(self, block: type[nn.Module], *static: str) -> type[nn.Module]:
    """Returns a class like ``block``; JAX traces and differentiates all of equal fields and shapes as one.

    The step of a ResNet-110 is traced in two fifths of the time, and its program is the same. Within ``jit`` Flax draws
    other random numbers: a block that draws some must not be repeated so, and initialisation uses ``block`` itself.
    ``static`` names the arguments of a call that are not arrays. The only block of its shape is better left as it is:
    nested programs cost a ResNet-8 of three such blocks 0.3 s.
    """
    return block if self.is_initializing() else _jitted(block, static)


@functools.cache
def _jitted(block: type[nn.Module], static: tuple[str, ...]) -> type[nn.Module]:
  return nn.jit(block, static_argnames=static)


def random_key(module: nn.Module, train: bool) -> Array | None:
  """Returns the key of a random layer; None where it computes its mean, in predictions without samples.

  Args:
    module: the layer, which draws from the key ``dropout`` in training. In predictions it draws from the key
      ``samples``, if ``apply`` was given one: ``evaluation.samples`` averages such predictions.
    train: whether the layer is in training.
  """
  if train:
    return module.make_rng("dropout")
  return module.make_rng("samples") if module.has_rng("samples") else None


class Features(NamedTuple):
  """What a backbone computes for a head."""

  vector: Array  # [N, D] float32, the output of the last layer.
  map: Array | None = None  # [N, H, W, D] before pooling, in the backbone's dtype; None if the backbone has no map.

  @classmethod
  def pooled(cls, map_: Array, side: int = 1) -> "Features":
    """Returns the features of a map ``[N, H, W, D]``, with its mean over pixels as the vector.

    Args:
      map_: the map.
      side: the means of ``side`` x ``side`` equal parts of the map are joined into a vector of ``side**2 * D``.

    Returns:
      The features.

    Raises:
      ValueError: if ``side`` does not divide the sides of the map.
    """
    n, height, width, channels = map_.shape
    if side < 1 or height % side or width % side:
      raise ValueError(f"pool_side must divide the sides of the last map, {height} and {width}: got {side}.")
    parts = map_.astype(jnp.float32).reshape(n, side, height // side, side, width // side, channels)
    return cls(jnp.mean(parts, (2, 4)).reshape(n, -1), map_)


class BatchNorm(nn.Module):
  """Batch normalisation with the statistics of the global batch, exact also if the batch is padded.

  Sums and counts are added over ``axis_name`` and divided once. So the statistics are of the true examples even
  if padding is spread unevenly over devices, or a device holds only padding. (Flax's own layer averages the devices'
  means, which is exact only if all devices hold equally many examples.) Statistics and parameters are always float32.
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
    # Rounding may give a constant channel a tiny negative variance.
    return mean, jnp.maximum(square / count - mean * mean, 0)
