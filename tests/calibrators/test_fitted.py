"""A fitted calibrator as a function that is called outside of ``jax.jit``, on batches of any size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import calibrators
from calib_jax.calibrators import base

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", ["temperature_scaling", "structured_vector_scaling"])
def test_a_fit_serves_batches_of_every_size_by_a_few_programs(name):
  calibrator = calibrators.get(name)
  logits = RNG.normal(size=(900, 3)).astype(np.float32)
  fitted = calibrator.fitted(logits, np.arange(900) % 3)
  whole, before = np.asarray(fitted(logits)), base._compiled_apply._cache_size()
  for size in (1, 2, 15, 16, 17, 60, 64, 65, 200, 256):
    of_batch = fitted(logits[:size])
    assert isinstance(of_batch, jax.Array) and of_batch.shape == (size, 3)
    np.testing.assert_allclose(of_batch, whole[:size], rtol=1e-5, atol=1e-6)
  assert base._compiled_apply._cache_size() - before <= 3
  np.testing.assert_allclose(fitted(jnp.asarray(logits[:60].reshape(5, 12, 3))).reshape(60, 3), whole[:60], rtol=1e-5,
                             atol=1e-6)
  for other in (logits[7], logits[:7].astype(np.float16), logits[:0]):
    np.testing.assert_allclose(fitted(other), jax.jit(fitted)(other), rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(jax.vmap(fitted)(logits[:4]), whole[:4], rtol=1e-5, atol=1e-6)


def test_what_a_fit_returned_stays_when_the_logits_are_written_over():
  logits = np.zeros((16, 4), np.float32)  # Of a size that is not padded.
  logits[:, 0] = 2
  fitted = calibrators.temperature_scaling().fitted(logits, np.arange(16) % 4)
  first = fitted(logits)
  kept, logits[:] = np.array(first), 7
  np.testing.assert_array_equal(first, kept)
