"""Every loss against its float64 reference over the whole grid of sizes, batches padded by ``where`` to one shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses
from tests.losses.test_losses import (
  BATCH_CASES,
  EXAMPLE_CASES,
  _data,
  _ids,
  _reference_batch,
  _reference_example,
  _slopes,
)

CLASSES = (2, 3, 10, 100, 1000)
SIZES = (1, 2, 7, 64, 512)


@pytest.mark.parametrize(("name", "options"), EXAMPLE_CASES, ids=_ids)
@pytest.mark.parametrize("k", CLASSES)
def test_per_example_losses_equal_the_reference(name, options, k):
  # One compiled shape: no example knows of the others, so that rows here and there stand for every size.
  logits, labels = _data(SIZES[-1], k, seed=3)
  values, gradient = jax.jit(lambda z: jax.vjp(lambda x: losses.get(name, **options)(x, labels), z))(logits)
  gradient = gradient(jnp.ones(SIZES[-1]))[0]
  rows = np.array([size - 1 for size in SIZES])
  onehot = np.eye(k)[labels[rows]]
  expected = _reference_example(name, logits[rows], onehot, options)
  np.testing.assert_allclose(values[rows], expected, rtol=2e-5, atol=1e-7)
  direction = np.random.default_rng(4).normal(size=(len(rows), k))
  slope, = _slopes(lambda z: sum(_reference_example(name, z, onehot, options, logits[rows])), logits[rows], [direction])
  np.testing.assert_allclose(np.sum(np.asarray(gradient[rows], np.float64) * direction), slope, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize(("name", "options"), BATCH_CASES, ids=_ids)
@pytest.mark.parametrize("k", CLASSES)
def test_per_batch_losses_equal_the_reference(name, options, k):
  step = jax.jit(jax.value_and_grad(losses.get(name, **options)))
  for n in SIZES:
    logits, labels = _data(n, k, seed=n)
    pad = SIZES[-1] - n
    padded = np.pad(logits, ((0, pad), (0, 0)), constant_values=np.nan)
    value, gradient = step(padded, np.pad(labels, (0, pad)), where=np.arange(SIZES[-1]) < n)
    np.testing.assert_allclose(value, _reference_batch(name, logits, labels, options), rtol=2e-5, atol=1e-6)
    direction = np.random.default_rng(n).normal(size=(n, k))
    slope, = _slopes(lambda z, y=labels, at=logits: _reference_batch(name, z, y, options, at), logits, [direction])
    found = np.sum(np.asarray(gradient, np.float64)[:n] * direction)
    np.testing.assert_allclose(found, slope, rtol=2e-3, atol=2e-4, err_msg=f"N = {n}")
    assert not np.any(gradient[n:])
