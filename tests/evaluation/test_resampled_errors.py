"""Errors of resamples in NumPy: the references' values for every resample's examples, and the draws of ``metrics``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics
from calib_jax.evaluation import resampled_detection, resampled_errors
from calib_jax.intervals import resamples
from tests.metrics import references
from tests.metrics.data import KINDS, pairs

NUM_BINS = 7
BIASES = {"ece": metrics.BiasModel(sure_part=0.5), "ks": metrics.BiasModel(rate=2 / 3, sure_part=0.5)}
ERRORS = {
  "equal width": (resampled_errors.binned_error, references.calibration_error, {}),
  "max": (resampled_errors.binned_error, references.calibration_error, {"norm": "max"}),
  "equal mass": (resampled_errors.binned_error, references.calibration_error, {"binning": "equal_mass"}),
  "norm 2": (resampled_errors.binned_error, references.calibration_error, {"binning": "equal_mass", "norm": 2}),
  "debiased": (resampled_errors.binned_error, references.calibration_error,
               {"binning": "equal_mass", "norm": 2, "debias": True}),
  "ks": (resampled_errors.ks, references.ks_calibration_error, None),
  "sweep": (resampled_errors.sweep, references.sweep_calibration_error, None),
}


def _resamples(kind, size=40):
  """Examples, and masks and counts of several resamples: all, a random half, one example, and two with repeats."""
  rng = np.random.default_rng(3)
  counts = [np.ones(size, int), rng.uniform(size=size) < 0.5, np.arange(size) == 5,
            rng.multinomial(size, np.full(size, 1 / size)), 2 * (np.arange(size) % 3 == 0)]
  return *pairs(size, kind), np.stack(counts)


@pytest.mark.parametrize("kind", KINDS)
def test_the_errors_of_resamples_are_those_of_their_examples(kind):
  confidence, correct, counts = _resamples(kind)
  sums = resampled_errors.Ordered(confidence, NUM_BINS).sums(counts, correct)
  for name, (error, reference, options) in ERRORS.items():
    bins = {} if options is None else {"num_bins": NUM_BINS}
    expected = [reference(*(np.repeat(x, row) for x in (confidence, correct)), **(options or {}), **bins)
                for row in counts]
    np.testing.assert_allclose(error(sums, **(options or {})), expected, rtol=1e-6, atol=1e-9, err_msg=name)


def test_the_smooth_error_is_that_of_the_kernel():
  confidence, correct, counts = _resamples("ties", 60)
  actual = resampled_errors.smooth(resampled_errors.Ordered(confidence, NUM_BINS).sums(counts, correct))
  expected = [references.smooth_calibration_error(*(np.repeat(x, row) for x in (confidence, correct)))
              for row in counts]
  np.testing.assert_allclose(actual, expected, rtol=5e-4)


def test_a_sweep_through_examples_in_order_takes_each_as_a_bin():
  confidence = np.linspace(0.1, 0.9, 100, dtype=np.float32)  # More than ``MANY``.
  for correct in (np.arange(100) >= 11, np.zeros(100, bool)):
    sums = resampled_errors.Ordered(confidence, NUM_BINS).sums(np.ones((1, 100), int), correct)
    actual = resampled_errors.sweep(sums)
    np.testing.assert_allclose(actual, np.sqrt(np.mean((correct - confidence.astype(np.float64))**2)), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_risk_of_a_tie_is_the_mean_over_its_orders(kind):
  confidence, correct, counts = _resamples(kind)
  risks = (0.2, 0.4)
  actual = resampled_errors.risk_coverage(*resampled_errors.Ordered(confidence, NUM_BINS).steps(correct)(counts), risks)
  for row, values in zip(counts, actual, strict=True):
    c, wrong = np.repeat(confidence, row), ~np.repeat(correct, row)
    size, (curve, best) = np.arange(1, len(c) + 1), (references.risk_coverage(score, wrong) for score in (c, ~wrong))
    np.testing.assert_allclose(values[:2], [curve.mean(), (curve - best).mean()], rtol=1e-9, atol=1e-12)
    for risk, coverage in zip(risks, values[2:], strict=True):
      np.testing.assert_allclose(coverage, max(size[curve <= risk + 1e-12], default=0) / len(c), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_cells_of_blocks_have_the_sums_of_the_examples_of_the_blocks(kind):
  confidence, correct, _ = _resamples(kind, 60)
  block = np.random.default_rng(0).permutation(60) % 8
  counts = np.stack([np.ones(8, int), np.arange(8) % 3, np.arange(8) == 5])
  ordered = resampled_errors.Ordered(confidence, NUM_BINS)
  cells = resampled_errors.Blocks(confidence, correct, block, NUM_BINS, num_cells=60)  # As many as confidences.
  redrawn = np.stack([correct, ~correct])
  for actual, expected in ((cells.sums(counts, correct), ordered.sums(counts[:, block], correct)),
                          (cells.sums(counts[:1], redrawn), ordered.sums(np.ones((1, 60), bool), redrawn))):
    for name, (error, _, options) in ERRORS.items():
      np.testing.assert_allclose(error(actual, **(options or {})), error(expected, **(options or {})), rtol=1e-6,
                                 atol=1e-9, err_msg=name)
    np.testing.assert_allclose(resampled_errors.smooth(actual), resampled_errors.smooth(expected), rtol=1e-5, atol=1e-9)
  actual, expected = (resampled_errors.risk_coverage(*steps, (0.2, 0.4)) for steps in (
    cells.steps(correct)(counts), ordered.steps(correct)(counts[:, block])))
  np.testing.assert_allclose(actual, expected, rtol=1e-9)
  # A few cells keep the sums of equal-width bins.
  few = resampled_errors.Blocks(confidence, correct, block, NUM_BINS, num_cells=5)
  assert len(few.values) < 5 + NUM_BINS and few.exact.sums(counts[:1, block], correct).size[0, -1] == 60
  for actual, expected in zip(few.sums(counts[:1], correct).equal_width, ordered.sums(
      counts[:1, block], correct).equal_width, strict=True):
    np.testing.assert_allclose(actual, expected, atol=1e-7)


@pytest.mark.parametrize(("size", "groups", "name"), [(203, np.arange(203) // 3, "ks"), (1, None, "ece")])
def test_assess_draws_and_computes_what_metrics_does(size, groups, name, monkeypatch):
  monkeypatch.setattr(resamples, "LEAST_REDRAWS", 1)
  monkeypatch.setattr(resamples, "BATCH", 203 * 7)  # Seven resamples at a time, which 40 is no multiple of.
  samples = [pairs(size, "ties", seed) for seed in range(2)]
  confidence, correct = (np.stack(x, axis=1) for x in zip(*samples, strict=True))
  key = jax.random.key(5)
  errors = {"ece": (resampled_errors.binned_error, 40), "ks": (resampled_errors.ks, 12)}
  ordered = [resampled_errors.Ordered(x, 15) for x in confidence.T]
  actual = resamples.errors_of_rows(errors, {"row": (confidence, correct, ordered)}, key=key, groups=groups)["row"]
  ends = resamples.intervals(actual, BIASES)
  function = {"ece": metrics.calibration_error, "ks": metrics.ks_calibration_error}[name]

  def error(c, a, *, where):
    seeds = [function(c[:, i], a[:, i], where=where[:, i]) for i in (0, 1)]
    return jnp.stack([sum(seeds) / 2, *seeds])

  expected = metrics.assess(error, confidence, correct, key=key, num_resamples=errors[name][1], groups=groups,
                            bias=BIASES[name])
  numbers = [actual[name].value, *ends[name], actual[name].floor, actual[name].p_value]
  np.testing.assert_allclose(numbers, np.stack(expected), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("groups", [None, np.arange(101) % 40])
def test_percentiles_are_those_of_the_bootstrap(groups, monkeypatch):
  monkeypatch.setattr(resamples, "BATCH", 101 * 9)
  x = np.random.default_rng(0).normal(size=101)
  key = jax.random.key(2)

  def mean(x, *, where=None):
    return jnp.mean(x, where=where)

  actual = resamples.percentile(lambda counts: counts @ x / counts.sum(1), 101, key=key, num_resamples=50,
                                groups=groups)
  np.testing.assert_allclose(actual, metrics.bootstrap(mean, x, key=key, num_resamples=50, groups=groups), atol=1e-6)


def test_subsamples_are_those_of_the_bias_corrected_bootstrap():
  x = np.random.default_rng(0).normal(0.1, size=(64, 3))
  key = jax.random.key(1)
  actual = resamples.bias_corrected(lambda counts: np.abs(counts @ x / counts.sum(1, keepdims=True)),
                                   resamples.subsamples(64, key, 30))
  expected = metrics.bootstrap(lambda x: jnp.abs(jnp.mean(x, axis=0)), x, key=key, num_resamples=30,
                               method="bias_corrected", bias=BIASES["ece"])
  ends = resamples.intervals({"mean": actual}, {"mean": BIASES["ece"]})["mean"]
  np.testing.assert_allclose(ends, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("step", [0, 0.25])
def test_the_separation_of_resamples_is_that_of_their_examples(step):
  """Against all pairs and all thresholds, with and without ties, and where a set is missing."""
  rng = np.random.default_rng(0)
  inside, outside = rng.normal(0.7, size=30), rng.normal(size=50)
  inside, outside = (np.round(x / step) * step if step else x for x in (inside, outside))
  drawn = rng.multinomial(80, np.full(80, 1 / 80), size=4)
  counts = np.concatenate([np.ones((1, 80), int), drawn, np.arange(80)[None] < 30])
  actual = resampled_detection.Separation(inside, outside).measures(*np.split(counts.astype(np.int32), [30], axis=1))
  assert np.isnan(actual[-1]).all()
  for row, values in zip(counts[:-1], actual[:-1], strict=True):
    scores, is_inside = np.repeat(np.concatenate([inside, outside]), row), np.repeat(np.arange(80) < 30, row)
    expected = [references.auroc(scores, is_inside), references.fpr_at_tpr(scores, is_inside),
                references.fpr_at_tpr(-scores, ~is_inside)]
    np.testing.assert_allclose(values, expected, rtol=1e-6)


def test_few_resamples_have_enough_redraws_for_a_p_value_of_one_of_four_tests():
  confidence = np.full((200, 1), 0.99, np.float32)
  correct = np.arange(200)[:, None] % 2 == 0
  errors = {"ece": (resampled_errors.binned_error, 20)}
  ordered = [resampled_errors.Ordered(confidence[:, 0], 15)]
  error = resamples.errors_of_rows(errors, {"row": (confidence, correct, ordered)}, key=jax.random.key(0))["row"]["ece"]
  assert error.p_value[0] == pytest.approx(1 / 101) and error.noise.shape == (20,)
