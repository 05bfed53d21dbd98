"""Calibrators of one probability at a time, and label shift, against their definitions."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special
from sklearn import isotonic, linear_model

from calib_jax import calibrators
from calib_jax.calibrators import one_vs_rest, shift, venn
from tests.calibrators.data import made, synthetic

SHAPE = (200, 3)
SEEDS = (0, 1, 2, 3, 6, 7, 10, 11)  # Of ``_columns``.


def _probs(logits):
  return special.softmax(logits.astype(np.float64), axis=1)


def _renormalised(values):
  values = np.clip(np.stack(values, axis=1), 1e-6, 1)
  return values / values.sum(1, keepdims=True)


def _columns(seed):
  """Scores with ties, events and weights, of every kind: one example, one outcome alone, no ties."""
  rng = np.random.default_rng(seed)
  n = (1, 2, 7, 40)[seed % 4]
  x = np.round(rng.uniform(size=n), rng.integers(1, 4))
  y = (rng.uniform(size=n) < (x if seed % 5 else float(seed > 5))).astype(float)
  return x, y, rng.integers(1, 4, n).astype(float)


def test_quadratic_scaling_is_the_logistic_regression_of_the_log_odds_and_their_squares():
  for shape in (SHAPE, (300, 2)):
    logits, labels = synthetic(*shape)
    params = calibrators.quadratic_scaling().fit(logits, labels)
    p = _probs(logits)
    odds = np.log(p) - np.log1p(-p)
    test = _probs(synthetic(50, shape[1], seed=1)[0])
    test_odds, expected = np.log(test) - np.log1p(-test), []
    for k in range(shape[1]):
      model = linear_model.LogisticRegression(C=np.inf, max_iter=10_000, tol=1e-10).fit(
        np.stack([odds[:, k], odds[:, k]**2], 1), labels == k)
      expected.append(model.predict_proba(np.stack([test_odds[:, k], test_odds[:, k]**2], 1))[:, 1])
    actual = made("quadratic_scaling").apply(params, synthetic(50, shape[1], seed=1)[0])
    assert params["converged"]
    np.testing.assert_allclose(np.exp(actual), _renormalised(expected), atol=2e-3)


@pytest.mark.parametrize("name", [
  pytest.param("platt", marks=pytest.mark.slow), "quadratic_scaling", "beta_calibration"])
def test_with_two_classes_it_does_not_matter_which_is_first(name):
  # One fit serves both classes: its mirror image is the fit to the other class.
  logits, labels = synthetic(300, 2)
  logits[:, 0] += 1
  calibrator = made(name)
  params, exchanged = calibrator.fit(logits, labels), calibrator.fit(logits[:, ::-1], 1 - labels)
  for key in sorted(set(params) & set("abc") | set(params) & {"scale", "bias"}):
    assert abs(params[key]).max() > 5e-3
    np.testing.assert_allclose(params[key], exchanged[key][::-1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_venn_abers_steps_are_the_isotonic_regressions_with_one_more_example(seed):
  x, y, weights = _columns(seed)
  values, p0, p1 = venn._steps(x, y, weights, venn._with_one_more)
  for score in (*values, 0.0, 1.0, *np.random.default_rng(seed).uniform(size=3)):
    for label, actual in ((0, p0[np.searchsorted(values, score, side="right")]),
                          (1, p1[np.searchsorted(values, score, side="left")])):
      model = isotonic.IsotonicRegression().fit(np.append(x, score), np.append(y, label), np.append(weights, 1))
      np.testing.assert_allclose(actual, model.predict([score])[0], atol=1e-12)


def _venn_abers_reference(p, y, test):
  """Two isotonic regressions for each example; of several parts the geometric means."""
  merged = []
  for score in test:
    pairs = [[isotonic.IsotonicRegression().fit(np.append(x, score), np.append(a, b)).predict([score])[0]
              for b in (0, 1)] for x, a in zip(p, y, strict=True)]
    p0, p1 = np.array(pairs).T
    happens, fails = np.exp(np.mean(np.log(p1))), np.exp(np.mean(np.log(1 - p0)))
    merged.append(happens / (happens + fails))
  return np.array(merged)


@pytest.mark.parametrize("kind", ["inductive", "cross"])
def test_venn_abers_merges_its_probabilities(kind):
  logits, labels = synthetic(60, 3)
  test = synthetic(4, 3, seed=1)[0]
  calibrator = calibrators.venn_abers(kind, folds=3)
  actual = np.exp(calibrator.apply(calibrator.fit(logits, labels), test))
  fold = np.zeros(60, int) if kind == "inductive" else venn.stratified_folds(labels, 3)
  parts = [fold == i for i in range(fold.max() + 1)]
  assert len(parts) == (1 if kind == "inductive" else 3)
  p, q = _probs(logits), _probs(test)
  expected = [_venn_abers_reference([p[part, k] for part in parts], [labels[part] == k for part in parts], q[:, k])
              for k in range(3)]
  np.testing.assert_allclose(actual, _renormalised(expected), atol=1e-5)


def test_the_time_of_venn_abers_grows_with_n_log_n():
  n = 200_000  # A fit that is quadratic would take minutes.
  x = np.random.default_rng(0).uniform(size=n)
  values, p0, p1 = venn._steps(x, (np.random.default_rng(1).uniform(size=n) < x**2).astype(float), np.ones(n),
                                venn._with_one_more)
  assert len(values) == n and (p1[1:-1] >= p0[1:-1]).all()
  assert abs(p1[n // 2] - 0.25) < 0.02 and abs(p0[n // 2] - 0.25) < 0.02


@pytest.mark.parametrize("seed", SEEDS)
def test_centered_isotonic_joins_the_centres_of_isotonic_pieces(seed):
  x, y, weights = _columns(seed)
  fitted = isotonic.IsotonicRegression().fit(x, y, weights).predict(x)
  points = []
  for level in np.unique(fitted):
    piece = fitted == level
    centre = {0.0: x[piece].max(), 1.0: x[piece].min()}.get(level, np.average(x[piece], weights=weights[piece]))
    points.append((centre, level))
  test = np.linspace(0, 1, 50)
  corners = one_vs_rest._centered_corners(x, y, weights)
  np.testing.assert_allclose(np.interp(test, *corners), np.interp(test, *np.array(points).T), atol=1e-12)
  assert (np.diff(corners[1]) > 0).all()


def _shifted(n, prior, seed=0):
  """Log-probabilities of three classes whose examples are Gaussian, for even frequencies, of a sample of others."""
  rng = np.random.default_rng(seed)
  labels = rng.choice(3, n, p=prior)
  points = np.array([[0, 0], [1.5, 0], [0, 1.5]])[labels] + rng.normal(size=(n, 2))
  scores = -((points[:, None] - np.array([[0, 0], [1.5, 0], [0, 1.5]]))**2).sum(-1) / 2
  return special.log_softmax(scores, axis=1).astype(np.float32), labels


def test_label_shift_maximises_the_likelihood_and_finds_the_frequencies():
  log_probs, labels = _shifted(3000, [1 / 3, 1 / 3, 1 / 3])
  calibrator = calibrators.label_shift("identity")
  params = calibrator.fit(log_probs, labels)
  np.testing.assert_allclose(params["prior"], np.bincount(labels) / 3000, rtol=1e-5)
  truth = np.array([0.7, 0.25, 0.05])
  shifted, _ = _shifted(3000, truth, seed=1)
  prior = np.asarray(params["prior"], np.float64)
  ratios = np.exp(shift.log_ratios(jnp.asarray(shifted), params["prior"]))
  p = np.exp(shifted.astype(np.float64))

  def loss(pi):
    return -np.mean(np.log(p @ (pi / prior)))

  best = optimize.minimize(loss, prior, bounds=[(0, 1)] * 3, constraints={"type": "eq", "fun": lambda pi: pi.sum() - 1},
                           method="SLSQP", options={"ftol": 1e-12})
  assert loss(prior * ratios) <= best.fun + 2e-6
  np.testing.assert_allclose(prior * ratios, truth, atol=0.03)
  expected = p * ratios / (p * ratios).sum(1, keepdims=True)
  np.testing.assert_allclose(np.exp(calibrator.apply(params, shifted.reshape(30, 100, 3))).reshape(-1, 3), expected,
                             atol=1e-5)


def test_without_a_shift_nothing_changes_and_absent_classes_have_probability_0():
  log_probs, labels = _shifted(3000, [1 / 3, 1 / 3, 1 / 3])
  calibrator = calibrators.label_shift("identity")
  kept = labels < 2
  actual = np.exp(calibrator.apply(calibrator.fit(log_probs, labels, where=kept), log_probs))
  assert (actual[:, 2] == 0).all() and np.isfinite(actual).all()
  same = np.exp(calibrator.apply(calibrator.fit(log_probs, labels), log_probs))
  assert np.abs(same - np.exp(log_probs)).mean() < 0.02
