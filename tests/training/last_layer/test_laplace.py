"""Last-layer Laplace: Hessians, the evidence, its optimum and predictions, against float64 from the paper."""

import numpy as np
import pytest
from scipy import special, stats

from calib_jax.training.last_layer import laplace

N, D, K = 14, 2, 3
P = K * (D + 1)
RNG = np.random.default_rng(0)
FEATURES, LABELS = RNG.normal(size=(N, D)), RNG.integers(0, K, N)
KERNEL, BIAS = RNG.normal(size=(D, K)), RNG.normal(size=K)
WEIGHTS = np.concatenate([KERNEL, BIAS[None]])
FORMS = ("full", "kronecker")


def _fit(features=FEATURES, labels=LABELS, kernel=KERNEL, bias=BIAS, **options):
  return laplace.fit(features, labels, kernel=kernel, bias=bias, **options)


def _with_bias(features):
  return np.concatenate([features, np.ones((len(features), 1))], 1)


def _brute_hessian(kind):
  x = _with_bias(FEATURES)
  p = special.softmax(x @ WEIGHTS, axis=1)
  curvatures = [np.diag(row) - np.outer(row, row) for row in p]
  if kind == "full":
    return sum(np.kron(c, np.outer(row, row)) for c, row in zip(curvatures, x, strict=True))
  return np.kron(sum(curvatures) / len(x), x.T @ x)


def _dense(hessian):
  """The matrix of a Hessian that the module holds by its eigenvalues."""
  if isinstance(hessian, laplace.Full):
    vectors = hessian.vectors.reshape(-1, len(hessian.values))
    return (vectors * hessian.values) @ vectors.T
  inputs, logits = ((vectors * values) @ vectors.T for values, vectors in (hessian.of_inputs, hessian.of_logits))
  return np.kron(logits, inputs)


@pytest.mark.parametrize("kind", FORMS)
def test_the_hessian_is_that_of_its_definition(kind, monkeypatch):
  monkeypatch.setattr(laplace, "ROWS", 5)  # Three parts.
  hessian = _fit(hessian=kind).hessian
  np.testing.assert_allclose(_dense(hessian), _brute_hessian(kind), atol=1e-13)
  np.testing.assert_allclose(np.sort(hessian.values), np.linalg.eigvalsh(_brute_hessian(kind)), atol=1e-12)


def _brute_evidence(kind, precision):
  """log p(D | θ) + log N(θ; 0, 1/δ) + (P log 2π + log det Σ) / 2."""
  p = special.softmax(_with_bias(FEATURES) @ WEIGHTS, axis=1)
  prior = stats.multivariate_normal.logpdf(WEIGHTS.T.ravel(), np.zeros(P), np.eye(P) / precision)
  _, log_det = np.linalg.slogdet(_brute_hessian(kind) + precision * np.eye(P))
  return np.log(p[np.arange(N), LABELS]).sum() + prior + (P * np.log(2 * np.pi) - log_det) / 2


@pytest.mark.parametrize("kind", FORMS)
def test_the_prior_has_the_largest_marginal_likelihood(kind):
  for precision in (1e-4, 0.7, 1e5):
    fitted = _fit(hessian=kind, prior_precision=precision)
    assert fitted.prior_precision == precision
    np.testing.assert_allclose(fitted.log_evidence, _brute_evidence(kind, precision), rtol=1e-9)
  best = _fit(hessian=kind)
  np.testing.assert_allclose(best.log_evidence, _brute_evidence(kind, best.prior_precision), rtol=1e-9)
  others = best.prior_precision * np.array([1e-3, 0.1, 0.9, 1.1, 10, 1e3])
  assert all(_brute_evidence(kind, other) < best.log_evidence for other in others)
  step = 1e-4
  slope = (_brute_evidence(kind, best.prior_precision * np.exp(step))
           - _brute_evidence(kind, best.prior_precision * np.exp(-step))) / (2 * step)
  assert abs(slope) < 1e-6


@pytest.mark.parametrize("kind", FORMS)
def test_the_probit_prediction_divides_logits_by_their_spread(kind, monkeypatch):
  monkeypatch.setattr(laplace, "ROWS", 3)
  test = 3 * RNG.normal(size=(7, D))
  posterior = np.linalg.inv(_brute_hessian(kind) + 0.4 * np.eye(P))
  variances = [np.diag(j @ posterior @ j.T) for j in (np.kron(np.eye(K), x) for x in _with_bias(test))]
  logits = _with_bias(test) @ WEIGHTS
  expected = special.softmax(logits / np.sqrt(1 + np.pi / 8 * np.array(variances)), axis=1)
  log_probs = _fit(hessian=kind, prior_precision=0.4).log_probs(test)
  assert log_probs.dtype == np.float32
  np.testing.assert_allclose(np.exp(log_probs), expected, rtol=1e-5)


@pytest.mark.parametrize("kind", FORMS)
def test_limits(kind):
  logits = _with_bias(FEATURES) @ WEIGHTS
  certain = _fit(hessian=kind, prior_precision=1e14).log_probs(FEATURES)
  np.testing.assert_allclose(np.exp(certain), special.softmax(logits, axis=1), rtol=1e-5)
  for features, labels, kernel, bias in (
      (1e4 * FEATURES, LABELS, KERNEL, BIAS),  # Its Hessian is 0 but for rounding.
      (FEATURES[:1], LABELS[:1], KERNEL, BIAS), (FEATURES, np.zeros(N, int), KERNEL, BIAS),
      (FEATURES, LABELS, 0 * KERNEL, 0 * BIAS), (FEATURES, LABELS, 1e4 * KERNEL, BIAS),
      (0 * FEATURES, LABELS, KERNEL, BIAS),
      (FEATURES, LABELS % 2, KERNEL[:, :2], BIAS[:2])):
    fitted = _fit(features, labels, kernel, bias, hessian=kind)
    log_probs = fitted.log_probs(np.concatenate([features, 1e4 * features[:1]]))
    assert np.isfinite(log_probs).all() and fitted.prior_precision > 0 and np.isfinite(fitted.log_evidence)
    np.testing.assert_allclose(np.exp(log_probs.astype(np.float64)).sum(1), 1, rtol=1e-5)
  # No weights at all: the prior that is the most certain of 0, and equal probabilities.
  log_probs = _fit(FEATURES, LABELS, 0 * KERNEL, 0 * BIAS, hessian=kind).log_probs(FEATURES)
  np.testing.assert_allclose(np.exp(log_probs), 1 / K, rtol=1e-5)


def test_the_form_follows_from_the_number_of_weights_and_impossible_ones_are_refused(monkeypatch):
  assert isinstance(_fit().hessian, laplace.Full)
  monkeypatch.setattr(laplace, "AUTO_FULL", P - 1)
  assert isinstance(_fit().hessian, laplace.Kronecker)
  monkeypatch.setattr(laplace, "LARGEST_FULL", P - 1)
  with pytest.raises(ValueError, match="'full' is for at most 8 weights: got 9; use 'kronecker'"):
    _fit(hessian="full")
  with pytest.raises(ValueError, match="hessian must be one of 'auto', 'full', 'kronecker'"):
    _fit(hessian="diagonal")
  with pytest.raises(ValueError, match=r"features must be \[N, D\]"):
    _fit(FEATURES[:, :1])
  with pytest.raises(ValueError, match="features, kernel and bias must be finite"):
    _fit(np.where(FEATURES[0] == FEATURES, np.nan, FEATURES))
  with pytest.raises(ValueError, match=r"labels must be in \[0, 3\)"):  # Not those of the last class.
    _fit(labels=LABELS - 1)
  with pytest.raises(ValueError, match=r"prior_precision must be in \(0, inf\): got 0"):
    _fit(prior_precision=0.0)
  with pytest.raises(ValueError, match=r"features must be finite numbers \[N, 2\]: got shape \(2,\)"):
    _fit().log_probs(FEATURES[0])
