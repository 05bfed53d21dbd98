"""Schedules and optimizers against their definitions; test_reduction has clipping and coupled decay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax.training import models
from calib_jax.training.engine import optimizers
from configs import common


def _section(**fields):
  """A section like ``config.optimizer`` with the rate 0.1 and nothing that decays, but for ``fields``."""
  section = common.get_config().optimizer.copy_and_resolve_references()
  section.update({"schedule": "constant", "learning_rate": 0.1, "weight_decay": 0.0, **fields})
  return section


@pytest.mark.parametrize(("options", "rates"), [
  ({"schedule": "piecewise", "boundaries": (0.3, 0.6, 0.8), "decay": 0.2},
   {0: 0.1, 29: 0.1, 30: 0.02, 59: 0.02, 60: 0.004, 79: 0.004, 80: 0.0008, 99: 0.0008}),
  ({"schedule": "cosine"}, {0: 0.1, 50: 0.05, 100: 0.0}), ({"schedule": "constant"}, {0: 0.1, 50: 0.1, 99: 0.1}),
  ({"warmup_epochs": 1}, {0: 0.0, 5: 0.05, 10: 0.1, 20: 0.1})])
def test_rates_are_those_of_the_schedule(options, rates):
  schedule = optimizers.rate(_section(**options), 100, 10)
  np.testing.assert_allclose([schedule(step) for step in rates], list(rates.values()), rtol=1e-6, atol=1e-9)


# Moments of the gradients 1 and 3, over the sums of their weights.
M, V = (0.9 * 0.1 + 0.1 * 3) / (1 - 0.9**2), (0.999 * 0.001 + 0.001 * 9) / (1 - 0.999**2)


@pytest.mark.parametrize(("options", "directions"), [
  ({"name": "sgd"}, (1, 0.9 * 1 + 3)), ({"name": "sgd", "nesterov": True}, (1.9, 3 + 0.9 * (0.9 * 1 + 3))),
  ({"name": "adamw"}, (1, M / np.sqrt(V)))])
@jax.numpy_dtype_promotion("standard")
def test_optimizers_take_the_steps_of_their_definitions(options, directions):
  """Two steps from the parameter 2. What decays is said by the mask: here kernels."""
  section = _section(momentum=0.9, weight_decay=0.01, **options)
  optimizer = optimizers.build(section, 100, 10, models.decay_mask)
  params = {"bias": jnp.array(2.0), "kernel": jnp.array(2.0)}
  state = optimizer.init(params)
  for gradient, direction in zip((1.0, 3.0), directions, strict=True):
    updates, state = optimizer.update(jax.tree.map(lambda x, g=gradient: g * jnp.ones_like(x), params), state, params)
    np.testing.assert_allclose(updates["kernel"], -0.1 * (direction + 0.01 * float(params["kernel"])), rtol=1e-4)
    np.testing.assert_allclose(updates["bias"], -0.1 * direction, rtol=1e-4)
    params = jax.tree.map(jnp.add, params, updates)
