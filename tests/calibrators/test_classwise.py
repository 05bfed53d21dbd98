"""Class-wise loss scaling against its equations in float64: weights at the solution, alpha, beta, and equal losses."""

import functools

import jax
import numpy as np
import pytest
from scipy import optimize, special

from calib_jax import calibrators
from calib_jax.calibrators import classwise
from tests.calibrators.data import SHAPE, made, padded, synthetic

pytestmark = pytest.mark.xdist_group("fit classwise_loss_scaling")


def _class_losses(log_probs, labels, k):
  picked = -np.asarray(log_probs, np.float64)[np.arange(len(labels)), labels]
  return np.array([picked[labels == c].mean() for c in range(k)])


def _weights(losses, normalization, alpha, beta):
  mean, spread = losses.mean(), np.ptp(losses)
  normalized = {"standard": (losses - mean) / losses.std(ddof=1), "minmax": (losses - losses.min()) / spread,
                "centered": (losses - mean) / spread}[normalization]
  return beta / (1 + np.exp(-normalized / alpha)) - beta / 2


def _unequal_classes():
  """Examples of which some classes have few, so that the sums of their losses are unlike the means."""
  logits, labels, where = padded("K=10")
  return logits, labels, where & ((labels > 2) | (np.arange(SHAPE[0]) % 4 == 0))


@pytest.mark.parametrize(("base", "normalization", "class_loss"), [
  ("temperature_scaling", "minmax", "mean"), ("temperature_scaling", "standard", "sum"),
  *(pytest.param(*case, marks=pytest.mark.slow) for case in (
    ("temperature_scaling", "standard", "mean"), ("class_temperature_scaling", "standard", "sum")))])
def test_classwise_losses_are_weighted_by_what_they_are_at_the_end(base, normalization, class_loss):
  calibrator = made("classwise_loss_scaling", base=base, normalization=normalization, class_loss=class_loss)
  logits, labels, where = _unequal_classes()
  params = calibrator.fit(logits, labels, where=where)
  assert params["converged"]
  counts = np.bincount(labels[where]) if class_loss == "sum" else np.ones(SHAPE[1])

  def class_losses(log_probs):
    return counts * _class_losses(log_probs, labels[where], SHAPE[1])

  # Eq. 5 at the solution, from the losses there.
  at_end = class_losses(calibrator.apply(params, logits)[where])
  w = _weights(at_end, normalization, float(params["alpha"]), float(params["beta"]))
  np.testing.assert_allclose(params["class_weights"], w, atol=1e-2)

  # The base's own optimum under those weights, by scipy.
  def value(log_t):
    log_probs = special.log_softmax(logits[where].astype(np.float64) / np.exp(log_t), axis=1)
    return np.sum((1 + w) * class_losses(log_probs))

  field = params["temperature"] if base == "temperature_scaling" else params["temperatures"]
  start = np.atleast_1d(np.log(np.asarray(field, np.float64)))
  best = optimize.minimize(value, start, method="BFGS", options={"gtol": 1e-8})
  assert value(start) - best.fun <= 1e-4 * best.fun


@pytest.mark.slow
def test_classwise_loss_scaling_wraps_networks_too():
  logits, labels = synthetic(200, 4)
  calibrator = calibrators.classwise_loss_scaling("parameterized_temperature_scaling", hidden=3)
  params = calibrator.fit(logits, labels)
  log_probs = np.asarray(calibrator.apply(params, logits))
  assert params["converged"] and params["layer_0"]["kernel"].shape == (4, 3)
  np.testing.assert_array_equal(log_probs.argmax(1), logits.argmax(1))
  w = _weights(_class_losses(log_probs, labels, 4), "standard", float(params["alpha"]), float(params["beta"]))
  np.testing.assert_allclose(params["class_weights"], w, atol=1e-2)


@pytest.mark.parametrize("class_loss", ["mean", "sum"])
def test_classwise_alpha_and_beta_minimise_eq_6_after_the_first_step(class_loss):
  logits, labels, where = _unequal_classes()
  params = made("classwise_loss_scaling", normalization="standard", class_loss=class_loss).fit(
    logits, labels, where=where)
  counts = np.bincount(labels[where]) if class_loss == "sum" else np.ones(SHAPE[1])

  def losses_at(temperature):
    log_probs = special.log_softmax(logits[where].astype(np.float64) / temperature, axis=1)
    return counts * _class_losses(log_probs, labels[where], SHAPE[1])

  before = losses_at(1.0)
  gradient = (1 + _weights(before, "standard", 1.0, 1.5)) @ (losses_at(1 + 1e-5) - losses_at(1 - 1e-5)) / 2e-5
  after = losses_at(1 - 0.02 * min(1, 1 / abs(gradient)) * gradient)

  def value(x):
    return np.sqrt(np.sum((before - _weights(after, "standard", *x) * (after - before) - after.mean())**2))

  best = optimize.minimize(value, [1.0, 1.5], method="SLSQP", bounds=[(0.1, np.log(10) / 2), (1.5, 2.0)])
  np.testing.assert_allclose([params["alpha"], params["beta"]], best.x, rtol=2e-2)


@functools.cache
def _scaling_parameters(normalization):
  return jax.jit(jax.vmap(functools.partial(classwise.scaling_parameters, normalization=normalization)))


@pytest.mark.parametrize("normalization", ["standard", "minmax", "centered"])
def test_scaling_parameters_agree_with_slsqp(normalization):
  k, rng = 100, np.random.default_rng(100)
  before = rng.uniform(0.1, 2, (4, k))
  after = before - np.where(np.arange(4)[:, None] % 2, 0.3 * rng.normal(size=(4, k)), 0.02 * before)
  actual = _scaling_parameters(normalization)(*(x.astype(np.float32) for x in (before, after)), np.ones((4, k), bool))
  bounds = [(0.1, np.log(k) / 2), (1.5, 2.0)]
  for i in range(4):
    def value(x, i=i):  # Eq. 6.
      w = _weights(after[i], normalization, *x)
      return np.sqrt(np.sum((before[i] - w * (after[i] - before[i]) - after[i].mean())**2))

    best = optimize.minimize(value, [min(1.0, np.log(k) / 2), 1.5], method="SLSQP", bounds=bounds).fun
    assert value([float(x[i]) for x in actual]) <= best * (1 + 1e-4)


def test_equal_losses_and_absent_classes_weigh_nothing():
  logits, labels = synthetic(*SHAPE)
  every = np.ones(SHAPE[0], bool)
  labels = np.where(labels == 3, 0, labels)
  params = made("classwise_loss_scaling").fit(logits, labels, where=every)
  assert params["class_weights"][3] == 0 and params["converged"]
  classes = np.arange(SHAPE[0]) % SHAPE[1]  # All right, by the same margin.
  params = made("classwise_loss_scaling").fit(2 * np.eye(SHAPE[1], dtype=np.float32)[classes], classes, where=every)
  np.testing.assert_array_equal(params["class_weights"], np.zeros(SHAPE[1]))
  # However they are rounded: each is the difference of a logit and a log-sum-exp, of which each may err by eps.
  losses, rounded = np.full(4, 0.01, np.float32), np.array([0, 1, 2, 4], np.float32) * np.finfo(np.float32).eps
  for normalization in classwise.NORMALIZATIONS:
    assert not classwise._normalized(losses + rounded, np.ones(4, bool), normalization).any()
    assert classwise._normalized(losses + 100 * rounded, np.ones(4, bool), normalization).any()


def test_of_examples_that_are_all_right_the_labels_are_softened():
  logits, _, where = _unequal_classes()
  fits = [made(name, **options).fit(logits, np.nan_to_num(logits).argmax(1), where=where)["temperature"]
          for name, options in (("temperature_scaling", {}),
                                ("classwise_loss_scaling", {"base": "temperature_scaling", "normalization": "minmax",
                                                            "class_loss": "mean"}))]
  assert 0.5 < fits[1] / fits[0] < 2
