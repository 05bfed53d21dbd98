"""Averages of weights, and sharpness-aware steps: their formulas, on several devices, and what a run keeps."""

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import training
from calib_jax.training import averages, models
from calib_jax.training.engine import gradients
from tests.training.small import alone, assert_same, linear_step, short, softmax_gradient, tiny_splits, train


def _state(value, step=0):
  value = jnp.asarray(value, jnp.float32)
  return training.TrainState(jnp.full(2, step, jnp.int32), {"w": value}, {"mean": 2 * value}, (), {},
                             jnp.zeros(2, jnp.int32))


@pytest.mark.parametrize("decay", [0.9, 0.999999, 1.0])
def test_the_average_has_the_weights_of_its_definition(decay):
  values = np.random.default_rng(0).normal(size=(40, 2, 3))
  average = averages.start(_state(values[0]))
  for value in values:
    average = averages.update(average, _state(value), decay)
  weights = np.float64(decay) ** np.arange(len(values))[::-1]  # An exponential moving average over its sum of weights.
  expected = np.tensordot(weights / weights.sum(), values.astype(np.float32).astype(np.float64), 1)
  # Forty steps, each of which rounds a few times.
  tolerance = {"rtol": 0, "atol": 40 * 4 * np.finfo(np.float32).eps}
  np.testing.assert_allclose(average.variables["params"]["w"], expected, **tolerance)
  np.testing.assert_allclose(average.variables["batch_stats"]["mean"] / 2, expected, **tolerance)
  np.testing.assert_array_equal(average.count, [40, 40])


@pytest.mark.slow
def test_a_run_keeps_and_predicts_with_the_average_of_its_steps(monkeypatch, tmp_path):
  config = short("training.average=swa", "training.average_fraction=0.5", "training.num_epochs=4",
                 "training.select=best")
  seen, original = {}, averages.update

  def recorded(average, state, decay):
    seen[int(state.step[0])] = jax.tree.map(np.array, averages.variables(state))
    return original(average, state, decay)

  monkeypatch.setattr(averages, "update", recorded)
  _, predictions = train(config, seeds=(0, 1), folder=tmp_path)  # An epoch has three steps.
  assert tuple(seen) == (9, 12)  # Half of four epochs: the end of the second one is not among them.
  mean = jax.tree.map(lambda *x: np.mean(x, 0, dtype=np.float64).astype(np.float32), *seen.values())
  splits = [tiny_splits(0), tiny_splits(1)]
  shape = training.shape_of(splits[0])
  predictor = training.predictor(training.classifier(config, config.head, 3), shape, 2, jax.devices()[:2])
  expected = training.predict(predictor, mean, [s.test for s in splits], 16, training.Layout.of(jax.devices()[:2]))
  for i in range(2):
    np.testing.assert_allclose(predictions[i]["test"]["logits"], expected["logits"][i], rtol=1e-4, atol=1e-5)
  group = training.Group((0, 1), tmp_path)
  kept, last = group.variables("average"), group.variables("last")
  assert_same(kept, mean, rtol=1e-5, atol=1e-6)
  assert_same(group.variables(), group.variables("best") if config.training.select == "best" else kept)
  assert not np.array_equal(kept["params"]["head"]["kernel"], last["params"]["head"]["kernel"])


def test_the_batch_statistics_of_a_mean_are_those_of_the_training_images(monkeypatch):
  """A layer of momentum 0.8 is averaged over batches by their sizes; a head's own number stays."""
  waited = []
  monkeypatch.setattr(jax, "block_until_ready", lambda x: waited.append(x) or x)
  rng = np.random.default_rng(1)
  batches = [rng.normal(size=(1, n)).astype(np.float32) for n in (5, 5, 2)]

  def step(variables, batch):
    old = variables["batch_stats"]
    new = 0.8 * old["mean"] + 0.2 * batch.mean(1, keepdims=True)
    return {**old, "mean": new}, jnp.array([batch.size], jnp.float32)

  mean = {"params": {}, "batch_stats": {"mean": jnp.array([[7.0]]), "head": jnp.array([[0.3]]),
                                        "key": jnp.array([[7, 2**32 - 1]], jnp.uint32)}}
  result = averages.reestimated(step, mean, batches)["batch_stats"]
  np.testing.assert_allclose(result["mean"], np.concatenate(batches, 1).mean(1, keepdims=True), rtol=1e-5)
  for name in ("head", "key"):
    np.testing.assert_array_equal(result[name], mean["batch_stats"][name])
  assert len(waited) == 4  # Before each call, of which the first batch has two.


def test_a_key_is_not_averaged():
  """A head's random numbers at prediction: their key is of integers, and the newest one stays."""
  states = [_state(np.zeros((2, 1)))._replace(batch_stats={"key": jnp.full((2, 2), key, jnp.uint32)}) for key in (5, 9)]
  average = averages.start(states[0])
  for state in states:
    average = averages.update(average, state, 0.9)
  np.testing.assert_array_equal(average.variables["batch_stats"]["key"], np.full((2, 2), 9, np.uint32))


@pytest.mark.slow
def test_averaged_networks_with_batch_norm_get_statistics_of_their_own(monkeypatch):
  config = short("training.average=swa", "training.average_fraction=1.0", "model.name=simple_cnn",
                 "model.channels=(4, 5)", "training.parallel=shard_map")
  seen, original = {}, averages.reestimated

  def recorded(step, mean, batches):
    seen["before"], seen["after"] = mean, original(step, mean, batches)
    return seen["after"]

  monkeypatch.setattr(averages, "reestimated", recorded)
  train(config)
  splits, before, after = tiny_splits(), seen["before"], seen["after"]
  assert_same(before["params"], after["params"])
  model = models.get(num_classes=3, head=config.head, axis_name=None, **config.model)
  normalize = training.engine.program.normalizer(training.shape_of(splits))
  zero = jax.tree.map(jnp.zeros_like, alone(after["batch_stats"]))
  variables = {"params": alone(before["params"]), "batch_stats": zero}
  sums = 0
  for first in range(0, 44, 16):
    images = splits.train.images[first:first + 16]
    _, new = jax.jit(lambda x: model.apply(variables, normalize(x), train=True, mutable=["batch_stats"]))(images)
    sums += len(images) / 0.1 * ravel_pytree(new["batch_stats"])[0]  # The momentum is 0.9.
  np.testing.assert_allclose(ravel_pytree(alone(after["batch_stats"]))[0], sums / 44, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("num_devices", "accumulation"), [pytest.param(4, 1, marks=pytest.mark.slow), (2, 2)])
def test_a_sharpness_aware_step_takes_the_gradient_of_the_worst_neighbour(num_devices, accumulation):
  mask, radius = np.array([1, 1, 1, 0, 1, 0, 0, 1], bool), 0.4
  before, state, _, x, labels = linear_step(
    jax.devices()[:num_devices], mask, accumulation=accumulation, sharpness=radius)
  _, slopes = softmax_gradient(x, labels, **before)
  norm = np.sqrt(sum((g**2).sum() for g in slopes))
  worst = [w + radius * g / norm for w, g in zip(before.values(), slopes, strict=True)]
  _, gradient = softmax_gradient(x, labels, *worst)
  for (name, w), g in zip(before.items(), gradient, strict=True):
    np.testing.assert_allclose(state.params["head"][name], w - 0.5 * g / len(x), rtol=1e-4, atol=1e-6)


def test_nothing_moves_where_the_gradient_is_0():
  params = {"w": jnp.array([1.0, -2.0])}
  assert_same(gradients.perturbed(params, {"w": jnp.zeros(2)}, 0.1), params)
