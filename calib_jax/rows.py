"""What is asked of each row of logits or probabilities ``[..., K]``: to its last digits, in few passes over them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


def reduce_rows(*parts) -> tuple[Array, ...]:
  """Reductions over the last axis, each ``(operator, start, operand)``, in one pass; without a derivative.

  Operators are of ``jax.lax``, associative, with ``start`` their neutral element; operands ``[..., K]`` of one shape,
  each of float or integer dtype. Returns: one ``[...]`` an operand, of its dtype.

  XLA's CPU code fuses with a reduction all that its operands are made of, and vectorises it, where floats and integers
  are reduced together; not for either alone. A companion that counts nothing is added where one kind is missing, and a
  barrier, lest it be seen through.

  >>> reduce_rows((jax.lax.add, 0, jnp.array([0.5, 1.0])), (jax.lax.min, 9, jnp.array([3, 4])))
  (Array(1.5, dtype=float32), Array(3, dtype=int32))
  """
  shape = parts[0][2].shape
  wanted = len(parts)
  floats = [jnp.issubdtype(x.dtype, jnp.floating) for *_, x in parts]
  if all(floats) or not any(floats):
    parts += ((jax.lax.add, 0, jnp.zeros(shape, jnp.int32 if floats[0] else jnp.float32)),)
  operators, starts, operands = zip(*parts, strict=True)
  starts = tuple(jnp.asarray(start, x.dtype) for start, x in zip(starts, operands, strict=True))

  def combine(a, b):
    return tuple(operator(x, y) for operator, x, y in zip(operators, a, b, strict=True))

  found = jax.lax.optimization_barrier(jax.lax.reduce(operands, starts, combine, (len(shape) - 1,)))
  return tuple(found)[:wanted]


@jax.custom_jvp
def sum_rows(x: Array) -> Array:
  """The sum over the last axis, of floats, as ``reduce_rows``."""
  return reduce_rows((jax.lax.add, 0, x))[0]


@sum_rows.defjvp
def _sum_rows_jvp(primals, tangents):
  return sum_rows(*primals), jnp.sum(*tangents, axis=-1)


def relative_to_top(logits: Array) -> Array:
  """Each row less its largest logit: exactly 0 at the top."""
  # The maximum changes no finite number. It keeps the difference from being contracted with a product that made the
  # logits: a rounding would then be skipped, and the top would not be 0.
  finite = jnp.maximum(logits, jnp.finfo(logits.dtype).min)
  return finite - jnp.max(logits, axis=-1, keepdims=True)


def predicted(scores: Array) -> Array:
  """The top class of probabilities or logits ``[..., K]``, int32 ``[...]``; the lowest index where several tie."""
  return reduce_rows(first(relative_to_top(jax.lax.stop_gradient(scores)) == 0))[0]


def first(marked: Array):
  """For ``reduce_rows``: the lowest index that is marked; K where none is, as in a row of NaN."""
  places = jax.lax.broadcasted_iota(jnp.int32, marked.shape, marked.ndim - 1)
  return jax.lax.min, marked.shape[-1], jnp.where(marked, places, marked.shape[-1])


def one_hot(index: Array, like: Array) -> Array:
  """True at one class of each row of ``like``."""
  # In floats, exact below 2^24 classes, which XLA's CPU code compares faster.
  places = jax.lax.broadcasted_iota(jnp.float32, like.shape, like.ndim - 1)
  return places == index[..., None].astype(jnp.float32)


def log_softmax(logits: Array) -> tuple[Array, Array]:
  """``(log p [..., K], is_top [..., K])``; log p of the top class keeps its digits however close to 0 it is.

  ``is_top`` marks one class a row, the lowest index where several tie, and all gradients go through that one.
  """
  is_top = one_hot(predicted(logits), logits)
  shifted = logits - jnp.sum(logits, axis=-1, where=is_top, keepdims=True)
  # log(sum exp) - top = log1p(sum over the others), exact also where the sum rounds to 1.
  return shifted - jnp.log1p(jnp.sum(jnp.exp(shifted), axis=-1, where=~is_top, keepdims=True)), is_top


@jax.custom_jvp
def pick(logits: Array, index: Array) -> Array:
  """The logit of one class of each row, ``[...]``; its gradient is masked where indexing's scatters."""
  return jnp.take_along_axis(logits, index[..., None], axis=-1)[..., 0]


@pick.defjvp
def _pick_jvp(primals, tangents):
  return pick(*primals), jnp.sum(jnp.where(one_hot(*primals[::-1]), tangents[0], 0), axis=-1)


def label_odds(logits: Array, labels: Array) -> Array:
  """d = log((1 - p_y) / p_y) ``[...]``: log p_y = -softplus(d), log(1 - p_y) = -softplus(-d), to the last digit.

  Except that the other classes together count at least the smallest normal number.
  """
  return odds_and_rest(logits, labels)[0]


@jax.custom_jvp
def odds_and_rest(logits: Array, labels: Array) -> tuple[Array, Array]:
  """``label_odds``, and log of the sum over the other classes of exp(z_k - max z)."""
  below = pick(relative_to_top(logits), labels)
  # Nothing cancels: the label is the top, and leaves what is not, or the top is among the others, and counts 1.
  rest = _exponentials(logits)[0] + (1 - jnp.exp(below))
  log_rest = jnp.log(jnp.maximum(rest, jnp.finfo(logits.dtype).tiny))
  return log_rest - below, log_rest


@odds_and_rest.defjvp
def _odds_and_rest_jvp(primals, tangents):
  (logits, labels), (tangent, _) = primals, tangents
  odds, log_rest = odds_and_rest(logits, labels)
  of_odds = jnp.sum(_slope(logits, labels, log_rest) * tangent, axis=-1)
  of_relative = pick(tangent, labels) - pick(tangent, predicted(logits))
  return (odds, log_rest), (of_odds, of_odds + of_relative)


def _slope(logits: Array, labels: Array, log_rest: Array) -> Array:
  """The derivative of ``label_odds``: each other class's share of 1 - p_y, and -1 for the label."""
  return jnp.where(one_hot(labels, logits), -1, jnp.exp(relative_to_top(logits) - log_rest[..., None]))


def _exponentials(logits: Array) -> tuple[Array, Array, Array]:
  """Of each row, relative to its top: the sum of the other classes' exponentials, the mean of expm1, the top class.

  All to their last digits, in one pass: of classes near the top, expm1 is summed instead, and their number.
  """
  num_classes = logits.shape[-1]
  x = relative_to_top(logits)
  at_top = x == 0
  near = (x > -0.1) & ~at_top
  series = 1.0  # Of expm1(x) / x, to the last digit.
  for n in range(10 if x.dtype == jnp.float64 else 5, 1, -1):
    series = 1 + x * series / n
  terms = jnp.where(near, x * series, jnp.exp(x))
  total, ties, nears, top = reduce_rows(
    (jax.lax.add, 0, jnp.where(at_top, 0, terms)), (jax.lax.add, 0, at_top.astype(jnp.int32)),
    (jax.lax.add, 0, near.astype(jnp.int32)), first(at_top))
  others = total + (nears + ties - 1).astype(x.dtype)
  return others, (total - (num_classes - ties - nears).astype(x.dtype)) / num_classes, top


class RowStatistics(NamedTuple):
  """What batch losses ask of each row of logits, each ``[N]``."""

  top: Array  # The top class; the lowest index where several tie.
  odds: Array  # log((1 - p_top) / p_top): the confidence is sigmoid(-odds).
  entropy: Array  # In nats.
  divergence: Array  # log K less the entropy: KL(p || uniform).
  mean: Array  # Of the logits under p, relative to the top one.


@jax.custom_jvp
def row_statistics(logits: Array) -> RowStatistics:
  """``RowStatistics`` of ``[N, K]`` logits, to their last digits; what is not used costs nothing under jit.

  In a tie the derivative of the odds is that of the lowest index.
  """
  others, mean_expm1, top = _exponentials(logits)
  odds = jnp.log(jnp.maximum(others, jnp.finfo(logits.dtype).tiny))
  x = relative_to_top(logits)
  mean = sum_rows(jnp.exp(x - jax.nn.softplus(odds)[..., None]) * x)
  # The logarithm of the mean of p / p_top, by what it lacks of 1: no digits are lost near the uniform distribution.
  return RowStatistics(top, odds, jax.nn.softplus(odds) - mean, mean - jnp.log1p(mean_expm1), mean)


@row_statistics.defjvp
def _row_statistics_jvp(primals, tangents):
  (logits,), (tangent,) = primals, tangents
  out = row_statistics(logits)
  top, odds, _, _, mean = out
  slope = _slope(logits, top, odds)
  # dH/dz_k = p_k (mean - shifted_k), with p_k the slope's share of 1 - p_top: both keep their digits at either end.
  of_odds = jnp.sum(slope * tangent, axis=-1)
  p = jnp.where(slope < 0, jax.nn.sigmoid(-odds)[:, None], slope * jax.nn.sigmoid(odds)[:, None])
  of_entropy = jnp.sum(p * (mean[:, None] - relative_to_top(logits)) * tangent, axis=-1)
  return out, RowStatistics(np.zeros(top.shape, jax.dtypes.float0), of_odds, of_entropy, -of_entropy,
                            jax.nn.sigmoid(odds) * of_odds - of_entropy)
