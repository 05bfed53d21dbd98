"""Temperature scaling itself, for ``calibrators`` and what stands below it: the T of the smallest NLL, by Newton."""

import math

import jax
import jax.numpy as jnp

from calib_jax._checks.shapes import ABSENT
from calib_jax._numerics.softmax import pick, sum_chunks, unmasked

Array = jax.Array

RANGE = 1e4  # Temperatures are sought within this factor of the scale of the logits, either way.
MAX_ITERATIONS = 60
AT_ONCE = 2**20  # Logits whose softmax is in memory at a time.
MANY_ROWS = 1000


def solve_nll(logits: Array, labels: Array, weights: Array, count: Array | None = None) -> dict[str, Array]:
  """The temperature of the smallest weighted NLL; 1, as of constant logits, where all weights are 0.

  With b = 1/T, the slope of the NLL in b is E[z] - z_y, weighted and summed over examples, and increases with b. The
  logits ``[N, K]`` are measured from the top one, so that z <= 0, and in units of their spread, so that b is near 1
  for logits of any scale. The root of log(-E[z]) = log(-z_y), nearly linear in log b, is found by Newton steps within
  a bracket. Logits 1e4 or more below the top are of classes that their row does not have.

  Where every example is right, the NLL falls without end as T goes to 0. With the ``count`` n of examples the labels
  are then mixtures, of weight 1 / (n + 1), with equal probabilities, for which the NLL has an optimum.

  It returns the scalars ``temperature``, ``converged``, ``iterations`` and ``at_bound``, whether the NLL has its least
  value at an end of T's range: no T is better than equal probabilities, or none is too small. So it is of constant
  logits.
  """
  at_most = max(1, AT_ONCE // logits.shape[1])  # Rows of a chunk: as one, the array would be in memory thrice.
  sums = sum_chunks(_sums, (logits, labels), weights, at_most)
  added = jnp.where(sums[1] >= 0, 0 if count is None else sums[0] / (count + 1), 0)
  unit, is_constant = _unit(sums[0], weights), sums[0] >= 0
  start = jnp.zeros((), logits.dtype)
  if len(labels) >= MANY_ROWS:
    # The optimum of one row in 16 is a start from which 3 steps over all rows suffice in place of 5.
    sample, sampled = (logits[::16], labels[::16]), weights[::16]
    sample_sums = sum_chunks(_sums, sample, sampled, at_most)
    near, _, _ = _log_inverse(*sample, sampled, unit, sample_sums, start, 0)
    start = jnp.where(jnp.abs(near) < math.log(RANGE), near, start)
  log_b, converged, iterations = _log_inverse(logits, labels, weights, unit, sums, start, added)
  return {"temperature": jnp.where(is_constant, 1, unit * jnp.exp(-log_b)), "converged": converged,
          "iterations": iterations, "at_bound": (sums[1] >= 0) | (jnp.abs(log_b) >= 0.999 * math.log(RANGE))}


def temperature_and_bound(logits: Array, labels: Array, weights: Array) -> dict[str, Array]:
  """``temperature`` and ``at_bound`` of ``solve_nll``: what other fits keep of it."""
  fitted = solve_nll(logits, labels, weights)
  return {name: fitted[name] for name in ("temperature", "at_bound")}


def spread(logits: Array, weights: Array) -> Array:
  """How far logits lie below the top one, in the weighted mean; 1 if they do not."""
  return _unit(jnp.sum(weights * _row_means(_below_top(logits))), weights)


def _unit(mean_sum: Array, weights: Array) -> Array:
  total = jnp.sum(weights)
  mean = -mean_sum / jnp.where(total > 0, total, 1)
  return jnp.where(mean > 0, mean, 1)


def _below_top(logits: Array) -> Array:
  """Each row minus its largest logit, as ``relative_to_top``, and -inf for a class that the row does not have."""
  finite = jnp.maximum(logits, jnp.finfo(logits.dtype).min)
  relative = finite - jnp.max(finite, axis=-1, keepdims=True)
  return jnp.where(relative <= ABSENT, -jnp.inf, relative)


def _row_means(below_top: Array) -> Array:
  """The mean over the classes that each row has ``[N]``."""
  has = below_top != -jnp.inf
  return jnp.sum(below_top, axis=-1, where=has) / jnp.sum(has, axis=-1, dtype=below_top.dtype)


def _sums(rows: tuple[Array, Array], weights: Array) -> tuple[Array, Array]:
  """The weighted sums of the mean logit and of the label's logit, both relative to the top."""
  logits, labels = rows
  centred = _below_top(logits)
  return jnp.sum(weights * _row_means(centred)), jnp.sum(weights * pick(centred, labels))


def _log_inverse(logits: Array, labels: Array, weights: Array, unit: Array, sums: tuple[Array, Array], start: Array,
                 added: Array | int) -> tuple[Array, Array, Array]:
  """The log b of ``solve_nll`` in units of 1 / ``unit``, from ``start`` on; whether it is known; number of steps.

  ``added`` is what the part of the labels that is equal probabilities adds to the sum of their logits.
  """
  def moments(log_b):
    """The slope in b, E[z] - z_y; E[z]; and Var[z]; each weighted and summed over examples."""
    def of_rows(rows, weights):
      logits, labels = rows
      scaled = _below_top(logits) / unit
      e = jnp.exp(jnp.exp(log_b) * scaled)  # At most 1: a softmax would look for the largest logit again.
      p, scaled = e / jnp.sum(e, axis=-1, keepdims=True), unmasked(scaled)
      expected = jnp.sum(p * scaled, axis=-1)
      variance = jnp.sum(p * (scaled - expected[:, None]) ** 2, axis=-1)
      slope = expected - pick(scaled, labels)
      return jnp.sum(weights * slope), jnp.sum(weights * expected), jnp.sum(weights * variance)

    slope, expected, variance = sum_chunks(of_rows, (logits, labels), weights, max(1, AT_ONCE // logits.shape[1]))
    return slope - added / unit, expected, variance

  bound = jnp.log(jnp.asarray(RANGE, logits.dtype))
  # A Newton step leaves a share of its square as the error, a fifth on real logits: after one this short, an eps.
  short, tolerance = 2 * jnp.sqrt(jnp.finfo(logits.dtype).eps), 4 * jnp.finfo(logits.dtype).eps

  def step(carry):
    log_b, low, high, _, iterations = carry
    slope, expected, variance = moments(log_b)
    low, high = jnp.where(slope < 0, log_b, low), jnp.where(slope > 0, log_b, high)
    ratio = slope / jnp.where(expected < 0, expected, -1)
    usable = (variance > 0) & (expected < 0) & (ratio < 1)
    # log(E[z] / z_y) from the slope, so that its sign, and the side of the bracket it leads to, are the slope's.
    log_ratio = -jnp.log1p(-jnp.where(usable, ratio, 0))
    proposal = log_b - log_ratio * expected / jnp.where(usable, jnp.exp(log_b) * variance, 1)
    # A short step may leave the bracket, because rounding decides the slope's sign at the optimum.
    last = usable & (jnp.abs(proposal - log_b) <= short)
    inside = usable & (proposal >= low) & (proposal <= high)
    new = jnp.where(slope == 0, log_b, jnp.where(last | inside, proposal, (low + high) / 2))
    done = last | (jnp.abs(new - log_b) <= tolerance * jnp.maximum(jnp.abs(new), 1))
    return new, low, high, done, iterations + 1

  def unfinished(carry):
    *_, done, iterations = carry
    return ~done & (iterations < MAX_ITERATIONS)

  # As the slope increases with b, its limits at 0 and at infinity tell whether an optimum lies between.
  mean_sum, label_sum = sums
  at_zero, at_infinity = mean_sum >= label_sum + added, label_sum + added >= 0
  carry = (start, -bound, bound, at_zero | at_infinity, jnp.zeros((), jnp.int32))
  log_b, _, _, done, iterations = jax.lax.while_loop(unfinished, step, carry)
  return jnp.where(at_infinity, bound, jnp.where(at_zero, -bound, log_b)), done, iterations
