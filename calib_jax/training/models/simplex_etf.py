"""The head of BalCAL: a linear classifier beside a fixed one whose class vectors are as far apart as they can be."""

import functools
import math
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from calib_jax._checks.registry import register
from calib_jax._system.errors import UserError
from calib_jax.training.models.heads import HEADS, LastDense, MappedHead
from calib_jax.training.models.layers import HE, BatchNorm, Features, conv

Array = jax.Array


def simplex_frame(key: Array, dimension: int, num_classes: int) -> Array:
  r"""A simplex equiangular tight frame, whose vectors have norm 1 and inner products of -1 / (K - 1).

  .. math:: M = \sqrt{K / (K - 1)}\, U (I - 11^T / K)

  with orthonormal columns U. These are drawn at random, within the K - 1 dimensions that matter.

  Args:
    key: the PRNG key.
    dimension: the dimension of the vectors.
    num_classes: K, their number, at least 2.

  Returns:
    ``[dimension, K]`` floats, one vector a column.

  Raises:
    ValueError: if the dimension is less than K - 1, where there is no such frame.

  >>> frame = simplex_frame(jax.random.key(0), 6, 4)
  >>> bool(jnp.allclose(frame.T @ frame, 4 / 3 * jnp.eye(4) - 1 / 3, atol=1e-6))
  True
  """
  if dimension < num_classes - 1:
    raise ValueError(f"a simplex frame of {num_classes} classes needs at least {num_classes - 1} features: "
                     f"got {dimension}.")
  # The columns of ``basis`` are an orthonormal basis of the vectors that add up to 0.
  basis = np.linalg.qr(np.eye(num_classes)[:, :-1] - 1 / num_classes)[0].astype(np.float32)
  directions = jax.random.orthogonal(key, dimension)[:, :num_classes - 1]
  return math.sqrt(num_classes / (num_classes - 1)) * directions @ basis.T


@register(HEADS, "simplex_etf")
class SimplexETF(MappedHead):
  r"""The head of BalCAL (Ni et al. 2025): a linear classifier and a fixed simplex frame, mixed by λ.

  .. math:: z = \lambda z^{linear} + (1 - \lambda) z^{ETF}, \quad
    L = \lambda L(z^{linear}) + (1 - \lambda) L(s \odot z^{ETF}), \quad s_k = \sqrt{n / (c\,n_k)}

  The frame's logits are the cosines of its vectors with adapted features. As in the released code, the adaptor is a
  pre-activation residual block on the last map: norm, ReLU and a 3x3 convolution to half the channels, and the same
  back to all of them. A norm and a ReLU follow, and then the pooling. Backbones without a map (the MLP, transformers)
  get dense layers on their features in place of convolutions. In training the logits of class k are multiplied by s,
  for a batch of n examples of c classes with n_k of class k (1 if it has none). λ changes after each epoch; see
  ``training.head_state``. A prediction has the newest λ, which is kept with the batch statistics.

  Attributes:
    share: λ in the first epoch, which the paper does not print; the released code has 0.8.
    target: δ; λ makes the mean confidence of the epoch's steps δ times their accuracy.
  """

  reads_map: ClassVar[bool] = True

  share: float = 0.8
  target: float = 0.95

  def __post_init__(self) -> None:
    """Checks the options; a ValueError if one is out of range."""
    if not 0 <= self.share <= 1:
      raise ValueError(f"share must be in [0, 1]: got {self.share:g}.")
    if not 0 < self.target <= 1:
      raise ValueError(f"target must be in (0, 1]: got {self.target:g}.")
    super().__post_init__()

  @nn.compact
  def __call__(self, features: Features, *, train: bool = False, mask: Array | None = None) -> Array:
    """Returns mixed logits ``[N, num_classes]``, or in training the linear and the fixed ones, on a second axis.

    Features of fewer than K - 1 dimensions are a UserError.
    """
    linear = LastDense(self.num_classes, name="linear")(features.vector)
    x = features.vector if features.map is None else features.map.astype(jnp.float32)
    normed = functools.partial(self._normed, train=train, mask=mask)
    y = self._layer(normed(x, "narrow_norm"), max(x.shape[-1] // 2, 1), "narrow")
    x = normed(x + self._layer(normed(y, "wide_norm"), x.shape[-1], "wide"), "adapted_norm")
    x = x if features.map is None else Features.pooled(x).vector
    if x.shape[-1] < self.num_classes - 1:
      raise UserError(f"config key head.name: 'simplex_etf' needs at least {self.num_classes - 1} features for "
                      f"{self.num_classes} classes, and this model has {x.shape[-1]}.")
    unit = x * jax.lax.rsqrt(jnp.sum(x**2, -1, keepdims=True) + 1e-12)  # Finite, with its gradient, also at 0.
    frame = self.variable("batch_stats", "frame", lambda: simplex_frame(self.make_rng("params"), x.shape[-1],
                                                                        self.num_classes))
    share = self.variable("batch_stats", "share", lambda: jnp.float32(self.share))
    fixed = jnp.dot(unit, frame.value, precision="highest")
    if train:
      return jnp.stack([linear, fixed], 1)
    return share.value * linear + (1 - share.value) * fixed

  def _normed(self, x: Array, name: str, *, train: bool, mask: Array | None) -> Array:
    """Returns the ReLU of normalised features."""
    return nn.relu(BatchNorm(self.axis_name, name=name)(x, train=train, mask=mask))

  def _layer(self, x: Array, width: int, name: str) -> Array:
    """Applies a layer of the adaptor: a dense layer to vectors ``[N, D]``, and a 3x3 convolution to maps."""
    if x.ndim == 2:
      return nn.Dense(width, use_bias=False, kernel_init=HE, name=name)(x)
    return conv(width, 3, dtype=jnp.float32, name=name)(x)

  @nn.nowrap
  def balanced(self, output: Array, labels: Array, *, where: Array, axis_name: str | None) -> Array:
    """Returns the output ``[n, 2, num_classes]`` of a training step with the frame's logits times the scales s.

    It has the linear and the fixed logits of a device's share of a batch; the arguments are as in ``objectives``.
    """
    shares = labels if labels.ndim > 1 else jax.nn.one_hot(labels, self.num_classes)
    counts = jnp.sum(jnp.where(where[:, None], shares, 0), 0)
    counts = counts if axis_name is None else jax.lax.psum(counts, axis_name)
    present = jnp.sum(counts > 0, dtype=counts.dtype)
    scale = jnp.where(counts > 0, jnp.sqrt(jnp.sum(counts) / (present * jnp.maximum(counts, 1e-6))), 1)
    return output * jnp.stack([jnp.ones_like(scale), scale])[None]

  @nn.nowrap
  def objectives(self, output: Array, labels: Array, state: Any, *, where: Array, axis_name: str | None):
    """Returns the logits of both classifiers, the frame's with the classes' scales, and their weights."""
    output = self.balanced(output, labels, where=where, axis_name=axis_name)
    return (state.share, output[:, 0]), (1 - state.share, output[:, 1])

  @nn.nowrap
  def combined(self, output: Array, state: Any) -> Array:
    """Returns the mixed logits ``[n, num_classes]``, without the scale."""
    return state.share * output[:, 0] + (1 - state.share) * output[:, 1]
