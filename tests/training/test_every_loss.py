"""Every registered loss is taken by its name in a config, also with mixed labels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses, training
from calib_jax.training import config as run_config
from calib_jax.training import loss_state
from calib_jax.training.run import methods
from tests.training.small import digits

OPTIONS = {"avuc": ("threshold=0.5",)}  # The only option without a default.


def _config(*overrides):
  config = digits("model.hidden=(4,)", "training.select=best", *overrides)
  run_config.check(config, 1)
  return config


def _with(role, name):
  """The config with the loss of that name in one role, and a plain one or none in the other."""
  other = "loss.primary.name=cross_entropy" if role == "secondary" else "loss.secondary.name="
  return _config(other, f"loss.{role}.name={name}", *(f"loss.{role}.{option}" for option in OPTIONS.get(name, ())))


def test_a_name_alone_gives_a_loss_with_a_gradient():
  logits, labels = jax.ShapeDtypeStruct((12, 3), jnp.float32), jnp.arange(12) % 3
  for role, names in (("primary", (*losses.PER_EXAMPLE, *losses.PER_BATCH)), ("secondary", losses.PER_BATCH)):
    for name in names:
      config = _with(role, name)
      loss = config.loss
      assert run_config.from_json(run_config.to_json(config)).loss == loss
      # What the validation split is scored by is said, and a primary loss of a whole batch is not.
      by_nll = any("by the NLL of the validation split" in sentence for sentence in methods.remarks(config))
      assert by_nll == (role == "primary" and name in losses.PER_BATCH)
      states = {key: update.init() for key, update in training.of_loss(loss, 3).items()}
      gradient = jax.eval_shape(jax.grad(lambda z, loss=loss, states=states: training.objective(loss)(
        z, labels, loss_states=states)[0]), logits)
      assert gradient.shape == (12, 3), (role, name)


@pytest.mark.parametrize("name", ["cross_entropy", "adaptive_focal"])
def test_mixed_labels_are_the_mean_over_both_classes(name):
  """As Zhang et al. 2018 define it. Brier's and the focal loss have formulas for distributions, which are others."""
  loss = _config(f"loss.primary.name={name}", "loss.secondary.name=").loss
  objective, states = training.objective(loss), {k: v.init() for k, v in training.of_loss(loss, 3).items()}
  logits = jnp.array([[2.0, -1.0, 0.5], [0.1, 0.3, -2.0], [9.0, 0.0, 1.0]])
  mixed = jnp.array([[0.7, 0.0, 0.3], [0.4, 0.6, 0.0], [0.0, 1.0, 0.0]])  # The last is of two images of one class.

  result = jax.jit(jax.value_and_grad(lambda z: objective(z, mixed, loss_states=states)[0]))(logits)
  @jax.jit
  @jax.value_and_grad
  def expected(logits):
    return sum(share * objective(logits[i:i + 1], jnp.array([label]), loss_states=states)[0]
               for i, label, share in ((0, 0, 0.7), (0, 2, 0.3), (1, 1, 0.6), (1, 0, 0.4), (2, 1, 1.0))) / 3

  for one, other in zip(result, expected(logits), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_selective_risk_warns_of_weights_with_a_gradient_and_of_a_constant_times_cross_entropy():
  score_counts = loss_state.score_counts
  assert "caution: selective_risk with variant='clamped'" in score_counts(3, variant="clamped").caution
  assert "is a constant times cross entropy" in score_counts(3, confidence="negative_entropy").caution
  assert not score_counts(3).caution and not score_counts(3, variant="stopped", confidence="negative_entropy").caution
