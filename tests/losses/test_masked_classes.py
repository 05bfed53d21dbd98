"""Classes that a logit of -inf masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses
from tests.losses import cases
from tests.losses.cases import INTS

MASKED = np.array([[1.0, 2.0, 0.5], [1.0, -np.inf, 0.0], [-np.inf, 1.0, 0.0], [0.5, 0.0, 0.0]], np.float32)


@pytest.mark.parametrize(("name", "options"), [
  *((name, cases.FIRST[name]) for name in cases.EVERY_CLASS), ("cross_entropy", {"label_smoothing": 0.1})])
def test_a_masked_class_that_means_nothing_is_refused(name, options):
  reason = f"{name} depends on the logit of every class"
  reason = "label_smoothing gives every class a part" if name == "cross_entropy" else reason
  with pytest.raises(ValueError, match=f"{reason}.*a logit of -inf, has no meaning: 2 of 4 rows hold one; .* is row 1"):
    losses.get(name, **options)(MASKED, INTS)


def test_masked_classes_of_distributions():
  soft = np.array([[0.5, 0.5, 0], [0.5, 0, 0.5], [1e-30, 0.5, 0.5], [0.2, 0.2, 0.6]], np.float32)
  plain = cases.masked(MASKED.astype(np.float64), np.isinf(MASKED), -1e4)
  for name in cases.SOFT:
    loss = losses.get(name)
    values, gradients = jax.jit(lambda z, loss=loss: (loss(z, soft), jax.grad(lambda z: jnp.sum(loss(z, soft)))(z)))(
      MASKED)
    expected = cases.example_reference(name, plain, soft.astype(np.float64), {})
    expected[2] = expected[2] if name == "brier" else np.inf
    np.testing.assert_allclose(values, expected, rtol=2e-5)
    assert np.isfinite(gradients).all() and not gradients[np.isinf(MASKED)].any()


def test_masked_classes_in_calls_that_are_not_compiled():
  labels = np.array([1, 0, 1, 2])
  for name in ("cross_entropy", "soft_avuc"):
    plain = cases.masked(MASKED.astype(np.float64), np.isinf(MASKED), -1e4)
    kind = cases.example_reference if name in cases.PER_EXAMPLE else cases.batch_reference
    np.testing.assert_allclose(losses.get(name)(MASKED, labels), kind(name, plain, labels, {}), rtol=2e-5)


def test_a_loss_of_ones_own_gets_logits_of_minus_infinity():
  seen = jax.jit(lambda z: losses.aurc(z, INTS, loss=lambda z, y: jnp.sum(z == -jnp.inf, axis=1).astype(z.dtype)))
  assert seen(np.where(np.isinf(MASKED), -np.inf, 0).astype(np.float32)) > 0
