"""What every batch loss begins and ends with: checked and masked inputs, and sums over the global batch."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import checks
from calib_jax.confidence import predicted

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


@jax.custom_jvp
def pick(logits: Array, index: Array) -> Array:
  """The logit of one class of each row, ``[...]``; its gradient is a product with a mask where indexing's scatters."""
  return jnp.take_along_axis(logits, index[..., None], axis=-1)[..., 0]


@pick.defjvp
def _pick_jvp(primals, tangents):
  return pick(*primals), jnp.sum((1 - apart(*primals)) * tangents[0], axis=-1)


def label_odds(logits: Array, labels: Array) -> Array:
  """d = log((1 - p_y) / p_y) ``[...]``: log p_y = -softplus(d), log(1 - p_y) = -softplus(-d), to the last digit.

  Except that the other classes together count at least the smallest normal number.
  """
  return _odds_and_rest(logits, labels)[0]


@jax.custom_jvp
def _odds_and_rest(logits: Array, labels: Array) -> tuple[Array, Array]:
  """``label_odds``, and log of the sum over the other classes of exp(z_k - max z)."""
  rest = jnp.sum(jnp.exp(relative_to_top(logits)) * apart(logits, labels), axis=-1)
  log_rest = jnp.log(jnp.maximum(rest, jnp.finfo(logits.dtype).tiny))
  return log_rest - (pick(logits, labels) - jnp.max(logits, axis=-1)), log_rest


@_odds_and_rest.defjvp
def _odds_and_rest_jvp(primals, tangents):
  (logits, labels), (tangent, _) = primals, tangents
  odds, log_rest = _odds_and_rest(logits, labels)
  of_odds = jnp.sum(_slope(logits, labels, log_rest) * tangent, axis=-1)
  of_relative = jnp.sum((apart(logits, predicted(logits)) - apart(logits, labels)) * tangent, axis=-1)
  return (odds, log_rest), (of_odds, of_odds + of_relative)


def _slope(logits: Array, labels: Array, log_rest: Array) -> Array:
  """The derivative of ``label_odds``: each other class's share of 1 - p_y, and -1 for the label."""
  others = apart(logits, labels)
  return others * jnp.exp(relative_to_top(logits) - log_rest[..., None]) + (others - 1)


def apart(logits: Array, index: Array) -> Array:
  """0 for one class of each row and 1 for the others."""
  # In arithmetic, which XLA's CPU code fuses into the reductions that follow, as it does not with selections.
  places = jax.lax.broadcasted_iota(logits.dtype, logits.shape, logits.ndim - 1)
  return jnp.minimum(jnp.abs(places - index[..., None].astype(logits.dtype)), 1)


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
  top, shifted = predicted(logits), relative_to_top(logits)
  odds = label_odds(logits, top)
  mean = jnp.sum(jnp.exp(shifted) * shifted, axis=-1) * jax.nn.sigmoid(-odds)
  # The logarithm of the mean of p / p_top, by what it lacks of 1: no digits are lost near the uniform distribution.
  log_mean = jnp.log1p(jnp.mean(jnp.expm1(shifted), axis=-1))
  return RowStatistics(top, odds, jax.nn.softplus(odds) - mean, mean - log_mean, mean)


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


def relative_to_top(logits: Array) -> Array:
  """Each row less its largest logit."""
  return logits - jnp.max(logits, axis=-1, keepdims=True)


def gather(x: Array, axis_name: str | None) -> Array:
  """The examples of every device, in the order of the global batch: ``[n, ...]`` to ``[N, ...]``."""
  return x if axis_name is None else jax.lax.all_gather(x, axis_name, tiled=True)


def own(x: Array, size: int, axis_name: str | None) -> Array:
  """This device's ``size`` examples of the global batch: what ``gather`` joined."""
  return x if axis_name is None else jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(axis_name) * size, size)
