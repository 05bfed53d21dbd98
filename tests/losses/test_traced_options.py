"""Numeric options that are traced: schedules, hyper-gradients and sweeps."""

import jax
import numpy as np
import pytest

from calib_jax import losses
from tests.losses import cases

# Options of factors that carry no gradient, and thresholds, at which losses jump.
WITHOUT_GRADIENT = {("brier_weighted_cross_entropy", "gamma"), ("brier_weighted_cross_entropy", "norm"),
                    ("avuc", "threshold"), ("class_adaptive_label_smoothing", "multipliers"),
                    ("class_adaptive_label_smoothing", "curvature")}


@pytest.mark.parametrize(("name", "options"), [p for p in cases.cases({**cases.PER_EXAMPLE, **cases.PER_BATCH}, False)
                                               if cases.numbers(*p.values)])
def test_derivatives_in_numeric_options_are_those_of_the_reference(name, options):
  logits, labels = cases.data(64, 3)
  step = cases.step(name, options)
  step(logits, labels)
  for option, x in cases.numbers(name, options).items():
    if x.ndim:
      continue  # Exponents of bins, which carry no gradient.
    low, high = (x, x + 1e-5) if x == 0 else (x * (1 - 1e-5), x * (1 + 1e-5))
    below, above = (np.sum(cases.reference(name, logits, labels, {**options, option: end})) for end in (low, high))
    slope = 0 if (name, option) in WITHOUT_GRADIENT else (above - below) / (high - low)
    np.testing.assert_allclose(step.slopes[option], slope, rtol=2e-3, atol=2e-4, err_msg=option)


def test_weights_of_composite_and_rates_of_updates_may_be_traced():
  logits, labels = cases.data(20, 3)
  start, confidence = losses.init_adaptive_focal(4), np.float32([0.3, 0.6, 0.9, 0.7])

  @jax.jit
  def both(weight, options):
    total, slope = jax.value_and_grad(lambda w: losses.composite("focal", "mmce", w)(logits, labels)[0])(weight)
    return total, slope, losses.update_adaptive_focal(start, confidence, confidence > 0.5, **options).gammas

  options = {"rate": 2.0, "switch": 0.1, "gamma_min": -1.0, "gamma_max": 1.5}
  total, slope, gammas = both(0.5, options)
  secondary = cases.reference("mmce", logits, labels, {})
  np.testing.assert_allclose(slope, secondary, rtol=1e-5)
  focal = np.mean(cases.reference("focal", logits, labels, {}))
  np.testing.assert_allclose(total, focal + 0.5 * secondary, rtol=1e-5)
  # Sorted, the confidences are 0.3, of a wrong prediction, and 0.6, 0.7 and 0.9 of correct ones.
  np.testing.assert_allclose(gammas, np.minimum(1.5, np.exp(2 * np.array([0.3, -0.4, -0.3, -0.1]))), rtol=1e-5)


def test_label_smoothing_of_0_has_its_derivative_and_leaves_masked_classes_alone():
  logits, labels = cases.data(4, 3)
  step = cases.step("cross_entropy", {"label_smoothing": 0.0})
  step(cases.masked(logits, (np.arange(3) != labels[:, None]) & (np.arange(4) == 2)[:, None]), labels)
  expected = np.delete(logits[range(4), labels] - logits.mean(1), 2).sum()
  np.testing.assert_allclose(step.slopes["label_smoothing"], expected, rtol=1e-4)


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
