"""Weights of rows, and labels that are distributions, in losses per batch and in the composite loss."""

import jax
import numpy as np
import pytest
from scipy import special

from calib_jax import losses
from calib_jax.losses import ranks
from tests.losses import cases

WEIGHTS = np.array([2, 1, 0, 3, 1, 1, 0, 2, 5, 1, 1, 4], np.float32)
MEANS = ("soft_binned_ece", "soft_binned_marginal_ece", "mdca", "generative_cross_entropy", "mmce")
# Default options, and what reads weights by a formula of its own.
CASES = [p for p in cases.cases(cases.PER_BATCH) if p.values[1] is cases.FIRST[p.values[0]]
         or p.values[1] in ({"weighted": True, "variant": "released"}, {"estimator": "log", "confidence": "margin"})]


@pytest.mark.parametrize(("name", "options"), CASES)
class TestWeights:
  def test_integer_weights_are_repeated_rows(self, name, options):
    (logits, labels), times = cases.data(12, 3), WEIGHTS.astype(int)
    value, gradient = cases.step(name, options)(logits, labels, weights=WEIGHTS)
    expected, each = cases.step(name, options)(np.repeat(logits, times, 0), np.repeat(labels, times))
    np.testing.assert_allclose(value, expected, rtol=2e-5)
    summed = np.zeros_like(logits)
    np.add.at(summed, np.repeat(np.arange(12), times), each)
    np.testing.assert_allclose(gradient, summed, rtol=1e-4, atol=1e-6)

  def test_weights_without_effect_and_without_meaning(self, name, options):
    (logits, labels), step = cases.data(12, 3), cases.step(name, options)
    value, gradient = step(logits, labels, weights=np.zeros(12))
    assert value == 0 and not gradient.any()
    # A row of weight 0 adds nothing, also if its loss is infinite; negative weights that are traced are NaN.
    plain = step(logits, labels, weights=WEIGHTS)[0]
    spoilt = np.where((np.arange(12) == 2)[:, None] & (np.arange(3) == labels[:, None]), -np.inf, logits)
    value, gradient = step(spoilt, labels, weights=WEIGHTS)
    np.testing.assert_allclose(value, plain, rtol=2e-5)
    assert np.isfinite(gradient).all()
    assert np.isnan(step(logits, labels, weights=np.where(np.arange(12) == 3, -1, WEIGHTS))[0])
    if name in MEANS and not options:  # The released form depends on N.
      for scale in (1e-25, 1e25):
        np.testing.assert_allclose(step(logits, labels, weights=scale * WEIGHTS)[0], plain, rtol=2e-5)

  def test_distributions_equal_the_reference(self, name, options):
    logits, _ = cases.data(12, 3, seed=2)
    tied = np.arange(12) < (name != "selective_risk")  # A tie, which the first class wins, lies on an edge of its bins.
    logits[tied] = 0
    soft = np.random.default_rng(7).dirichlet(np.ones(3), 12).astype(np.float32)
    value, gradient = cases.step(name, options, 12)(logits, soft)
    expected = cases.reference(name, logits, soft.astype(np.float64), options)
    np.testing.assert_allclose(value, expected, rtol=5e-5)
    direction = np.random.default_rng(0).normal(size=logits.shape) * ~tied[:, None]
    slope = cases.slope(lambda z: cases.reference(name, z, soft.astype(np.float64), options, logits), logits,
                        direction)
    np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=2e-3, atol=2e-4)


def test_gradients_in_weights_are_those_of_the_value():
  logits, labels = cases.data(12, 3)
  for name in ("aurc", "mmce"):  # Of ranks and of shares.
    with jax.enable_x64(True):
      step = jax.jit(jax.value_and_grad(lambda w, name=name: losses.get(name)(logits.astype(float), labels, weights=w)))
      weights = np.random.default_rng(1).uniform(0.2, 2, 12)
      expected = [(step(weights + e)[0] - step(weights - e)[0]) / 2e-6 for e in 1e-6 * np.eye(12)]
      gradient = step(weights)[1]
      # At 0, one side of a difference would be a negative weight.
      near_zero, at_zero = (step(np.where(np.arange(12) == 4, x, weights))[1] for x in (1e-9, 0))
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(at_zero, near_zero, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("estimator", ["harmonic", "log"])
def test_weights_of_ranks_are_sums_over_the_ranks(estimator):
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


@pytest.mark.parametrize("estimator", ["harmonic", "log"])
def test_weights_of_ranks_of_many_rows_keep_their_digits(estimator):
  n = 100_000
  score = np.random.default_rng(0).normal(size=n).astype(np.float32)
  harmonic, rank = np.append(0, np.cumsum(1 / np.arange(1.0, n + 1))), np.argsort(np.argsort(score, kind="stable")) + 1
  expected = harmonic[n] - harmonic[n - rank] if estimator == "harmonic" else -np.log(1 - rank / (n + 1))
  for weights in (np.ones(n, bool), np.ones(n, np.float32)):
    actual = jax.jit(ranks.rank_weights, static_argnums=2)(score, weights, estimator)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6)


def test_composite_weighs_both_losses():
  logits, labels = cases.data(12, 3)
  where, times = np.arange(12) % 5 > 0, WEIGHTS.astype(int)
  spoilt, weights = np.where(where[:, None], logits, np.nan), np.where(where, WEIGHTS, np.nan)
  both = jax.jit(lambda z, w: [losses.composite(primary, "soft_binned_ece", 0.5, reduction="sum")(
    z, labels, where=where, weights=w) for primary in ("focal", "aurc")])(spoilt, weights)
  repeated = [np.repeat(x, times * where, axis=0) for x in (logits, labels)]
  sums = [cases.reference("focal", *repeated, {}).sum(), len(repeated[0]) * cases.reference("aurc", *repeated, {})]
  for (total, parts), primary in zip(both, sums, strict=True):
    np.testing.assert_allclose(parts["primary"], primary, rtol=2e-5)
    np.testing.assert_allclose(parts["secondary"], cases.reference("soft_binned_ece", *repeated, {}), rtol=2e-5)
    np.testing.assert_allclose(total, parts["primary"] + 0.5 * parts["secondary"], rtol=1e-6)


def test_counts_of_selective_risk_add_up_over_steps_by_their_weights():
  logits, _ = cases.data(12, 3)
  where, options = np.arange(12) < 7, {"variant": "stopped", "confidence": "negative_entropy"}

  @jax.jit
  def counts(spoilt, logits):
    state = losses.update_selective_risk(losses.init_selective_risk(num_bins=8), spoilt, where=where, **options)
    return losses.update_selective_risk(state, logits, weights=WEIGHTS, **options).counts

  actual = counts(np.where(where[:, None], logits, np.nan), logits)
  scores = 1 - special.entr(special.softmax(logits.astype(float), axis=1)).sum(1) / np.log(3)
  np.testing.assert_array_equal(actual, np.bincount((8 * scores).astype(int), WEIGHTS + where, 8))


def test_gradients_in_weights_of_any_size_are_finite():
  logits, labels = cases.data(12, 3)
  gradient = jax.jit(jax.grad(lambda w: losses.mdca(logits, labels, weights=w)))
  np.testing.assert_allclose(np.float32(1e-25) * gradient(np.float32(1e-25) * WEIGHTS), gradient(WEIGHTS), rtol=1e-4,
                             atol=1e-7)


def test_a_row_of_weight_0_with_the_only_likely_label_leaves_generative_cross_entropy_finite():
  logits = np.array([[0, -200, 0], [0, -190, 0], [0, 200, 0]], np.float32)
  labels, weights = np.array([1, 0, 1]), np.array([1, 1, 0], np.float32)
  value, gradient = cases.step("generative_cross_entropy", {})(logits, labels, weights=weights)
  expected = cases.reference("generative_cross_entropy", logits[:2], labels[:2], {})
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  assert np.isfinite(gradient).all() and not gradient[2].any()


def test_traced_weights_of_a_kernel_estimate_are_nan_between_0_and_1():
  assert np.isnan(cases.step("kde_ece", {})(*cases.data(12, 3), weights=WEIGHTS / 2)[0])
