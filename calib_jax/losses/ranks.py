"""The weight of each row in the area under the risk-coverage curve, by the rank of its confidence."""

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax._numerics.harmonic import harmonic_difference

Array = jax.Array


def rank_weights(score: Array, weights: Array, estimator: str) -> Array:
  """w_r of the rank r of each ``score`` among rows that count, ascending, ties in order; weight w is w ranks."""
  if weights.dtype != jnp.bool_:
    return _sums_of_ranks(score, weights, estimator)
  # Sorting the order again gives each row its rank. Rows that do not count come last.
  order = jnp.argsort(jnp.where(weights, score, jnp.inf), stable=True)
  rank, count = jnp.argsort(order).astype(jnp.int32) + 1, jnp.sum(weights, dtype=jnp.int32)
  if estimator == "harmonic":
    harmonic = jnp.asarray(np.concatenate([[0.0], np.cumsum(1 / np.arange(1, len(score) + 1))]), score.dtype)
    return harmonic[count] - harmonic[jnp.maximum(count - rank, 0)]
  # -ln(1 - r / (N + 1)), where 1 - r / (N + 1) would be rounded to a few digits at the highest ranks.
  return jnp.log1p(rank.astype(score.dtype) / jnp.maximum(count + 1 - rank, 1).astype(score.dtype))


def _sums_of_ranks(score: Array, weights: Array, estimator: str) -> Array:
  """The sums over the ranks of each row, in closed form, which also takes weights that are not integers."""
  # Let x be the weight of the rows ranked above a row of weight w, and N all weight. Over the ranks r of the row,
  #   Σ (H_N - H_{N-r}) = w (1 + H_N - H_{x+w}) - x (H_{x+w} - H_x), because Σ_{m<x} H_m = x (H_x - 1), and
  #   Σ ln((N + 1) / (N + 1 - r)) = w ln(N + 1) - ln Γ(x + 1 + w) + ln Γ(x + 1).
  # Differences of H and of ln Γ are written out, because at large N rounding would outweigh the functions' differences.
  order = jnp.argsort(score, stable=True)
  w = weights[order]
  above = jnp.append(jnp.cumsum(w[::-1])[::-1], 0)[1:]
  below = jnp.append(0, jnp.cumsum(w))[:-1]
  if estimator == "harmonic":
    sums = w * (1 + harmonic_difference(above + w, below)) - above * harmonic_difference(above, w)
  else:
    sums = _logarithms(above, w, above[0] + w[0])
  return jnp.zeros_like(w).at[order].set(sums)


def _logarithms(x: Array, w: Array, total: Array) -> Array:
  """w ln(N + 1) - ln Γ(x + 1 + w) + ln Γ(x + 1), where ln Γ(x + 1) = ln Γ(x + 9) - Σ_{k=1..8} ln(x + k)."""  # noqa: D403
  near = sum(jnp.log1p(w / (x + k)) for k in range(1, 9))
  s = x + 8.5  # ln Γ(s + 1/2) = s ln s - s + ln(2π)/2 - 1/(24 s) + 7/(2880 s³) - …
  first, last = (7 / (2880 * end**3) - 1 / (24 * end) for end in (s, s + w))
  return w * (jnp.log((total + 1) / (s + w)) + 1) - s * jnp.log1p(w / s) - last + first + near
