"""Temperature scaling: its true optimum against scipy in float64, at the edges, masked, mapped; and its mistakes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from calib_jax import calibrators, losses, metrics


def _data(n, k, true_temperature=1.7, scale=2.0, seed=0):
  """Logits whose labels are drawn at ``true_temperature``."""
  rng = np.random.default_rng(seed)
  logits = scale * rng.normal(size=(n, k))
  p = special.softmax(logits / true_temperature, axis=1)
  labels = (p.cumsum(1) < rng.uniform(size=(n, 1))).sum(1).clip(0, k - 1)
  return logits.astype(np.float32), labels.astype(np.int32)


def _nll(log_t, logits, labels):
  scaled = logits.astype(np.float64) / np.exp(log_t)
  return np.mean(special.logsumexp(scaled, axis=1) - scaled[np.arange(len(labels)), labels])


@pytest.mark.parametrize(("n", "k"), [(50, 2), (500, 10), (300, 100), (400, 1000)])
@pytest.mark.parametrize("scale", [1e-3, 0.3, 2.0, 20.0, 1e3])
def test_nll_reaches_the_optimum_of_scipy_at_any_scale(n, k, scale):
  logits, labels = _data(n, k)
  logits = (scale * logits).astype(np.float32)
  params = calibrators.temperature_scaling().fit(logits, labels)
  best = optimize.minimize_scalar(_nll, bounds=np.log(scale) + np.array([-3, 4]), args=(logits, labels),
                                  method="bounded", options={"xatol": 1e-10})
  found = _nll(np.log(float(params["temperature"])), logits, labels)
  assert params["converged"] and params["iterations"] < 40
  assert found - best.fun < 1e-6 * max(best.fun, 1)
  np.testing.assert_allclose(params["temperature"], np.exp(best.x), rtol=2e-3)


def test_fits_find_the_temperature_of_the_data():
  logits, labels = _data(20_000, 10)
  for objective in ("nll", "soft_binned_ece", "ece"):
    params = calibrators.temperature_scaling(objective).fit(logits, labels)
    np.testing.assert_allclose(params["temperature"], 1.7, rtol=0.08)


OBJECTIVES = {
  "label": ("soft_binned_ece", {}, losses.soft_binned_ece),
  "bin": ("soft_binned_ece", {"form": "bin", "num_bins": 10},
          functools.partial(losses.soft_binned_ece, form="bin", num_bins=10)),
  "hard": ("ece", {}, lambda z, y: metrics.adaptive_calibration_error(jax.nn.softmax(z), y)),
  "hard, equal width": ("ece", {"binning": "equal_width", "norm": 2, "num_bins": 10},
                        lambda z, y: metrics.expected_calibration_error(jax.nn.softmax(z), y, norm=2, num_bins=10)),
  "a function": (losses.soft_avuc, {"threshold": 0.3}, functools.partial(losses.soft_avuc, threshold=0.3)),
}


@pytest.mark.parametrize("case", OBJECTIVES)
def test_calibration_objectives_are_no_worse_than_a_dense_grid(case):
  objective, options, function = OBJECTIVES[case]
  logits, labels = _data(400, 5)
  params = calibrators.temperature_scaling(objective, **options).fit(logits, labels)
  centre = float(calibrators.temperature_scaling().fit(logits, labels)["temperature"])
  value = jax.jit(lambda t: function(logits / t, labels))
  grid = [float(value(t)) for t in centre * np.exp(np.linspace(-2.3, 2.3, 400)).astype(np.float32)]
  # A piecewise constant objective has optima narrower than any grid; a smooth one is found to 1e-4.
  slack = 2e-3 if case.startswith("hard") else 1e-4 * min(grid)
  assert float(value(params["temperature"])) <= min(grid) + slack
  assert np.isfinite(params["temperature"]) and params["iterations"] > 100


@pytest.mark.parametrize("objective", ["nll", "soft_binned_ece", "ece"])
@pytest.mark.parametrize("edge", ["all right", "all wrong", "constant", "one example", "ties", "a class absent",
                                  "masked", "huge"])
def test_edges_give_finite_positive_temperatures_and_normalised_output(objective, edge):
  logits, labels = _data(30, 3)
  where = None
  if edge == "all right":
    labels = logits.argmax(1)
  elif edge == "all wrong":
    labels = logits.argmin(1)
  elif edge == "constant":
    logits = np.full_like(logits, 5.0)
  elif edge == "one example":
    logits, labels = logits[:1], labels[:1]
  elif edge == "ties":
    logits = np.round(logits)
  elif edge == "a class absent":
    labels = labels % 2
  elif edge == "masked":
    where = np.zeros(30, bool)
  else:
    logits = logits * np.float32(4e3)
  calibrator = calibrators.temperature_scaling(objective)
  params = calibrator.fit(logits, labels, where=where)
  assert np.isfinite(params["temperature"]) and params["temperature"] > 0 and params["converged"]
  log_probs = calibrator.apply(params, logits)
  np.testing.assert_allclose(jnp.exp(log_probs).sum(1), 1, rtol=1e-5)
  np.testing.assert_array_equal(log_probs.argmax(1), logits.argmax(1))
  if objective == "nll":
    spread = np.mean(logits.max(1) - logits.mean(1))
    bounds = {"all right": 1e-4 * spread, "all wrong": 1e4 * spread, "constant": 1.0, "masked": 1.0}
    if edge in bounds:
      np.testing.assert_allclose(params["temperature"], bounds[edge], rtol=1e-3)


@pytest.mark.parametrize("objective", ["nll", "soft_binned_ece", "ece"])
def test_where_equals_slicing(objective):
  logits, labels = _data(60, 4)
  where = np.arange(60) % 3 > 0
  calibrator = calibrators.temperature_scaling(objective)
  expected = calibrator.fit(logits[where], labels[where])
  masked = np.where(where[:, None], logits, np.nan), np.where(where, labels, -7)
  found = calibrator.fit(*masked, where=where)
  # The soft objective is flat at its optimum: rounding moves the place by the root of what it moves the value.
  tolerance = 1e-3 if objective == "soft_binned_ece" else 1e-4
  np.testing.assert_allclose(found["temperature"], expected["temperature"], rtol=tolerance)


@pytest.mark.parametrize("objective", ["nll", "soft_binned_ece", "ece"])
def test_fitting_many_seeds_is_one_vmap(objective):
  seeds = [_data(80, 4, seed=s, true_temperature=t) for s, t in enumerate((0.5, 1.0, 3.0))]
  logits, labels = (np.stack(x) for x in zip(*seeds, strict=True))
  calibrator = calibrators.temperature_scaling(objective)
  params = jax.jit(jax.vmap(calibrator.fit))(logits, labels)
  expected = [calibrator.fit(*seed)["temperature"] for seed in seeds]
  np.testing.assert_allclose(params["temperature"], expected, rtol=1e-3)
  applied = jax.vmap(calibrator.apply)(params, logits)
  np.testing.assert_allclose(applied[1], special.log_softmax(logits[1] / float(params["temperature"][1]), axis=1),
                             rtol=1e-4, atol=1e-5)


def test_half_precision_logits_are_fitted_in_float32():
  logits, labels = _data(200, 5)
  half = jnp.asarray(logits, jnp.bfloat16)
  fit = calibrators.temperature_scaling().fit
  assert fit(half, labels)["temperature"] == fit(half.astype(jnp.float32), labels)["temperature"]


@pytest.mark.parametrize(("call", "error", "message"), [
  (lambda: calibrators.temperature_scaling("nlll"), ValueError, "objective must be one of 'nll', .*Did you mean 'nll'"),
  (lambda: calibrators.temperature_scaling(num_bins=3), TypeError, "'nll' has no option 'num_bins'; it has none"),
  (lambda: calibrators.temperature_scaling("ece", form="bin"), TypeError, "has no option 'form'; it has num_b"),
  (lambda: calibrators.temperature_scaling("ece", num_bins=0), ValueError, "num_bins must be in"),
  (lambda: calibrators.get("temperature"), ValueError, "calibrator name must be one of 'identity', 'temperature_sc"),
  (lambda: calibrators.identity().fit(np.ones((3, 2), np.float32), np.zeros(2, int)), ValueError, "labels must have"),
  (lambda: calibrators.temperature_scaling().fit(np.ones((3, 2)), np.zeros(3)), TypeError, "labels must be integers"),
  (lambda: calibrators.temperature_scaling().fit(np.ones((2, 3, 2)), np.zeros((2, 3), int)), ValueError, "logits must"),
])
def test_mistakes_are_named(call, error, message):
  with pytest.raises(error, match=message):
    call()
