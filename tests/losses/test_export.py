"""Exports of losses: for a fixed size of the batch, and for any."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses


@pytest.mark.slow
@pytest.mark.parametrize("name", ["focal", *losses.PER_BATCH])
def test_losses_are_exported_for_a_fixed_size_and_most_for_any(name):
  options = {"threshold": 1.15} if name == "avuc" else {}
  loss = losses.get(name, **options)
  gradient = jax.jit(jax.grad(lambda logits, labels: jnp.mean(loss(logits, labels))))
  rows, = jax.export.symbolic_shape("rows")

  def exported(size):
    shapes = jax.ShapeDtypeStruct((size, 4), jnp.float32), jax.ShapeDtypeStruct((size,), jnp.int32)
    return jax.export.export(gradient, platforms=("cpu", "tpu"))(*shapes)

  assert exported(8).platforms == ("cpu", "tpu")
  if name in ("aurc", "selective_risk", "mmce", "kde_ece"):
    with pytest.raises((TypeError, NotImplementedError)):
      exported(rows)
  else:
    logits, labels = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32), np.arange(6, dtype=np.int32) % 4
    np.testing.assert_allclose(exported(rows).call(logits, labels), gradient(logits, labels), rtol=1e-5, atol=1e-7)
