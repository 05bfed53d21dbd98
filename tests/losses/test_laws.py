"""Laws that tie losses to each other and to what the papers say of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import confidence, losses
from calib_jax.losses import kernels
from tests.losses import cases


def test_special_cases_are_cross_entropy():
  state = losses.init_adaptive_focal(gamma=0.0)

  @jax.jit
  def values(z, y):
    return losses.cross_entropy(z, y), [
      losses.brier_weighted_cross_entropy(z, y, gamma=0.0), losses.focal(z, y, gamma=0.0, stop_gradient=True),
      losses.focal(z, y, gamma=0.0), losses.inverse_focal(z, y, gamma=0.0), losses.dual_focal(z, y, gamma=0.0),
      losses.properized_focal(z, y, gamma=0.0), losses.sample_dependent_focal(z, y, thresholds=(), gammas=(0.0,)),
      losses.adaptive_focal(z, y, **state._asdict()), losses.margin_label_smoothing(z, y, weight=0.0),
      losses.adaptive_conditional_label_smoothing(z, y, weight=0.0),
      losses.pairwise_constraints(z, y, discrimination_weight=0.0, exclusion_weight=0.0)]

  expected, special = values(*cases.data(20, 5))
  for actual in special:
    np.testing.assert_allclose(actual, expected, rtol=2e-5)


def test_ties_in_the_score_keep_batch_order():
  # Equal scores: the first in the batch ranks lowest, and so has the smallest weight.
  each = jax.jit(jax.vmap(lambda risk: losses.aurc(np.zeros((3, 2), np.float32), np.array([0, 1, 0]),
                                                   loss=lambda z, y: risk)))
  weighed = each(np.eye(3, dtype=np.float32))
  np.testing.assert_allclose(weighed, np.array([1 / 3, 1 / 3 + 1 / 2, 1 / 3 + 1 / 2 + 1]) / 3, rtol=1e-5)


def test_a_score_and_a_loss_of_ones_own():
  logits, labels = cases.data(30, 4)
  own = jax.jit(lambda z, low: losses.selective_risk(z, labels, confidence=confidence.margin, loss=losses.focal,
                                                     score_range=(low, 1.0)))(logits, 0.0)
  named = cases.reference("selective_risk", logits, labels, {"confidence": "margin", "loss": "focal"})
  np.testing.assert_allclose(own, named, rtol=2e-5)


def test_a_loss_of_ones_own_gets_logits_of_minus_infinity():
  logits = np.array([[0, 0, 0], [0, -np.inf, 0], [-np.inf, 0, 0]], np.float32)
  seen = losses.get("aurc", loss=lambda z, y: jnp.any(z == -jnp.inf, axis=1).astype(z.dtype))
  assert jax.jit(seen)(logits, np.array([0, 0, 1])) > 0


@pytest.mark.parametrize("options", [{}, {"weighted": True}], ids=str)
def test_mmce_equals_its_double_sum_also_where_confidences_tie(options):
  rng = np.random.default_rng(0)
  logits = rng.choice(np.array([[3.0, 0.0, 1.0], [0.0, 2.0, 0.5], [0.0, 0.1, 0.0]], np.float32), 60)
  labels = rng.integers(0, 3, 60)
  value, gradient = cases.step("mmce", options)(logits, labels)
  np.testing.assert_allclose(value, cases.reference("mmce", logits, labels, options), rtol=1e-5)
  for direction in rng.normal(size=(3, 60, 3)):
    # A central difference of |r - r'| is 0 where r = r', as the loss's derivative is.
    expected = cases.slope(lambda z: cases.reference("mmce", z, labels, options), logits, direction)
    np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-3, atol=1e-6)


def test_chunks_of_a_kernel_density_leave_no_seam(monkeypatch):
  logits, labels = cases.data(50, 3)
  expected, expected_gradient = cases.step("kde_ece", {"form": "canonical"})(logits, labels)
  monkeypatch.setattr(kernels, "CHUNK", 50 * 16)  # Three chunks and a rest.
  value, gradient = jax.jit(jax.value_and_grad(losses.get("kde_ece", form="canonical")))(logits, labels)
  np.testing.assert_allclose(value, expected, rtol=1e-6)
  np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-7)


# Those with derivatives of their own, roots, or gradients that are stopped.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["properized_focal", "pairwise_constraints", "soft_binned_ece", "mmce", "aurc"])
def test_second_derivatives_are_those_of_the_gradient(name):
  rng = np.random.default_rng(0)
  logits, direction = 2 * rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
  with jax.enable_x64(True):
    loss = losses.get(name, **cases.FIRST[name])
    gradient = jax.grad(lambda z: jnp.mean(loss(z, np.array([0, 1, 2, 1]))))
    both = jax.jit(lambda z: jax.jvp(gradient, (z,), (direction,)))
    after, before = (np.asarray(both(logits + step * direction)[0]) for step in (1e-6, -1e-6))
    actual = both(logits)[1]
  np.testing.assert_allclose(actual, (after - before) / 2e-6, rtol=1e-5, atol=1e-7)
