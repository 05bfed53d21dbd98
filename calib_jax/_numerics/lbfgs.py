"""L-BFGS to a certified optimum, under jit and vmap."""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp

from calib_jax._numerics.softmax import one_hot

Array = jax.Array

TOLERANCE, FLOOR = 1e-6, 1e-3
MAX_ITERATIONS = 2000
MEMORY = 20  # Pairs of steps and changes of the gradient.
TRIALS = 20  # Lengths of a step, at most.
# A step is short enough if the value falls by SHARE of what the slope along it promised, and long enough if at most
# FLATTER of that slope is left.
SHARE, FLATTER = 1e-4, 0.9
_dot = functools.partial(jnp.dot, precision="highest")


def weighted_nll(scores: Array, labels: Array, weights: Array) -> Array:
  """The sum of the ``weights`` ``[N]`` times -log p of the labels, by ``scores`` ``[N, K]``: what fits minimise.

  With d the scores minus that of the label, and m their maximum, -log p = m + log(exp(-m) + Σ_{k≠y} exp(d_k - m)),
  which is numerically stable where p is near 1. It takes less time than ``losses.cross_entropy``, whose logarithm of
  the others' sum is finite at any scores: that sum may be 0 here.
  """
  excess = scores - jnp.take_along_axis(scores, labels[:, None], axis=1)
  top = jax.lax.stop_gradient(jnp.max(excess, axis=1))
  others = jnp.sum(jnp.exp(excess - top[:, None]), axis=1, where=~one_hot(labels, scores))
  return jnp.sum(weights * (top + jnp.log1p(others + jnp.expm1(-top))))


def shares(weights: Array, dtype) -> Array:
  """``weights`` ``[N]``, bools or numbers, as numbers whose sum is 1, or 0 if nothing counts."""
  weights = weights.astype(dtype)
  total = jnp.sum(weights)
  return weights / jnp.where(total > 0, total, 1)


def least_squares(scores: Array, weights: Array) -> Array:
  """A ten-thousandth of the mean square of each class's ``scores`` ``[N, K]``, those beyond 30 nats counting as 30.

  Units of slopes are measured by curvatures, which may all be near 0 for a class: these squares keep the unit in
  proportion to the class's own scores, and an outlier keeps it no smaller than other scores do.
  """
  return 1e-4 * jnp.sum(weights[:, None] * jnp.clip(scores, -30, 30) ** 2, axis=0)


class Point(NamedTuple):
  """Parameters as a vector ``[D]``, the objective there, and its gradient ``[D]``."""

  x: Array
  value: Array
  gradient: Array


class Memory(NamedTuple):
  """The last steps s and changes y of the gradient, ``[MEMORY, D]``; 1 / s·y ``[MEMORY]``; how many there have been."""

  steps: Array
  changes: Array
  inverse: Array
  count: Array

  def plus(self, step: Array, change: Array, fits: Array) -> "Memory":
    """The memory with one more pair, if it ``fits`` and curvature along it is above 0, in the place of the oldest."""
    product = _dot(step, change)
    fits &= product > jnp.finfo(step.dtype).eps * _dot(change, change)
    i = self.count % MEMORY
    # One row is chosen and written in place: to choose between two memories would copy them.
    rows = [row.at[i].set(jnp.where(fits, new, row[i])) for row, new in zip(self[:3], (step, change, 1 / product),
                                                                            strict=True)]
    return Memory(*rows, self.count + fits.astype(jnp.int32))

  def direction(self, gradient: Array) -> Array:
    """The quasi-Newton step from a point with this gradient; the first is downhill, and no longer than 1."""
    num_pairs, newest = jnp.minimum(self.count, MEMORY), (self.count - 1) % MEMORY

    def newest_first(i, carry):
      rest, shares = carry
      j = (self.count - 1 - i) % MEMORY
      share = self.inverse[j] * _dot(self.steps[j], rest)
      return rest - share * self.changes[j], shares.at[j].set(share)

    def oldest_first(i, step):
      j = (self.count - num_pairs + i) % MEMORY
      return step + (shares[j] - self.inverse[j] * _dot(self.changes[j], step)) * self.steps[j]

    # Loops over the pairs that there are, not over MEMORY: most fits end before the memory is full.
    rest, shares = jax.lax.fori_loop(0, num_pairs, newest_first, (gradient, jnp.zeros_like(self.inverse)))
    square = _dot(self.changes[newest], self.changes[newest])
    unit = jnp.where(num_pairs > 0, 1 / (self.inverse[newest] * square), 1 / jnp.maximum(jnp.linalg.norm(gradient), 1))
    return -jax.lax.fori_loop(0, num_pairs, oldest_first, unit * rest)


def minimize(value: Callable, start, *, tolerance: float = TOLERANCE,
             max_iterations: int | None = None) -> tuple[object, dict[str, Array]]:
  """Minimises ``value`` by L-BFGS, whose steps are tried at full length first.

  Where curvatures are 1, the value can still fall by half the squared norm of the gradient; where they are those that
  L-BFGS has seen, by half the slope along its next step. The fit has converged when both are at most ``tolerance``
  times the value (or times ``FLOOR``, for values below it). Most iterations evaluate the value and its gradient once.
  docs/benchmarks.md compares the time with that of optax's L-BFGS.

  Args:
    value: a differentiable function of a pytree, whose units should give it curvatures near 1.
    start: the pytree to start from.
    tolerance: the tolerance relative to the value.
    max_iterations: None for ``MAX_ITERATIONS``.

  Returns:
    The last pytree, which is the best up to rounding, and a dict with ``converged``, ``iterations`` and
    ``gradient_norm``.
  """
  max_iterations = MAX_ITERATIONS if max_iterations is None else max_iterations
  x, unravel = ravel_pytree(start)
  value_and_grad = jax.value_and_grad(lambda x: value(unravel(x)))

  def has_converged(point, direction):
    square, slope = _dot(point.gradient, point.gradient), -_dot(point.gradient, direction)
    return jnp.maximum(square, slope) / 2 <= tolerance * jnp.maximum(point.value, FLOOR)

  def unfinished(carry):
    point, direction, *_, failed, iterations = carry
    return ~has_converged(point, direction) & ~failed & (iterations < max_iterations)

  def step(carry):
    point, direction, memory, lowest, _, iterations = carry
    new, done = _line_search(value_and_grad, point, direction, lowest)
    # A step that cannot be made may be due to what the memory holds; one that is downhill, to rounding errors alone.
    failed = ~done & (memory.count == 0)
    memory = memory.plus(new.x - point.x, new.gradient - point.gradient, done)
    memory = memory._replace(count=jnp.where(done, memory.count, 0))
    point = jax.tree.map(lambda new, old: jnp.where(done, new, old), new, point)
    return (point, memory.direction(point.gradient), memory, jnp.minimum(lowest, point.value), failed, iterations + 1)

  pairs, count = jnp.zeros((MEMORY, x.size), x.dtype), jnp.zeros((), jnp.int32)
  point, memory = Point(x, *value_and_grad(x)), Memory(pairs, pairs, pairs[:, 0], count)
  carry = point, memory.direction(point.gradient), memory, point.value, jnp.zeros((), bool), count
  point, direction, *_, iterations = jax.lax.while_loop(unfinished, step, carry)
  return unravel(point.x), {"converged": has_converged(point, direction), "iterations": iterations,
                            "gradient_norm": jnp.linalg.norm(point.gradient)}


def _line_search(value_and_grad: Callable, point: Point, direction: Array, lowest: Array) -> tuple[Point, Array]:
  """A point along ``direction`` that fulfils the weak Wolfe conditions, and whether one was found.

  The length 1 is tried first. Lengths that are too short or too long bracket the next ones, which come from the slopes.
  Where the change of the value is lost in its rounding, the slopes alone decide (Hager and Zhang 2005).
  """
  slope = _dot(point.gradient, direction)
  rounding = 8 * jnp.finfo(slope.dtype).eps * jnp.abs(lowest)

  def unfinished(carry):
    *_, done, trials = carry
    return ~done & (slope < 0) & (trials < TRIALS)

  def attempt(carry):
    short, short_slope, long, length, _, _, trials = carry
    x = point.x + length * direction
    new = Point(x, *value_and_grad(x))
    new_slope = _dot(new.gradient, direction)
    fell = ((new.value <= point.value + SHARE * length * slope)
            | (new.value <= lowest + rounding) & (new_slope <= (2 * SHARE - 1) * slope))
    is_short = fell & (new_slope < FLATTER * slope)
    short, short_slope = jnp.where(is_short, length, short), jnp.where(is_short, new_slope, short_slope)
    long = jnp.where(fell, long, length)
    # Where a line through the two slopes crosses 0: of a length that is too long by far, a tenth.
    share = jnp.where(fell, 0.5, jnp.nan_to_num(short_slope / (short_slope - new_slope)).clip(0.1, 0.5))
    length = jnp.where(jnp.isinf(long), 4 * length, short + share * (long - short))
    return short, short_slope, long, length, new, fell & ~is_short, trials + 1

  zero = jnp.zeros_like(slope)
  carry = zero, slope, zero + jnp.inf, zero + 1, point, jnp.zeros((), bool), jnp.zeros((), jnp.int32)
  *_, new, done, _ = jax.lax.while_loop(unfinished, attempt, carry)
  return new, done


def minimize_in_rounds(round_from: Callable, start, *, tolerance: float, per_round: int = 100):
  """Runs ``minimize`` in rounds, because curvatures change on the way: each round measures its units anew.

  Only a round that has nothing to do ends the fit: one that took steps is certified in the units of its start. Where
  rounding keeps every round stepping, as it may with a tolerance of 1e-9, they run out, and ``converged`` is what the
  last one says.

  Args:
    round_from: given the parameters that a round starts from, it returns ``(value, parameters, zero)``: the objective
      as a function of the steps from there, the parameters that steps lead to, and the steps that change nothing.
    start: the parameters to start from.
    tolerance: the tolerance of ``minimize``.
    per_round: the most iterations of a round.

  Returns:
    The parameters, and the status of the last round with the iterations of all.
  """
  per_round = min(per_round, MAX_ITERATIONS)

  def unfinished(carry):
    *_, ended, rounds = carry
    return ~ended & (rounds < MAX_ITERATIONS // per_round)

  def advance(carry):
    params, before, _, rounds = carry
    value, parameters, zero = round_from(params)
    steps, status = minimize(value, zero, tolerance=tolerance, max_iterations=per_round)
    ended = status["converged"] & (status["iterations"] == 0)
    status["iterations"] += before["iterations"]
    return parameters(steps), status, ended, rounds + 1

  dtype, no = jax.tree.leaves(start)[0].dtype, jnp.zeros((), bool)
  status = {"converged": no, "iterations": jnp.zeros((), jnp.int32), "gradient_norm": jnp.zeros((), dtype)}
  params, status, *_ = jax.lax.while_loop(unfinished, advance, (start, status, no, jnp.zeros((), jnp.int32)))
  return params, status
