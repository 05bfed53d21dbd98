"""Laws that tie losses to each other and to what the papers say of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import confidence, losses
from calib_jax.losses import kernels


def _data(n, k, seed=0):
  rng = np.random.default_rng(seed)
  logits = (2 * rng.normal(size=(n, k))).astype(np.float32)
  return jnp.asarray(logits), jnp.asarray(np.where(rng.uniform(size=n) < 0.7, logits.argmax(1), rng.integers(0, k, n)))


def test_special_cases_are_cross_entropy():
  logits, labels = _data(20, 5)
  expected = losses.cross_entropy(logits, labels)
  for found in (losses.inverse_focal(logits, labels, gamma=0.0), losses.dual_focal(logits, labels, gamma=0.0),
                losses.properized_focal(logits, labels, gamma=0.0),
                losses.sample_dependent_focal(logits, labels, thresholds=(), gammas=(0.0,)),
                losses.adaptive_focal(logits, labels, **losses.init_adaptive_focal(gamma=0.0)._asdict()),
                losses.margin_label_smoothing(logits, labels, weight=0.0),
                losses.adaptive_conditional_label_smoothing(logits, labels, weight=0.0),
                losses.pairwise_constraints(logits, labels, discrimination_weight=0.0, exclusion_weight=0.0)):
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_label_smoothing_is_the_cross_entropy_of_smoothed_labels():
  logits, labels = _data(20, 5)
  smooth = 0.9 * jax.nn.one_hot(labels, 5) + 0.02
  np.testing.assert_allclose(losses.cross_entropy(logits, labels, label_smoothing=0.1),
                             losses.cross_entropy(logits, smooth), rtol=1e-5)


def test_avuc_with_stopped_gradients_shares_values_and_differs_in_gradients():
  logits, labels = _data(40, 4)
  plain, stopped = (jax.value_and_grad(lambda z, s=s: losses.avuc(z, labels, threshold=0.7, stop_gradient=s))(logits)
                    for s in (False, True))
  assert plain[0] == stopped[0]
  assert np.abs(plain[1] - stopped[1]).max() > 1e-4


def test_harmonic_aurc_is_the_area_under_the_risk_coverage_curve():
  logits, labels = _data(50, 4)
  risk = np.asarray(losses.cross_entropy(logits, labels), np.float64)
  order = np.argsort(-np.asarray(confidence.msp(jax.nn.softmax(logits))), kind="stable")
  curve = np.cumsum(risk[order]) / np.arange(1, 51)
  np.testing.assert_allclose(losses.aurc(logits, labels), curve.mean(), rtol=1e-5)


def test_selective_risk_tends_to_the_log_weighted_aurc():
  # Coverage 1, many fine bins and little smoothing: the smoothed distribution becomes the ranks.
  logits, labels = _data(4000, 3)
  risk = losses.selective_risk(logits, labels, low_confidence_coverage=1.0, smoothing=1e-4, num_bins=4000)
  np.testing.assert_allclose(risk, losses.aurc(logits, labels, estimator="log"), rtol=0.02)


def test_ties_in_the_score_keep_batch_order():
  logits = jnp.zeros((3, 2))
  labels = jnp.array([0, 1, 0])
  # Equal scores: the first in the batch ranks lowest, and so has the smallest weight.
  weighed = [float(losses.aurc(logits, labels, loss=lambda z, y, i=i: jax.nn.one_hot(i, 3))) for i in range(3)]
  np.testing.assert_allclose(weighed, np.array([1 / 3, 1 / 3 + 1 / 2, 1 / 3 + 1 / 2 + 1]) / 3, rtol=1e-5)


def test_a_score_and_a_loss_of_ones_own():
  logits, labels = _data(30, 4)
  named = losses.selective_risk(logits, labels, confidence="margin", loss="focal")
  own = losses.selective_risk(logits, labels, confidence=confidence.margin, loss=losses.focal, score_range=(0.0, 1.0))
  np.testing.assert_allclose(own, named, rtol=1e-6)
  with pytest.raises(ValueError, match="whose range is for you to give"):
    losses.selective_risk(logits, labels, confidence=lambda p: p[:, 0])
  with pytest.raises(ValueError, match="loss must be one of 'cross_entropy', .*Did you mean 'focal'"):
    losses.aurc(logits, labels, loss="focl")


def test_kernel_errors_vanish_for_calibrated_predictions_as_they_grow_in_number():
  def values(n):
    rng = np.random.default_rng(n)
    logits = (1.5 * rng.normal(size=(n, 2))).astype(np.float32)
    p = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    labels = (rng.uniform(size=n) < p).astype(np.int32)
    return np.array([jax.jit(loss)(logits, labels) for loss in (losses.mmce, losses.get("kde_ece", bandwidth=0.02))])

  few, many = values(60), values(4000)
  assert np.all(many < 0.5 * few)


def test_two_examples_predict_each_other_in_the_kernel_estimator_and_one_gives_0():
  logits, labels = jnp.array([[2.0, 0.0], [0.0, 1.0]]), jnp.array([0, 0])
  c = np.array([1 / (1 + np.exp(-2.0)), 1 / (1 + np.exp(-1.0))])
  np.testing.assert_allclose(losses.kde_ece(logits, labels), (abs(0 - c[0]) + abs(1 - c[1])) / 2, rtol=1e-5)
  assert losses.kde_ece(logits, labels, where=jnp.array([True, False])) == 0


@pytest.mark.parametrize("weighted", [False, True])
def test_mmce_equals_its_double_sum_also_where_confidences_tie(weighted):
  rng = np.random.default_rng(0)
  logits = jnp.asarray(rng.choice([[3.0, 0.0, 1.0], [0.0, 2.0, 0.5], [0.0, 0.1, 0.0]], 60), jnp.float32)
  labels = jnp.asarray(rng.integers(0, 3, 60))
  correct = jnp.argmax(logits, axis=1) == labels
  right = jnp.sum(correct, dtype=jnp.float32)
  sizes = jnp.where(correct, right, 60 - right) if weighted else 60.0

  def dense(z):
    r = jnp.max(jax.nn.softmax(z), axis=1)
    v = jnp.where(correct, 1 - r, -r) / sizes
    return jnp.sqrt(v @ jnp.exp(-jnp.abs(r[:, None] - r[None, :]) / 0.4) @ v)

  value, gradient = jax.jit(jax.value_and_grad(lambda z: losses.mmce(z, labels, weighted=weighted)))(logits)
  expected, expected_gradient = jax.jit(jax.value_and_grad(dense))(logits)
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("form", ["top_label", "canonical", "marginal"])
def test_chunks_of_a_kernel_density_leave_no_seam(form, monkeypatch):
  logits, labels = _data(50, 3)
  step = jax.value_and_grad(lambda z: losses.kde_ece(z, labels, form=form))
  expected, expected_gradient = step(logits)
  monkeypatch.setattr(kernels, "CHUNK", 50 * 16)  # Three chunks and a rest.
  value, gradient = step(logits)
  np.testing.assert_allclose(value, expected, rtol=1e-6)
  np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-7)


def test_pairwise_constraints_of_two_classes_have_no_exclusion():
  logits, labels = _data(10, 2)
  np.testing.assert_array_equal(losses.pairwise_constraints(logits, labels, exclusion_weight=9.0),
                                losses.pairwise_constraints(logits, labels, exclusion_weight=0.0))


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
])
def test_mistakes_are_named(call, error, message):
  with pytest.raises(error, match=message):
    call(*_data(4, 3))


# Selective risk is left out: its threshold and counts carry no gradient, but move.
@pytest.mark.parametrize("name", [*losses.PER_EXAMPLE, *(n for n in losses.PER_BATCH if n != "selective_risk")])
def test_second_derivatives_are_those_of_the_gradient(name):
  options = {"avuc": {"threshold": 0.5}, "adaptive_focal": losses.init_adaptive_focal()._asdict()}.get(name, {})
  rng = np.random.default_rng(0)
  with jax.enable_x64(True):
    logits, direction = (jnp.asarray(x) for x in rng.normal(size=(2, 4, 3)) * np.array([2, 1])[:, None, None])
    gradient = jax.jit(jax.grad(lambda z: jnp.mean(losses.get(name, **options)(z, jnp.array([0, 1, 2, 1])))))
    found = jax.jit(lambda z, d: jax.jvp(gradient, (z,), (d,))[1])(logits, direction)
    expected = (gradient(logits + 1e-6 * direction) - gradient(logits - 1e-6 * direction)) / 2e-6
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
