"""L-BFGS to a certified optimum, under jit and vmap."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

Array = jax.Array

# What a quadratic of unit curvature still has to fall, as a share of the value (or of FLOOR, if that is larger).
TOLERANCE, FLOOR = 1e-7, 1e-3
MAX_ITERATIONS = 2000
MEMORY = 20


def minimize(value: Callable, start, *, tolerance: float = TOLERANCE,
             max_iterations: int | None = None) -> tuple[object, dict[str, Array]]:
  """``(params, status)``: a minimum of ``value`` near ``start``, pytrees whose units should have curvatures near 1.

  It ends where half the squared norm of the gradient is below ``tolerance`` of the value: there ``converged`` is true.
  ``status`` holds ``converged``, ``iterations`` and ``gradient_norm``.
  """
  max_iterations = MAX_ITERATIONS if max_iterations is None else max_iterations
  optimizer = optax.lbfgs(memory_size=MEMORY, linesearch=optax.scale_by_zoom_linesearch(max_linesearch_steps=20))
  value_and_grad = optax.value_and_grad_from_state(value)

  def excess(found, gradient):
    return optax.tree.norm(gradient, squared=True) / 2 / jnp.maximum(found, FLOOR)

  def unfinished(carry):
    _, _, found, gradient, best, iterations = carry
    # In single precision the last steps may wander: far above the best, they lead nowhere.
    lost = found > best[1] + 0.1 * jnp.abs(best[1]) + FLOOR
    return (excess(found, gradient) > tolerance) & jnp.isfinite(found) & ~lost & (iterations < max_iterations)

  def step(carry):
    params, state, found, gradient, best, iterations = carry
    updates, state = optimizer.update(gradient, state, params, value=found, grad=gradient, value_fn=value)
    params = optax.apply_updates(params, updates)
    found, gradient = value_and_grad(params, state=state)
    better = (found < best[1]) | (excess(found, gradient) <= tolerance)
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old),
                        (params, found, excess(found, gradient), optax.tree.norm(gradient)), best)
    return params, state, found, gradient, best, iterations + 1

  state = optimizer.init(start)
  found, gradient = jax.value_and_grad(value)(start)
  best = (start, found, excess(found, gradient), optax.tree.norm(gradient))
  carry = (start, state, found, gradient, best, jnp.zeros((), jnp.int32))
  *_, (params, _, left, norm), iterations = jax.lax.while_loop(unfinished, step, carry)
  return params, {"converged": left <= tolerance, "iterations": iterations, "gradient_norm": norm}


def minimize_in_rounds(measured_at: Callable, start, *, tolerance: float, per_round: int = 100):
  """``minimize`` where curvatures change on the way: every ``per_round`` iterations the units are measured again.

  ``measured_at(params)`` gives ``(value, parameters, start)``: the value of steps from there, the parameters that they
  lead to, and no step. Returns the parameters and the status of all rounds together.
  """
  per_round = min(per_round, MAX_ITERATIONS)

  def unfinished(carry):
    _, status, rounds = carry
    return ~status["converged"] & (rounds < MAX_ITERATIONS // per_round)

  def one(carry):
    params, before, rounds = carry
    value, parameters, start = measured_at(params)
    steps, status = minimize(value, start, tolerance=tolerance, max_iterations=per_round)
    return parameters(steps), status | {"iterations": before["iterations"] + status["iterations"]}, rounds + 1

  dtype = jax.tree.leaves(start)[0].dtype
  status = {"converged": jnp.zeros((), bool), "iterations": jnp.zeros((), jnp.int32),
            "gradient_norm": jnp.zeros((), dtype)}
  params, status, _ = jax.lax.while_loop(unfinished, one, (start, status, jnp.zeros((), jnp.int32)))
  return params, status
