"""Logistic regression with a ridge, by Newton steps that are halved where they are too long."""

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
MAX_ITERATIONS, HALVINGS, TOLERANCE = 50, 20, 1e-6


def nll(rows: Array, y: Array, weights: Array, at: Array) -> Array:
  """The weighted sum of the NLL of the events ``y`` ``[N]`` for the log-odds ``rows @ at``."""
  scores = jnp.dot(rows, at, precision="highest")
  return jnp.sum(weights * (jax.nn.softplus(scores) - y * scores))


def _solved(matrix: Array, vector: Array) -> Array:
  """The solution x of ``matrix @ x = vector``, for a matrix that is symmetric and positive definite."""
  if len(vector) > 3:
    return jnp.linalg.solve(matrix, vector)
  # LAPACK would import scipy.linalg, a tenth of a first fit in a fresh process: elimination, without pivots.
  rows = [[*matrix[i], vector[i]] for i in range(len(vector))]
  for i, pivot in enumerate(rows):
    for row in rows[i + 1:]:
      factor = row[i] / pivot[i]
      row[i:] = [a - factor * b for a, b in zip(row[i:], pivot[i:], strict=True)]
  x = []
  for i, row in reversed([*enumerate(rows)]):
    x.insert(0, (row[-1] - sum(a * b for a, b in zip(row[i + 1:-1], x, strict=True))) / row[i])
  return jnp.stack(x)


def minimize_nll(rows: Array, y: Array, weights: Array, start: Array, ridge: Array | None = None
                 ) -> tuple[Array, Array, Array]:
  """``(coefficients [D], what is left to gain, iterations)`` of ``nll`` plus half the ridge times their squares."""
  # A fit is at its optimum if at most ``TOLERANCE`` is left; it may end before, where no step lowers the sum.
  ridge = jnp.zeros_like(start) if ridge is None else ridge
  # The products of columns are taken once, so that each Hessian, also of all folds, is one product of matrices.
  i, j = np.triu_indices(len(start))
  products = rows[:, i] * rows[:, j]
  pair = np.zeros((len(start), len(start)), int)
  pair[i, j] = pair[j, i] = np.arange(len(i))

  def value(at):
    return nll(rows, y, weights, at) + jnp.sum(ridge * at**2) / 2

  def newton(at, lowest):
    p = jax.nn.sigmoid(jnp.dot(rows, at, precision="highest"))
    gradient = jnp.dot(weights * (p - y), rows, precision="highest") + ridge * at
    hessian = jnp.dot(weights * p * (1 - p), products, precision="highest")[pair] + jnp.diag(ridge)
    small = 4e-7 * jnp.diag(hessian) + jnp.finfo(y.dtype).tiny
    step = -_solved(hessian + jnp.diag(small), gradient)
    # The objective is at least 0; where it nearly is, the Hessian may be singular and the step not a number.
    return step, jnp.fmin(-jnp.dot(gradient, step, precision="highest") / 2, lowest)

  def unfinished(carry):
    *_, left, moved, iterations = carry
    return (left > TOLERANCE / 10) & moved & (iterations < MAX_ITERATIONS)

  def advance(carry):
    at, lowest, step, _, _, iterations = carry

    def is_too_long(search):
      _, new, halvings = search
      return ~(new < lowest) & (halvings < HALVINGS)

    def halve(search):
      length, _, halvings = search
      return length / 2, value(at + length / 2 * step), halvings + 1

    one = jnp.ones_like(lowest)
    length, new, _ = jax.lax.while_loop(is_too_long, halve, (one, value(at + step), jnp.zeros((), jnp.int32)))
    moved = new < lowest
    at, lowest = jnp.where(moved, at + length * step, at), jnp.where(moved, new, lowest)
    return at, lowest, *newton(at, lowest), moved, iterations + 1

  lowest = value(start)
  carry = start, lowest, *newton(start, lowest), jnp.ones((), bool), jnp.zeros((), jnp.int32)
  at, _, _, left, _, iterations = jax.lax.while_loop(unfinished, advance, carry)
  return at, left, iterations
