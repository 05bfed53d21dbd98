"""A primary and a secondary loss as one; losses of rows with weights are in test_weights.py."""

import jax
import numpy as np
import pytest

from calib_jax import losses
from tests.losses import cases
from tests.losses.cases import FLOATS, INTS


def test_composite_is_the_weighted_sum_with_its_parts_whatever_ignored_rows_hold():
  logits, labels = cases.data(10, 3)
  where = np.arange(10) < 7
  loss = losses.composite("focal", losses.get("soft_binned_ece", num_bins=5), 0.3)
  both = jax.jit(jax.value_and_grad(lambda z, y, w: loss(z, y, where=w), has_aux=True))
  (total, parts), gradient = both(logits, labels, where)
  primary = cases.reference("focal", logits[:7], labels[:7], {}).mean()
  np.testing.assert_allclose(parts["primary"], primary, rtol=1e-5)
  secondary = cases.reference("soft_binned_ece", logits[:7], labels[:7], {"num_bins": 5})
  np.testing.assert_allclose(parts["secondary"], secondary, rtol=1e-5)
  np.testing.assert_allclose(total, parts["primary"] + np.float32(0.3) * parts["secondary"], rtol=1e-6)
  for content in (np.nan, -np.inf, np.inf):
    actual = both(np.where(where[:, None], logits, content), np.where(where, labels, -100), where)
    jax.tree.map(np.testing.assert_array_equal, actual, ((total, parts), gradient))
  assert np.isnan(both(logits, np.where(where, labels, -100), np.ones(10, bool))[0][0])
  (total, _), gradient = both(np.full((10, 3), np.nan, np.float32), labels, np.zeros(10, bool))
  assert total == 0 and not np.any(gradient)


def test_a_composite_says_what_it_is():
  text = repr(losses.composite("focal", losses.get("soft_avuc", temperature=0.3), 0.5))
  assert "composite(focal, soft_avuc(temperature=0.3), weight=0.5, reduction='mean') at 0x" in text
  assert "composite(cross_entropy, weight=" in repr(losses.composite("cross_entropy"))


@pytest.mark.parametrize(("primary", "secondary", "message"), [
  (lambda z, y: losses.soft_avuc(z, y), None,
   r"primary must return one value per example, shape \(4,\): it returned shape \(\)"),
  (lambda z, y, where, axis_name: z, None, r"primary must return a scalar, .* it returned shape \(4, 3\)"),
  ("focal", "brier", "secondary must be a loss per batch, which takes where and axis_name: got one without axis_name; "
   "a loss per example can only be the primary"),
])
def test_composite_refuses_losses_of_the_wrong_kind(primary, secondary, message):
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(losses.composite(primary, secondary), FLOATS, INTS, where=INTS > 0)
