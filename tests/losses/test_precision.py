"""Losses where rounding hurts most, in half precision, and in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses
from tests.losses import cases, references


def test_soft_avuc_keeps_its_digits_near_uniform_and_near_one_hot():
  for scale in (0.02, 10.0):
    cases.check_batch("soft_avuc", {}, cases.step("soft_avuc", {}), *cases.data(32, 3, scale))


def test_selective_risk_keeps_its_digits_where_all_tails_are_tiny():
  # Five bins and ν = 1e-4: scores stand up to a thousand ν above the highest centre.
  options = {"smoothing": 1e-4, "num_bins": 5, "low_confidence_coverage": 1.0}
  (logits, labels), step = cases.data(64, 3), cases.step("selective_risk", options)
  expected = cases.reference("selective_risk", logits, labels, options)
  np.testing.assert_allclose(step(logits, labels)[0], expected, rtol=2e-5)
  cases.check_batch("selective_risk", options, step, logits, labels)


def test_smoothed_cross_entropy_keeps_its_digits_on_logits_shifted_by_1e4():
  logits, labels = cases.data(64, 3)
  logits += np.float32(1e4)  # Rounded to multiples of 2^-10, so that all differences of logits are exact in float32.
  for a in (0.1, 1.0):
    values = cases.step("cross_entropy", {"label_smoothing": a})(logits, labels)[0]
    expected = cases.reference("cross_entropy", logits, labels, {"label_smoothing": a})
    np.testing.assert_allclose(values, expected, rtol=2e-5)


def test_soft_bins_of_almost_no_width_are_finite_and_right_at_extremes():
  options = {"temperature": 1e-6}
  step = cases.step("soft_binned_ece", options)
  for logits, labels in cases.EXTREMES.values():
    value, gradient = step(logits, labels)
    assert np.isfinite(gradient).all()
    expected = cases.reference("soft_binned_ece", logits, labels, options)
    np.testing.assert_allclose(value, expected, rtol=5e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["top_label", "canonical", "marginal"])
def test_kde_ece_of_two_classes_keeps_its_digits_at_logits_of_1e4(form):
  rng = np.random.default_rng(0)
  moderate = rng.normal(size=(40, 16, 2))
  mixed, huge = moderate.copy(), 1e4 * np.sign(moderate)
  mixed[:, :2] = [[1e4, -1e4], [-1e4, 1e4]]  # The logarithms of the others' kernels at these are huge.
  logits = np.concatenate([mixed, huge, rng.uniform(-1e4, 1e4, (40, 16, 2)), moderate + 1e4]).astype(np.float32)
  labels = rng.integers(0, 2, logits.shape[:2])
  values = jax.jit(jax.vmap(losses.get("kde_ece", form=form)))(logits, labels)
  expected = [references.kde_ece(z.astype(np.float64), y, form=form) for z, y in zip(logits, labels, strict=True)]
  np.testing.assert_allclose(values, expected, rtol=2e-5)


@pytest.mark.parametrize("name", cases.FIRST)
def test_half_precision_is_computed_in_float32(name):
  logits, labels = cases.data(9, 4)
  trace = jax.make_jaxpr(losses.get(name, **cases.FIRST[name]))(jnp.asarray(logits, jnp.bfloat16), labels)
  # The logits are widened before anything else is done to them: the rest is what float32 logits would meet.
  uses = [e for e in trace.eqns if any(getattr(v.aval, "dtype", None) == jnp.bfloat16 for v in [*e.invars, *e.outvars])]
  assert [e.primitive.name for e in uses] == ["convert_element_type"]
  assert uses[0].outvars[0].aval.dtype == jnp.float32 == trace.out_avals[0].dtype


def test_float64_stays_float64():
  with jax.enable_x64(True):
    logits, labels = cases.data(8, 4)
    for name, options in cases.FIRST.items():
      loss = jax.eval_shape(losses.get(name, **options), logits.astype(np.float64), labels)
      assert loss.dtype == jnp.float64, name
    value = jax.jit(losses.soft_avuc)(logits.astype(np.float64), labels)
    np.testing.assert_allclose(value, cases.reference("soft_avuc", logits, labels, {}), rtol=1e-12)
