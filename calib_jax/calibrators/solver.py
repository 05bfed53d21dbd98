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


def minimize(value: Callable, start, *, tolerance: float = TOLERANCE) -> tuple[object, dict[str, Array]]:
  """``(params, status)``: a minimum of ``value`` near ``start``, pytrees whose units should have curvatures near 1.

  It ends where half the squared norm of the gradient is below ``tolerance`` of the value: there ``converged`` is true.
  ``status`` holds ``converged``, ``iterations`` and ``gradient_norm``.
  """
  optimizer = optax.lbfgs(memory_size=MEMORY, linesearch=optax.scale_by_zoom_linesearch(max_linesearch_steps=20))
  value_and_grad = optax.value_and_grad_from_state(value)

  def excess(found, gradient):
    return optax.tree.norm(gradient, squared=True) / 2 / jnp.maximum(found, FLOOR)

  def unfinished(carry):
    _, _, found, gradient, best, iterations = carry
    # In single precision the last steps may wander: far above the best, they lead nowhere.
    lost = found > best[1] + 0.1 * jnp.abs(best[1]) + FLOOR
    return (excess(found, gradient) > tolerance) & jnp.isfinite(found) & ~lost & (iterations < MAX_ITERATIONS)

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
