"""Weights of rows, and labels that are distributions, in losses per batch and in the composite loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from calib_jax import losses
from calib_jax.losses import ranks
from tests.losses import cases

WEIGHTS = np.array([2, 1, 0, 3, 1, 1, 0, 2, 5, 1, 1, 4], np.float32)
# Soft labels and weights of a loss per batch, in one program for each case.
MEANS = ("soft_binned_ece", "soft_binned_marginal_ece", "mdca", "generative_cross_entropy", "mmce")
# Rows of one score have one neighbourhood in a kernel estimate, and ranks one after another.
ROWWISE = (*MEANS, "avuc", "soft_avuc", "selective_risk")


def _soft(n, k, seed=7):
  return np.random.default_rng(seed).dirichlet(np.ones(k), n).astype(np.float32)


def _cases():
  for p in cases.formulas(cases.PER_BATCH):
    fast = p.values[1] is cases.FIRST[p.values[0]] or "weighted" in p.id or "log" in p.id
    yield p if fast else pytest.param(*p.values, id=p.id, marks=[*p.marks, pytest.mark.slow])


@pytest.fixture(scope="class")
def weighted(name, options):
  """``(logits, labels, weights)`` to a loss's value and gradient, compiled for each shape."""
  return jax.jit(jax.value_and_grad(lambda z, y, w: losses.get(name, **options)(z, y, weights=w)))


@pytest.mark.parametrize(("name", "options"), list(_cases()), scope="class")
class TestWeights:
  def test_integer_weights_are_repeated_rows(self, weighted, name, options):
    logits, labels = cases.data(12, 3)
    times = WEIGHTS.astype(int)
    value, gradient = weighted(logits, labels, WEIGHTS)
    expected, each = cases.step(name, options)(np.repeat(logits, times, 0), np.repeat(labels, times))
    np.testing.assert_allclose(value, expected, rtol=2e-5)
    copies = np.repeat(np.arange(12), times)
    summed = np.zeros_like(logits)
    np.add.at(summed, copies, each)
    np.testing.assert_allclose(gradient, summed, rtol=1e-4, atol=1e-6)

  def test_weights_without_effect_and_without_meaning(self, weighted, name, options):
    logits, labels = cases.data(12, 3)
    ones, zeros = np.ones(12, np.float32), np.zeros(12, np.float32)
    value, gradient = weighted(logits, labels, ones)
    expected, slopes = cases.step(name, options)(logits, labels)
    np.testing.assert_allclose(value, expected, rtol=2e-5)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-4, atol=1e-6)
    value, gradient = weighted(logits, labels, zeros)
    assert value == 0 and not gradient.any()
    # A row of weight 0 adds nothing, also if its loss is infinite; negative weights that are traced are NaN.
    spoilt = np.where((np.arange(12) == 2)[:, None] & (np.arange(3) == labels[:, None]), -np.inf, logits)
    np.testing.assert_allclose(weighted(spoilt, labels, WEIGHTS)[0], weighted(logits, labels, WEIGHTS)[0], rtol=2e-5)
    assert np.isfinite(weighted(spoilt, labels, WEIGHTS)[1]).all()
    assert np.isnan(weighted(logits, labels, np.where(np.arange(12) == 3, -1, WEIGHTS).astype(np.float32))[0])
    if name in MEANS and not (options.get("weighted") and options.get("variant")):  # Which depends on N.
      for scale in (np.float32(1e-25), np.float32(1e25)):
        np.testing.assert_allclose(weighted(logits, labels, scale * WEIGHTS)[0], weighted(logits, labels, WEIGHTS)[0],
                                   rtol=2e-5)

  def test_distributions_equal_the_reference_and_a_row_for_each_label(self, weighted, name, options):
    logits, _ = cases.data(12, 3, seed=2)
    logits[0] = 0  # A tie, which the first class wins.
    soft, ones = _soft(12, 3), np.ones(12, np.float32)
    value, gradient = weighted(logits, soft, ones)
    if name != "selective_risk":  # A tie lies on an edge of its bins.
      expected = cases.batch_reference(name, logits, soft.astype(np.float64), options)
      np.testing.assert_allclose(value, expected, rtol=5e-5)
      direction = np.random.default_rng(0).normal(size=logits.shape) * (np.arange(12) > 0)[:, None]
      slope = cases.slope(lambda z: cases.batch_reference(name, z, soft.astype(np.float64), options, logits), logits,
                          direction)
      np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=2e-3, atol=2e-4)
    if name in ROWWISE:
      rows, slopes = weighted(np.repeat(logits, 3, 0), np.tile(np.arange(3), 12), soft.reshape(-1))
      np.testing.assert_allclose(value, rows, rtol=2e-5)
      np.testing.assert_allclose(gradient, slopes.reshape(12, 3, 3).sum(1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["aurc", *(pytest.param(name, marks=pytest.mark.slow)
                                            for name in ("composite", "mmce", "soft_binned_ece", "avuc"))])
def test_gradients_in_weights_are_those_of_the_value(name):
  logits, labels = cases.data(12, 3)
  loss = (lambda *args, **keywords: losses.composite("focal", "soft_avuc")(*args, **keywords)[0]
          ) if name == "composite" else losses.get(name, **cases.FIRST[name])
  with jax.enable_x64(True):
    value = jax.jit(lambda w: loss(logits.astype(np.float64), labels, weights=w))
    weights = np.random.default_rng(1).uniform(0.2, 2, 12)
    weights[4] = 1e-9  # At 0, one side of the difference would be a negative weight.
    gradient = jax.jit(jax.grad(value))(weights)
    expected = [(value(weights + 1e-6 * e) - value(np.abs(weights - 1e-6 * e))) / (2e-6 if w > 1e-6 else 2e-9)
                for e, w in zip(np.eye(12), weights, strict=True)]
    expected[4] = (value(weights + 1e-6 * np.eye(12)[4]) - value(weights)) / 1e-6
    at_zero = jax.jit(jax.grad(value))(np.where(np.arange(12) == 4, 0, weights))
  np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(at_zero, gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("estimator", ["harmonic", "log"])
def test_weights_of_ranks_are_those_of_the_sums_they_stand_for(estimator):
  rng = np.random.default_rng(0)
  score, weights = rng.normal(size=300).astype(np.float32), rng.gamma(0.5, size=300).astype(np.float32)
  weights[:3] = 0, 1e-6, 400
  actual = jax.jit(ranks.rank_weights, static_argnums=2)(score, weights, estimator)
  w = weights[np.argsort(score)].astype(np.float64)
  x, total = np.append(np.cumsum(w[::-1])[::-1][1:], 0), w.sum()
  if estimator == "harmonic":
    def partial_sum(x):  # The sum of the harmonic numbers below x.
      return np.where(x > 0, x * (special.digamma(np.where(x > 0, x, 1)) + np.euler_gamma) - x + 1, 0)
    expected = w * (special.digamma(total + 1) + np.euler_gamma) - partial_sum(x + w) + partial_sum(x)
  else:
    expected = w * np.log(total + 1) - special.gammaln(x + w + 1) + special.gammaln(x + 1)
  np.testing.assert_allclose(actual[np.argsort(score)], expected, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(expected.sum(), total if estimator == "harmonic" else expected.sum(), rtol=1e-9)


@pytest.mark.parametrize("estimator", ["harmonic", "log"])
def test_weights_of_ranks_of_many_rows_keep_their_digits(estimator):
  n = 100_000
  score = np.random.default_rng(0).normal(size=n).astype(np.float32)
  harmonic, rank = np.append(0, np.cumsum(1 / np.arange(1.0, n + 1))), np.argsort(np.argsort(score, kind="stable")) + 1
  expected = harmonic[n] - harmonic[n - rank] if estimator == "harmonic" else -np.log(1 - rank / (n + 1))
  for dtype in (bool, np.float32):
    actual = jax.jit(ranks.rank_weights, static_argnums=2)(score, np.ones(n, dtype), estimator)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6)


def test_composite_weighs_both_losses():
  logits, labels = cases.data(12, 3)
  where, times = np.arange(12) % 5 > 0, WEIGHTS.astype(int)
  spoilt = np.where(where[:, None], logits, np.nan)
  for reduction in ("mean", "sum"):
    loss = jax.jit(losses.composite("focal", "soft_binned_ece", 0.5, reduction=reduction))
    total, parts = loss(spoilt, labels, where=where, weights=np.where(where, WEIGHTS, np.nan))
    repeated = [np.repeat(x, times * where, axis=0) for x in (logits, labels)]
    focal = cases.example_reference("focal", *repeated, {})
    np.testing.assert_allclose(parts["primary"], focal.mean() if reduction == "mean" else focal.sum(), rtol=2e-5)
    np.testing.assert_allclose(parts["secondary"], cases.batch_reference("soft_binned_ece", *repeated, {}), rtol=2e-5)
    np.testing.assert_allclose(total, parts["primary"] + 0.5 * parts["secondary"], rtol=1e-6)
  alone, parts = jax.jit(losses.composite("aurc", reduction="sum"))(logits, labels, weights=WEIGHTS)
  repeated = [np.repeat(x, times, axis=0) for x in (logits, labels)]
  np.testing.assert_allclose(alone, times.sum() * cases.batch_reference("aurc", *repeated, {}), rtol=2e-5)


def test_counts_of_selective_risk_are_weighted():
  logits, _ = cases.data(12, 3)
  start = losses.init_selective_risk(num_bins=8)
  update = jax.jit(losses.update_selective_risk)
  actual = update(start, logits, weights=WEIGHTS)
  expected = update(start, np.repeat(logits, WEIGHTS.astype(int), axis=0))
  np.testing.assert_array_equal(actual.counts, expected.counts)


def test_gradients_in_weights_of_any_size_are_finite():
  logits, labels = cases.data(12, 3)
  gradient = jax.jit(jax.grad(lambda w: losses.mdca(logits, labels, weights=w)))
  np.testing.assert_allclose(np.float32(1e-25) * gradient(np.float32(1e-25) * WEIGHTS), gradient(WEIGHTS), rtol=1e-4,
                             atol=1e-7)


def test_a_row_of_weight_0_with_the_only_likely_label_leaves_generative_cross_entropy_finite():
  logits = np.array([[0, -200, 0], [0, -190, 0], [0, 200, 0]], np.float32)
  labels, weights = np.array([1, 0, 1]), np.array([1, 1, 0], np.float32)
  value, gradient = jax.jit(jax.value_and_grad(
    lambda z: losses.generative_cross_entropy(z, labels, weights=weights)))(logits)
  expected = cases.batch_reference("generative_cross_entropy", logits[:2], labels[:2], {})
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  assert np.isfinite(gradient).all() and not gradient[2].any()


def _own(logits, labels, *, where, axis_name):
  return jnp.zeros(())


@pytest.mark.parametrize(("loss", "weights", "error", "message"), [
  (losses.soft_avuc, -WEIGHTS, ValueError, "weights must be finite and at least 0: .* of row 0, is -2"),
  (losses.soft_avuc, WEIGHTS > 0, TypeError, "weights must be real numbers: got dtype bool"),
  (losses.soft_avuc, WEIGHTS[:3], ValueError, r"weights must have shape \(12,\), one value per example: got"),
  (losses.kde_ece, WEIGHTS / 2, ValueError, "weights of a kernel error must be 0 or at least 1: .* has weight 0.5"),
  (losses.composite("focal", _own), WEIGHTS, ValueError, "secondary takes no weights: a loss of your own needs the"),
  (losses.composite(_own), WEIGHTS, ValueError, "primary takes no weights"),
])
def test_weights_that_mean_nothing_are_refused(loss, weights, error, message):
  logits, labels = cases.data(12, 3)
  with pytest.raises(error, match=message):
    loss(logits, labels, weights=weights)


def test_traced_weights_of_a_kernel_estimate_are_nan_between_0_and_1():
  logits, labels = cases.data(12, 3)
  assert np.isnan(jax.jit(lambda w: losses.kde_ece(logits, labels, weights=w))(WEIGHTS / 2))
