"""The L-BFGS of the fits: optima of functions that are written out here, by few evaluations, however they begin."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax._numerics import lbfgs
from calib_jax._numerics.structured_scaling import _mirror, _reflected

SCALES = 10.0 ** np.linspace(-1, 1, 7)


def _quadratic(x):
  """Least at 1, 2, …, 7, with curvatures from 0.01 to 100; its value there is 3."""
  return 3 + jnp.sum((jnp.asarray(SCALES, x.dtype) * (x - jnp.arange(1, 8, dtype=x.dtype))) ** 2) / 2


def _rosenbrock(x):
  return 1 + jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def _flat(x):
  """Least at 3, where curvatures are 1e-3 to 1: a small gradient may be far from there."""
  curvatures = jnp.asarray(np.logspace(-3, 0, 12), x.dtype)
  return 1 + jnp.sum(curvatures * (jnp.sqrt(1 + (x - 3) ** 2) - 1))


def _walled(x):
  """Not finite beyond 1, where the first step ends; least at 0.9."""
  return jnp.where(x[0] < 1, 1 + 50 * (x[0] - 0.9) ** 2, jnp.nan)


@pytest.mark.parametrize(("value", "start", "least"), [
  (_quadratic, np.zeros(7), 3), (_rosenbrock, np.full(4, -1.5), 1),
  pytest.param(_flat, np.zeros(12), 1, marks=pytest.mark.slow),
  (_walled, np.zeros(1), 1)])
def test_the_optimum_of_functions_with_poor_units_is_found(value, start, least):
  x, status = jax.jit(lambda start: lbfgs.minimize(value, start))(jnp.asarray(start, jnp.float32))
  assert status["converged"] and value(x) - least <= 1e-5 * least
  np.testing.assert_allclose(status["gradient_norm"], np.linalg.norm(jax.grad(value)(x)), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("value", [
  lambda x: jnp.nan * jnp.sum(x), lambda x: -jnp.sum(x), lambda x: jnp.sum(jnp.abs(x))])
def test_without_an_optimum_that_can_be_certified_a_fit_ends_and_says_so(value):
  _, status = jax.jit(lambda start: lbfgs.minimize(value, start, max_iterations=50))(jnp.full(2, 0.3))
  assert not status["converged"] and status["iterations"] <= 50


def test_nearly_every_iteration_evaluates_once():
  calls = []

  def counted(x):
    jax.debug.callback(lambda: calls.append(1))
    distance = x - jnp.arange(7.0) / 3
    return jnp.sum(jnp.logaddexp(distance, -distance))  # Curvatures are 1 at the optimum.

  _, status = jax.jit(lambda start: lbfgs.minimize(counted, start))(jnp.zeros(7))
  jax.effects_barrier()
  iterations = int(status["iterations"])
  assert iterations >= 3 and len(calls) <= 1.5 * iterations + 2


def test_a_reflection_brings_a_vector_to_the_first_axis_and_back():
  rows = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
  for x in (rows[0], -rows[0], np.array([-2, 0, 0, 0], np.float32)):
    mirror = _mirror(jnp.asarray(x))
    length = np.linalg.norm(x)
    np.testing.assert_allclose(np.abs(_reflected(x[None], mirror)), [[length, 0, 0, 0]], atol=1e-5)
    np.testing.assert_allclose(_reflected(_reflected(rows, mirror), mirror), rows, atol=1e-5)
  # No direction at all: nothing is reflected.
  np.testing.assert_array_equal(_reflected(rows, _mirror(jnp.zeros(4))), rows)


def test_a_round_that_took_steps_certifies_nothing():
  """Where x has not yet fallen, a unit of y is so small that its slope seems to be nothing."""
  def round_from(at):
    unit = jnp.where(jnp.abs(at[0]) > 0.5, jnp.array([1.0, 1e-5]), 1)

    def parameters(steps):
      return at + unit * steps

    return lambda steps: 1 + jnp.sum((parameters(steps) - jnp.array([0.0, 3.0])) ** 2) / 2, parameters, jnp.zeros(2)

  actual, status = lbfgs.minimize_in_rounds(round_from, jnp.array([1.0, 0.0]), tolerance=1e-6)
  assert status["converged"]
  np.testing.assert_allclose(actual, [0, 3], atol=1e-2)
