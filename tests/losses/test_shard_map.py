"""Losses under ``jax.shard_map``: two devices give the value and gradient of one, as docs/training_loop.md says."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import pytest

from calib_jax import losses
from tests.losses import cases

AXIS = "batch"
# Of the losses per example, two carry arrays through loops, whose types shard_map checks.
NAMES = [*(name for name in cases.PER_BATCH), "properized_focal", "pairwise_constraints", "dual_focal"]
FAST = ("selective_risk", "mmce", "properized_focal", "pairwise_constraints")


@pytest.mark.parametrize("options", [
  pytest.param((name, options), id=f"{name}-{i}",
               marks=() if i == 0 and name in FAST else pytest.mark.slow)
  for name in NAMES for i, options in enumerate({**cases.PER_EXAMPLE, **cases.PER_BATCH}[name])])
def test_two_devices_equal_one(options):
  name, options = options
  logits, labels = cases.data(16, 3)
  where, scale = np.arange(16) < 13, np.array([1.0, 0.9, 1.2], np.float32)
  loss = losses.composite(losses.get(name, **options))
  mesh = jax.make_mesh((2,), (AXIS,), devices=jax.devices()[:2])

  def value(scale, logits, labels, where, axis_name=None):
    return loss(scale[None, :] * logits, labels, where=where, axis_name=axis_name)[0]

  shares = PartitionSpec(AXIS)
  batch = jax.device_put((logits, labels, where), NamedSharding(mesh, shares))
  expected = jax.jit(jax.value_and_grad(value))(scale, logits, labels, where)
  for check_vma in (True, False):
    def step(scale, *batch, check_vma=check_vma):
      found, gradient = jax.value_and_grad(value)(scale, *batch, AXIS)
      return found, gradient if check_vma else jax.lax.pmean(gradient, AXIS)

    sharded = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(PartitionSpec(), shares, shares, shares),
                                    out_specs=PartitionSpec(), check_vma=check_vma))
    found = sharded(jax.device_put(scale, NamedSharding(mesh, PartitionSpec())), *batch)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("check_vma", [True, False])
def test_counts_are_those_of_the_global_batch(check_vma):
  logits, _ = cases.data(16, 3)
  where, shares = np.arange(16) < 13, PartitionSpec(AXIS)
  mesh = jax.make_mesh((2,), (AXIS,), devices=jax.devices()[:2])

  def update(logits, where, axis_name=None):
    state = losses.init_selective_risk(num_bins=8)
    return losses.update_selective_risk(state, jnp.asarray(logits), where=where, axis_name=axis_name).counts

  sharded = jax.jit(jax.shard_map(lambda *batch: update(*batch, AXIS), mesh=mesh, in_specs=(shares, shares),
                                  out_specs=PartitionSpec(), check_vma=check_vma))
  counts = sharded(*jax.device_put((logits, where), NamedSharding(mesh, shares)))
  np.testing.assert_array_equal(counts, jax.jit(update)(logits, where))
  assert counts.sum() == 13
