"""Temperature scaling: its true optimum against scipy in float64, and at the edges."""

import functools

import jax
import numpy as np
import pytest
from scipy import optimize, special

from calib_jax import calibrators, losses, metrics
from tests.calibrators.data import SHAPE, made, synthetic

EPS = float(np.finfo(np.float32).eps)


def _nll(log_t, logits, labels):
  scaled = logits.astype(np.float64) / np.exp(log_t)
  return np.mean(special.logsumexp(scaled, axis=1) - scaled[np.arange(len(labels)), labels])


@pytest.mark.xdist_group("fit temperature_scaling")
@pytest.mark.parametrize(("n", "k"), [(500, 10), *(pytest.param(n, k, marks=pytest.mark.slow)
                                                  for n, k in ((50, 2), (300, 100), (400, 1000)))])
def test_nll_reaches_the_optimum_of_scipy_at_any_scale(n, k):
  logits, labels = synthetic(n, k)
  where = np.arange(SHAPE[0] if k == SHAPE[1] else n) < n
  for scale in (1e-3, 0.3, 2.0, 20.0, 9e3 / np.ptp(logits, axis=1).max()):  # At 1e4 a row lacks the class.
    scaled = (scale * logits).astype(np.float32)
    padding = len(where) - n
    params = made("temperature_scaling").fit(np.pad(scaled, ((0, padding), (0, 0)), constant_values=np.nan),
                                             np.pad(labels, (0, padding)), where=where)
    best = optimize.minimize_scalar(_nll, bounds=np.log(scale) + np.array([-3, 4]), args=(scaled, labels),
                                    method="bounded", options={"xatol": 1e-10})
    actual = _nll(np.log(float(params["temperature"])), scaled, labels)
    assert params["converged"] and params["iterations"] < 40
    assert actual - best.fun < 16 * EPS * max(best.fun, 1)
    np.testing.assert_allclose(params["temperature"], np.exp(best.x), rtol=2e-3)


AVUC = functools.partial(losses.soft_avuc, threshold=0.3)
OBJECTIVES = {
  "label": ("soft_binned_ece", {"form": "label"}, losses.soft_binned_ece),
  "bin": ("soft_binned_ece", {"num_bins": 10}, functools.partial(losses.soft_binned_ece, form="bin", num_bins=10)),
  "hard": ("ece", {}, lambda z, y: metrics.adaptive_calibration_error(jax.nn.softmax(z), y)),
  "hard, equal width": ("ece", {"binning": "equal_width", "norm": 2, "num_bins": 10},
                        lambda z, y: metrics.expected_calibration_error(jax.nn.softmax(z), y, norm=2, num_bins=10)),
  "a function": (AVUC, {}, AVUC),
}


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case != "bin"))
                                  for case in OBJECTIVES])
def test_calibration_objectives_are_no_worse_than_a_dense_grid(case):
  objective, options, function = OBJECTIVES[case]
  logits, labels = synthetic(400, 5)
  params = calibrators.temperature_scaling(objective, **options).fit(logits, labels)
  centre = float(calibrators.temperature_scaling().fit(logits, labels)["temperature"])
  value = jax.jit(lambda t: jax.lax.map(lambda t: function(logits / t, labels), t))
  grid = centre * np.exp(np.linspace(-2.3, 2.3, 400))
  ours, *others = value(np.concatenate([[params["temperature"]], grid]).astype(np.float32))
  # A piecewise constant objective has optima narrower than any grid; a smooth one is found to 1e-4.
  slack = 2e-3 if case.startswith("hard") else 1e-4 * min(others)
  assert ours <= min(others) + slack
  assert np.isfinite(params["temperature"]) and params["iterations"] > 100


@pytest.mark.parametrize("rows", [
  "alike", "the sample is all right", "the sample is all wrong", "the sample is masked"])
def test_many_rows_are_fitted_from_the_optimum_of_a_sample(rows):
  """Of 1,000 rows or more, every 16th gives the start; wherever that is, the optimum is that of all rows."""
  logits, labels = synthetic(100, 3)
  logits, labels = np.repeat(logits, 16, axis=0), np.repeat(labels, 16)
  where, sample = np.ones(1600, bool), slice(None, None, 16)
  if rows == "the sample is masked":
    where[sample] = False
  elif rows != "alike":
    labels[sample] = (logits.argmax(1) if rows == "the sample is all right" else logits.argmin(1))[sample]
  params = made("temperature_scaling").fit(logits, labels, where=where)
  best = optimize.minimize_scalar(_nll, bounds=(-3, 4), args=(logits[where], labels[where]), method="bounded",
                                  options={"xatol": 1e-10})
  assert params["converged"] and params["iterations"] <= (2 if rows == "alike" else 4)
  np.testing.assert_allclose(params["temperature"], np.exp(best.x), rtol=1e-5)


@pytest.mark.xdist_group("fit temperature_scaling")
@pytest.mark.parametrize(("edge", "expected"), [("all wrong", 1e4), ("constant", None)])
def test_without_an_optimum_the_temperature_is_the_documented_bound(edge, expected):
  """The bounds are in units of the mean spread, top minus mean, of the logits that count."""
  logits, labels = synthetic(*SHAPE)
  spread = np.mean(logits.max(1) - logits.mean(1))
  labels = logits.argmin(1) if edge == "all wrong" else labels
  if edge == "constant":
    logits = np.full_like(logits, 5.0)
  params = made("temperature_scaling").fit(logits, labels, where=np.ones(SHAPE[0], bool))
  assert params["converged"]
  np.testing.assert_allclose(params["temperature"], expected * spread if expected else 1, rtol=1e-3)


@pytest.mark.parametrize("rows", [
  "all", "weighted", "masked", "of other classes", pytest.param("many", marks=pytest.mark.slow)])
def test_of_examples_that_are_all_right_the_labels_are_mixed_with_equal_probabilities(rows):
  logits, _ = synthetic(*((2000, 3) if rows == "many" else SHAPE))
  weights = np.ones(len(logits))
  if rows == "weighted":
    weights = np.arange(len(logits)) % 4.0
  if rows == "masked":
    weights[::3] = 0
  if rows == "of other classes":
    logits[:7, 0] = -np.inf
  n, z = weights.sum(), np.float64(logits)
  size = np.isfinite(z).sum(1)

  def nll(log_t):
    log_p = special.log_softmax(z / np.exp(log_t), axis=1)
    mean = np.where(np.isfinite(z), log_p, 0).sum(1) / size
    return -np.sum(weights * (n * log_p.max(1) + mean)) / (n + 1) / n

  best = optimize.minimize_scalar(nll, bounds=(-10, 10), method="bounded", options={"xatol": 1e-10})
  for name in ("temperature_scaling", "ensemble_temperature_scaling"):
    params = made(name).fit(logits, logits.argmax(1), **{"weights": weights} if rows == "weighted" else
                            {"where": weights > 0})
    assert params["converged"] and params["at_bound"]
    np.testing.assert_allclose(params["temperature"], np.exp(best.x), rtol=1e-5)
