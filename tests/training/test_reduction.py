"""The sum recipe: its steps equal plain SGD that sums, clips, decays and adds momentum, in this order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import training
from calib_jax.training import data
from calib_jax.training.engine import stages
from tests.training.small import PLAIN, assert_same, built, short, softmax_gradient, tiny_splits, train

SUM = (*PLAIN, "loss.reduction=sum", "model.hidden=()", "optimizer.coupled_weight_decay=0.1",
       "optimizer.schedule=constant", "training.num_steps=3")
CLIP = 8.0


def _softmax_regression(batches, kernel, bias, *, rate, momentum, decays, clip):
  """Plain SGD in float64; returns the parameters and the gradient norm before clipping of every step."""
  params, velocity, norms = [kernel.astype(np.float64), bias.astype(np.float64)], [0.0, 0.0], []
  for x, labels in batches:
    _, gradients = softmax_gradient(x, labels, *params)
    norms.append(np.sqrt(sum((g**2).sum() for g in gradients)))
    gradients = [g * min(1, clip / norms[-1]) for g in gradients]
    gradients = [g + decay * w for g, decay, w in zip(gradients, decays, params, strict=True)]
    velocity = [momentum * v + g for v, g in zip(velocity, gradients, strict=True)]
    params = [w - rate * v for w, v in zip(params, velocity, strict=True)]
  return params, norms


@pytest.mark.parametrize(("num_devices", "accumulation", "scope", "all_decay"), [
  pytest.param(4, 1, "global", True, marks=pytest.mark.slow), (2, 2, "device", False)])
def test_three_steps_of_the_sum_recipe_equal_numpy(num_devices, accumulation, scope, all_decay):
  # The third batch of 16 holds 12 of 44 examples, so that parts and devices hold unequal numbers.
  config = short(*SUM, f"training.accumulation_steps={accumulation}", f"loss.scope={scope}",
                 f"optimizer.clip_norm={CLIP}", f"optimizer.decay_norms_and_biases={all_decay}")
  splits, (program, keys) = tiny_splits(), built(config, devices=num_devices)
  start = program.stages[0].start(None, keys)
  kernel, bias = (np.asarray(start.params["head"][name][0]) for name in ("kernel", "bias"))
  source = stages.batches(program.stages[0].plan.phases, 0, [0], batch_size=16, num_devices=1)
  batches = []
  for _ in range(3):
    _, batch = next(source)
    mask = batch["mask"].reshape(-1)
    images = np.asarray(data.normalize(batch["image"][0, 0], splits.mean, splits.std)).reshape(len(mask), -1)
    batches.append((images[mask].astype(np.float64), batch["label"].reshape(-1)[mask]))
  assert [len(labels) for _, labels in batches] == [16, 16, 12]
  (kernel, bias), norms = _softmax_regression(batches, kernel, bias, rate=0.05, momentum=0.9, clip=CLIP,
                                              decays=(0.1, 0.1 * all_decay))
  assert min(norms) < CLIP < max(norms)
  measured = []
  state, _ = train(config, devices=num_devices, predicted=(),
                   hooks=[lambda step, values: measured.append(float(values["gradient_norm"][0]))])
  np.testing.assert_allclose(measured, norms, rtol=1e-5)
  np.testing.assert_allclose(state.params["head"]["kernel"][0], kernel, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(state.params["head"]["bias"][0], bias, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_sum_of_a_batch_loss_is_its_number_of_examples_times_it():
  """Its one step is that of the mean with 16 times the rate, on the parts of two devices and two accumulation steps."""
  options = ("loss.primary.name=soft_binned_ece", "loss.secondary.name=", "optimizer.momentum=0.0",
             "training.num_steps=1", "training.accumulation_steps=2", "loss.scope=device",
             "optimizer.schedule=constant")
  one, two = (train(short(*options, *more), predicted=())[0]
              for more in (("optimizer.learning_rate=0.16",), ("optimizer.learning_rate=0.01", "loss.reduction=sum")))
  assert_same(one.params, two.params, rtol=1e-5, atol=1e-6)


def test_a_secondary_loss_and_the_validation_loss_keep_their_units():
  logits, labels = jax.random.normal(jax.random.key(0), (11, 3)), jnp.arange(11) % 3
  mean, summed = (short(*more).loss for more in (("loss.weight=0.2",), ("loss.weight=2.2", "loss.reduction=sum")))
  value, parts = training.objective(mean)(logits, labels)
  of_sum, _ = training.objective(summed)(logits, labels, scale=3.0)
  np.testing.assert_allclose(of_sum, 3 * 11 * parts["primary"] + 2.2 * parts["secondary"], rtol=1e-5)
  per_example = training.engine.objectives.per_example(summed, 11)(logits, labels)[0]
  np.testing.assert_allclose(per_example, value, rtol=1e-6)
