"""A primary and a secondary loss as one."""

import jax
import numpy as np
import pytest

from calib_jax import losses
from tests.losses import cases
from tests.losses.cases import FLOATS, INTS


def test_composite_is_the_weighted_sum_with_its_parts():
  logits, labels = cases.data(10, 3)
  where = np.arange(10) < 7
  both = jax.jit(losses.composite("focal", losses.get("soft_binned_ece", num_bins=5), 0.3))
  total, parts = both(logits, labels, where=where)
  focal = cases.example_reference("focal", logits[:7], labels[:7], {})
  binned = cases.batch_reference("soft_binned_ece", logits[:7], labels[:7], {"num_bins": 5})
  np.testing.assert_allclose(parts["primary"], np.mean(focal), rtol=1e-5)
  np.testing.assert_allclose(parts["secondary"], binned, rtol=1e-5)
  np.testing.assert_allclose(total, parts["primary"] + np.float32(0.3) * parts["secondary"], rtol=1e-6)
  total, _ = both(np.full((10, 3), np.nan, np.float32), labels, where=np.zeros(10, bool))
  assert total == 0
  total, parts = jax.jit(losses.composite(losses.brier))(logits, labels)
  assert total == parts["primary"] and parts["secondary"] == 0


@pytest.mark.parametrize(("primary", "secondary", "message"), [
  (lambda z, y: losses.soft_avuc(z, y), None,
   r"primary must return one value per example, shape \(4,\): it returned shape \(\)"),
  (lambda z, y, where, axis_name: z, None, r"primary must return a scalar, .* it returned shape \(4, 3\)"),
  ("soft_avuc", "focal", "secondary must be a loss per batch.*a loss per example can only be the primary"),
  (lambda z, y: losses.focal(z, y)[:, None], "mmce", r"primary must return .* it returned shape \(4, 1\)"),
  ("focal", "brier", "secondary must be a loss per batch, which takes where and axis_name: got one without axis"),
])
def test_composite_refuses_losses_of_the_wrong_kind(primary, secondary, message):
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(losses.composite(primary, secondary), FLOATS, INTS, where=INTS > 0)


def test_composite_takes_one_loss_and_a_known_reduction():
  with pytest.raises(TypeError, match=r"secondary must be one loss, by name or as a function: got \['mmce', 'aurc'\]"):
    losses.composite("focal", ["mmce", "aurc"])
  with pytest.raises(ValueError, match="reduction must be one of 'mean', 'sum': got 'max'"):
    losses.composite("focal", reduction="max")


@pytest.mark.parametrize("primary", ["focal", "aurc"])
def test_a_sum_is_the_mean_times_the_number_of_rows_that_count(primary):
  logits, labels = cases.data(10, 3)
  where = np.arange(10) < 7
  (mean, _), (total, parts) = jax.jit(lambda z: [
    losses.composite(primary, "mmce", 0.5, reduction=r)(z, labels, where=where) for r in ("mean", "sum")])(logits)
  kind = cases.example_reference if primary == "focal" else cases.batch_reference
  value = np.mean(kind(primary, logits[:7], labels[:7], {}))
  error = cases.batch_reference("mmce", logits[:7], labels[:7], {})
  np.testing.assert_allclose(parts["primary"], 7 * value, rtol=1e-5)
  np.testing.assert_allclose([mean, total], [value + 0.5 * error, 7 * value + 0.5 * error], rtol=1e-5)


def test_composite_ignores_rows_whatever_they_hold():
  logits, labels = cases.data(12, 3)
  where = np.arange(12) % 3 != 1
  both = jax.jit(jax.value_and_grad(lambda z, y, w: losses.composite("focal", "soft_avuc")(z, y, where=w)[0]))
  value, gradient = both(logits, labels, where)
  sliced = [cases.step(name, {})(logits[where], labels[where]) for name in ("focal", "soft_avuc")]
  np.testing.assert_allclose(value, np.mean(sliced[0][0]) + sliced[1][0], rtol=1e-5)
  for content in (np.nan, -np.inf, np.inf):
    actual = both(np.where(where[:, None], logits, content), np.where(where, labels, -100), where)
    np.testing.assert_array_equal(actual[0], value)
    np.testing.assert_array_equal(actual[1], gradient)
  assert np.isnan(both(logits, np.where(where, labels, -100), np.ones(12, bool))[0])
