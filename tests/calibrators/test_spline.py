"""Spline calibration against a float64 reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import interpolate, optimize, special

from calib_jax.calibrators import spline
from tests.calibrators.data import made, synthetic

SHAPE = (400, 3)


def _odds(logits):
  log_p = special.log_softmax(logits.astype(np.float64), axis=1)
  return log_p - np.log1p(-np.exp(log_p))


def _quantiles(x, y, num_knots, weights=None):
  """The quantiles of the even mixture of events and non-events: the middle of the values that have the level."""
  mass = np.zeros(len(x))
  weights = np.ones(len(x)) if weights is None else weights
  for side in (y, ~y):
    mass += weights * side / max((weights * side).sum(), 1)
  order = np.argsort(x, kind="stable")
  below = np.cumsum(mass[order]) / mass.sum()
  return np.array([(x[order][below >= level - 1e-9][0] + x[order][below > level + 1e-9][0]) / 2
                   for level in (np.arange(num_knots) + 0.5) / num_knots])


class Reference:
  """Natural cubic splines by their values at the knots; the penalty by Simpson's rule, which is exact."""

  def __init__(self, knots):
    self.knots, self.span = knots, np.ptp(knots)
    self.cubic = interpolate.CubicSpline(knots, np.eye(len(knots)), bc_type="natural")
    inner = np.sort(np.concatenate([knots, (knots[1:] + knots[:-1]) / 2]))
    second = self.cubic(inner, 2) * self.span**2
    simpson = np.zeros(len(inner))
    for i, h in enumerate(np.diff(knots) / self.span):
      simpson[2 * i:2 * i + 3] += h / 6 * np.array([1, 4, 1])
    self.penalty = (second * simpson[:, None]).T @ second

  def basis(self, x):
    inside = np.clip(x, self.knots[0], self.knots[-1])
    slopes = np.where((x < self.knots[0])[:, None], self.cubic(self.knots[0], 1), self.cubic(self.knots[-1], 1))
    return self.cubic(inside) + (x - inside)[:, None] * slopes

  def fit(self, x, y, penalty, weights=None):
    rows = self.basis(x)
    weights = np.full(len(x), 1 / len(x)) if weights is None else weights / weights.sum()

    def value(at):
      scores = rows @ at
      gradient = rows.T @ (weights * (special.expit(scores) - y)) + penalty * self.penalty @ at
      return weights @ (np.logaddexp(0, scores) - y * scores) + penalty / 2 * at @ self.penalty @ at, gradient

    def hessian(at):
      p = special.expit(rows @ at)
      return (rows * (weights * p * (1 - p))[:, None]).T @ rows + penalty * self.penalty

    # From Platt scaling's start, the log-odds themselves.
    actual = optimize.minimize(value, self.knots, jac=True, hess=hessian, method="trust-exact",
                               options={"gtol": 1e-10, "maxiter": 2000})
    return actual.x, value


@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_fit_is_the_penalised_logistic_regression_on_the_splines(weighted):
  logits, labels = synthetic(*SHAPE)
  weights = np.random.default_rng(0).integers(0, 4, SHAPE[0]).astype(np.float32) if weighted else np.ones(SHAPE[0])
  calibrator = made("spline_calibration")
  params = calibrator.fit(logits, labels, weights=weights.astype(np.float32))
  assert params["converged"]
  odds, test = _odds(logits), synthetic(*SHAPE, seed=1)[0]
  expected, linear = [], []
  for k in range(SHAPE[1]):
    knots = _quantiles(odds[:, k], labels == k, 10, weights)
    np.testing.assert_allclose(params["knots"][k], knots, rtol=1e-4, atol=1e-4)
    reference = Reference(knots)
    at, value = reference.fit(odds[:, k], labels == k, float(params["penalty"][k]), weights)
    ours = np.asarray(_scores(params, k, knots), np.float64)
    assert value(ours)[0] - value(at)[0] <= 1e-6
    expected.append(special.expit(reference.basis(_odds(test)[:, k]) @ at))
    linear.append(np.abs(np.diff(at / knots)).max())
  expected = np.clip(np.stack(expected, axis=1), 1e-6, 1)
  np.testing.assert_allclose(np.exp(calibrator.apply(params, test)), expected / expected.sum(1, keepdims=True),
                             atol=2e-3)
  assert max(linear) > 0.1  # The splines are not lines, which any penalty would give.


def _scores(params, k, x):
  of_class = {name: params[name][k:k + 1] for name in ("knots", "level", "slope", "curvature")}
  return special.logit(np.asarray(spline._spline(of_class, jnp.asarray(x, jnp.float32)[None]), np.float64))[0]


def test_the_penalty_has_the_lowest_nll_of_held_out_examples():
  logits, labels = synthetic(*SHAPE)
  logits = np.round(logits)  # With ties, which share a fold.
  params = made("spline_calibration").fit(logits, labels)
  odds, chosen = _odds(logits), []
  for k in range(SHAPE[1]):
    x, y = np.round(odds[:, k], 5), labels == k
    fold = np.unique(x, return_inverse=True)[1] % 5
    assert len(np.unique(x)) < len(x)
    reference = Reference(np.asarray(params["knots"][k], np.float64))
    nll = []
    for penalty in spline.PENALTIES:
      nll.append(0)
      for i in range(5):
        at, _ = reference.fit(x[fold != i], y[fold != i], penalty)
        scores = reference.basis(x[fold == i]) @ at
        nll[-1] += np.sum(np.logaddexp(0, scores) - y[fold == i] * scores) / len(x)
    at = int(np.argmin(np.abs(np.log(spline.PENALTIES) - np.log(float(params["penalty"][k])))))
    # Fits end 1e-7 nats above their optimum, and so about the root of that away from it.
    assert nll[at] <= min(nll) + 1e-4, (k, at, nll)
    chosen.append(max(nll) - nll[at])
  assert max(chosen) > 1e-3  # It matters.


def test_the_order_of_examples_does_not_matter():
  """Not even where the masses of 3 events of 8 examples add up to the levels of knots, but for rounding."""
  logits, drawn = synthetic(*SHAPE)
  order, calibrator = np.random.default_rng(0).permutation(SHAPE[0]), made("spline_calibration")
  for labels in (drawn, np.where(np.arange(SHAPE[0]) % 8 < 3, 0, 1).astype(np.int32)):
    one, other = (calibrator.fit(logits[rows], labels[rows]) for rows in (np.arange(SHAPE[0]), order))
    np.testing.assert_array_equal(one["penalty"], other["penalty"])
    np.testing.assert_allclose(one["knots"], other["knots"], atol=1e-5)
    # Coefficients of a flat optimum are determined less well than what they predict.
    probs = (np.exp(calibrator.apply(params, logits)) for params in (one, other))
    np.testing.assert_allclose(*probs, atol=3e-4)


@pytest.mark.parametrize("factor", [1e-3, 1.0, 300.0])
@pytest.mark.parametrize("labelled", ["as usual", "all right", "all wrong", "one class"])
def test_fits_of_extreme_logits_converge(factor, labelled):
  logits, labels = synthetic(*SHAPE)
  labels = {"as usual": labels, "all right": logits.argmax(1), "all wrong": logits.argmin(1),
            "one class": np.zeros_like(labels)}[labelled].astype(np.int32)
  calibrator, logits = made("spline_calibration"), (factor * logits).astype(np.float32)
  params = calibrator.fit(logits, labels)
  assert params["converged"]
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
  nll = -np.mean(np.asarray(calibrator.apply(params, logits))[np.arange(SHAPE[0]), labels])
  prior = np.bincount(labels) / SHAPE[0]
  assert nll <= special.entr(prior).sum() + 1e-2
