"""Numeric options that are traced: schedules, hyper-gradients and sweeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses
from tests.losses import cases

# Options of factors that carry no gradient, and thresholds, at which losses jump.
WITHOUT_GRADIENT = {("brier_weighted_cross_entropy", "gamma"), ("brier_weighted_cross_entropy", "norm"),
                    ("avuc", "threshold"), ("class_adaptive_label_smoothing", "multipliers"),
                    ("class_adaptive_label_smoothing", "curvature")}


def _numbers(name):
  """The numeric options of a loss and their defaults."""
  defaults = {**losses.options(name), **cases.FIRST[name]}
  return {option: value for option, value in defaults.items() if type(value) is float and option != "last_constraints"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(f"{name}-default"))
                                  for name in cases.FIRST if _numbers(name)])
def test_traced_options_give_the_value_of_static_ones_and_its_derivative(name):
  logits, labels = cases.data(64, 3)
  fixed = cases.FIRST[name]
  loss, reference = losses.get(name, **fixed), (
    cases.example_reference if name in cases.PER_EXAMPLE else cases.batch_reference)
  values = _numbers(name)
  value, gradient = jax.jit(jax.value_and_grad(lambda options: jnp.sum(loss(logits, labels, **options))))(
    {option: np.float32(x) for option, x in values.items()})
  np.testing.assert_allclose(value, np.sum(cases.step(name, cases.FIRST[name])(logits, labels)[0]), rtol=1e-5)
  for option, x in values.items():
    def of(x, option=option):
      return np.sum(reference(name, logits, labels, {**fixed, **values, option: x}))

    ends = (x, x + 1e-5) if x == 0 else (x * (1 - 1e-5), x * (1 + 1e-5))
    slope = 0 if (name, option) in WITHOUT_GRADIENT else (of(ends[1]) - of(ends[0])) / (ends[1] - ends[0])
    np.testing.assert_allclose(gradient[option], slope, rtol=2e-3, atol=2e-4, err_msg=option)


def test_options_that_are_arrays_may_be_traced():
  logits, labels = cases.data(20, 3)

  @jax.jit
  def values(thresholds, gammas, low):
    return (losses.sample_dependent_focal(logits, labels, thresholds=thresholds, gammas=gammas),
            losses.adaptive_focal(logits, labels, gammas=gammas[1:], bin_edges=jnp.append(0, thresholds)),
            losses.selective_risk(logits, labels, score_range=(low, 1.0)))

  thresholds, gammas = np.array([0.2, 0.6], np.float32), np.array([5.0, 3.0, 1.0], np.float32)
  actual = values(thresholds, gammas, np.float32(0))
  expected = [cases.example_reference("sample_dependent_focal", logits, labels,
                                      {"thresholds": thresholds, "gammas": gammas}),
              cases.example_reference("adaptive_focal", logits, labels,
                                      {"gammas": gammas[1:], "bin_edges": np.append(0, thresholds)}),
              cases.batch_reference("selective_risk", logits, labels, {})]
  for one, other in zip(actual, expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=2e-5)


def test_weights_of_composite_and_rates_of_updates_may_be_traced():
  logits, labels = cases.data(20, 3)
  total, slope = jax.jit(jax.value_and_grad(
    lambda weight: losses.composite("focal", "mmce", weight)(logits, labels)[0]))(0.5)
  secondary = cases.batch_reference("mmce", logits, labels, {})
  np.testing.assert_allclose(slope, secondary, rtol=1e-5)
  focal = np.mean(cases.example_reference("focal", logits, labels, {}))
  np.testing.assert_allclose(total, focal + 0.5 * secondary, rtol=1e-5)
  start, confidence = losses.init_adaptive_focal(4), np.float32([0.3, 0.6, 0.9, 0.7])

  def update(**options):
    return losses.update_adaptive_focal(start, confidence, confidence > 0.5, **options)

  options = {"rate": 2.0, "switch": 0.1, "gamma_min": -1.0, "gamma_max": 3.0}
  np.testing.assert_allclose(jax.jit(update)(**options).gammas, update(**options).gammas, rtol=1e-6)


def test_label_smoothing_of_0_has_its_derivative_and_leaves_masked_classes_alone():
  logits, labels = cases.data(4, 3)
  spoilt = cases.masked(logits, (np.arange(3) != labels[:, None]) & (np.arange(4) == 2)[:, None])

  def smoothed(z, a):
    return losses.cross_entropy(z, labels, label_smoothing=a)

  values, slopes = jax.jit(lambda z, a: (smoothed(z, a), jax.jacobian(smoothed, argnums=(0, 1))(z, a)))(
    spoilt, np.float32(0))
  assert np.isfinite(values).all() and all(np.isfinite(x).all() for x in slopes)
  expected = logits[range(4), labels] - logits.mean(1)
  np.testing.assert_allclose(np.delete(slopes[1], 2), np.delete(expected, 2), rtol=1e-4)


@pytest.mark.parametrize(("call", "option"), [
  (lambda x: losses.soft_binned_ece(cases.FLOATS, cases.INTS, num_bins=x), "num_bins"),
  (lambda x: losses.focal(cases.FLOATS, cases.INTS, stop_gradient=x), "stop_gradient"),
  (lambda x: losses.selective_risk(cases.FLOATS, cases.INTS, variant=x), "variant"),
  (lambda x: losses.kde_ece(cases.FLOATS, cases.INTS, form=x), "form"),
  (lambda x: losses.init_selective_risk(x), "num_bins"),
])
def test_what_selects_a_formula_or_a_shape_must_be_static(call, option):
  with pytest.raises(TypeError, match=f"{option} must be static, because it selects a formula or a shape: give a Pyth"):
    jax.jit(call)(1)
