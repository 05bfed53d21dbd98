"""Each convention against the tool it is named for: the package itself where it is light, else its recorded numbers."""

import functools
import itertools
import warnings

import jax
import numpy as np
import pytest

from calib_jax import metrics
from calib_jax.metrics import conventions
from tests.metrics import references
from tests.metrics.data import KINDS, pairs

# Of pairs(n, kind, seed=7): torchmetrics 1.9.0 (torch 2.13.0, _ce_compute with 15 bins, l1), netcal 1.4.0 (ECE(10) of
# float64: of float32 values on edges it counts some in one bin and averages them in another), the AdaECE of AdaFocal's
# code with 15 bins, and robustness_metrics' bins by tf.histogram_fixed_width_bins of TensorFlow 2.21.0.
TOOLS = ("torchmetrics", "netcal", "adafocal", "robustness_metrics")
RECORDED = {
  ("mixed", 50): (0.2405536, 0.1869286, 0.2192594, 0.2405536),
  ("mixed", 2000): (0.1081513, 0.1046171, 0.1162487, 0.1081514),
  ("edges", 50): (0.2000000, 0.2120000, 0.1680000, 0.2013333),
  ("edges", 2000): (0.1230166, 0.1213500, 0.1063500, 0.1230167),
  ("ones", 50): (0.2497386, 0.2263902, 0.2127975, 0.2497386),
  ("ones", 2000): (0.1323985, 0.1336810, 0.1273274, 0.1323986),
  ("ties", 50): (0.1880000, 0.1800000, 0.1680000, 0.1880000),
  ("ties", 2000): (0.1099998, 0.1100000, 0.0995000, 0.1100000),
}


def _check(name, samples, expected, atol):
  """A convention of as many samples as ``KINDS`` by JAX, in a program for each size, and of each by NumPy."""
  actual = _compiled(name)(*(np.stack(x) for x in zip(*samples, strict=True)))
  np.testing.assert_allclose(actual, expected, atol=atol, err_msg=name)
  np.testing.assert_allclose([conventions.of_arrays(name, *pair) for pair in samples], expected,
                             atol=atol, err_msg=name)


@functools.cache
def _compiled(name):
  rule = metrics.CONVENTIONS[name]
  return jax.jit(jax.vmap(rule if callable(rule) else functools.partial(metrics.calibration_error, **rule)))


@pytest.mark.parametrize("tool", TOOLS)
def test_recorded_numbers(tool):
  for n in (50, 2000):
    expected = [RECORDED[kind, n][TOOLS.index(tool)] for kind in KINDS]
    _check(tool, [pairs(n, kind, seed=7) for kind in KINDS], expected, atol=2e-6)


def _uncertainty_calibration(confidence, correct):
  import calibration

  return calibration.lower_bound_scaling_ce(confidence.astype(np.float64), correct.astype(int), p=2, debias=True,
                                            num_bins=15)


def _scikit_learn(confidence, correct):
  from sklearn.calibration import calibration_curve

  accuracy, mean = calibration_curve(correct, confidence, n_bins=5)
  bins = np.searchsorted(np.linspace(0, 1, 6)[1:-1], confidence.astype(np.float64))
  counts = np.bincount(bins, minlength=5)
  return np.sum(counts[counts > 0] * np.abs(accuracy - mean)) / len(confidence)


def _mapie(confidence, correct):
  from mapie.metrics.calibration import expected_calibration_error

  return expected_calibration_error(correct.astype(int), confidence, num_bins=50)


def _relplot(confidence, correct):
  import relplot

  return relplot.metrics.binnedECE(confidence, correct.astype(np.float32), nbins=10)


PACKAGES = {"uncertainty_calibration": _uncertainty_calibration, "scikit_learn": _scikit_learn, "mapie": _mapie,
            "relplot": _relplot}


@pytest.mark.parametrize("tool", PACKAGES)
def test_packages_agree(tool):
  for n in (50, 2000):
    samples = [pairs(n, kind, seed=1) for kind in KINDS]
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      expected = [PACKAGES[tool](*pair) for pair in samples]
    _check(tool, samples, expected, atol=3e-6)


@pytest.mark.slow
def test_the_smooth_error_agrees_with_relplot():
  import relplot

  for kind in KINDS:
    confidence, correct = pairs(2000, kind, seed=7)
    confidence = np.clip(confidence, 1e-3, 1 - 1e-3)  # relplot counts half of what lies at exactly 0 or 1.
    expected = relplot.smECE(confidence.astype(np.float64), correct.astype(np.float64))
    # relplot halves its interval of sigma ten times: its result has three digits.
    np.testing.assert_allclose(metrics.smooth_calibration_error(confidence, correct), expected, atol=1e-3)


@pytest.mark.parametrize("name", ["soft_calibration", "guo"])
def test_named_options_are_options_and_frozen(name):
  options = metrics.CONVENTIONS[name]
  samples = [pairs(2000, kind) for kind in KINDS]
  _check(name, samples, [references.calibration_error(*pair, **options) for pair in samples], atol=2e-6)
  with pytest.raises(TypeError):
    options["norm"] = 3
  with pytest.raises(TypeError):
    metrics.CONVENTIONS["mine"] = {}


def test_a_certain_prediction_is_in_the_last_bin_or_in_one_of_its_own():
  pair = np.array([0.95, 1.0], np.float32), np.array([True, False])
  for name in ("torchmetrics", "relplot", "robustness_metrics", "netcal", "scikit_learn"):
    expected = 0.525 if name in ("torchmetrics", "relplot") else 0.475
    np.testing.assert_allclose(conventions.of_arrays(name, *pair), expected, rtol=1e-6, err_msg=name)


def _exam(confidence, correct, last=False):
  """The calibration error of Humanity's Last Exam, by its description; its code leaves out the ``last`` bin."""
  order, count = np.argsort(confidence, kind="stable"), len(confidence)
  edges = [*range(0, count - 99, 100), count]
  gaps = [(b - a) / count * np.mean(confidence[order[a:b]] - correct[order[a:b]], dtype=np.float64)**2
          for a, b in itertools.pairwise(edges)]
  return np.sqrt(sum(gaps if last else gaps[:-1]))


def test_the_error_of_an_exam_leaves_out_its_most_confident_answers():
  for n in (100, 199, 200, 250, 2000):
    samples = [pairs(n, kind, seed=1) for kind in KINDS]
    _check("hle", samples, [_exam(*pair) for pair in samples], atol=2e-6)
  confidence = np.linspace(0, 1, 300, dtype=np.float32)
  wrong, right = (np.where(np.arange(300) < 200, False, x) for x in (False, True))
  assert conventions.of_arrays("hle", confidence, wrong) == conventions.of_arrays("hle", confidence, right) > 0
  assert abs(_exam(confidence, wrong, last=True) - _exam(confidence, right, last=True)) > 0.1
  assert np.isnan(metrics.CONVENTIONS["hle"](confidence[:99], wrong[:99]))


def test_conventions_differ_where_data_can_tell_them_apart():
  sure, correct = pairs(2000, "ones")
  # In the third sample, predictions just below certainty are right more often than they say and certain ones less
  # often: in one bin their gaps cancel. In the fourth, edges are right with the bin above and wrong with that below.
  places = np.random.default_rng(0).integers(0, 30, 2000)
  halves = (places / 30).astype(np.float32), places % 4 < 2
  samples = [pairs(2000, "edges"), pairs(2000, "mixed"), (sure, correct | ((sure > 0.9) & (sure < 1))), halves]
  errors = {name: np.array([conventions.of_arrays(name, *pair) for pair in samples])
            for name in metrics.CONVENTIONS}
  for a, b in itertools.combinations(errors, 2):
    assert np.max(np.abs(errors[a] - errors[b])) > 1e-3, (a, b)
