"""Vision transformers: ViT (Dosovitskiy et al. 2021) and Swin (Liu et al. 2021)."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from calib_jax._checks.registry import register
from calib_jax.training.models.layers import MODELS, Backbone, Features

Array = jax.Array
TRUNCATED = nn.initializers.truncated_normal(0.02)


def normed(name: str, epsilon: float, x: Array) -> Array:
  """Applies layer norm in float32, and casts the result to the dtype of ``x``."""
  return nn.LayerNorm(epsilon, name=name)(x.astype(jnp.float32)).astype(x.dtype)


class Attention(nn.Module):
  """Multi-head self-attention; ``bias`` ``[1 or B, heads, T, T]`` is added to the scores."""

  heads: int
  dtype: Any

  @nn.compact
  def __call__(self, x: Array, bias: Array | None = None) -> Array:
    """Maps tokens ``[B, T, D]`` to ``[B, T, D]``."""
    batch, tokens, width = x.shape
    qkv = nn.Dense(3 * width, dtype=self.dtype, kernel_init=TRUNCATED, name="qkv")(x)
    query, key, value = jnp.moveaxis(qkv.reshape(batch, tokens, 3, self.heads, width // self.heads), 2, 0)
    with jax.numpy_dtype_promotion("standard"):  # The function mixes dtypes, because its softmax is in float32.
      y = jax.nn.dot_product_attention(query, key, value, None if bias is None else bias.astype(query.dtype))
    return nn.Dense(width, dtype=self.dtype, kernel_init=TRUNCATED, name="proj")(y.reshape(x.shape))


class FeedForward(nn.Module):
  """A dense layer to four times the width, exact GELU, and a dense layer back."""

  dtype: Any

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Maps ``[..., D]`` to ``[..., D]``."""
    y = nn.Dense(4 * x.shape[-1], dtype=self.dtype, kernel_init=TRUNCATED, name="fc1")(x)
    return nn.Dense(x.shape[-1], dtype=self.dtype, kernel_init=TRUNCATED, name="fc2")(nn.gelu(y, approximate=False))


def patches(x: Array, width: int, side: int, dtype: Any) -> Array:
  """Maps images ``[N, H, W, C]`` to a vector a patch, ``[N, H / side, W / side, width]``."""
  if x.shape[1] % side or x.shape[2] % side:
    raise ValueError(f"patch_size must divide the image's sides, {x.shape[1]} and {x.shape[2]}: got {side}.")
  return nn.Conv(width, (side, side), (side, side), padding="VALID", dtype=dtype, name="stem_patch")(x)


class ViTBlock(nn.Module):
  """A block applies norm and attention, and then norm and feed-forward; it adds each result to its input."""

  heads: int
  dtype: Any

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Maps tokens ``[N, T, D]`` to ``[N, T, D]``."""
    y = normed("norm1", 1e-6, x)
    x = x + Attention(self.heads, self.dtype, name="attn")(y)
    y = normed("norm2", 1e-6, x)
    return x + FeedForward(self.dtype, name="mlp")(y)


@register(MODELS, "vit_small")
class ViT(Backbone):
  """A vision transformer: patches, a class token, learnt positions, and ``depth`` blocks.

  Its features are the class token's. The defaults are ViT-S/16, which has 22,050,664 parameters with 224x224
  images and 1,000 classes. The number of positions is fixed by the image size at initialisation. Dense layers and
  positions are initialised from a normal distribution of deviation 0.02, truncated at two deviations.
  """

  patch_size: int = 16
  width: int = 384
  depth: int = 12
  heads: int = 6

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False, mask: Array | None = None) -> Features:
    """Maps images ``[N, H, W, C]`` to the class token's features."""
    x = patches(x, self.width, self.patch_size, self.dtype).reshape(len(x), -1, self.width)
    token = self.param("stem_cls_token", nn.initializers.normal(1e-6), (1, 1, self.width))
    x = jnp.concatenate([jnp.broadcast_to(token.astype(x.dtype), (len(x), 1, self.width)), x], axis=1)
    x = x + self.param("stem_pos_embed", TRUNCATED, (1, *x.shape[1:])).astype(x.dtype)
    for group in range(1, self.depth + 1):
      x = self.repeated(ViTBlock)(self.heads, self.dtype, name=f"group{group}_block")(x)
    x = normed(f"group{self.depth}_norm", 1e-6, x[:, 0])
    return Features(x.astype(jnp.float32))


class SwinBlock(nn.Module):
  """A block like ViT's with attention in windows, shifted by half a window if ``shifted``; maps are zero-padded."""

  heads: int
  window: int
  shifted: bool
  dtype: Any

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Transforms maps ``[N, H, W, D]`` into maps of the same shape."""
    attended = self._attention(normed("norm1", 1e-5, x))
    x = x + attended
    return x + FeedForward(self.dtype, name="mlp")(normed("norm2", 1e-5, x))

  def _attention(self, x: Array) -> Array:
    height, width, channels = x.shape[1:]
    window = tuple(min(self.window, side) for side in (height, width))
    shift = tuple(w // 2 if self.shifted and side > w else 0 for w, side in zip(window, (height, width), strict=True))
    x = jnp.pad(x, ((0, 0), (0, -height % window[0]), (0, -width % window[1]), (0, 0)))
    x = jnp.roll(x, (-shift[0], -shift[1]), (1, 2))
    padded = x.shape[1:3]
    table = self.param("attn_relative_position_bias_table", TRUNCATED,
                       ((2 * window[0] - 1) * (2 * window[1] - 1), self.heads))
    bias = table[relative_positions(*window)].transpose(2, 0, 1)[None]
    if any(shift):  # The bias differs by window: it separates pixels that the shift wrapped around next to each other.
      separate = separate_tokens(padded, window, shift)
      bias = bias + jnp.asarray(np.where(separate, -100.0, 0.0), bias.dtype)[:, None]
      bias = jnp.tile(bias, (len(x), 1, 1, 1))
    x = Attention(self.heads, self.dtype, name="attn")(to_windows(x, window), bias)
    x = jnp.roll(from_windows(x.reshape(-1, *window, channels), padded), shift, (1, 2))
    return x[:, :height, :width]


def to_windows(x: Array, window: tuple[int, int]) -> Array:
  """Cuts ``[N, H, W, C]`` into windows ``[N * windows, h * w, C]``."""
  n, height, width, channels = x.shape
  x = x.reshape(n, height // window[0], window[0], width // window[1], window[1], channels)
  return x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, window[0] * window[1], channels)


def from_windows(x: Array, sides: tuple[int, int]) -> Array:
  """Inverts ``to_windows``, given ``[N * windows, h, w, C]``."""
  _, h, w, channels = x.shape
  x = x.reshape(-1, sides[0] // h, sides[1] // w, h, w, channels)
  return x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, *sides, channels)


def relative_positions(height: int, width: int) -> np.ndarray:
  """Returns the row of each two pixels' offset in the table of (2 height - 1) (2 width - 1) offsets, ``[T, T]``."""
  places = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), axis=-1).reshape(-1, 2)
  offsets = places[:, None] - places[None] + [height - 1, width - 1]
  return offsets[..., 0] * (2 * width - 1) + offsets[..., 1]


def separate_tokens(sides: tuple[int, int], window: tuple[int, int], shift: tuple[int, int]) -> np.ndarray:
  """Returns ``[windows, T, T]``: whether two pixels are in one window only because the shift wrapped around."""
  bands = [np.digitize(np.arange(n), [n - w, n - s] if s else [n])
           for n, w, s in zip(sides, window, shift, strict=True)]
  regions = to_windows((bands[0][:, None] * 3 + bands[1][None, :])[None, :, :, None], window)[..., 0]
  return regions[:, :, None] != regions[:, None, :]


class PatchMerging(nn.Module):
  """Concatenates four neighbouring pixels, and applies norm and a dense layer without bias to half the channels."""

  dtype: Any

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Maps ``[N, H, W, C]`` to ``[N, H / 2, W / 2, 2 C]``; odd sides are padded."""
    x = jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, x.shape[2] % 2), (0, 0)))
    n, height, width, channels = x.shape
    x = x.reshape(n, height // 2, 2, width // 2, 2, channels).transpose(0, 1, 3, 4, 2, 5)
    x = normed("norm", 1e-5, x.reshape(n, height // 2, width // 2, 4 * channels))
    return nn.Dense(2 * channels, use_bias=False, dtype=self.dtype, kernel_init=TRUNCATED, name="reduction")(x)


@register(MODELS, "swin_tiny")
class Swin(Backbone):
  """A Swin transformer: patches, and groups of blocks in which the width doubles and the sides of the map halve.

  Its features are the mean of the last map. The defaults are Swin-T, which has 28,288,354 parameters with 224x224
  images and 1,000 classes. For 32x32 images use ``patch_size=2, window=4``. There is no stochastic depth. Dense layers
  are initialised like ViT's.
  """

  patch_size: int = 4
  window: int = 7
  width: int = 96
  depths: Sequence[int] = (2, 2, 6, 2)
  heads: Sequence[int] = (3, 6, 12, 24)

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False, mask: Array | None = None) -> Features:
    """Maps images ``[N, H, W, C]`` to pooled features and the map before pooling."""
    x = normed("stem_norm", 1e-5, patches(x, self.width, self.patch_size, self.dtype))
    for group, (depth, heads) in enumerate(zip(self.depths, self.heads, strict=True), start=1):
      if group > 1:
        x = PatchMerging(self.dtype, name=f"group{group}_downsample")(x)
      for block in range(depth):
        x = SwinBlock(heads, self.window, block % 2 == 1, self.dtype, name=f"group{group}_block{block}")(x)
    x = normed(f"group{len(self.depths)}_norm", 1e-5, x)
    return Features.pooled(x)
