"""Fits of logits of any scale reach the optimum that scipy finds in float64, and say so."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from calib_jax import calibrators
from calib_jax.calibrators import logistic
from tests.calibrators.data import made

ROWS, CLASSES = 64, 4
EPS = float(np.finfo(np.float32).eps)


def _usual():
  rng = np.random.default_rng(0)
  logits = 3 * rng.normal(size=(ROWS, CLASSES))
  return logits, (special.softmax(logits / 2, axis=1).cumsum(1) < rng.random((ROWS, 1))).sum(1).clip(0, CLASSES - 1)


def _accurate():
  """An overconfident model that is right but for four rows."""
  rng = np.random.default_rng(1)
  labels = rng.integers(0, CLASSES, ROWS)
  logits = 20 * np.eye(CLASSES)[labels] + rng.normal(size=(ROWS, CLASSES))
  logits[:4] = logits[:4, ::-1]
  return logits, labels


def _extreme(name):
  logits, labels = _accurate() if name == "accurate" else _usual()
  if name == "one long row":
    logits[0] *= 1000
  elif name == "masked":
    logits[5, (labels[5] + 1) % CLASSES] = -1e9
  elif name == "columns of other units":
    logits *= [1, 1e3, 1, 1e-3]
  elif name == "far from 0":
    logits += 1e4
  elif name != "accurate":
    logits *= float(name)
  return logits.astype(np.float32), labels.astype(np.int32)


EXTREMES = ("0.0001", "20", "300", "one long row", "masked", "columns of other units", "far from 0", "accurate")


def _lowest(value, starts, bounds):
  found = [optimize.minimize(value, start, jac=True, method="L-BFGS-B", bounds=bounds,
                             options={"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-12})
           for start in starts]
  return min(x.fun for x in found)


def _binary(features, labels, ours, bounds):
  """``(NLL of ours, the lowest)`` of a logistic regression whose last coefficient is the constant."""
  centre, unit = features.mean(0), np.maximum(features.std(0), 1e-6)
  x = np.column_stack([(features - centre) / unit, np.ones(len(features))])

  def value(at):
    score = x @ at
    return np.mean(np.logaddexp(0, score) - labels * score), x.T @ (special.expit(score) - labels) / len(labels)

  inner = np.append(ours[:-1] * unit, ours[-1] + ours[:-1] @ centre)
  return value(inner)[0], _lowest(value, [inner, np.append(np.ones(len(unit)), 0), np.zeros(len(inner))], bounds)


@pytest.mark.parametrize("name", ["platt", "beta_calibration"])
@pytest.mark.parametrize("extreme", EXTREMES)
def test_fits_of_every_class(name, extreme):
  logits, labels = _extreme(extreme)
  params = made(name).fit(logits, labels)
  assert params["converged"]
  log_p = special.log_softmax(logits.astype(np.float64), axis=1)
  for c in range(CLASSES):
    log_others = special.logsumexp(np.delete(log_p, c, axis=1), axis=1)
    if name == "platt":
      features, names, bounds = (log_p[:, c] - log_others)[:, None], ("scale", "bias"), None
    else:
      features, names = np.column_stack([log_p[:, c], -log_others]), "abc"
      bounds = [(0, None), (0, None), (None, None)]
    ours, best = _binary(features, labels == c, np.array([float(params[n][c]) for n in names]), bounds)
    assert ours - best <= 1e-4 * best + 2e-6, (c, ours, best)


@pytest.mark.parametrize(("name", "extreme"), [
  (name, extreme) for name in ("vector_scaling", "class_temperature_scaling") for extreme in EXTREMES
  # Half of a unit in the last place of 1e4 is 5e-4: the fit says that it cannot do better.
  if (name, extreme) != ("class_temperature_scaling", "far from 0")])
def test_fits_of_a_factor_for_each_class(name, extreme):
  logits, labels = _extreme(extreme)
  params = {k: np.asarray(v, np.float64) for k, v in made(name).fit(logits, labels).items()}
  assert params["converged"]
  offsets = name == "vector_scaling"
  z = logits.astype(np.float64)
  centre = z.mean(0) if offsets and extreme != "masked" else np.zeros(CLASSES)
  temperature = float(calibrators.temperature_scaling().fit(logits, labels)["temperature"])
  scale = params["scale"] if offsets else 1 / params["temperatures"]
  unit = np.minimum(1 / np.abs(z - centre).mean(0), 100 / temperature)

  def value(x):
    scores = x[:CLASSES] * unit * (z - centre) + x[CLASSES:]
    slope = special.softmax(scores, axis=1)
    slope[np.arange(ROWS), labels] -= 1
    nll = np.mean(special.logsumexp(scores, axis=1) - scores[np.arange(ROWS), labels])
    return nll, np.append((slope * unit * (z - centre)).mean(0), slope.mean(0))

  ours = np.append(scale / unit, params["bias"] + scale * centre if offsets else np.zeros(CLASSES))
  bounds = [(None, None)] * 2 * CLASSES
  if not offsets:  # As documented, T_k is within a factor of 1e4 of where the fit begins, which is T here.
    bounds = [(1e-4 / temperature / u, 1e4 / temperature / u) for u in unit] + [(0, 0)] * CLASSES
  start = np.append(1 / temperature / unit, np.zeros(CLASSES))
  best = _lowest(value, [ours, start, np.append(np.ones(CLASSES), np.zeros(CLASSES))], bounds)
  assert value(ours)[0] - best <= 1e-4 * best, (value(ours)[0], best)


NEEDED = {"focal_calibration": {"gamma": 2.0}, "meta_calibration": {"target": 0.1},
          "classwise_loss_scaling": {"base": "temperature_scaling"}}


@pytest.mark.parametrize("mask", [-1e9, -1e30])
@pytest.mark.parametrize("name", ["temperature_scaling", "class_temperature_scaling", "vector_scaling",
                                  "ensemble_temperature_scaling", "structured_vector_scaling", "platt"])
def test_a_masked_class_changes_no_other_row(name, mask):
  logits, labels = _usual()
  logits[5, (labels[5] + 1) % CLASSES] = -1e4
  logits, labels = logits.astype(np.float32), labels.astype(np.int32)
  calibrator = made(name)
  masked = np.where(logits == -1e4, np.float32(mask), logits)
  found, expected = (calibrator.apply(calibrator.fit(x, labels), logits) for x in (masked, logits))
  np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("shape", [(), (3, 0)])
def test_logits_without_classes_are_refused(shape):
  with pytest.raises(ValueError, match=r"logits must have the shape \[..., K\] of at least one class"):
    calibrators.identity().apply({}, np.zeros(shape, np.float32))


def test_focal_temperature_says_where_its_grid_ends():
  logits, labels = _usual()
  fit = made("focal_temperature_scaling", objective="nll").fit
  assert fit(logits.astype(np.float32), labels)["converged"]
  assert not fit((300 * logits).astype(np.float32), labels)["converged"]


def test_beta_calibration_knows_that_a_bound_does_not_hold_the_optimum(monkeypatch):
  """Where the fit without bounds fails, the best on the bounds is no optimum: there, a coefficient should rise."""
  fit = logistic._logistic

  def failing(features, y, weights):
    both = (features != 0).any(axis=0).all()
    return tuple(jnp.where(both, jnp.nan, x) if x.dtype == jnp.float32 else x for x in fit(features, y, weights))

  logits, labels = (x[1:] for x in _extreme("1"))  # Of a shape that no other test has compiled.
  monkeypatch.setattr(logistic, "_logistic", failing)
  assert not calibrators.beta_calibration().fit(logits, labels)["converged"]
  monkeypatch.undo()
  assert calibrators.beta_calibration().fit(logits[1:], labels[1:])["converged"]
