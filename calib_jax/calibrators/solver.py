"""L-BFGS to a certified optimum, under jit and vmap."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from calib_jax.rows import one_hot

Array = jax.Array

TOLERANCE, FLOOR = 1e-7, 1e-3
MAX_ITERATIONS = 2000
MEMORY = 20


def weighted_nll(scores: Array, labels: Array, weights: Array) -> Array:
  """The sum of the ``weights`` ``[N]`` times -log p of the labels, by ``scores`` ``[N, K]``: what fits minimise.

  With d the scores minus that of the label, and m their maximum, -log p = m + log(exp(-m) + Σ_{k≠y} exp(d_k - m)),
  which keeps its digits where p is near 1. Value and slopes take two thirds of the time of ``losses.cross_entropy``,
  whose logarithm of the others' sum is finite at any scores: that sum may be 0 here.
  """
  excess = scores - jnp.take_along_axis(scores, labels[:, None], axis=1)
  top = jax.lax.stop_gradient(jnp.max(excess, axis=1))
  others = jnp.sum(jnp.exp(excess - top[:, None]), axis=1, where=~one_hot(labels, scores))
  return jnp.sum(weights * (top + jnp.log1p(others + jnp.expm1(-top))))


def minimize(value: Callable, start, *, tolerance: float = TOLERANCE,
             max_iterations: int | None = None) -> tuple[object, dict[str, Array]]:
  """Minimises ``value`` by L-BFGS with a zoom line search.

  Where curvatures are 1, the value can still fall by half the squared norm of the gradient. The fit has converged when
  that is at most ``tolerance`` times the value (or times ``FLOOR``, for values below it).

  Args:
    value: a differentiable function of a pytree, whose units should give it curvatures near 1.
    start: the pytree to start from.
    tolerance: the tolerance relative to the value.
    max_iterations: None for ``MAX_ITERATIONS``.
  Returns: the best pytree seen, and a dict with ``converged``, ``iterations`` and ``gradient_norm``.
  """
  max_iterations = MAX_ITERATIONS if max_iterations is None else max_iterations
  optimizer = optax.lbfgs(memory_size=MEMORY, linesearch=optax.scale_by_zoom_linesearch(max_linesearch_steps=20))
  value_and_grad = optax.value_and_grad_from_state(value)

  def excess(current, gradient):
    return optax.tree.norm(gradient, squared=True) / 2 / jnp.maximum(current, FLOOR)

  def unfinished(carry):
    _, _, current, gradient, best, iterations = carry
    # In single precision the last steps may move away from the optimum; the fit ends when they are far above the best.
    lost = current > best[1] + 0.1 * jnp.abs(best[1]) + FLOOR
    return (excess(current, gradient) > tolerance) & jnp.isfinite(current) & ~lost & (iterations < max_iterations)

  def step(carry):
    params, state, current, gradient, best, iterations = carry
    updates, state = optimizer.update(gradient, state, params, value=current, grad=gradient, value_fn=value)
    params = optax.apply_updates(params, updates)
    current, gradient = value_and_grad(params, state=state)
    better = (current < best[1]) | (excess(current, gradient) <= tolerance)
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), (params, current, gradient), best)
    return params, state, current, gradient, best, iterations + 1

  state = optimizer.init(start)
  current, gradient = jax.value_and_grad(value)(start)
  carry = (start, state, current, gradient, (start, current, gradient), jnp.zeros((), jnp.int32))
  *_, (params, current, gradient), iterations = jax.lax.while_loop(unfinished, step, carry)
  return params, {"converged": excess(current, gradient) <= tolerance, "iterations": iterations,
                  "gradient_norm": optax.tree.norm(gradient)}


def minimize_in_rounds(round_from: Callable, start, *, tolerance: float, per_round: int = 100):
  """Runs ``minimize`` in rounds, because curvatures change on the way: each round measures its units anew.

  Args:
    round_from: given the parameters that a round starts from, it returns ``(value, parameters, zero)``: the objective
      as a function of the steps from there, the parameters that steps lead to, and the steps that change nothing.
    start: the parameters to start from.
    tolerance: the tolerance of ``minimize``.
    per_round: the most iterations of a round.
  Returns: the parameters, and the status of the last round with the iterations of all.
  """
  per_round = min(per_round, MAX_ITERATIONS)

  def unfinished(carry):
    _, status, rounds = carry
    return ~status["converged"] & (rounds < MAX_ITERATIONS // per_round)

  def advance(carry):
    params, before, rounds = carry
    value, parameters, zero = round_from(params)
    steps, status = minimize(value, zero, tolerance=tolerance, max_iterations=per_round)
    return parameters(steps), status | {"iterations": before["iterations"] + status["iterations"]}, rounds + 1

  dtype = jax.tree.leaves(start)[0].dtype
  status = {"converged": jnp.zeros((), bool), "iterations": jnp.zeros((), jnp.int32),
            "gradient_norm": jnp.zeros((), dtype)}
  params, status, _ = jax.lax.while_loop(unfinished, advance, (start, status, jnp.zeros((), jnp.int32)))
  return params, status
