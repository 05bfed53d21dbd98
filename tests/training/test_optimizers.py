"""Schedules and optimizers against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models
from calib_jax.training.engine import optimizers
from configs import common


def _section(**fields):
  """A section like ``config.optimizer`` with the rate 0.1 and nothing that decays, but for ``fields``."""
  section = common.get_config().optimizer.copy_and_resolve_references()
  section.update({"schedule": "constant", "learning_rate": 0.1, "weight_decay": 0.0, **fields})
  return section


def _build(**fields):
  return optimizers.build(_section(**fields), 100, 10, models.decay_mask)


def _rates(name, steps, **options):
  schedule = optimizers.rate(_section(schedule=name, **options), 100, 10)
  return [float(schedule(step)) for step in steps]


def test_piecewise_falls_at_fractions_of_the_run():
  rates = _rates("piecewise", [0, 29, 30, 59, 60, 79, 80, 99], boundaries=(0.3, 0.6, 0.8), decay=0.2)
  np.testing.assert_allclose(rates, [0.1, 0.1, 0.02, 0.02, 0.004, 0.004, 0.0008, 0.0008], rtol=1e-6)


def test_cosine_and_constant():
  np.testing.assert_allclose(_rates("cosine", [0, 50, 100]), [0.1, 0.05, 0.0], atol=1e-9)
  np.testing.assert_allclose(_rates("constant", [0, 50, 99]), [0.1] * 3)


def test_warm_up_is_linear_and_leaves_the_rest_alone():
  rates = _rates("constant", [0, 5, 10, 20], warmup_epochs=1)
  np.testing.assert_allclose(rates, [0.0, 0.05, 0.1, 0.1], rtol=1e-6)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@jax.numpy_dtype_promotion("standard")
def test_optimizers_take_the_steps_of_their_definitions(name):
  # Two steps with gradients 1 and 3, rate 0.1, momentum 0.9, decay 0.01, from parameter 2.
  # What decays is said by the mask: here kernels.
  optimizer = _build(name=name, momentum=0.9, weight_decay=0.01)
  params = {"bias": jnp.array(2.0), "kernel": jnp.array(2.0)}
  state = optimizer.init(params)
  updates, state = optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)
  params = jax.tree.map(jnp.add, params, updates)
  np.testing.assert_allclose(params["kernel"], 2 - 0.1 * (1 + 0.01 * 2), rtol=1e-5)
  np.testing.assert_allclose(params["bias"], 2 - 0.1, rtol=1e-5)
  updates, _ = optimizer.update(jax.tree.map(lambda x: 3 * jnp.ones_like(x), params), state, params)
  if name == "sgd":
    direction = 0.9 * 1 + 3
  else:
    m, v = (0.9 * 0.1 + 0.1 * 3) / (1 - 0.9**2), (0.999 * 0.001 + 0.001 * 9) / (1 - 0.999**2)
    direction = m / np.sqrt(v)
  np.testing.assert_allclose(updates["kernel"], -0.1 * (direction + 0.01 * float(params["kernel"])), rtol=1e-4)
  np.testing.assert_allclose(updates["bias"], -0.1 * direction, rtol=1e-4)


@jax.numpy_dtype_promotion("standard")
def test_gradients_are_clipped_by_their_global_norm_before_momentum():
  optimizer = _build(momentum=0.5, clip_norm=1.0)
  params = {"a": jnp.array(0.0), "b": jnp.array(0.0)}
  state = optimizer.init(params)
  updates, state = optimizer.update({"a": jnp.array(3.0), "b": jnp.array(4.0)}, state, params)
  np.testing.assert_allclose([updates["a"], updates["b"]], [-0.06, -0.08], rtol=1e-6)
  updates, _ = optimizer.update({"a": jnp.array(0.0), "b": jnp.array(0.5)}, state, params)  # Within: as it is.
  np.testing.assert_allclose([updates["a"], updates["b"]], [-0.03, -0.09], rtol=1e-6)


@jax.numpy_dtype_promotion("standard")
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_coupled_decay_is_added_after_clipping_and_before_the_moments(name):
  optimizer = _build(name=name, momentum=0.5, clip_norm=1.0, coupled_weight_decay=0.2)
  params = {"bias": jnp.array(2.0), "kernel": jnp.array(2.0)}
  state = optimizer.init(params)
  updates, _ = optimizer.update({"bias": jnp.array(3.0), "kernel": jnp.array(4.0)}, state, params)
  # Clipped to 0.6 and 0.8; the kernel's decay is 0.4. Adam's first step has length 1 in every direction.
  expected = [-0.1 * 0.6, -0.1 * (0.8 + 0.4)] if name == "sgd" else [-0.1, -0.1]
  np.testing.assert_allclose([updates["bias"], updates["kernel"]], expected, rtol=1e-5)


@jax.numpy_dtype_promotion("standard")
def test_nesterov_looks_ahead_along_the_momentum():
  optimizer = _build(momentum=0.9, nesterov=True)
  params = {"kernel": jnp.array(0.0)}
  state = optimizer.init(params)
  for gradient, direction in ((1.0, 1.9), (3.0, 3 + 0.9 * (0.9 + 3))):
    updates, state = optimizer.update({"kernel": jnp.array(gradient)}, state, params)
    np.testing.assert_allclose(updates["kernel"], -0.1 * direction, rtol=1e-6)
