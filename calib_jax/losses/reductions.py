"""What every batch loss begins and ends with: checked and masked inputs, and sums over the global batch."""

import jax
import jax.numpy as jnp

from calib_jax import checks

Array = jax.Array


def prepare(logits, labels, where) -> tuple[Array, Array, Array]:
  """``(logits [N, K], labels [N], where [N])``, checked; rows that do not count are replaced by zeros.

  The inputs are masked, not only the result: a NaN in a row that does not count would reach the gradient as 0 * NaN.
  """
  logits, labels = checks.scores_and_labels(logits, labels)
  checks.rank(logits, 2, "logits", "[N, K]")
  where = checks.mask(where, labels.shape)
  if where is None:
    return logits, labels, jnp.ones(labels.shape, bool)
  return jnp.where(where[:, None], logits, 0), jnp.where(where, labels, 0), where


def global_sum(x: Array, axis_name: str | None) -> Array:
  """The sum over examples (axis 0), and over the devices of ``axis_name``."""
  total = jnp.sum(x, axis=0)
  return total if axis_name is None else jax.lax.psum(total, axis_name)


def predicted(logits: Array) -> Array:
  """The top class, int32 ``[...]``; the lowest index where several tie."""
  # Two plain reductions: several times as fast as argmax on a CPU.
  top = jnp.max(logits, axis=-1, keepdims=True)
  index = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
  return jnp.min(jnp.where(logits == top, index, logits.shape[-1] - 1), axis=-1)


def log_softmax(logits: Array) -> tuple[Array, Array]:
  """``(log p [..., K], is_top [..., K])``; log p of the top class keeps its digits however close to 0 it is.

  ``is_top`` marks one class a row, the lowest index where several tie, and all gradients go through that one.
  """
  is_top = jax.nn.one_hot(predicted(logits), logits.shape[-1], dtype=bool)
  shifted = logits - jnp.sum(logits, axis=-1, where=is_top, keepdims=True)
  # log(sum exp) - top = log1p(sum over the others), exact also where the sum rounds to 1.
  return shifted - jnp.log1p(jnp.sum(jnp.exp(shifted), axis=-1, where=~is_top, keepdims=True)), is_top


def root(x: Array, norm: float) -> Array:
  """``x ** (1 / norm)`` for ``x >= 0``, with gradient 0 at 0."""
  positive = x > 0
  return jnp.where(positive, jnp.where(positive, x, 1) ** (1 / norm), 0)


def label_odds(logits: Array, labels: Array) -> Array:
  """d = log((1 - p_y) / p_y) ``[...]``: log p_y = -softplus(d), log(1 - p_y) = -softplus(-d), to the last digit."""
  is_label = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
  others = jax.nn.logsumexp(jnp.where(is_label, -jnp.inf, logits), axis=-1)
  return others - jnp.sum(logits, axis=-1, where=is_label)


def top_odds(logits: Array, labels: Array) -> tuple[Array, Array]:
  """``(d, correct)``: the top class's ``label_odds``, its confidence being sigmoid(-d), and whether it is the label."""
  top = predicted(logits)
  return label_odds(logits, top), top == labels


def gather(x: Array, axis_name: str | None) -> Array:
  """The examples of every device, in the order of the global batch: ``[n, ...]`` to ``[N, ...]``."""
  return x if axis_name is None else jax.lax.all_gather(x, axis_name, tiled=True)


def own(x: Array, size: int, axis_name: str | None) -> Array:
  """This device's ``size`` examples of the global batch: what ``gather`` joined."""
  return x if axis_name is None else jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(axis_name) * size, size)
