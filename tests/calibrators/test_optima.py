"""Fits by a likelihood reach the optimum that scipy finds in float64, from where they began and where they ended."""

import jax
import numpy as np
import pytest
from scipy import optimize, special

from calib_jax import calibrators
from tests.calibrators.data import SETS, made, sample, synthetic

EPS = float(np.finfo(np.float32).eps)
# Which sets are fitted: two of ten classes, padded to one shape, in the fast tests, and the ends in the slow ones.
FAST, LATER = ("padded real", "padded K=10"), ("K=2", "K=1000")
DATA = [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in LATER)]


def _thousand(num_rows):
  """As ``sample``, of 1,000 classes; with smaller logits than those of ``SETS`` fits take a third of the steps."""
  logits, labels = synthetic(num_rows, 1000, scale=1.0)
  return (logits, labels, None), logits, labels


def _fit(name, arguments, **options):
  logits, labels, where = arguments
  fit = made(name, **options).fit
  if logits.shape[1] == 1000:  # Optimised whatever the other tests are: these run longer than they compile.
    fit = jax.jit(fit, compiler_options={"xla_backend_optimization_level": 3})
  return fit(logits, labels, where=where)


def _nll_and_slope(scores, labels):
  """Mean NLL and its slopes in the scores."""
  p, rows = special.softmax(scores, axis=1), np.arange(len(labels))
  value = np.mean(special.logsumexp(scores, axis=1) - scores[rows, labels])
  p[rows, labels] -= 1
  return value, p / len(labels)


def _matrix(logits, labels, l2=1.0, off_diagonal=100.0):
  k = logits.shape[1]
  off = off_diagonal / (k * (k - 1)) * (1 - np.eye(k))

  def value(x):
    both = x.reshape(k, k + 1)
    w, b = both[:, :-1], both[:, -1]
    nll, slope = _nll_and_slope(logits @ w.T + b, labels)
    gradient = np.column_stack([slope.T @ logits + 2 * off * w, slope.sum(0) + 2 * l2 / k * b])
    return nll + np.sum(off * w**2) + l2 * np.mean(b**2), gradient.ravel()

  start = np.column_stack([np.eye(k), np.zeros(k)]).ravel()
  return value, lambda p: np.column_stack([p["weights"], p["bias"]]).ravel(), start


# Those of a factor for each class are in test_extremes.
@pytest.mark.parametrize(("name", "data"), [
  pytest.param(name, data, marks=[pytest.mark.xdist_group(f"fit {name}"), *[pytest.mark.slow] * (data == "K=2")])
  for name in ("matrix_scaling", "dirichlet") for data in (*FAST, "K=2")])
def test_convex_fits_are_certified_and_no_worse_than_scipy(name, data):
  arguments, logits, labels = sample(data)
  params = _fit(name, arguments)
  features = logits.astype(np.float64)
  value, flat, _ = _matrix(special.log_softmax(features, axis=1) if name == "dirichlet" else features, labels)
  assert params["converged"] and params["iterations"] < 2000
  ours = flat({k: np.asarray(v, np.float64) for k, v in params.items()})
  # Followed only from where ours ended: a convex problem has no other optimum.
  best = optimize.minimize(value, ours, jac=True, method="L-BFGS-B",
                           options={"maxiter": 12 if data in FAST else 3000, "ftol": 1e-13, "gtol": 1e-9}).fun
  assert value(ours)[0] - best <= 1e-4 * best, (value(ours)[0], best)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"off_diagonal": 1e5}, {"l2": 1e4}], ids=str)
def test_strong_penalties_weigh_what_they_say(options):
  """By default they are a small part of the objective: a factor in one would hardly move its value."""
  logits, labels = synthetic(200, 5)
  labels = np.where(np.arange(200) % 3 == 0, 2, labels)  # One class too often: its bias is pulled away from 0.
  params = calibrators.matrix_scaling(**options).fit(logits, labels)
  value, flat, start = _matrix(logits.astype(np.float64), labels, **options)
  ours = flat({k: np.asarray(v, np.float64) for k, v in params.items()})
  best = optimize.minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-14})
  assert params["converged"]
  # By scipy's own optimum, penalties of half or twice the weight end elsewhere.
  np.testing.assert_allclose(ours, best.x, atol=0.02 * np.abs(best.x - start).max())


def _mixture_log(logits, params):
  p = [special.softmax(logits / params["temperature"], axis=1), special.softmax(logits, axis=1),
       np.full(logits.shape, 1 / logits.shape[1])]
  return np.stack(p, axis=-1)


@pytest.mark.xdist_group("fit ensemble_temperature_scaling")
@pytest.mark.parametrize("data", DATA)
def test_ensemble_weights_are_certified_and_no_worse_than_scipy(data):
  arguments, logits, labels = sample(data)
  params = _fit("ensemble_temperature_scaling", arguments)
  parts = _mixture_log(logits.astype(np.float64), params)[np.arange(len(labels)), labels]

  def value(w):
    return -np.mean(np.log(parts @ w))

  best = optimize.minimize(value, [0.6, 0.2, 0.2], method="SLSQP", bounds=[(0, 1)] * 3,
                           constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, options={"ftol": 1e-12})
  w = np.asarray(params["weights"], np.float64)
  # The weights' own rounding, a few eps, adds to the 16 eps that the fit certifies in float32.
  mixture = (parts @ w)[:, None]
  assert params["converged"] and params["gap"] <= 16 * EPS
  assert np.mean((parts - mixture) / mixture, axis=0).max() <= 24 * EPS
  assert (w >= 0).all() and abs(w.sum() - 1) < 4 * EPS
  assert value(w) - best.fun <= 1e-5 * best.fun
  alone = _fit("temperature_scaling", arguments)["temperature"]
  np.testing.assert_allclose(params["temperature"], alone, rtol=8 * EPS)
  rows = np.resize(logits, arguments[0].shape)
  expected = np.log(_mixture_log(rows.astype(np.float64), params) @ w)
  np.testing.assert_allclose(made("ensemble_temperature_scaling").apply(params, rows), expected, atol=2e-4)


def test_ensembles_give_an_unlikely_label_the_uniform_prediction():
  # Scores as of pairwise votes: with T near 0.5, a label that lost all votes has a probability of 5e-9.
  rng = np.random.default_rng(0)
  logits = np.argsort(rng.random((400, 10)), axis=1).astype(np.float32)
  labels = np.where(np.arange(400) < 6, logits.argmin(1), logits.argmax(1))
  params = calibrators.ensemble_temperature_scaling().fit(logits, labels)
  parts = _mixture_log(logits.astype(np.float64), params)[np.arange(400), labels]
  best = optimize.minimize_scalar(lambda w: -np.mean(np.log(parts @ [1 - w, 0, w])), bounds=(0, 1), method="bounded",
                                  options={"xatol": 1e-9})
  assert params["converged"]
  np.testing.assert_allclose(params["weights"], [1 - best.x, 0, best.x], atol=1e-5)
  assert (parts @ [1, 0, 0]).min() < 1e-8 < best.x


@pytest.mark.parametrize(("n", "k", "spread"), [(300, 2, 1.5), (500, 10, 3.0), (50, 3, 6.0)])
def test_ensembles_by_squared_errors_are_scipys(n, k, spread):
  rng = np.random.default_rng(n)
  logits = (spread * rng.normal(size=(n, k))).astype(np.float32)
  labels = np.array([rng.choice(k, p=p) for p in special.softmax(1.5 / spread * logits, axis=1)])
  counts = rng.integers(0, 4, n)  # Two rows of weight 1 are one of weight 2.
  params = calibrators.ensemble_temperature_scaling(objective="mse").fit(logits, labels, weights=counts)
  rows = np.repeat(np.arange(n), counts)
  z, truth = logits[rows].astype(np.float64), np.eye(k)[labels[rows]]

  def value(probs):
    return np.mean(np.sum((probs - truth)**2, axis=1))

  t = optimize.minimize_scalar(lambda t: value(special.softmax(z / t, axis=1)), bounds=(0.05, 50), method="bounded",
                               options={"xatol": 1e-9}).x
  parts = np.stack([special.softmax(z / t, axis=1), special.softmax(z, axis=1), np.full(z.shape, 1 / k)], axis=-1)
  best = optimize.minimize(lambda w: value(parts @ w), [1 / 3] * 3, method="SLSQP", bounds=[(0, 1)] * 3,
                           constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, options={"ftol": 1e-15})
  assert params["converged"]
  np.testing.assert_allclose(params["temperature"], t, rtol=1e-3)
  assert value(parts @ np.asarray(params["weights"], np.float64)) <= best.fun + 1e-6


@pytest.mark.slow
def test_printed_ensembles_are_temperatures():
  logits, labels = SETS["K=10"]()
  printed, plain = calibrators.ensemble_temperature_scaling(space="logits"), calibrators.temperature_scaling()
  params = printed.fit(logits, labels)
  np.testing.assert_allclose(printed.apply(params, logits), plain.apply(plain.fit(logits, labels), logits), atol=1e-5)


def _structured(logits, labels, params, intercept=1.0, diagonal=1.0, off_diagonal=1.0):
  """The objective of structured scaling, as a function of (v, b, M off its diagonal), and where ``params`` are."""
  n, k = logits.shape
  p = special.softmax(logits / float(params["temperature"]), axis=1)
  x = np.log((1 - 1 / (n + 1)) * p + 1 / (n + 1) / k)
  off, has_matrix = ~np.eye(k, dtype=bool), "weights" in params

  def value(w):
    v, b, matrix = w[:k], w[k:2 * k], np.zeros((k, k))
    matrix[off] = w[2 * k:] if has_matrix else 0
    nll, slope = _nll_and_slope(x + v * x + x @ matrix.T + b, labels)
    shares = intercept * k / n, diagonal * k / n, off_diagonal * k * (k - 1) / n
    gradient = [(slope * x).sum(0) + 2 * shares[1] * v, slope.sum(0) + 2 * shares[0] * b]
    if has_matrix:
      gradient.append((slope.T @ x + 2 * shares[2] * matrix)[off])
    return nll + shares[0] * b @ b + shares[1] * v @ v + shares[2] * np.sum(matrix**2), np.concatenate(gradient)

  parts = [params["scale"], params["bias"], *([np.asarray(params["weights"])[off]] if has_matrix else [])]
  return value, np.concatenate(parts).astype(np.float64), x


@pytest.mark.parametrize(("name", "data"), [
  pytest.param(name, data, marks=[pytest.mark.xdist_group(f"fit {name}"), *[pytest.mark.slow] * slow])
  for name in ("structured_vector_scaling", "structured_matrix_scaling")
  for data, slow in (*((data, "vector" in name) for data in FAST), *((data, True) for data in LATER))
  if (name, data) != ("structured_vector_scaling", "K=1000")])  # The matrix has its parameters, and K (K - 1) more.
def test_structured_scaling_is_certified_and_no_worse_than_scipy(name, data):
  arguments, logits, labels = _thousand(600) if data == "K=1000" else sample(data)
  params = _fit(name, arguments)
  value, ours, x = _structured(logits.astype(np.float64), labels, params)
  large = len(ours) > 20_000
  best = optimize.minimize(value, ours, jac=True, method="L-BFGS-B",
                           options={"maxiter": 12 if large else 300, "ftol": 1e-13, "gtol": 1e-9}).fun
  assert params["converged"] and value(ours)[0] - best <= 1e-4 * best, (value(ours)[0], best)
  alone = _fit("temperature_scaling", arguments)["temperature"]
  np.testing.assert_allclose(params["temperature"], alone, rtol=8 * EPS)
  k = logits.shape[1]
  scores = x + ours[:k] * x + ours[k:2 * k] + x @ np.asarray(params.get("weights", np.zeros((k, k))), np.float64).T
  rows = np.resize(logits, arguments[0].shape)
  np.testing.assert_allclose(made(name).apply(params, rows),
                             np.resize(special.log_softmax(scores, axis=1), rows.shape), atol=2e-3)


def test_the_penalties_of_structured_scaling_weigh_what_they_say():
  logits, labels = synthetic(200, 5)
  labels = np.where(np.arange(200) % 3 == 0, 2, labels)  # One class too often: its bias is pulled away from 0.
  penalties = {"intercept": 3.0, "diagonal": 20.0, "off_diagonal": 10.0}
  params = calibrators.structured_matrix_scaling(**penalties).fit(logits, labels)
  value, ours, _ = _structured(logits.astype(np.float64), labels, params, **penalties)
  best = optimize.minimize(value, ours, jac=True, method="L-BFGS-B", options={"ftol": 1e-13, "gtol": 1e-9}).fun
  assert value(ours)[0] - best <= 1e-4 * best


@pytest.mark.xdist_group("fit parameterized_temperature_scaling")
@pytest.mark.parametrize("data", [*FAST, pytest.param("K=2", marks=pytest.mark.slow)])
def test_parameterized_temperatures_are_a_local_optimum(data):
  arguments, logits, labels = sample(data)
  params = _fit("parameterized_temperature_scaling", arguments)
  assert params["converged"]
  layers = [(i, part) for i in range(3) for part in ("kernel", "bias")]
  actual = {(i, part): np.asarray(params[f"layer_{i}"][part], np.float64) for i, part in layers}
  x = np.sort(logits.astype(np.float64), axis=1)[:, ::-1][:, :10]
  x = (x - x.mean(0)) / x.std(0)

  def value(flat):
    w = dict(zip(layers, np.split(flat, np.cumsum([actual[layer].size for layer in layers])[:-1]), strict=True))
    w = {layer: w[layer].reshape(actual[layer].shape) for layer in layers}
    inputs, h = [], x
    for i in range(3):
      inputs.append(np.tanh(h) if i else h)
      h = inputs[-1] @ w[i, "kernel"] + w[i, "bias"]
    t = float(params["temperature"]) * np.exp(3 * np.tanh(h / 3))
    nll, slope = _nll_and_slope(logits / t, labels)
    back, gradient = -np.sum(slope * logits / t, axis=1, keepdims=True) * (1 - np.tanh(h / 3) ** 2), {}
    for i in (2, 1, 0):
      gradient[i, "kernel"], gradient[i, "bias"] = inputs[i].T @ back, back.sum(0)
      back = back @ w[i, "kernel"].T * (1 - inputs[i] ** 2)
    slopes = np.concatenate([gradient[layer].ravel() for layer in layers])
    return nll + 0.001 * np.sum(flat**2), slopes + 0.002 * flat

  start = np.concatenate([actual[layer].ravel() for layer in layers])
  best = optimize.minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": 100, "ftol": 1e-13})
  assert value(start)[0] - best.fun <= 1e-4 * best.fun
  plain = _fit("temperature_scaling", arguments)
  assert best.fun < _nll_and_slope(logits / float(plain["temperature"]), labels)[0]


def test_a_fit_that_was_stopped_says_so(monkeypatch):
  monkeypatch.setattr("calib_jax._numerics.lbfgs.MAX_ITERATIONS", 2)
  logits, labels = SETS["K=100"]()
  params = calibrators.vector_scaling().fit(logits[:77], labels[:77])  # A shape that no other test has compiled.
  assert not params["converged"] and params["iterations"] == 2 and np.isfinite(params["scale"]).all()
