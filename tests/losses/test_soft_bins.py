"""What soft bins tend to: hard bins, and no error of calibrated predictions."""

import jax
import numpy as np
import pytest

from calib_jax import losses
from tests.losses import cases


def test_soft_bins_of_almost_no_width_are_finite_and_right_at_extremes():
  options = {"temperature": 1e-6}
  step = cases.batch_step("soft_binned_ece", options, rows=4)
  for logits, labels in cases.EXTREMES.values():
    value, gradient = step(logits, labels)
    assert np.isfinite(gradient).all()
    expected = cases.batch_reference("soft_binned_ece", logits, labels, options)
    np.testing.assert_allclose(value, expected, rtol=5e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["bin", "label"])
def test_soft_binning_tends_to_hard_binning(form):
  logits, labels = cases.data(200, 4)
  z = logits.astype(np.float64)
  p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
  c, a = p.max(1), p.argmax(1) == labels
  index = np.minimum((c * 10).astype(int), 9)
  accuracy = np.array([a[index == b].mean() if (index == b).any() else 0 for b in range(10)])
  mean = np.array([c[index == b].mean() if (index == b).any() else 0 for b in range(10)])
  gaps = np.abs(accuracy[index] - (mean[index] if form == "bin" else c))
  soft = jax.jit(losses.get("soft_binned_ece", num_bins=10, temperature=1e-6, form=form))
  for norm in (1.0, 2.0):
    np.testing.assert_allclose(soft(logits, labels, norm=norm), np.mean(gaps**norm)**(1 / norm), rtol=2e-3)


def test_soft_binned_ece_vanishes_for_calibrated_predictions_as_they_grow_in_number():
  rng = np.random.default_rng(0)  # Proposition 1 of the paper, for the bin form.
  logits = rng.normal(size=(1_000_000, 2)).astype(np.float32) * 2
  labels = (rng.uniform(size=1_000_000) < 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))).astype(np.int32)
  loss = jax.jit(losses.get("soft_binned_ece", form="bin"))
  values = [loss(logits, labels, where=np.arange(1_000_000) < n) for n in (100, 10_000, 1_000_000)]
  assert values[1] < 0.25 * values[0] and values[2] < 0.25 * values[1] and values[2] < 2e-3
