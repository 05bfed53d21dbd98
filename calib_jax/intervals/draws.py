"""The examples that resamples draw, from a key: masks, indices and redrawn outcomes.

``words`` turns a key into a few random numbers, and everything else is a hash of them, in JAX for one resample or in
NumPy for a leading axis of resamples: both draw the same examples.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from calib_jax._numerics.binning import array_module

Array = jax.Array
Metric = Callable[..., Array]
BATCH = 400_000  # Numbers of the resamples that are in memory at a time. More would not stay in a CPU's cache.
FIFTH = 5  # The smaller subsamples of ``bootstrap(method="bias_corrected")`` hold one of so many examples.


def members(groups: ArrayLike | None, count: int) -> np.ndarray:
  """The examples of each group, ``[groups, size of the largest]``, padded with -1; each is a group without any."""
  if groups is None:
    return np.arange(count, dtype=np.int32)[:, None]
  group, num_groups = group_numbers(groups, count)
  order, sizes = np.argsort(group, kind="stable"), np.bincount(group)
  place = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
  padded = np.full((num_groups, sizes.max()), -1, np.int32)
  padded[np.repeat(np.arange(num_groups), sizes), place] = order
  return padded


def group_numbers(groups: ArrayLike | None, count: int) -> tuple[np.ndarray | None, int]:
  """The number of each example's group, None without groups, and how many groups or examples there are."""
  if groups is None:
    return None, count
  groups = np.asarray(groups)
  if groups.shape != (count,) or not np.issubdtype(groups.dtype, np.integer):
    raise ValueError(f"groups must be integers of shape ({count},): got dtype {groups.dtype} and shape {groups.shape}.")
  numbers, group = np.unique(groups, return_inverse=True)
  return group, len(numbers)


def words(key: Array) -> Array:
  """The random uint32 ``[..., 3, 2]`` of keys: two each for examples, groups, and the choice between them."""
  if key.ndim:
    return jax.vmap(words)(key)
  keys = jnp.concatenate([key[None], jax.random.split(key)])
  return jax.vmap(lambda x: jax.random.bits(x, (2,), jnp.uint32))(keys)


def subsample_words(count: int, key: Array, num_resamples: int) -> tuple[Array, Array, Array, Array]:
  """A random order of ``count`` examples or groups, and the words of halves, of fifths and of redrawn outcomes."""
  return order(key, count), *words_of_kinds(key, num_resamples)


def order(key: Array, count: int) -> Array:
  """A random order of ``count`` examples or groups."""
  return jax.random.permutation(jax.random.split(key, 4)[0], count)


def words_of_kinds(key: Array, num_resamples: int) -> Array:
  """The words of halves, of fifths and of redrawn outcomes, together, so that their generator is compiled once."""
  return words(jax.vmap(lambda x: jax.random.split(x, num_resamples))(jax.random.split(key, 4)[1:]))


def dependence(confidence: Array, correct: Array, members: Array) -> Array:
  """An upper estimate of how strongly the outcomes of a group depend on each other, in [0, 1]; 0 without groups."""
  # Over the pairs of all groups and seeds, ρ̂ = Σ r_i r_j / Σ (min(c_i, c_j) - c_i c_j) with r = y - c, whose
  # denominator is what the numerator would be on average if each group drew its outcomes by one uniform number. Like a
  # variance of m groups, it has a relative standard error of about √(2/m), with m = (Σ d)² / Σ d² of the groups'
  # denominators d. What is returned is the ρ of which ρ̂ is two such errors too low, and 1 for eight groups or fewer:
  # with ρ̂ itself, or one error, few or unequal groups reject a calibrated model too often.
  if members.shape[1] == 1:
    return jnp.zeros((), confidence.dtype)
  taken = (members >= 0)[..., None]
  confidence, correct = (jnp.asarray(x, jnp.float32).reshape(len(x), -1)[jnp.maximum(members, 0)]
                         for x in (confidence, correct))
  residual = jnp.where(taken, correct - confidence, 0)
  products = jnp.sum(jnp.sum(residual, axis=1) ** 2 - jnp.sum(residual**2, axis=1)) / 2
  # min(c, d) - c d is c (1 - d) for c <= d: a sum of positive numbers, exact also where confidences are near 1.
  ordered = jnp.sort(jnp.where(taken, confidence, 1), axis=1)
  most = jnp.sum(ordered[:, :-1] * jnp.cumsum(1 - ordered[:, :0:-1], axis=1)[:, ::-1], axis=(1, 2))
  tiny = jnp.finfo(jnp.float32).tiny
  total = jnp.maximum(jnp.sum(most), tiny)
  error = jnp.sqrt(2 * jnp.sum((most / total) ** 2))
  return jnp.minimum(jnp.maximum(products / total, 0) / jnp.maximum(1 - 2 * error, tiny), 1)


def shared(words: Array, own: Array, group: Array | None, num_groups: int, rho: Array | float) -> Array:
  """Uniform numbers ``[..., N]``: two of one group are equal with the probability ρ, and the others are ``own``."""
  if group is None:
    return own
  xp = array_module(own)
  is_shared = uniform(words, own.shape[-1], 2) < xp.sqrt(xp.asarray(rho)).astype(xp.float32)
  return xp.where(is_shared, uniform(words, num_groups, 1)[..., group].astype(own.dtype), own)


def half_and_rest(words: Array, order: Array) -> tuple[Array, Array]:
  """The examples or groups of a random half and of what it leaves out, one of each two neighbours of ``order``."""
  size = min(2, len(order))
  first, drawn = _blocks(words, len(order), size)
  return order[first + drawn], order[first + size - 1 - drawn]


def fifth(words: Array, order: Array) -> Array:
  """The examples or groups of a random fifth, one of each five neighbours of ``order``."""
  first, drawn = _blocks(words, len(order), min(FIFTH, len(order)))
  return order[first + drawn]


def _blocks(words: Array, count: int, size: int) -> tuple[Array, Array]:
  """The first of each ``size`` of ``count`` places in a row, and a random number below ``size`` for each."""
  number = count // size
  return np.arange(number, dtype=np.int32) * size, draw(words, number, size)


def draw(words: Array, count: int, below: int | Array) -> Array:
  """``count`` random int32 below ``below``, whose chances differ by at most ``below / 2^32`` of themselves."""
  xp = array_module(words)
  return (_hash(words[..., 0, :], count) % xp.asarray(below, xp.uint32)).astype(xp.int32)


def uniform(words: Array, count: int, purpose: int = 0) -> Array:
  """``count`` random multiples of 2^-24 in [0, 1), as float32; numbers of another row of words are independent."""
  xp = array_module(words)
  return (_hash(words[..., purpose, :], count) >> 8).astype(xp.float32) * xp.float32(2**-24)


def _hash(words: Array, count: int) -> Array:
  """``count`` random uint32 of each pair of ``words`` ``[..., 2]``."""
  # A hash of a counter: the finaliser of MurmurHash3, with one word added before it and another in its middle. The
  # twenty rounds of ``jax.random.bits`` would take a third of the time of 1,000 resamples of ECE.
  xp = array_module(words)
  x = words[..., :1] + xp.arange(count, dtype=xp.uint32) * xp.uint32(0x9E3779B9)
  x = (x ^ (x >> 16)) * xp.uint32(0x85EBCA6B) ^ words[..., 1:]
  x = (x ^ (x >> 13)) * xp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)


def at_once(arrays: Sequence[Array]) -> int:
  """The number of resamples of ``arrays`` that keep ``BATCH`` numbers."""
  return max(1, BATCH // max(1, sum(x.size for x in arrays)))
