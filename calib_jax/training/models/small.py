"""Small models, for digits and quick runs."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from calib_jax._checks.registry import register
from calib_jax.training.models.layers import MODELS, Backbone, BatchNorm, Features, conv

Array = jax.Array


@register(MODELS, "mlp")
class MLP(Backbone):
  """Dense layers with ReLU, applied to the flattened image or row; ``hidden`` lists their widths.

  With ``num_tokens`` above 0 the input is token ids ``[N, T]`` in ``[0, num_tokens)``, and the layers are applied to
  the mean of the tokens' embeddings, which have the width of the first layer. The id 0 fills up rows and is ignored.
  """

  hidden: Sequence[int] = (128, 128)
  num_tokens: int = 0

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False, mask: Array | None = None) -> Features:
    """Maps images ``[N, H, W, C]``, or other arrays ``[N, ...]``, to the output of the last hidden layer."""
    x = self._embedded(x) if self.num_tokens else x.reshape(len(x), -1).astype(self.dtype)
    for i, width in enumerate(self.hidden, start=1):
      dense = nn.Dense(width, dtype=self.dtype, kernel_init=nn.initializers.he_normal(), name=f"group{i}_dense")
      x = nn.relu(dense(x))
    return Features(x.astype(jnp.float32))

  def _embedded(self, tokens: Array) -> Array:
    """Returns the mean embedding ``[N, D]`` of each row's tokens."""
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
      raise ValueError(f"num_tokens is for token ids, integers of shape [N, T]: got {tokens.dtype} of shape "
                       f"{tokens.shape}; leave it 0.")
    width = self.hidden[0] if self.hidden else 128
    embedded = nn.Embed(self.num_tokens, width, dtype=self.dtype, name="stem_tokens")(tokens)
    counts = (tokens > 0).astype(self.dtype)
    return jnp.einsum("nt,ntd->nd", counts, embedded) / jnp.maximum(jnp.sum(counts, 1, keepdims=True), 1)


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
      x = conv(width, 3, dtype=self.dtype, name=f"group{i}_conv", init=nn.initializers.he_normal())(x)
      x = nn.relu(BatchNorm(self.axis_name, self.dtype, name=f"group{i}_norm")(x, train=train, mask=mask))
    return Features.pooled(x)
