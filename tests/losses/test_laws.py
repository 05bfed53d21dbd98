"""Laws that tie losses to each other and to what the papers say of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import confidence, losses
from calib_jax.losses import kernels
from tests.losses import cases


def _data(n, k, seed=0):
  return cases.data(n, k, seed=seed)


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

  expected, special = values(*_data(20, 5))
  for actual in special:
    np.testing.assert_allclose(actual, expected, rtol=2e-5)


def test_counts_of_selective_risk_are_those_of_all_steps():
  logits, labels = _data(90, 4)
  split = [(logits[i::3], np.arange(30) < 20 + i) for i in range(3)]

  @jax.jit
  def seen(split):
    state = losses.init_selective_risk(num_bins=16)
    for z, where in split:
      state = losses.update_selective_risk(state, jnp.where(where[:, None], z, jnp.nan), variant="stopped",
                                           confidence="negative_entropy", where=where)
    return state.counts

  counts = seen(split)
  kept = np.concatenate([z[where] for z, where in split]).astype(np.float64)
  p = np.exp(kept) / np.exp(kept).sum(1, keepdims=True)
  scores = 1 + np.sum(p * np.log(p), axis=1) / np.log(4)
  np.testing.assert_array_equal(counts, np.histogram(scores, 16, (0, 1))[0])
  # Zeros seen before change nothing, and the batch's own counts once more neither: their shares stay the same.
  once, none, twice = jax.jit(lambda z, counts: [
    losses.selective_risk(z, labels, num_bins=16, counts=c) for c in (None, 0 * counts, counts)])(
      logits, losses.update_selective_risk(losses.init_selective_risk(num_bins=16), logits).counts)
  np.testing.assert_allclose([none, twice], [once, once], rtol=1e-6)
  with pytest.raises(ValueError, match=r"counts must have shape \(64,\), one number for each of num_bins: got \(16,\)"):
    losses.selective_risk(logits, labels, counts=counts)


def test_ties_in_the_score_keep_batch_order():
  # Equal scores: the first in the batch ranks lowest, and so has the smallest weight.
  each = jax.jit(jax.vmap(lambda risk: losses.aurc(np.zeros((3, 2), np.float32), np.array([0, 1, 0]),
                                                   loss=lambda z, y: risk)))
  weighed = each(np.eye(3, dtype=np.float32))
  np.testing.assert_allclose(weighed, np.array([1 / 3, 1 / 3 + 1 / 2, 1 / 3 + 1 / 2 + 1]) / 3, rtol=1e-5)


def test_a_score_and_a_loss_of_ones_own():
  logits, labels = _data(30, 4)
  named, own = jax.jit(lambda z: (
    losses.selective_risk(z, labels, confidence="margin", loss="focal"),
    losses.selective_risk(z, labels, confidence=confidence.margin, loss=losses.focal, score_range=(0.0, 1.0))))(logits)
  np.testing.assert_allclose(own, named, rtol=1e-6)
  with pytest.raises(ValueError, match="the range of .* is not known: give score_range"):
    losses.selective_risk(logits, labels, confidence=lambda p: p[:, 0])
  with pytest.raises(ValueError, match="loss must be one of .*'cross_entropy'.*Did you mean 'focal'"):
    losses.aurc(logits, labels, loss="focl")


@pytest.mark.parametrize("weighted", [False, True])
def test_mmce_equals_its_double_sum_also_where_confidences_tie(weighted):
  rng = np.random.default_rng(0)
  logits = rng.choice(np.array([[3.0, 0.0, 1.0], [0.0, 2.0, 0.5], [0.0, 0.1, 0.0]], np.float32), 60)
  labels = rng.integers(0, 3, 60)
  options = {"weighted": weighted}
  value, gradient = cases.batch_step("mmce", options, rows=60)(logits, labels)
  np.testing.assert_allclose(value, cases.batch_reference("mmce", logits, labels, options), rtol=1e-5)
  for direction in rng.normal(size=(3, 60, 3)):
    # A central difference of |r - r'| is 0 where r = r', as the loss's derivative is.
    expected = cases.slope(lambda z: cases.batch_reference("mmce", z, labels, options), logits, direction)
    np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-3, atol=1e-6)


def test_chunks_of_a_kernel_density_leave_no_seam(monkeypatch):
  logits, labels = _data(50, 3)
  expected, expected_gradient = cases.batch_step("kde_ece", {"form": "canonical"}, rows=50)(logits, labels)
  monkeypatch.setattr(kernels, "CHUNK", 50 * 16)  # Three chunks and a rest.
  value, gradient = cases.batch_step("kde_ece", {"form": "canonical"}, rows=50)(logits, labels)
  np.testing.assert_allclose(value, expected, rtol=1e-6)
  np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("call", "error", "message"), [
  (lambda z, y: losses.dual_focal(z, y, competitor="best"), ValueError, "competitor must be one of"),
  (lambda z, y: losses.dual_focal(z, y, gamma=-1), ValueError, "gamma must be in"),
  (lambda z, y: losses.inverse_focal(z, z), TypeError, "labels must be integers"),
  (lambda z, y: losses.sample_dependent_focal(z, y, thresholds=(0.5, 0.2), gammas=(1, 2, 3)), ValueError, "ascend"),
  (lambda z, y: losses.sample_dependent_focal(z, y, gammas=(1,)), ValueError, "gammas must be one more than thresh"),
  (lambda z, y: losses.square(z, y, true_class_weight=-1), ValueError, "true_class_weight must be in"),
  (lambda z, y: losses.margin_label_smoothing(z, y, margin=-1), ValueError, "margin must be in"),
  (lambda z, y: losses.adaptive_conditional_label_smoothing(z, y, negative_weight=-1), ValueError, "negative_weight"),
  (lambda z, y: losses.pairwise_constraints(z, y, exclusion_weight=-1), ValueError, "exclusion_weight must be in"),
  (lambda z, y: losses.avuc(z, y), TypeError, "threshold"),
  (lambda z, y: losses.avuc(z, y, threshold=0.5, stop_gradient=1), ValueError, "stop_gradient must be one of True"),
  (lambda z, y: losses.mmce(z, y, kernel_width=0), ValueError, "kernel_width must be in"),
  (lambda z, y: losses.kde_ece(z, y, form="top"), ValueError, "form must be one of .top_label., .canonical."),
  (lambda z, y: losses.kde_ece(z, y, bandwidth=0.0), ValueError, "bandwidth must be in"),
  (lambda z, y: losses.aurc(z, y, estimator="exact"), ValueError, "estimator must be one of 'harmonic', 'log'"),
  (lambda z, y: losses.aurc(z, y, confidence="max"), ValueError, "confidence must be one of 'msp'"),
  (lambda z, y: losses.selective_risk(z, y, low_confidence_coverage=1.5), ValueError, "low_confidence_coverage must"),
  (lambda z, y: losses.selective_risk(z, y, smoothing=0), ValueError, "smoothing must be in"),
  (lambda z, y: losses.selective_risk(z, y, score_range=(1.0, 0.0)), ValueError, "score_range must be"),
  (lambda z, y: losses.selective_risk(z, y, variant="release"), ValueError, "Did you mean 'released'"),
  (lambda z, y: losses.mmce(z, y, variant="code"), ValueError, "variant must be one of 'paper', 'released'"),
  (lambda z, y: losses.dual_focal(z, y, stop_gradient="p"), ValueError, "must be one of False, True, 'competitor'"),
])
def test_mistakes_are_named(call, error, message):
  with pytest.raises(error, match=message):
    call(*_data(4, 3))


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
