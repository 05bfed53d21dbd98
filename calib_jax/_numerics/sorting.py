"""Sorting floats by integer keys, which XLA's CPU code sorts faster, and prefix sums as pairs of floats."""

import jax
import jax.numpy as jnp

Array = jax.Array


def ordered_key(x: Array) -> Array:
  """Integers in the same order as the floats ``x``, equal where the floats are equal (-0.0 and 0.0 included)."""
  bits = _bits(x)
  # The bits of floats above 0, read as an integer, are in their order. The bits of floats below 0 are in the reverse
  # order: all bits but the sign are flipped.
  return bits ^ ((bits >> (8 * bits.dtype.itemsize - 1)) & jnp.iinfo(bits.dtype).max)


def tie_bounds(key: Array) -> tuple[Array, Array]:
  """For each place of the sorted ``key`` ``[N]``, the first and the last place with an equal key: int32 ``[N]``."""
  place = jnp.arange(len(key), dtype=jnp.int32)
  changes, edge = key[1:] != key[:-1], jnp.ones(1, bool)
  begins, ends = jnp.concatenate([edge, changes]), jnp.concatenate([changes, edge])
  first = jax.lax.cummax(jnp.where(begins, place, 0))
  return first, jax.lax.cummin(jnp.where(ends, place, len(key)), reverse=True)


def sorted_pairs(confidence: Array, correct: Array, where: Array, ties: str, *others: Array) -> tuple[Array, ...]:
  """``confidence`` in [0, 1] in ascending order, ``correct`` as int32, and ``others``; what does not count is last."""
  # With ``ties="order"`` the sort is stable. With ``ties="share"`` the order within a tie has no meaning, and one
  # integer holds a confidence and, in its lowest bit, whether it is correct: the bits of floats in [0, 1] are in their
  # order and leave the highest bit free. XLA's CPU code sorts single integers much faster than pairs.
  bits = _bits(confidence)
  largest = jnp.iinfo(bits.dtype).max
  if ties == "order":
    key, correct, *others = jax.lax.sort((jnp.where(where, bits, largest // 2), correct > 0, *others), num_keys=1,
                                         is_stable=True)
  else:
    key = jnp.where(where, bits * 2 + (correct > 0).astype(bits.dtype), largest)
    key, *others = jax.lax.sort((key, *others), num_keys=1)  # The stable sort of integers alone is the faster one.
    key, correct = key // 2, key & 1
  counts = jnp.arange(len(key), dtype=jnp.int32) < jnp.sum(where, dtype=jnp.int32)
  return jax.lax.bitcast_convert_type(key, confidence.dtype), jnp.where(counts, correct.astype(jnp.int32), 0), *others


def sorted_credits(confidence: Array, correct: Array, where: Array, weights: Array) -> tuple[Array, Array, Array]:
  """``confidence`` in [0, 1] in ascending order, ``correct``, any floats, and ``weights``; what does not count is last.

  The sort is stable. Weights, and credits, of what does not count are 0.
  """
  bits = _bits(confidence)
  key, correct, weights = jax.lax.sort((jnp.where(where, bits, jnp.iinfo(bits.dtype).max // 2),
                                        jnp.where(where, correct, 0), jnp.where(where, weights, 0)), num_keys=1,
                                       is_stable=True)
  return jax.lax.bitcast_convert_type(key, confidence.dtype), correct, weights


def correct_before(ordered: Array, correct: Array, ranks: Array, ties: str) -> tuple[Array, Array]:
  """How many of the first r of ``correct`` are 1, for each r of ``ranks``: ``(whole int32, fraction)``, to be added."""
  # With ``ties="share"`` each example counts as the share of correct ones among all with its value of ``ordered``.
  before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(correct, dtype=jnp.int32)])
  if ties == "order" or not len(correct):
    return before[ranks], jnp.zeros(ranks.shape, ordered.dtype)
  value = ordered[jnp.minimum(ranks, len(ordered) - 1)]
  # The tie that each rank divides holds the places [start, end).
  start, end = (jnp.searchsorted(ordered, value, side=side).astype(jnp.int32) for side in ("left", "right"))
  whole, fraction = shared_count(ranks - start, before[end] - before[start], end - start, ordered.dtype)
  return before[start] + whole, fraction


def shared_count(taken: Array, correct: Array, size: Array, dtype) -> tuple[Array, Array]:
  """``taken * correct / size`` of integers with ``taken, correct <= size``: ``(whole int32, fraction)``, to add."""
  # The product may exceed 32 bits. The quotient q of floats is wrong by a few units at most, so that the remainder
  # ``taken * correct - q * size`` is a few times ``size``: int32, exact modulo 2^32, gives it for up to 10^8 examples.
  size = jnp.maximum(size, 1)
  whole = jnp.floor(taken.astype(dtype) * (correct.astype(dtype) / size.astype(dtype))).astype(jnp.int32)
  return whole, (taken * correct - whole * size).astype(dtype) / size.astype(dtype)


def _bits(x: Array) -> Array:
  """The bits of each float as an integer; -0.0 has the bits of 0.0."""
  x = jnp.where(x == 0, jnp.zeros_like(x), x)
  return jax.lax.bitcast_convert_type(x, jnp.int32 if x.dtype.itemsize == 4 else jnp.int64)


def sorted_shares(x: Array) -> Array:
  """``x`` ``[N]`` without NaN or values below 0, in ascending order: the bits of such floats are in theirs."""
  return jax.lax.bitcast_convert_type(jnp.sort(_bits(x)), x.dtype)


def exact_sum(a: Array, b: Array) -> tuple[Array, Array]:
  """``a + b`` as it is rounded, and the rounding error, which is a float too (Knuth's TwoSum)."""
  total = a + b
  part = total - a
  return total, (a - (total - part)) + (b - part)


def exact_cumsum(x: Array) -> tuple[Array, Array]:
  """Prefix sums of ``x`` ``[N]`` from 0, ``[N + 1]``, as floats and the sums of the rounding errors of additions."""
  def add(a, b):
    total, error = exact_sum(a[0], b[0])
    return total, a[1] + b[1] + error

  pair = jax.lax.associative_scan(add, (x, jnp.zeros_like(x)))
  return tuple(jnp.concatenate([jnp.zeros(1, x.dtype), part]) for part in pair)


def sum_between(sums: tuple[Array, Array], start: Array, end: Array) -> Array:
  """The sum of what stands from the places ``start`` to those before ``end``, of the ``sums`` of ``exact_cumsum``."""
  high, low = sums
  return (high[end] - high[start]) + (low[end] - low[start])
