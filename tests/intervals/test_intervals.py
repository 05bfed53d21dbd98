"""Consistency resampling, p-values, and bootstrap intervals that correct for bias, keep groups and compare models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from calib_jax import metrics
from calib_jax.evaluation.columns import COLUMNS
from calib_jax.intervals import bias_correction, bootstrap, calibration_tests, draws
from experiments import coverage

KEY = jax.random.key(0)
EQUAL_MASS = functools.partial(metrics.calibration_error, binning="equal_mass", norm=2)
DEBIASED = {"binning": "equal_mass", "norm": 2, "debias": True}


def _calibrated(n, seed=0):
  rng = np.random.default_rng(seed)
  confidence = rng.uniform(0.5, 1, n).astype(np.float32)
  return confidence, rng.uniform(size=n) < confidence


def _one_bin(confidence, correct):
  """A calibration error with a distribution that can be written down: the gap of the two means."""
  return jnp.abs(jnp.mean(correct.astype(jnp.float32)) - jnp.mean(confidence))


def test_the_consistency_interval_of_one_bin_is_that_of_the_binomial():
  """|B/n - 0.8| with B binomial, whose mean and quantiles are sums of n + 1 probabilities."""
  n = 60
  mean, low, high = metrics.consistency_interval(_one_bin, np.full(n, 0.8, np.float32), key=KEY, num_resamples=20_000)
  log_choose = np.array([sum(np.log(n - i) - np.log(i + 1) for i in range(k)) for k in range(n + 1)])
  chance = np.exp(log_choose + np.arange(n + 1) * np.log(0.8) + (n - np.arange(n + 1)) * np.log(0.2))
  gap = np.abs(np.arange(n + 1) / n - 0.8)
  expected = np.sum(chance * gap)
  spread = np.sqrt(np.sum(chance * gap**2) - expected**2)
  np.testing.assert_allclose(mean, expected, atol=5 * spread / np.sqrt(20_000))
  order = np.argsort(gap)
  for end, level in ((low, 0.025), (high, 0.975)):
    # The quantile of a discrete distribution: the chance of less, and of at most this, are on either side of the level.
    below = chance[order][gap[order] < float(end) - 1e-5].sum()
    at_most = chance[order][gap[order] <= float(end) + 1e-5].sum()
    assert below - 0.005 <= level <= at_most + 0.005


def test_the_p_value_counts_redraws_and_itself():
  confidence, correct = _calibrated(200)
  observed, *values = calibration_tests._observed_and_redrawn(metrics.calibration_error, confidence, correct, KEY, 99,
                                                              None, 1, 0.0)
  expected = (1 + np.sum(np.asarray(values) >= float(observed))) / 100
  actual = metrics.calibration_test(metrics.calibration_error, confidence, correct, key=KEY, num_resamples=99)
  np.testing.assert_allclose(actual, expected, rtol=1e-6)
  certain = metrics.calibration_test(metrics.calibration_error, np.ones(9, np.float32), np.ones(9, bool), key=KEY)
  assert certain == 1
  never = np.zeros(200, bool)
  wrong = metrics.calibration_test(metrics.calibration_error, confidence, never, key=KEY, num_resamples=99)
  np.testing.assert_allclose(wrong, 1 / 100)


def test_p_values_are_uniform_under_the_null():
  confidence, correct = (np.stack(x) for x in zip(*(_calibrated(150, seed) for seed in range(400)), strict=True))

  def p_value(x):
    return metrics.calibration_test(metrics.calibration_error, x[0], x[1], key=x[2], num_resamples=99)

  p = np.sort(jax.jit(lambda *x: jax.lax.map(p_value, x))(confidence, correct, jax.random.split(KEY, 400)))
  # Kolmogorov's distance from the uniform distribution: 1.63 / sqrt(400) is exceeded with a chance of 1%; the p-values
  # are multiples of 1/100.
  distance = np.max(np.abs(np.arange(1, 401) / 400 - p))
  assert distance < 1.63 / 20 + 0.01, distance


@pytest.mark.parametrize("below", [2, 7, 1000])
def test_resamples_draw_each_example_equally_often_and_independently(below):
  count, num_keys = 20_000, 100
  words = draws.words(jax.random.split(KEY, num_keys))
  drawn = np.asarray(jax.vmap(lambda words: draws.draw(words, count, below))(words))
  np.testing.assert_array_equal(draws.draw(np.asarray(words), count, below), drawn)  # NumPy draws the same.
  counts = np.stack([np.bincount(row, minlength=below) for row in drawn])
  assert counts.shape == (num_keys, below)
  # Pearson's statistic of one key has mean below - 1 and twice that variance; of all keys together it has the same.
  for observed in (counts, counts.sum(0, keepdims=True)):
    expected = observed.sum(1, keepdims=True) / below
    statistic = ((observed - expected) ** 2 / expected).sum(1)
    assert abs(statistic.mean() - (below - 1)) < 5 * np.sqrt(2 * (below - 1) / len(statistic))
  # Neighbours in a resample, and the same place in two resamples, have no correlation.
  x = (drawn - drawn.mean()) / drawn.std()
  for a, b in ((x[:, :-1], x[:, 1:]), (x[:-1], x[1:])):
    assert abs(np.mean(a * b)) < 5 / np.sqrt(a.size)


def test_redraws_are_uniform_and_independent():
  words = draws.words(jax.random.split(KEY, 50))
  x = np.asarray(jax.vmap(lambda words: draws.uniform(words, 20_000))(words), np.float64)
  np.testing.assert_array_equal(draws.uniform(np.asarray(words), 20_000), x)
  assert x.min() >= 0 and x.max() < 1
  counts = np.stack([np.bincount((row * 16).astype(int), minlength=16) for row in x])
  for observed in (counts, counts.sum(0, keepdims=True)):
    expected = observed.sum(1, keepdims=True) / 16
    statistic = ((observed - expected) ** 2 / expected).sum(1)
    assert abs(statistic.mean() - 15) < 5 * np.sqrt(2 * 15 / len(statistic))
  centred = (x - 0.5) * np.sqrt(12)
  for a, b in ((centred[:, :-1], centred[:, 1:]), (centred[:-1], centred[1:])):
    assert abs(np.mean(a * b)) < 5 / np.sqrt(a.size)


def test_a_metric_is_traced_once_for_the_sample_and_its_resamples():
  traced = []

  def metric(confidence, correct, *, where=None):
    traced.append(where)
    return metrics.calibration_error(confidence, correct, where=where)

  # Of ``assess``, the sample and its redraws, halves, and fifths have a shape each.
  for call, number in ((metrics.bootstrap, 1), (metrics.calibration_test, 1), (metrics.assess, 3)):
    traced.clear()
    call(metric, *_calibrated(50), key=KEY, num_resamples=7)
    assert len(traced) == number


def test_no_examples_have_no_error():
  actual = metrics.consistency_interval(metrics.calibration_error, np.zeros(0, np.float32), key=KEY, num_resamples=5)
  np.testing.assert_array_equal(actual, 0)


def test_metrics_may_return_arrays():
  confidence, correct = _calibrated(100)

  def several(c, a):
    return jnp.stack([metrics.calibration_error(c, a), metrics.ks_calibration_error(c, a)])

  assert all(x.shape == (2,) for x in metrics.consistency_interval(several, confidence, key=KEY, num_resamples=20))
  assert metrics.calibration_test(several, confidence, correct, key=KEY, num_resamples=20).shape == (2,)
  corrected = metrics.bootstrap(several, confidence, correct, key=KEY, num_resamples=20, method="bias_corrected")
  assert all(x.shape == (2,) and np.isfinite(x).all() for x in corrected)


@pytest.mark.parametrize("value", [0.063, 0.02])  # The square of the latter is below half the bias.
@pytest.mark.parametrize(("rate", "part"), [(1.0, 1.0), (1.0, 0.5), (2 / 3, 0.5)])
def test_the_bias_corrected_interval_solves_its_equations(value, rate, part):
  """The moments from the subsamples, and the ends by a fine grid of the truth, in float64."""
  rng = np.random.default_rng(0)
  left, right, fifths = (np.sqrt(rng.gamma(4.0, mean / 4, 4000)) for mean in (0.005, 0.005, 0.01))
  actual = bias_correction.bias_corrected(*(jnp.asarray(x, jnp.float32) for x in (
    value, np.stack([left, right], 1), fifths, rate)), part, 0.9)
  square = value**2
  at_zero = ((left**2 + right**2) / 2).var()
  slope = ((left**2 - right**2)**2).mean() / 4 / max(square, at_zero**0.5)
  truth = np.linspace(0, 0.3, 300_001)
  far, near = (((fifths**2).mean() - square) / factor for factor in (4, 5**rate - 1))
  mean, variance = truth**2 + far + (near - far) * np.exp(-truth**2 / near), at_zero + truth**2 * slope
  assert (np.diff(mean) >= 0).all()
  estimate = truth[mean < square][-1] if mean[0] < square else 0
  of_halves = (((left**2 + right**2) / 2).mean() - square) / (2**rate - 1)
  biases = max(near, of_halves), far * (part + (1 - part) * np.exp(-truth**2 / near))
  ends = []
  for bias, observed, quantile in zip(biases, (square, max(square, near / 2)), (1.6448536, -1.6448536), strict=True):
    mean = truth**2 + bias
    ninth = variance / (9 * mean**2)
    score = (np.cbrt(observed / mean) - (1 - ninth)) / np.sqrt(ninth)
    ends.append(truth[score > quantile].max(initial=0))
  assert (square < near / 2) == (value == 0.02)
  np.testing.assert_allclose(actual, [estimate, *ends], atol=3e-6)


@pytest.mark.parametrize("norm", [1, 2])
def test_redraws_that_equal_the_outcomes_count_for_the_p_value(norm):
  rng = np.random.default_rng(0)
  certain = 1 - rng.uniform(0, 1e-6, 100).astype(np.float32)  # Nearly every redraw is that all are right.
  metric = functools.partial(metrics.calibration_error, binning="equal_mass", norm=norm)
  for resamples in (200, 1000):
    assert metrics.calibration_test(metric, certain, np.ones(100, bool), key=KEY, num_resamples=resamples) == 1


def test_outcomes_that_mirror_each_other_have_one_p_value():
  half = np.full(20, 0.5, np.float32)
  exact = stats.binom.cdf(7, 20, 0.5) * 2  # As far from 10 as 7 is, or farther.
  for right in (7, 13):
    correct = np.arange(20) < right
    for p in (metrics.calibration_test(metrics.calibration_error, half, correct, key=KEY, num_resamples=4000),
              metrics.assess(metrics.calibration_error, half, correct, key=KEY, num_resamples=4000).p_value):
      assert abs(p - exact) < 5 * np.sqrt(exact * (1 - exact) / 4000)


@pytest.mark.parametrize("rate", [1.0, 2 / 3])
@pytest.mark.parametrize("fifth", [0.19, 0.2])  # No bias, and some.
def test_the_bias_corrected_interval_does_not_depend_on_the_unit_of_the_metric(rate, fifth):
  def ends(unit):
    half, rest, value = (np.float32(x) * unit for x in ([0.18, 0.2, 0.19], [0.2, 0.18, 0.19], 0.191))
    halves, fifths = jnp.stack([half, rest], axis=1), np.full(3, fifth, np.float32) * unit
    return np.array(bias_correction.bias_corrected(*map(jnp.asarray, (value, halves, fifths, rate)), 0.5, 0.95))

  fractions = ends(np.float32(1))
  assert 0.1 < fractions[1] <= fractions[0] <= fractions[2] < 0.3
  for unit in (100, 1e5, 1e-5):
    np.testing.assert_allclose(ends(np.float32(unit)) / unit, fractions, rtol=1e-5)


def test_halves_and_fifths_of_a_squared_mean_have_the_moments_that_are_assumed():
  """The square of the mean of normal noise around τ: bias σ²/N, V_0 = 2 σ⁴/N² and V_1 = 4 σ²/N."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=1000)
  x = ((x - x.mean()) / x.std(ddof=1) + 0.1).astype(np.float32)  # Its mean and its variance are exactly 0.1 and 1.
  halves, fifths = jax.jit(lambda x: bootstrap.subsampled(jnp.mean, (x,), None, KEY, 4000))(x)
  half, rest = np.asarray(halves, np.float64).T ** 2
  noise = 1 / 1000
  rtol = 5 * np.sqrt(2 / 4000)  # Five standard errors of a variance.
  np.testing.assert_allclose(((half - rest) / 2).var(), 0.01 * 4 * noise, rtol=rtol)
  np.testing.assert_allclose(((half + rest) / 2).var(), 2 * noise**2, rtol=3 * rtol)  # Heavier tails: chi squared.
  np.testing.assert_allclose(((half + rest) / 2).mean() - 0.01, noise, rtol=rtol)
  np.testing.assert_allclose((np.asarray(fifths, np.float64) ** 2).mean() - 0.01, 4 * noise, rtol=3 * rtol)


def test_the_bias_corrected_interval_holds_the_estimate_and_is_never_below_0():
  for seed in range(10):
    pair = _calibrated(120, seed)
    estimate, low, high = metrics.bootstrap(metrics.calibration_error, *pair, key=KEY, num_resamples=100,
                                            method="bias_corrected")
    assert 0 <= low <= estimate <= high
    assert estimate < metrics.calibration_error(*pair)
  debiased, bias = functools.partial(EQUAL_MASS, debias=True), metrics.bias_model(metrics.calibration_error, **DEBIASED)
  pairs = [pair for pair in (_calibrated(120, seed) for seed in range(10)) if debiased(*pair) == 0]
  assert pairs
  estimate, low, high = metrics.bootstrap(debiased, *pairs[0], key=KEY, num_resamples=100, method="bias_corrected",
                                          bias=bias)
  assert estimate == low == 0 and 0.02 < high < 0.5
  for size in (1, 4):  # Fewer examples than halves or fifths need.
    few = metrics.bootstrap(_one_bin, *_calibrated(size), key=KEY, num_resamples=10, method="bias_corrected")
    assert np.isfinite(few).all() and 0 <= few[1] <= few[0] <= few[2]


def _power(x, *, where=None):
  """A metric whose square is N^(-2/3), as that of the smooth error of a calibrated model is."""
  return (jnp.sum(jnp.ones(len(x)), where=where)) ** (-1 / 3)


def test_a_bias_of_a_known_rate_is_subtracted_whole():
  for rate, left in ((2 / 3, 0), (1.0, 1 - (5 ** (2 / 3) - 1) / 4)):
    estimate, low, _ = metrics.bootstrap(_power, jnp.ones(1000), key=KEY, num_resamples=20, method="bias_corrected",
                                         bias=metrics.BiasModel(rate=rate))
    np.testing.assert_allclose(estimate, np.sqrt(left) / 10, rtol=1e-3, atol=1e-3)
    assert low <= estimate
  for name, interval in (("rate", r"\(0, 1\]: got 0"), ("sure_part", r"\[0, 1\]: got 2")):
    with pytest.raises(ValueError, match=f"{name} must be in {interval}"):
      metrics.BiasModel(**{name: int(interval[-1])})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model", "size", "repeats"), [
  ("ECE, 15 equal-width bins", "overconfident", 300, 100), ("equal mass, norm 2", "by class, Dirichlet", 300, 300),
  ("AURC", "calibrated", 300, 300)])
def test_intervals_cover_the_true_value(name, model, size, repeats):
  row, = coverage.coverage(name, model, size, repeats, resamples=300)
  # 93 to 97% of intervals should, for calibrated models up to 97.5% because 0 is below none; three standard errors.
  margin = 3 * np.sqrt(0.95 * 0.05 / repeats)
  assert 0.93 - margin <= float(row["covered"]) <= 0.975 + margin, row


def _mean_gap(x):
  """A norm-1 error of fifteen bins, each with the sum of its column."""
  return jnp.mean(jnp.abs(jnp.mean(x, axis=0)))


def test_the_interval_of_a_norm_1_error_holds_gaps_of_the_size_of_their_noise():
  # A fifth has bias that the sample does not have: with all of it subtracted, 85% of these intervals held the truth.
  truth = 1 / np.sqrt(60)

  def interval(key):
    of_x, of_resamples = jax.random.split(key)
    x = truth + jax.random.normal(of_x, (60, 15))
    return metrics.bootstrap(_mean_gap, x, key=of_resamples, num_resamples=60, method="bias_corrected",
                             bias=metrics.bias_model(metrics.calibration_error))

  _, low, high = jax.jit(lambda keys: jax.lax.map(interval, keys))(jax.random.split(KEY, 400))
  assert jnp.mean((low <= truth) & (truth <= high)) >= 0.93


def _mean_difference(x):
  return jnp.mean(x)


def test_the_paired_difference_is_that_of_the_same_resamples():
  rng = np.random.default_rng(0)
  difficulty, noise = rng.normal(size=500), 0.1 * rng.normal(size=500)
  a, b = (difficulty + 0.05 + noise).astype(np.float32), difficulty.astype(np.float32)
  difference, low, high = metrics.paired_difference(_mean_difference, [a], [b], key=KEY, num_resamples=4000,
                                                     method="percentile")
  np.testing.assert_allclose(difference, np.mean(a.astype(np.float64) - b), atol=1e-6)
  half = 1.96 * np.std(a - b) / np.sqrt(500)  # Much less than that of either mean.
  np.testing.assert_allclose([difference - low, high - difference], half, rtol=0.1)
  swapped = metrics.paired_difference(_mean_difference, [b], [a], key=KEY, num_resamples=4000, method="percentile")
  np.testing.assert_allclose(swapped, [-difference, -high, -low], atol=1e-6)


def _binary(key, num_repeats, size):
  """Log-odds of the predicted class under the posterior, and whether it is right: a calibrated model of two classes."""
  of_x, of_y = jax.random.split(key)
  log_odds = jnp.abs(2 * (1 + jax.random.normal(of_x, (num_repeats, size))))
  return log_odds, jax.random.uniform(of_y, log_odds.shape) < jax.nn.sigmoid(log_odds)


@pytest.mark.parametrize(("metric", "options"), [
  (metrics.calibration_error, {}), (metrics.calibration_error, DEBIASED)], ids=["ece", "debiased"])
def test_intervals_of_the_difference_of_two_errors_hold_the_true_difference(metric, options):
  # A calibrated model against one that is 1.6 times overconfident. Quantiles of the difference hold the truth in 11 and
  # 33 of these samples.
  log_odds, correct = _binary(jax.random.key(1), 60, 500)
  error = functools.partial(metric, **options) if options else metric
  bias = metrics.bias_model(metric, **options) if options else "auto"

  def interval(x):
    log_odds, correct, key = x
    models = [(jax.nn.sigmoid(a * log_odds), correct) for a in (1.0, 1.6)]
    return metrics.paired_difference(error, *models, key=key, num_resamples=60, bias=bias)

  _, low, high = jax.lax.map(interval, (log_odds, correct, jax.random.split(KEY, 60)))
  odds, _ = _binary(jax.random.key(2), 1, 500_000)
  gap = jax.nn.sigmoid(1.6 * odds) - jax.nn.sigmoid(odds)
  truth = -jnp.sqrt(jnp.mean(gap**2)) if options else -jnp.mean(gap)
  assert jnp.sum((low <= truth) & (truth <= high)) >= 51  # At 95%, fewer have a chance of 1e-3.


def test_the_difference_of_two_errors_changes_its_sign_with_their_order_and_is_0_for_one_model():
  log_odds, correct = (x[0] for x in _binary(jax.random.key(1), 1, 400))
  a, b = [(jax.nn.sigmoid(scale * log_odds), correct) for scale in (1.0, 2.0)]
  options = {"key": KEY, "num_resamples": 50}
  forth, back = (metrics.paired_difference(metrics.calibration_error, *pair, **options) for pair in ((a, b), (b, a)))
  np.testing.assert_allclose(forth, [-back[0], -back[2], -back[1]], atol=1e-6)
  difference, low, high = metrics.paired_difference(metrics.calibration_error, a, a, **options)
  assert difference == low == high == 0


@pytest.mark.parametrize("delta", [0.0, 0.05])
def test_the_interval_of_the_debiased_error_holds_the_truth_of_tied_confidences(delta):
  # Six confidences in fifteen bins: intervals of the clipped square itself held the truth in 60% and 10%.
  debiased, bias = functools.partial(EQUAL_MASS, debias=True), metrics.bias_model(metrics.calibration_error, **DEBIASED)
  values, keys = jnp.array([0.5, 0.6, 0.7, 0.8, 0.9, 0.97]), jax.random.split(KEY, 60)

  def interval(key):
    of_confidence, of_outcome, of_resamples = jax.random.split(key, 3)
    confidence = jax.random.choice(of_confidence, values, (300,))
    correct = jax.random.uniform(of_outcome, (300,)) < confidence - delta
    return metrics.bootstrap(debiased, confidence, correct, key=of_resamples, num_resamples=60, method="bias_corrected",
                             bias=bias)

  _, low, high = jax.lax.map(interval, keys)
  assert jnp.sum((low <= delta + 1e-6) & (delta <= high)) >= 51


@pytest.mark.parametrize(("dependent", "test"), [
  ("groups", "calibration_test"), pytest.param("seeds", "assess", marks=pytest.mark.slow)])
def test_a_calibrated_model_of_dependent_entries_is_rejected_as_often_as_said(dependent, test):
  # Five equal entries of each of 150 examples: five seeds, or five rows of a group. If they were redrawn independently,
  # p would be below 5% in 20% of samples of seeds, and in 90% of those of groups.
  log_odds, correct = _binary(jax.random.key(3), 120, 150)
  groups = np.repeat(np.arange(150), 5) if dependent == "groups" else None

  def mean_error(confidence, correct, where=None):
    if confidence.ndim == 1:
      return metrics.calibration_error(confidence, correct, where=where)
    over_seeds = jax.vmap(lambda *x: metrics.calibration_error(*x[:2], where=x[2]), in_axes=1)
    return over_seeds(confidence, correct, jnp.ones(confidence.shape, bool) if where is None else where).mean()

  def p_value(x):
    entries = [jnp.repeat(v[:, None], 5, axis=1) for v in (jax.nn.sigmoid(x[0]), x[1])]
    entries = [v.reshape(-1) for v in entries] if dependent == "groups" else entries
    if test == "assess":
      return metrics.assess(mean_error, *entries, key=x[2], num_resamples=79, groups=groups).p_value
    return metrics.calibration_test(mean_error, *entries, key=x[2], num_resamples=79, groups=groups)

  p_values = jax.lax.map(p_value, (log_odds, correct, jax.random.split(KEY, 120)))
  assert jnp.sum(p_values <= 0.05) <= 14  # At 5%, more have a chance of 1e-3.


def test_dependence_is_none_of_independent_and_all_of_equal_rows():
  log_odds, correct = (x[0] for x in _binary(jax.random.key(4), 1, 3000))
  confidence, groups = jax.nn.sigmoid(log_odds), np.repeat(np.arange(600), 5)
  members = draws.members(groups, 3000)
  assert draws.dependence(confidence, correct, members) < 0.1
  np.testing.assert_allclose(draws.dependence(confidence[groups], correct[groups], members), 1, atol=0.15)
  assert draws.dependence(confidence, correct, draws.members(None, 3000)) == 0
  # By hand: one pair of residuals -0.8 and 0.4, whose product is below 0, and one of 0.4 and 0.2.
  pairs = draws.dependence(jnp.array([0.8, 0.6, 0.6, 0.8]), jnp.array([0, 1, 1, 1]),
                           draws.members(np.array([0, 0, 1, 1]), 4))
  np.testing.assert_allclose(pairs, 0, atol=1e-6)
  # Fifty equal pairs, whose estimate has a relative standard error of a fifth, also where confidences are near 1.
  fifty = draws.members(np.repeat(np.arange(50), 2), 100)
  for gaps in ([0.3, 0.15], [4e-6, 2e-6]):
    low, high = 1 - np.tile(np.float32(gaps), (50, 1)).T
    pair = draws.dependence(jnp.stack([low, high], 1).reshape(-1), jnp.ones(100, bool), fifty)
    np.testing.assert_allclose(pair, (1 - low[0]) / low[0] / 0.6, rtol=1e-5)


@pytest.mark.slow
def test_a_few_unequal_groups_reject_a_calibrated_model_as_often_as_said():
  # With the estimate of the dependence itself, rather than an upper one, p would be below 5% in a tenth of samples.
  groups = np.repeat(np.arange(114), [100] * 4 + [30] * 10 + [3] * 100)

  def p_value(keys):
    confidence = jax.nn.sigmoid(jnp.abs(1.2 + 1.3 * jax.random.normal(keys[0], groups.shape)))
    correct = jax.random.uniform(keys[1], (114,))[groups] < confidence
    return metrics.calibration_test(metrics.calibration_error, confidence, correct, key=keys[2], num_resamples=79,
                                    groups=groups)

  p_values = jax.jit(lambda keys: jax.lax.map(p_value, keys))(jax.random.split(KEY, (1000, 3)))
  assert jnp.sum(p_values <= 0.05) <= 75  # At 5%, more have a chance of 3e-4.


def test_groups_are_resampled_whole():
  rng = np.random.default_rng(0)
  effects, groups = rng.normal(size=100), rng.permutation(np.repeat(np.arange(100) * 7, 5))
  x = effects[groups // 7].astype(np.float32)  # Five equal examples a group: in truth a sample of 100.
  estimate, low, high = metrics.bootstrap(jnp.mean, x, key=KEY, num_resamples=4000, groups=groups)
  np.testing.assert_allclose([estimate - low, high - estimate], 1.96 * effects.std() / 10, rtol=0.12)
  # Groups of several sizes: each resample is some groups as a whole, and the rest does not count.
  uneven = np.repeat(np.arange(4), [1, 2, 3, 4])

  def share_of_whole_groups(y, where=None):
    sums = jnp.zeros(4).at[y].add(1.0 if where is None else where.astype(jnp.float32))
    return jnp.stack([jnp.all(sums % jnp.arange(1.0, 5) == 0), jnp.sum(sums / jnp.arange(1.0, 5)) == 4]).astype(float)

  for value in metrics.bootstrap(share_of_whole_groups, uneven, key=KEY, num_resamples=50, groups=uneven):
    np.testing.assert_array_equal(value, 1)
  metrics.paired_difference(metrics.calibration_error, _calibrated(10), _calibrated(10, 1), key=KEY, num_resamples=9,
                            groups=uneven)


@pytest.mark.parametrize(("call", "error", "message"), [
  (lambda: metrics.bootstrap(jnp.mean, np.ones(3), key=KEY, method="basic"), ValueError,
   "method must be one of 'percentile', 'bias_corrected': got 'basic'"),
  (lambda: metrics.bootstrap(jnp.mean, np.ones(3), np.ones(4), key=KEY), ValueError, "arrays must share their first"),
  (lambda: metrics.bootstrap(jnp.mean, np.ones(3), key=KEY, level=1.0), ValueError, r"level must be in \(0, 1\)"),
  (lambda: metrics.bootstrap(jnp.mean, np.ones(3), key=KEY, groups=np.ones(4, int)), ValueError,
   r"groups must be integers of shape \(3,\)"),
  (lambda: metrics.paired_difference(jnp.mean, [np.ones(3)], [], key=KEY), ValueError, "got 1 and 0"),
  (lambda: metrics.paired_difference(metrics.classwise_calibration_error, [np.ones(3)], [np.ones(3)], key=KEY),
   ValueError, "method must be named for class-wise errors"),
  (lambda: metrics.paired_difference(_mean_difference, [np.ones(3)], [np.ones(3)], key=KEY), ValueError,
   "method must be named for a metric of your own"),
  (lambda: metrics.calibration_test(_one_bin, np.ones(3, np.float32), np.ones(4, bool), key=KEY), ValueError,
   r"correct must have the shape of confidence: got confidence \(3,\) and correct \(4,\)"),
  (lambda: metrics.consistency_interval(_one_bin, np.ones(3, int), key=KEY), TypeError,
   "confidence must be floating point"),
  (lambda: metrics.consistency_interval(_one_bin, np.ones(3), key=KEY, level=1.5), ValueError, "level must be in"),
])
def test_mistakes_are_named(call, error, message):
  with pytest.raises(error, match=message):
    call()


def _one_bin_where(confidence, correct, *, where):
  """``_one_bin`` of the examples that count."""
  return jnp.abs(jnp.mean(correct.astype(jnp.float32), where=where) - jnp.mean(confidence, where=where))


def test_assess_takes_pairs_of_any_shape():
  confidence, correct = _calibrated(60)
  options = {"key": KEY, "num_resamples": 20}
  actual = metrics.assess(metrics.calibration_error, confidence.reshape(20, 3), correct.reshape(20, 3), **options)
  np.testing.assert_allclose(actual.value, metrics.calibration_error(confidence, correct), rtol=1e-6)
  expected = metrics.assess(metrics.calibration_error, confidence, correct, groups=np.arange(60) // 3, **options)
  np.testing.assert_allclose(actual.estimate, expected.estimate, atol=1e-6)


def test_resamples_without_a_value_are_left_out():
  """A tenth of the examples belong to a group of mean 1: resamples that lack it know nothing of its mean."""
  member = np.arange(10) == 3

  def mean_of_members(member):
    return jnp.sum(member) / jnp.sum(member)

  np.testing.assert_array_equal(metrics.bootstrap(mean_of_members, member, key=KEY, num_resamples=50), 1)


@pytest.mark.parametrize("groups", [None, np.arange(200) // 2])
def test_assess_agrees_with_the_functions_that_it_joins(groups):
  confidence, correct = _calibrated(200)
  correct = correct & (np.arange(200) % 4 > 0)  # Overconfident.
  options = {"key": KEY, "num_resamples": 4000}
  actual = metrics.assess(_one_bin_where, confidence, correct, groups=groups, **options)
  np.testing.assert_allclose(actual.value, abs(correct.mean() - confidence.astype(np.float64).mean()), rtol=1e-5)
  interval = metrics.bootstrap(_one_bin, confidence, correct, groups=groups, method="bias_corrected", **options)
  # Moments of 4,000 resamples differ by some 3% between two draws, and with them the half-width of the interval.
  width = float(interval[2] - interval[1])
  np.testing.assert_allclose([actual.estimate, actual.low, actual.high], interval, atol=0.1 * width)
  floor, low, high = metrics.consistency_interval(_one_bin, confidence, **options)
  np.testing.assert_allclose(actual.floor, floor, atol=5 * float(high - low) / np.sqrt(4000))
  assert float(actual.p_value) == pytest.approx(1 / 4001)


def test_an_interval_depends_on_what_is_passed_and_not_on_how_a_metric_is_called_or_made():
  pair = _calibrated(80)

  def mine(confidence, correct, where=None):
    return metrics.calibration_error(confidence, correct, binning="equal_mass", norm=2, where=where)

  def smooth_mine(confidence, correct, where=None):
    return mine(confidence, correct, where)

  options = {"key": KEY, "num_resamples": 20}
  for bias in ("auto", metrics.bias_model(metrics.calibration_error, norm=2)):
    errors = mine, smooth_mine, EQUAL_MASS
    intervals = [metrics.bootstrap(error, *pair, method="bias_corrected", bias=bias, **options) for error in errors]
    np.testing.assert_allclose(intervals, np.tile(intervals[0], (3, 1)), rtol=1e-6)
  assessed = [metrics.assess(error, *pair, bias=bias, **options) for error in errors]
  np.testing.assert_allclose(assessed, np.tile(assessed[0], (3, 1)), rtol=1e-6)
  conservative = metrics.bootstrap(mine, *pair, method="bias_corrected", bias=metrics.CONSERVATIVE, **options)[2]
  assert conservative == metrics.bootstrap(mine, *pair, method="bias_corrected", **options)[2] > intervals[0][2]


def test_each_error_stands_beside_the_model_of_its_bias():
  model = metrics.bias_model
  assert model(metrics.smooth_calibration_error) == metrics.BiasModel(rate=2 / 3)
  assert model(metrics.calibration_error).sure_part == 0.5 and model(metrics.calibration_error, norm=2).sure_part == 1
  assert model(metrics.ks_calibration_error).margin is not None
  assert model(metrics.calibration_error, **DEBIASED).with_bias.keywords == {**DEBIASED, "debias": False}
  assert COLUMNS["smooth"].bias == model(metrics.smooth_calibration_error)
  with pytest.raises(ValueError, match="error must be a calibration error of calib_jax.metrics"):
    model(metrics.accuracy)
  with pytest.raises(ValueError, match="bias must be \"auto\" or a BiasModel: got 'none'"):
    metrics.bootstrap(jnp.mean, np.ones(3), key=KEY, bias="none")
