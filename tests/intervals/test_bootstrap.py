"""Bootstrap intervals: those that correct for bias solve their equations and hold the truth; groups stay whole."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics
from calib_jax.evaluation.columns import COLUMNS
from calib_jax.intervals import bias_correction, bias_models, bootstrap
from experiments import coverage
from tests.intervals.test_calibration_tests import KEY, _calibrated, one_bin

EQUAL_MASS = functools.partial(metrics.calibration_error, binning="equal_mass", norm=2)
DEBIASED = {"binning": "equal_mass", "norm": 2, "debias": True}


def _interval(value, halves, fifths, rate, part, level):
  """The interval of a value and of its halves and rests ``[R, 2]``, and fifths ``[R]``, by either library."""
  moments = bias_correction.moments(halves[:, 0], halves[:, 1], fifths)
  return bias_correction.interval_of_moments(value, *moments, rate, part, level)


def test_a_metric_is_traced_once_for_the_sample_and_its_resamples():
  traced = []

  def metric(confidence, correct, *, where=None):
    traced.append(where)
    return one_bin(confidence, correct, where=where)

  # Of ``assess``, the sample and its redraws, halves, and fifths have a shape each.
  for call, number in ((metrics.bootstrap, 1), (metrics.calibration_test, 1), (metrics.assess, 3)):
    traced.clear()
    call(metric, *_calibrated(50), key=KEY, num_resamples=7)
    assert len(traced) == number


@pytest.mark.parametrize("value", [0.063, 0.02])  # The square of the latter is below half the bias.
@pytest.mark.parametrize(("rate", "part"), [(1.0, 1.0), (1.0, 0.5), (2 / 3, 0.5)])
def test_the_bias_corrected_interval_solves_its_equations(value, rate, part):
  """The moments from the subsamples, and the ends by a fine grid of the truth, in float64."""
  rng = np.random.default_rng(0)
  left, right, fifths = (np.sqrt(rng.gamma(4.0, mean / 4, 4000)) for mean in (0.005, 0.005, 0.01))
  arrays = np.float64(value), np.stack([left, right], 1), fifths, rate
  actual = _interval(*arrays, part, 0.9)
  if (value, rate) == (0.063, 2 / 3):
    single = _interval(*(jnp.asarray(x, jnp.float32) for x in arrays), part, 0.9)
    np.testing.assert_allclose(single, actual, atol=3e-6)
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


def test_the_bias_corrected_interval_does_not_depend_on_the_unit_of_the_metric():
  def ends(unit, rate, fifth):
    half, left_out, value = (np.float32(x) * unit for x in ([0.18, 0.2, 0.19], [0.2, 0.18, 0.19], 0.191))
    halves, fifths = np.stack([half, left_out], axis=1), np.full(3, fifth, np.float32) * unit
    with np.errstate(all="ignore"):  # As ``resamples.intervals`` does.
      return np.array(_interval(value, halves, fifths, np.float32(rate), 0.5, 0.95))

  for rate, fifth in itertools.product((1.0, 2 / 3), (0.19, 0.2)):  # No bias, and some.
    fractions = ends(np.float32(1), rate, fifth)
    assert 0.1 < fractions[1] <= fractions[0] <= fractions[2] < 0.3
    for unit in (100, 1e5, 1e-5):
      np.testing.assert_allclose(ends(np.float32(unit), rate, fifth) / unit, fractions, rtol=1e-5)


def test_halves_and_fifths_of_a_squared_mean_have_the_moments_that_are_assumed():
  """The square of the mean of normal noise around τ: bias σ²/N, V_0 = 2 σ⁴/N² and V_1 = 4 σ²/N."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=1000)
  x = ((x - x.mean()) / x.std(ddof=1) + 0.1).astype(np.float32)  # Its mean and its variance are exactly 0.1 and 1.
  halves, fifths = jax.jit(lambda x: bootstrap.subsampled(jnp.mean, (x,), None, KEY, 4000))(x)
  half, left_out = np.asarray(halves, np.float64).T ** 2
  noise = 1 / 1000
  rtol = 5 * np.sqrt(2 / 4000)  # Five standard errors of a variance.
  np.testing.assert_allclose(((half - left_out) / 2).var(), 0.01 * 4 * noise, rtol=rtol)
  np.testing.assert_allclose(((half + left_out) / 2).var(), 2 * noise**2, rtol=3 * rtol)  # Heavier tails: chi squared.
  np.testing.assert_allclose(((half + left_out) / 2).mean() - 0.01, noise, rtol=rtol)
  np.testing.assert_allclose((np.asarray(fifths, np.float64) ** 2).mean() - 0.01, 4 * noise, rtol=3 * rtol)


def test_the_bias_corrected_interval_holds_the_estimate_and_is_never_below_0():
  options = {"key": KEY, "num_resamples": 100, "method": "bias_corrected"}
  pairs = [_calibrated(120, seed) for seed in range(10)]
  for pair in pairs:
    estimate, low, high = metrics.bootstrap(one_bin, *pair, **options)
    assert 0 <= low <= estimate <= high and estimate < one_bin(*pair)
  debiased, bias = functools.partial(EQUAL_MASS, debias=True), metrics.bias_model(metrics.calibration_error, **DEBIASED)
  intervals = [metrics.bootstrap(debiased, *pair, bias=bias, **options) for pair in pairs]
  assert any(estimate == low == 0 and 0.02 < high < 0.5 for estimate, low, high in intervals)
  for size in (1, 4):  # Fewer examples than halves or fifths need.
    few = metrics.bootstrap(one_bin, *_calibrated(size), key=KEY, num_resamples=10, method="bias_corrected")
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


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model", "repeats"), [
  ("ECE, 15 equal-width bins", "overconfident", 60), ("AURC", "calibrated", 90)])  # By halves, and by percentiles.
def test_intervals_cover_the_true_value(name, model, repeats):
  row, = coverage.coverage(name, model, 300, repeats, resamples=300)
  # 93 to 97% of intervals should, for calibrated models up to 97.5% because 0 is below none; three standard errors.
  margin = 3 * np.sqrt(0.95 * 0.05 / repeats)
  assert 0.93 - margin <= float(row["covered"]) <= 0.975 + margin, row


@pytest.mark.slow
def test_the_interval_of_the_debiased_error_holds_the_truth_of_tied_confidences():
  # Six confidences in fifteen bins: intervals of the clipped square itself held the truth in 60% and 10%.
  debiased, bias = functools.partial(EQUAL_MASS, debias=True), metrics.bias_model(metrics.calibration_error, **DEBIASED)
  values, deltas = jnp.array([0.5, 0.6, 0.7, 0.8, 0.9, 0.97]), jnp.repeat(jnp.array([0, 0.05]), 60)

  def interval(x):
    delta, (of_confidence, of_outcome, of_resamples) = x[0], jax.random.split(x[1], 3)
    confidence = jax.random.choice(of_confidence, values, (300,))
    correct = jax.random.uniform(of_outcome, (300,)) < confidence - delta
    return metrics.bootstrap(debiased, confidence, correct, key=of_resamples, num_resamples=60, method="bias_corrected",
                             bias=bias)

  _, low, high = jax.lax.map(interval, (deltas, jax.random.split(KEY, 120)))
  covers = (low <= deltas + 1e-6) & (deltas <= high)
  assert covers[:60].sum() >= 51 and covers[60:].sum() >= 51


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


def test_resamples_without_a_value_are_left_out():
  """A tenth of the examples belong to a group of mean 1: resamples that lack it know nothing of its mean."""
  interval = metrics.bootstrap(lambda x: jnp.sum(x) / jnp.sum(x), np.arange(10) == 3, key=KEY, num_resamples=50)
  np.testing.assert_array_equal(interval, 1)


def test_an_interval_depends_on_what_is_passed_and_not_on_how_a_metric_is_called_or_made():
  def mine(confidence, correct, where=None):
    return EQUAL_MASS(confidence, correct, where=where)

  def smooth_mine(confidence, correct, where=None):
    return mine(confidence, correct, where)

  model = metrics.bias_model(metrics.calibration_error, norm=2)
  for error in (mine, smooth_mine, EQUAL_MASS):
    assert bias_models.resolved("auto", error) == metrics.CONSERVATIVE and bias_models.resolved(model, error) is model
  options = {"key": KEY, "num_resamples": 20, "method": "bias_corrected"}
  high, conservative = (metrics.bootstrap(mine, *_calibrated(80), bias=bias, **options)[2]
                        for bias in (model, metrics.CONSERVATIVE))
  assert conservative > high == metrics.bootstrap(smooth_mine, *_calibrated(80), bias=model, **options)[2]


def test_each_error_stands_beside_the_model_of_its_bias():
  model = metrics.bias_model
  assert model(metrics.smooth_calibration_error) == metrics.BiasModel(rate=2 / 3)
  assert model(metrics.calibration_error).sure_part == 0.5 and model(metrics.calibration_error, norm=2).sure_part == 1
  assert model(metrics.ks_calibration_error).margin is not None
  assert model(metrics.calibration_error, **DEBIASED).with_bias.keywords == {**DEBIASED, "debias": False}
  assert COLUMNS["smooth"].bias == model(metrics.smooth_calibration_error)


ONES = np.ones(3, np.float32)


@pytest.mark.parametrize(("call", "error", "message"), [
  (lambda: metrics.bias_model(metrics.accuracy), ValueError, "must be a calibration error of calib_jax.metrics"),
  (lambda: metrics.BiasModel(rate=0), ValueError, r"rate must be in \(0, 1\]: got 0"),
  (lambda: metrics.BiasModel(sure_part=2), ValueError, r"sure_part must be in \[0, 1\]: got 2"),
  (lambda: metrics.bootstrap(jnp.mean, ONES, key=KEY, bias="none"), ValueError,
   "bias must be \"auto\" or a BiasModel: got 'none'"),
  (lambda: metrics.bootstrap(jnp.mean, ONES, key=KEY, method="basic"), ValueError,
   "method must be one of 'percentile', 'bias_corrected': got 'basic'"),
  (lambda: metrics.bootstrap(jnp.mean, ONES, ONES[:2], key=KEY), ValueError, "arrays must share their first"),
  (lambda: metrics.bootstrap(jnp.mean, ONES, key=KEY, level=1.0), ValueError, r"level must be in \(0, 1\)"),
  (lambda: metrics.bootstrap(jnp.mean, ONES, key=KEY, groups=np.ones(4, int)), ValueError,
   r"groups must be integers of shape \(3,\)"),
  (lambda: metrics.paired_difference(jnp.mean, [ONES], [], key=KEY), ValueError, "got 1 and 0"),
  (lambda: metrics.paired_difference(metrics.classwise_calibration_error, [ONES], [ONES], key=KEY), ValueError,
   "method must be named for class-wise errors"),
  (lambda: metrics.paired_difference(one_bin, [ONES], [ONES], key=KEY), ValueError,
   "method must be named for a metric of your own"),
  (lambda: metrics.calibration_test(one_bin, ONES, np.ones(4, bool), key=KEY), ValueError,
   r"correct must have the shape of confidence: got confidence \(3,\) and correct \(4,\)"),
  (lambda: metrics.consistency_interval(one_bin, np.ones(3, int), key=KEY), TypeError, "must be floating point"),
  (lambda: metrics.consistency_interval(one_bin, ONES, key=KEY, level=1.5), ValueError, "level must be in"),
])
def test_mistakes_are_named(call, error, message):
  with pytest.raises(error, match=message):
    call()
