"""Losses spread over devices, mapped, and with leading axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses
from tests.losses import cases

# What devices exchange differs between these forms; other options change what is done with it.
EXCHANGES = [("kde_ece", "canonical"), ("kde_ece", "marginal"), ("mmce", "weighted"), ("soft_binned_ece", "form=bin")]


def _exchanges():
  for p in cases.cases(cases.PER_BATCH):
    name, options = p.values
    fast = options is cases.FIRST[name] or any(name == n and what in p.id for n, what in EXCHANGES)
    yield p if fast else pytest.param(name, options, id=p.id, marks=[*p.marks, pytest.mark.slow])


@pytest.mark.parametrize(("name", "options"), list(_exchanges()))
def test_eight_devices_give_the_value_and_gradient_of_the_whole_batch(name, options):
  logits, labels = cases.data(64, 3)
  where = np.random.default_rng(4).uniform(size=64) < 0.7
  where[8:16] = False  # A device that holds padding alone.
  value, gradient = _mapped(losses.get(name, **options), logits, labels, where)
  expected, slopes = cases.step(name, options)(logits, labels, where)
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  np.testing.assert_allclose(gradient, np.sum(slopes * logits, axis=0), rtol=1e-4, atol=1e-6)


def test_eight_devices_give_the_composite_of_the_whole_batch():
  logits, labels = cases.data(64, 3)
  where = np.arange(64) % 8 < 5
  where[8:16] = False
  loss = losses.composite("focal", "soft_binned_ece", 0.7)
  value, gradient = _mapped(lambda *x, **keywords: loss(*x, **keywords)[0], logits, labels, where)
  focal, focal_slopes = cases.step("focal", {})(logits[where], labels[where])
  binned, binned_slopes = cases.step("soft_binned_ece", {})(logits, labels, where)
  np.testing.assert_allclose(value, focal.mean() + 0.7 * binned, rtol=1e-5)
  expected = np.mean(focal_slopes * logits[where], axis=0) + 0.7 * np.sum(binned_slopes * logits, axis=0)
  np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def _mapped(loss, logits, labels, where, devices=8):
  """The value, and the averaged gradient of a parameter that all devices share: a scale of every class's logits."""
  def value_and_gradient(scale, z, y, m):
    value, gradient = jax.value_and_grad(lambda s: loss(s[None, :] * z, y, where=m, axis_name="batch"))(scale)
    return value, jax.lax.pmean(gradient, "batch")

  split = [x.reshape(devices, -1, *x.shape[1:]) for x in (logits, labels, where)]
  return jax.pmap(value_and_gradient, axis_name="batch", in_axes=(None, 0, 0, 0), out_axes=None)(
    np.ones(logits.shape[-1], np.float32), *split)


@pytest.mark.parametrize("name", cases.FIRST)
def test_mapped_and_with_leading_axes_it_equals_single_calls(name):
  """All in one program: that eager calls give the same values is what the examples in the docstrings show."""
  loss = losses.get(name, **cases.FIRST[name])

  @jax.jit
  def values(logits, labels):
    single = jnp.stack([loss(z, y) for z, y in zip(logits, labels, strict=True)])
    return single, jax.vmap(loss)(logits, labels), loss(logits, labels), loss(logits.reshape(-1, 3), labels.reshape(-1))

  single, mapped, leading, flat = values(*(x.reshape(2, 6, *x.shape[1:]) for x in cases.data(12, 3)))
  np.testing.assert_allclose(mapped, single, rtol=1e-5, atol=1e-7)
  np.testing.assert_array_equal(leading, flat.reshape(leading.shape))
