"""The head ``shared_body``: its prediction, its objectives, and what training does to its members."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from calib_jax import models


def _outputs(members=3, width=5):
  head = {"name": "shared_body", "members": members, "width": width}
  model = models.get("mlp", num_classes=4, hidden=(8,), head=head)
  images = jax.random.normal(jax.random.key(1), (6, 4, 4, 1))
  variables = jax.jit(model.init)(jax.random.key(0), images)
  return model, variables, images


def test_a_prediction_is_the_mean_probability_of_the_members():
  model, variables, images = _outputs()
  each = np.asarray(model.apply(variables, images, train=True), np.float64)
  assert each.shape == (6, 3, 4)
  np.testing.assert_allclose(np.exp(model.apply(variables, images)), special.softmax(each, -1).mean(1), rtol=1e-5)
  assert np.abs(each[:, 0] - each[:, 1]).max() > 0.1  # The members differ.


def test_every_member_has_its_own_loss_and_their_mean_is_measured():
  head = models.get_head("shared_body", num_classes=4, members=3)
  output = 50 * jax.random.normal(jax.random.key(0), (6, 3, 4))
  parts = head.objectives(output, jnp.zeros(6, int), None, where=jnp.ones(6, bool), axis_name=None)
  assert [weight for weight, _ in parts] == pytest.approx([1 / 3] * 3)
  for i, (_, logits) in enumerate(parts):
    np.testing.assert_array_equal(logits, output[:, i])
  probs = special.softmax(np.asarray(output, np.float64), -1).mean(1)
  np.testing.assert_allclose(np.exp(head.combined(output, None)), probs, rtol=1e-5, atol=1e-30)


def test_options_out_of_range_are_refused():
  for options in ({"members": 0}, {"width": -1}):
    with pytest.raises(ValueError, match="members must be at least 1 and width at least 0"):
      models.get_head("shared_body", num_classes=4, **options)
