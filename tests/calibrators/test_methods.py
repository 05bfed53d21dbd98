"""Each method's own formula and search, against references in float64 written from the papers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special
from sklearn import isotonic

from calib_jax import calibrators, losses
from calib_jax._numerics.softmax import log_softmax
from calib_jax._numerics.temperature import solve_nll
from tests.calibrators.data import SHAPE, made, padded, real, synthetic
from tests.metrics import references


def _focal_map(q, gamma):
  """Eq. 1 of Komisarenko & Kull 2024."""
  inverse = (1 - q)**gamma / q - gamma * (1 - q)**(gamma - 1) * np.log(q)
  return 1 / inverse / (1 / inverse).sum(1, keepdims=True)


def _equal_mass_ece(p, labels):
  return references.calibration_error(p.max(1), p.argmax(1) == labels, binning="equal_mass")


@pytest.mark.parametrize("gamma", [-0.7, 5.0])
def test_focal_calibration_is_the_papers_map(gamma):
  logits, _ = synthetic(50, 4, scale=1.0)
  expected = _focal_map(special.softmax(logits.astype(np.float64), axis=1), gamma)
  np.testing.assert_allclose(np.exp(made("focal_calibration", gamma=gamma).apply({}, logits)), expected, atol=2e-6)


@pytest.mark.parametrize("objective", ["ece", "nll"])
def test_the_grid_is_searched_whole(objective):
  logits, labels = synthetic(120, 3, scale=1.0)
  params = calibrators.focal_temperature_scaling(objective=objective).fit(logits, labels)
  best = np.inf
  for t in (np.arange(1, 501) / 100)[9:]:  # Below 0.1 all is certain.
    q = special.softmax(logits.astype(np.float64) / t, axis=1)
    for gamma in (-0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1, 5):
      p = _focal_map(q, gamma)
      nll = -np.mean(np.log(p[np.arange(120), labels]))
      best = min(best, nll if objective == "nll" else _equal_mass_ece(p, labels))
  assert params["iterations"] == 4500
  np.testing.assert_allclose(params["value"], best, rtol=2e-4, atol=2e-6)


@pytest.mark.xdist_group("fit focal_temperature_scaling")
def test_the_value_reported_is_that_of_the_output():
  calibrator = made("focal_temperature_scaling", search="line")
  logits, labels, where = padded("real")
  params = calibrator.fit(logits, labels, where=where)
  log_probs = calibrator.apply(params, np.where(where[:, None], logits, 0))
  p, labels = np.exp(np.asarray(log_probs, np.float64))[where], labels[where]
  np.testing.assert_allclose(params["value"], _equal_mass_ece(p, labels), rtol=2e-3, atol=2e-5)


@pytest.mark.slow
def test_the_gradient_search_lowers_the_soft_binned_error():
  logits, labels = synthetic(120, 3, scale=1.0)
  params = calibrators.focal_temperature_scaling(search="gradient").fit(logits, labels)
  start = calibrators.temperature_scaling().fit(logits, labels)["temperature"]
  assert params["value"] <= losses.soft_binned_ece(logits / start, labels, form="bin") + 1e-6
  assert params["temperature"] > 0 and params["gamma"] > -1


@pytest.mark.slow
def test_the_gradient_search_ends_in_an_optimum():
  logits, labels = real()
  params = calibrators.focal_temperature_scaling(objective="nll", search="gradient").fit(logits, labels)

  def value(x):
    p = _focal_map(np.clip(special.softmax(logits.astype(np.float64) / x[0], axis=1), 1e-300, 1 - 1e-15), x[1])
    return -np.mean(np.log(p[np.arange(len(p)), labels]))

  start = [float(params["temperature"]), float(params["gamma"])]
  best = optimize.minimize(value, start, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-10})
  assert params["converged"] and value(start) - best.fun <= 1e-4 * best.fun


@pytest.mark.parametrize(("n", "k", "decimals"), [(300, 3, 1), (200, 2, 6)])
def test_isotonic_is_scikit_learns(n, k, decimals):
  rng = np.random.default_rng(0)
  p = np.round(rng.dirichlet(np.ones(k), n), decimals).clip(1e-3)
  p = (p / p.sum(1, keepdims=True)).astype(np.float32)
  labels = np.where(rng.uniform(size=n) < 0.7, p.argmax(1), rng.integers(0, k, n))
  test = rng.dirichlet(np.ones(k), 80).astype(np.float32)
  calibrator = calibrators.isotonic()
  actual = np.exp(calibrator.apply(calibrator.fit(np.log(p), labels), np.log(test)))
  # As rounded within: which values tie, and on which side of a step they lie, is then the same.
  p, test = (np.exp(log_softmax(jnp.log(x))[0]) for x in (p, test))
  p, test = p.astype(np.float64), test.astype(np.float64)  # Of float32, scikit-learn takes neighbours for ties.
  columns = [isotonic.IsotonicRegression(out_of_bounds="clip").fit(p[:, c], labels == c).predict(test[:, c])
             for c in range(k)]
  expected = np.stack(columns, 1).clip(1e-6)
  np.testing.assert_allclose(actual, expected / expected.sum(1, keepdims=True), atol=2e-5)


def test_histogram_binning_gives_each_bin_its_share():
  logits, labels = synthetic(303, 3)
  p = special.softmax(logits.astype(np.float64), axis=1)
  params = calibrators.histogram_binning(10).fit(logits, labels)
  for c in range(3):
    groups = np.array_split(np.argsort(p[:, c], kind="stable"), 10)
    np.testing.assert_allclose(params["values"][c], [(labels[g] == c).mean() for g in groups], atol=1e-6)
    middles = [(p[a[-1], c] + p[b[0], c]) / 2 for a, b in itertools.pairwise(groups)]
    np.testing.assert_allclose(params["edges"][c][1:-1], middles, rtol=1e-4, atol=1e-7)


def test_histogram_binning_in_equal_widths_gives_each_bin_its_share_and_empty_ones_their_middle():
  logits, labels = synthetic(303, 3)
  p = np.exp(np.asarray(log_softmax(jnp.asarray(logits))[0]))
  params = calibrators.histogram_binning(120, binning="equal_width").fit(logits, labels)
  edges = np.linspace(0, 1, 121, dtype=np.float32)
  for c in range(3):
    inside = (p[:, c, None] > edges[:-1]) & (p[:, c, None] <= edges[1:])
    assert not inside.any(0).all()
    with np.errstate(invalid="ignore"):
      shares = (inside & (labels == c)[:, None]).sum(0) / inside.sum(0)
    np.testing.assert_allclose(params["values"][c], np.where(inside.any(0), shares, edges[:-1] + 1 / 240), atol=1e-6)
  on_edge = calibrators.histogram_binning(2, binning="equal_width").fit(np.zeros((4, 2), np.float32), [0, 0, 0, 1])
  np.testing.assert_allclose(on_edge["values"][1], [0.25, 0.75])  # 1/2 is of the lower bin, and the upper one is empty.


@pytest.mark.parametrize("name", [
  pytest.param(name, marks=[pytest.mark.xdist_group(f"fit top {name}"), *[pytest.mark.slow] * (name == "platt")])
  for name in ("isotonic", "histogram_binning", "platt")])
def test_top_label_variants_move_the_confidence_and_share_the_rest(name):
  logits, labels = synthetic(*SHAPE)
  calibrator = made(name, top_label=True)
  params = calibrator.fit(logits, labels, where=np.ones(len(labels), bool))
  actual = np.exp(np.asarray(calibrator.apply(params, logits), np.float64))
  p, top = special.softmax(logits.astype(np.float64), axis=1), logits.argmax(1)
  rows = np.arange(len(labels))
  others = np.arange(SHAPE[1]) != top[:, None]
  rest = (p * others) / (p * others).sum(1, keepdims=True)
  np.testing.assert_allclose(actual * others, rest * (1 - actual[rows, top])[:, None], atol=2e-5)
  if name == "platt":  # Its mean is that of the data: the gradient in the bias is 0.
    np.testing.assert_allclose(actual[rows, top].mean(), (labels == top).mean(), atol=1e-4)


@pytest.mark.slow
def test_meta_calibration_keeps_to_its_constraints():
  rng = np.random.default_rng(0)
  logits = (3 * rng.normal(size=(40_000, 5))).astype(np.float32)
  labels = (special.softmax(logits / 1.5, axis=1).cumsum(1) < rng.uniform(size=(40_000, 1))).sum(1).clip(0, 4)
  fit, test = slice(0, 20_000), slice(20_000, None)
  for seed in range(3):
    calibrator = calibrators.meta_calibration("miscoverage", target=0.1, seed=seed)
    params = calibrator.fit(logits[fit], labels[fit])
    right = logits[test].argmax(1) == labels[test]
    uniform = np.ptp(np.asarray(calibrator.apply(params, logits[test])), axis=1) == 0
    assert abs(uniform[right].mean() - 0.1) < 0.05  # The threshold knows 500 examples: 0.1 ± 0.013.
    calibrator = calibrators.meta_calibration("accuracy", target=0.9, seed=seed)
    params = calibrator.fit(logits[fit], labels[fit])
    uniform = np.ptp(np.asarray(calibrator.apply(params, logits[test])), axis=1) == 0
    assert 0.1 < uniform.mean() < 0.9 and abs(right[~uniform].mean() - 0.9) < 0.05


def test_the_temperature_of_logits_in_chunks_is_the_root_of_the_slope(monkeypatch):
  logits, labels = synthetic(307, 5)
  weights = np.random.default_rng(1).uniform(0, 2, 307) / 307
  z = logits.astype(np.float64) - logits.max(1, keepdims=True)

  def slope(log_b):
    p = np.exp(np.exp(log_b) * z)
    return weights @ ((p * z).sum(1) / p.sum(1) - z[np.arange(307), labels])

  expected = np.exp(-optimize.brentq(slope, -3, 3, xtol=1e-12))
  for at_once in (5 * 307, 5 * 100, 5):
    monkeypatch.setattr("calib_jax._numerics.temperature.AT_ONCE", at_once)
    actual = jax.jit(lambda *arrays: solve_nll(*arrays))(logits, labels, weights.astype(np.float32))
    assert actual["converged"] and actual["iterations"] < 10
    np.testing.assert_allclose(actual["temperature"], expected, rtol=5e-6)


@pytest.mark.parametrize("name", [pytest.param("matrix_scaling", marks=pytest.mark.slow), "dirichlet"])
def test_a_feature_that_is_0_in_every_row_has_no_weight_in_the_fit(name):
  """Binary scores ``[0, s]`` have one; log-probabilities have one where a class is certain."""
  second = np.array([2.0, -1, 3, -2, 1, -3, 0.5, -0.5], np.float32)
  logits, labels = np.stack([np.zeros(8, np.float32), second], axis=1), np.array([1, 0, 1, 1, 0, 0, 1, 0])
  if name == "dirichlet":
    logits = logits - np.array([0, 100], np.float32)  # log p of the first class rounds to 0.
  calibrator = made(name)
  params = calibrator.fit(logits, labels)
  log_probs = np.asarray(calibrator.apply(params, logits))
  assert params["converged"] and np.isfinite(log_probs).all()
  assert -log_probs[np.arange(8), labels].mean() < np.log(2)
