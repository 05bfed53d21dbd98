"""Formulas for each row of logits or probabilities ``[..., K]`` that are numerically stable near 0 and 1.

The probability of a class is never subtracted from 1: 1 - p is the sum of the other classes' probabilities.

A class that is masked by a logit of -inf has probability 0 and no gradient. Where a formula multiplies or subtracts
logarithms, ``LOWEST`` stands in place of -inf: its exponential is 0 too, but 0 * inf and inf - inf would be NaN. Of all
logits that takes one more pass over them, which a cheap loss would notice: it is done to one value of each row where
that is enough. All classes masked give NaN.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from calib_jax._checks.shapes import ABSENT, aligned

Array = jax.Array
LOWEST = -1e20  # Finite masks, such as -1e9, are far above it.


def with_lowest(logits: Array) -> Array:
  """Logits or log-probabilities with ``LOWEST`` in place of -inf, and no gradient there."""
  return jnp.maximum(logits, LOWEST)


def without_absent(logits: Array) -> Array:
  """Logits with -inf for classes that the row does not have: 1e4 or more below its largest."""
  return jnp.where(logits - jnp.max(logits, axis=-1, keepdims=True) <= ABSENT, -jnp.inf, logits)


def unmasked(logits: Array) -> Array:
  """Logits with 0 in place of -inf."""
  return jnp.where(logits == -jnp.inf, 0, logits)


def masked_as(scores: Array, logits: Array) -> Array:
  """The scores of the classes that a row of logits has, and -inf, without a gradient, for the others."""
  return jnp.where(logits == -jnp.inf, -jnp.inf, scores)


def infinite(values: Array) -> Array:
  """Losses per example, which are inf, with gradient 0, where they grew from the ``LOWEST`` logit of the label."""
  return jnp.where(values >= -LOWEST / 10, jnp.inf, values)


def expectation(targets: Array, surprise: Array) -> Array:
  """The sum over classes of targets times -log p, ``[...]``; of a masked class, 0 if its target is 0, and else inf."""
  masked = surprise == jnp.inf
  terms = targets * jnp.where(masked, 0, surprise)
  return jnp.sum(jnp.where(masked & (targets > 0), jnp.inf, terms), axis=-1)


def map_chunks(function: Callable, rows, at_most: int):
  """``function`` of each row of the arrays in ``rows``, for up to ``at_most`` rows at a time."""
  # ``jax.lax.map`` with a ``batch_size`` compiles the function a second time for the rows that are left over. Here
  # chunks have one size, and the last one is filled up with the last row.
  count = len(jax.tree.leaves(rows)[0])
  number = -(-count // at_most)
  size = -(-count // number)
  extra = number * size - count
  if extra:
    rows = jax.tree.map(lambda x: jnp.concatenate([x, jnp.broadcast_to(x[-1:], (extra, *x.shape[1:]))]), rows)
  values = jax.lax.map(function, rows, batch_size=size)
  return jax.tree.map(lambda x: x[:count], values) if extra else values


def sum_chunks(function: Callable, rows, weights: Array, at_most: int):
  """``function(rows, weights)``, a sum over weighted rows, as a sum over chunks of up to ``at_most`` rows."""
  # The last chunk may begin within the one before: rows that were added before have weight 0 there.
  count = len(weights)
  if count <= at_most:
    return function(rows, weights)
  number = -(-count // at_most)
  size = -(-count // number)

  def of_chunk(i):
    start = jnp.minimum(i * size, count - size)
    chunk, chunk_weights = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), (rows, weights))
    is_new = start + jnp.arange(size, dtype=jnp.int32) >= i * size
    return function(chunk, jnp.where(is_new, chunk_weights, 0))

  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(of_chunk, 0))
  return jax.lax.fori_loop(0, number, lambda i, total: jax.tree.map(jnp.add, total, of_chunk(i)), zeros)


def varying_as(x: Array, like: Array) -> Array:
  """``x``, marked as ``like`` for ``jax.shard_map``, which wants a loop's start to be marked as its steps are."""
  return jnp.where(jnp.any(like == like), x, x)


def one_hot(index: Array, like: Array) -> Array:
  """Bools of the shape of ``like`` ``[..., K]``, True at the class ``index`` ``[...]`` of each row."""
  return aligned(jax.nn.one_hot(index, like.shape[-1], dtype=jnp.bool_), like)


def pick(logits: Array, index: Array) -> Array:
  """The logit ``[...]`` of the class ``index`` of each row ``[..., K]``."""
  return jnp.sum(logits, axis=-1, where=one_hot(index, logits))


def targets(labels: Array, like: Array) -> Array:
  """What labels say of each class, of the shape and dtype of ``like`` ``[..., K]``: 0 and 1, or their probabilities."""
  return labels if labels.ndim == like.ndim else one_hot(labels, like).astype(like.dtype)


def target(labels: Array, index: Array, like: Array) -> Array:
  """What labels say of the class ``index`` ``[...]`` of each row: 0 or 1, or its probability in their distribution."""
  return pick(labels, index) if labels.ndim == like.ndim else (labels == index).astype(like.dtype)


def relative_to_top(logits: Array) -> Array:
  """Each row minus its largest logit, and so exactly 0 at the top class."""
  # The maximum changes no finite number. It keeps XLA from fusing the subtraction with a product that made the logits
  # into one instruction, which would skip the product's rounding, so that the top would not be exactly 0.
  finite = jnp.maximum(logits, jnp.finfo(logits.dtype).min)
  return finite - jnp.max(finite, axis=-1, keepdims=True)


def tempered(logits: Array, temperature: Array) -> Array:
  """``relative_to_top(logits) / temperature``, and -inf, without a gradient, where a logit is -inf."""
  return masked_as(jnp.where(logits == -jnp.inf, 0, relative_to_top(logits)) / temperature, logits)


def predicted(scores: Array) -> Array:
  """The top class of probabilities or logits ``[..., K]``, int32 ``[...]``; the lowest index where several tie."""
  # One reduction reads each score once. A comparison with the maximum could fail: XLA may compute what made the scores
  # twice, once with a fused multiply-add and once rounded, and no class would then equal the maximum.
  return jnp.argmax(jax.lax.stop_gradient(scores), axis=-1).astype(jnp.int32)


def log_softmax(logits: Array) -> tuple[Array, Array]:
  """``(log p, is_top)`` ``[..., K]``; log p of the top class, the first of a tie, is numerically stable near 0."""
  is_top = one_hot(predicted(logits), logits)
  shifted = logits - jnp.sum(logits, axis=-1, where=is_top, keepdims=True)
  # Σ exp(shifted) is 1 for the top class plus the other classes: log1p is numerically stable where these are small.
  return shifted - jnp.log1p(jnp.sum(jnp.exp(shifted), axis=-1, where=~is_top, keepdims=True)), is_top


def log_one_minus(log_p: Array, is_top: Array) -> Array:
  """log(1 - p) of every class, from ``log_softmax``: of the top class from the others, of those (p <= 1/2) directly."""
  log_others = _log_sum_exp(log_p, ~is_top)[..., None]
  return jnp.where(is_top, log_others, jnp.log1p(-jnp.where(is_top, 0, jnp.exp(log_p))))


def label_odds(logits: Array, labels: Array) -> Array:
  """The label's log-odds d = log((1 - p_y) / p_y) ``[...]``: -log p_y = softplus(d), -log(1 - p_y) = softplus(-d)."""
  is_label = one_hot(labels, logits)
  # The log-odds do not depend on the shift, which keeps differences of large logits exact.
  shifted = logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
  return _log_sum_exp(shifted, ~is_label) - with_lowest(jnp.sum(shifted, axis=-1, where=is_label))


def _log_sum_exp(x: Array, where: Array) -> Array:
  """The logarithm of Σ exp(x) over the classes ``where``; ``LOWEST``, without a gradient, if all of them are masked."""
  x = jnp.where(where, x, 0)  # Of a class that does not count, exp(x - top) may be infinite; no gradient must meet it.
  top = jnp.max(x, axis=-1, where=where, initial=-jnp.inf, keepdims=True)
  top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
  total = jnp.sum(jnp.exp(x - top), axis=-1, where=where)
  return jnp.where(total == 0, LOWEST, jnp.log(jnp.where(total == 0, 1, total)) + top[..., 0])


def entropy_and_divergence(logits: Array, top: Array) -> tuple[Array, Array]:
  """The entropy H of softmax(logits), and its divergence log K - H from the uniform distribution: nats, ``[...]``.

  With x the logits relative to the ``top`` one t and d = log((1 - p_t) / p_t), log p_k = x_k - softplus(d), so

    H = softplus(d) - Σ p_k x_k    and, as softplus(d) = log Σ exp(x_k),    log K - H = Σ p_k x_k - log mean exp(x_k).

  The top class has x_t = 0 and is left out of all sums, so that each is numerically stable where p_t is near 1.
  """
  is_top = one_hot(top, logits)
  others = ~is_top
  x = logits - jnp.sum(logits, axis=-1, where=is_top, keepdims=True)
  # Shifted without a gradient, so that of d in the top class is exactly -1; a logit of inf makes d NaN.
  shifted = logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
  odds = _log_sum_exp(shifted, others) - with_lowest(jnp.sum(shifted, axis=-1, where=is_top))
  log_normaliser = jax.nn.softplus(odds)
  mean = jnp.sum(jnp.exp(x - log_normaliser[..., None]) * with_lowest(x), axis=-1, where=others)
  # log mean exp(x) is 0 for equal logits: expm1 and log1p are numerically stable there.
  log_mean = jnp.log1p(jnp.sum(jnp.expm1(x), axis=-1, where=others) / logits.shape[-1])
  return log_normaliser - mean, mean - log_mean
