"""A temperature by covariates: its optimum by SciPy, what folds select where the truth is known, and its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from calib_jax import calibrators
from calib_jax.calibrators import covariate

RNG = np.random.default_rng(0)


def _drawn(n, slope, seed=0, num_classes=4):
  """Logits that are e^(slope x) times as large as the true ones, labels, and two covariates, the second of no use."""
  rng = np.random.default_rng(seed)
  x, z = rng.normal(size=(n, 2)).astype(np.float32), rng.normal(size=(n, num_classes))
  labels = (1.5 * z + rng.gumbel(size=z.shape)).argmax(1)
  return (1.5 * z * np.exp(0.4 + slope * x[:, :1])).astype(np.float32), labels, x


def _mean_nll(theta, logits, labels, x, weights, ridge):
  log_probs = special.log_softmax(logits * np.exp(-(theta[0] + x @ theta[1:]))[:, None], axis=1)
  losses = -log_probs[np.arange(len(labels)), labels]
  return np.average(losses, weights=weights) + ridge * np.sum(theta[1:] ** 2) / 2 / weights.sum()


SOLVE = jax.jit(covariate._solve)


@pytest.mark.parametrize("ridge", [1.0, 100.0])
def test_the_optimum_is_that_of_scipy(ridge):
  logits, labels, x = _drawn(300, 0.5)
  weights = RNG.integers(0, 3, 300).astype(np.float64)
  params = SOLVE(logits, labels, jnp.asarray(weights, jnp.float32), x, jnp.float32(ridge))
  arrays = logits.astype(np.float64), labels, x.astype(np.float64), weights, ridge
  best = optimize.minimize(_mean_nll, np.zeros(3), arrays, method="BFGS", options={"gtol": 1e-9})
  ours = np.concatenate([np.ravel(params["log_temperature"]), params["slopes"]]).astype(np.float64)
  assert bool(params["converged"]) and _mean_nll(ours, *arrays) - best.fun < 2e-7
  np.testing.assert_allclose(ours, best.x, atol=2e-3)


@pytest.mark.slow
def test_slopes_are_selected_where_there_are_some_and_seldom_elsewhere():
  calibrator = calibrators.covariate_temperature_scaling(["length", "noise"])
  selected = {slope: [float(calibrator.fit(*_drawn(400, slope, seed)[:2], covariates=_drawn(400, slope, seed)[2])[
    "penalty"]) > 0 for seed in range(20)] for slope in (0.0, 0.5)}
  assert sum(selected[0.5]) == 20 and sum(selected[0.0]) <= 6, selected
  logits, labels, x = _drawn(2000, 0.5)
  params = calibrator.fit(logits, labels, covariates=x)
  slopes = np.asarray(params["slopes"] / params["scales"])
  assert abs(slopes[0] - 0.5) < 0.08 and abs(slopes[1]) < 0.08
  # Of one temperature, the fit is that of temperature scaling.
  logits, labels, x = next(drawn for seed in range(20) if not selected[0.0][seed] for drawn in [_drawn(400, 0.0, seed)])
  params = calibrator.fit(logits, labels, covariates=x)
  one = calibrators.temperature_scaling().fit(logits, labels)
  np.testing.assert_allclose(np.exp(params["log_temperature"]), one["temperature"], rtol=1e-5)
  np.testing.assert_array_equal(params["slopes"], 0)


def test_rows_are_scaled_by_their_own_temperature_and_keep_their_top_and_what_they_lack():
  logits, labels, x = _drawn(200, 0.5)
  logits[::3, 3] = -np.inf
  labels = np.where(np.arange(200) % 3 == 0, labels % 3, labels)
  calibrator = calibrators.covariate_temperature_scaling("length+noise")
  params = calibrator.fit(logits, labels, covariates=x, groups=np.arange(200) // 2)
  actual = np.asarray(calibrator.apply(params, logits, x))
  slopes, centers, scales = (np.asarray(params[name], np.float64) for name in ("slopes", "centers", "scales"))
  t = np.exp(float(params["log_temperature"]) + (x - centers) / scales @ slopes)
  np.testing.assert_allclose(actual, special.log_softmax(logits.astype(np.float64) / t[:, None], axis=1), atol=2e-5)
  np.testing.assert_array_equal(actual.argmax(1), logits.argmax(1))
  module = {}
  exec(calibrators.export(calibrators.Fitted(calibrator, params), "numpy"), module)
  np.testing.assert_allclose(module["calibrate"](logits, x), np.exp(actual), atol=1e-6)
  with pytest.raises(ValueError, match='is exported as kind "numpy" alone'):
    calibrators.export(calibrators.Fitted(calibrator, params), "onnx")


def test_it_is_stored_with_its_columns_and_extreme_covariates_are_finite(tmp_path):
  calibrator = calibrators.covariate_temperature_scaling(["log(options)", "language=de"])
  logits, labels, _ = _drawn(100, 0.0)
  x = np.stack([np.full(100, np.log(4)), 1e6 * (np.arange(100) == 0)], axis=1)  # Constant, and one outlier.
  params = calibrator.fit(logits, labels, covariates=x)
  assert all(np.isfinite(value).all() for value in params.values())
  assert np.isfinite(calibrator.apply(params, logits, x)).all()
  calibrators.save(tmp_path / "c.npz", calibrators.Fitted(calibrator, params))
  loaded = calibrators.load(tmp_path / "c.npz")
  assert loaded.calibrator == calibrator and loaded.calibrator.options == {"columns": "log(options)+language=de"}
  few = calibrator.fit(logits[:4], labels[:4], covariates=x[:4])  # Fewer examples than folds.
  np.testing.assert_array_equal(few["slopes"], 0)


@pytest.mark.parametrize(("covariates", "error", "message"), [
  (None, TypeError, "needs the covariates length, .N, 1.: pass them to fit"),
  (np.zeros((9, 2)), ValueError, r"covariates must have the shape \(9, 1\): got \(9, 2\)"),
  (np.full((9, 1), np.inf), ValueError, "covariates must be finite: length is not")])
def test_covariates_that_cannot_be_are_one_sentence(covariates, error, message):
  calibrator = calibrators.covariate_temperature_scaling("length")
  logits, labels, _ = _drawn(9, 0.0)
  with pytest.raises(error, match=message):
    calibrator.fit(logits, labels, covariates=covariates)
  params = calibrator.fit(logits, labels, covariates=np.arange(9.0)[:, None])
  with pytest.raises(error, match=message):
    calibrator.apply(params, logits, covariates)
