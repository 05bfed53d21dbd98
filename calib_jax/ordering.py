"""Sorting by integer keys: XLA's CPU code sorts and compares them several times as fast as floats."""

import jax
import jax.numpy as jnp

Array = jax.Array


def ordered_key(x: Array) -> Array:
  """Integers that sort as the floats ``x`` do, equal where those are (also -0.0 and 0.0)."""
  return _flip(_bits(x))


def from_key(key: Array) -> Array:
  """The floats whose ``ordered_key`` is ``key``."""
  return jax.lax.bitcast_convert_type(_flip(key), jnp.float64 if key.dtype == jnp.int64 else jnp.float32)


def _flip(bits: Array) -> Array:
  """All bits but the sign's turned round where that is set: the bits of floats to their keys, and back."""
  return bits ^ ((bits >> (8 * bits.dtype.itemsize - 1)) & jnp.iinfo(bits.dtype).max)


def tie_bounds(key: Array) -> tuple[Array, Array]:
  """Of each place in the sorted ``key`` ``[N]``, the first and the last place that hold the same: int32 ``[N]``."""
  place = jnp.arange(len(key), dtype=jnp.int32)
  changes = key[1:] != key[:-1]
  begins, ends = jnp.concatenate([jnp.ones(1, bool), changes]), jnp.concatenate([changes, jnp.ones(1, bool)])
  first = jax.lax.cummax(jnp.where(begins, place, 0))
  return first, jax.lax.cummin(jnp.where(ends, place, len(key)), reverse=True)


def sorted_pairs(confidence: Array, correct: Array, where: Array, ranks: Array) -> tuple[Array, Array]:
  """``confidence`` ``[N]`` in ascending order, and how many are ``correct`` among the first of each of ``ranks``.

  The sort is stable: ties keep their order. Rows that do not count go last. Confidences are in [0, 1], so that their
  bits sort as they do and leave room for ``correct`` beside them; the order of ties, which that does not keep, is
  counted only where one of ``ranks`` divides a tie of right and wrong.
  """
  bits = _bits(confidence)
  key = jax.lax.sort(jnp.where(where, bits * 2 + correct.astype(bits.dtype), jnp.iinfo(bits.dtype).max))
  ordered = key // 2
  before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum((key & 1).astype(jnp.int32))])
  value = ordered[jnp.minimum(ranks, len(key) - 1)] if len(key) else jnp.zeros(ranks.shape, bits.dtype)
  first, after = (jnp.searchsorted(ordered, value, side=side).astype(jnp.int32) for side in ("left", "right"))
  taken, right = ranks - first, before[after] - before[first]
  divided = (taken > 0) & (taken < after - first) & (right > 0) & (right < after - first)

  def in_order():
    def count(args):
      value, taken = args
      tied = where & (bits == value)
      return jnp.sum(tied & (jnp.cumsum(tied, dtype=jnp.int32) <= taken) & (correct > 0), dtype=jnp.int32)

    return jax.lax.map(count, (value, taken))

  of_tie = jax.lax.cond(jnp.any(divided), in_order, lambda: jnp.zeros_like(ranks))
  of_tie = jnp.where(divided, of_tie, jnp.where(right > 0, taken, 0))
  # A rank at the end of all that count divides nothing.
  count, all_right = (jnp.sum(x, dtype=jnp.int32) for x in (where, where & (correct > 0)))
  happened = jnp.where(ranks < count, before[first] + of_tie, all_right)
  return jax.lax.bitcast_convert_type(ordered, confidence.dtype), happened


def _bits(x: Array) -> Array:
  """The bits of each float as an integer; those of -0.0 are those of 0.0."""
  x = jnp.where(x == 0, jnp.zeros_like(x), x)
  return jax.lax.bitcast_convert_type(x, jnp.int32 if x.dtype.itemsize == 4 else jnp.int64)


def exact_cumsum(x: Array) -> tuple[Array, Array]:
  """Prefix sums of ``x`` ``[N]`` from 0, ``[N + 1]``, as a pair of floats whose sum has twice the digits of one."""
  def add(a, b):
    total = a[0] + b[0]
    part = total - a[0]
    return total, a[1] + b[1] + ((a[0] - (total - part)) + (b[0] - part))

  pair = jax.lax.associative_scan(add, (x, jnp.zeros_like(x)))
  return tuple(jnp.concatenate([jnp.zeros(1, x.dtype), part]) for part in pair)
