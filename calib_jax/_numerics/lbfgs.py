"""L-BFGS to a certified optimum, under jit and vmap."""

from collections.abc import Callable
import functools

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp

from calib_jax._numerics.softmax import one_hot

Array = jax.Array

TOLERANCE, FLOOR = 1e-6, 1e-3
MAX_ITERATIONS = 2000
MEMORY = 20  # Pairs of steps and changes of the gradient.
TRIALS = 20  # Lengths of a step, at most.
_dot = functools.partial(jnp.dot, precision="highest")


def weighted_nll(scores: Array, labels: Array, weights: Array) -> Array:
  """The sum of the ``weights`` ``[N]`` times -log p of the labels, by ``scores`` ``[N, K]``: what fits minimise."""
  # With d the scores minus the label's, and m their maximum, -log p = m + log(exp(-m) + Σ_{k≠y} exp(d_k - m)),
  # which is numerically stable where p is near 1, and takes less time than ``losses.cross_entropy``.
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
  """A ten-thousandth of the mean square of each class's ``scores`` ``[N, K]``, those beyond 30 nats counting as 30."""
  # Curvatures, the units of slopes, may all be near 0 for a class: these keep the unit in proportion to its scores.
  return 1e-4 * jnp.sum(weights[:, None] * jnp.clip(scores, -30, 30) ** 2, axis=0)


def minimize(value: Callable, start, *, tolerance: float = TOLERANCE, max_iterations: int = MAX_ITERATIONS
             ) -> tuple[object, dict[str, Array]]:
  """Minimises ``value`` by optax's L-BFGS: the last pytree, ``converged``, ``iterations`` and ``gradient_norm``."""
  # ``value`` should have units with curvatures near 1. Where they are 1, it can still fall by half the squared norm of
  # the gradient; where they are those that L-BFGS has seen, by half the slope along its next step. The fit has
  # converged when both are at most ``tolerance`` times the value (or times ``FLOOR``, for values below it).
  x, unravel = ravel_pytree(start)
  import optax  # A tenth of a second, which many fits do without.

  quasi_newton = optax.scale_by_lbfgs(MEMORY)
  line_search = optax.scale_by_zoom_linesearch(TRIALS, initial_guess_strategy="one")

  def value_of(x):
    return value(unravel(x))

  def has_converged(least, gradient, direction):
    square, slope = _dot(gradient, gradient), -_dot(gradient, direction)
    return jnp.maximum(square, slope) / 2 <= tolerance * jnp.maximum(least, FLOOR)

  def direction_from(gradient, memory, x):
    step, memory = quasi_newton.update(gradient, memory, x)
    return -step, memory

  def unfinished(carry):
    _, *point, _, _, failed, iterations = carry
    return ~has_converged(*point) & ~failed & (iterations < max_iterations)

  def step(carry):
    x, least, gradient, direction, memory, search, _, iterations = carry
    # The state of the line search holds the value and the gradient where its step ends.
    change, search = line_search.update(direction, search, x, value=least, grad=gradient, value_fn=value_of)
    x = x + change
    direction, memory = direction_from(search.grad, memory, x)
    return x, search.value, search.grad, direction, memory, search, jnp.all(change == 0), iterations + 1

  least, gradient = jax.value_and_grad(value_of)(x)
  direction, memory = direction_from(gradient, quasi_newton.init(x), x)
  carry = (x, least, gradient, direction, memory, line_search.init(x), jnp.zeros((), bool), jnp.zeros((), jnp.int32))
  x, *point, _, _, _, iterations = jax.lax.while_loop(unfinished, step, carry)
  return unravel(x), {"converged": has_converged(*point), "iterations": iterations,
                      "gradient_norm": jnp.linalg.norm(point[1])}


def minimize_in_rounds(round_from: Callable, start, *, tolerance: float, per_round: int = 100):
  """Runs ``minimize`` in rounds, because curvatures change on the way: each round measures its units anew."""
  # Given the parameters that a round starts from, ``round_from`` returns ``(value, parameters, zero)``: the objective
  # as a function of the steps from there, the parameters that steps lead to, and the steps that change nothing. Only a
  # round that has nothing to do ends the fit: one that took steps is certified in the units of its start. Where
  # rounding keeps every round stepping, as it may with a tolerance of 1e-9, they run out.
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
