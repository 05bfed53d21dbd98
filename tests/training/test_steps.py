"""The step: independent of the number of devices, exact under padding, and it learns."""

import functools

import jax
import jax.numpy as jnp
from ml_collections import config_dict
import numpy as np
import optax
import pytest

from calib_jax import data, losses, models, training
from calib_jax.training.distributed.mapping import AXIS, mapped, mapped_steps
from calib_jax.training.engine import gradients, steps
from tests.training.small import assert_same, draw_fast, one_step, short, tiny_splits, train


@pytest.mark.slow
def test_one_and_eight_devices_train_alike_with_an_uneven_last_batch(monkeypatch):
  """The last batch of 16 holds 12, so that 8 devices of 2 get 2, 2, 2, 2, 2, 2, 0, 0."""
  draw_fast(monkeypatch)
  config = short("model.name=simple_cnn", "model.channels=(4,)", "training.num_epochs=1", "augmentation.name=mixup",
                 "augmentation.padding=1", "optimizer.l2=0.001")
  (one, (of_one,)), (eight, (of_eight,)) = (train(config, (3,), devices) for devices in (1, 8))
  assert int(one.step[0]) == 3
  assert_same(one, eight, rtol=2e-4, atol=2e-5)
  assert_same(of_one, of_eight, rtol=1e-3, atol=2e-4)
  assert of_one["validation"]["logits"].shape == (13, 3) and of_one["test"]["logits"].shape == (10, 3)
  np.testing.assert_array_equal(of_one["test"]["labels"], tiny_splits(3).test.labels)


@pytest.mark.skipif(len(jax.devices()) < 2, reason="needs two devices")
def test_device_scope_averages_the_losses_of_the_devices():
  config = short("model.hidden=()", "training.num_steps=1", "optimizer.learning_rate=0.0", "loss.scope=device")
  seen, splits = [], tiny_splits()
  state, _ = train(config, predicted=(), hooks=[lambda step, measured: seen.append(float(measured["secondary"][0]))])
  batch = data.training_batch(splits.train, 0, batch_size=16, num_devices=2, seed=0)
  head = jax.tree.map(lambda x: np.asarray(x[0]), state.params["head"])
  images = np.asarray(data.normalize(batch["image"].reshape(16, 4, 4, 1), splits.mean, splits.std)).reshape(16, -1)
  logits, labels = images @ head["kernel"] + head["bias"], batch["label"].reshape(16)
  loss = jax.jit(functools.partial(losses.soft_avuc, threshold=0.5, temperature=0.1))
  of_devices = (float(loss(logits[:8], labels[:8])) + float(loss(logits[8:], labels[8:]))) / 2
  np.testing.assert_allclose(seen, [of_devices], rtol=1e-4)
  assert abs(of_devices - float(loss(logits, labels))) > 1e-3


def _one_step(devices, mask, l2=0.0, learning_rate=0.5, decays=models.decay_mask, **options):
  """Plain gradient descent on a linear model: what a step must do is then known in closed form."""
  model = models.get("mlp", num_classes=3, hidden=(), axis_name=AXIS)
  loss = config_dict.ConfigDict({"primary": {"name": "cross_entropy"}, "secondary": {"name": ""}, "weight": 1.0})
  objective = gradients.Objective(
    model, training.objective(loss), AXIS, augment=data.build_augmentation("none", num_classes=3),
    normalize=lambda x: x.astype(jnp.float32) / 255, l2=l2, decays=decays)
  train_step = mapped_steps(steps.train_step, devices, 1, objective=objective,
                      optimizer=optax.sgd(learning_rate), **options)
  state = steps.init_state(model, optax.sgd(learning_rate), jnp.zeros((1, 2, 2, 1)), {}, jax.random.key(0))
  state = state._replace(params=jax.tree.map(lambda x: x + 0.3, state.params))  # Biases start at 0.
  images = np.random.default_rng(2).integers(0, 256, (8, 2, 2, 1), dtype=np.uint8)
  labels = np.arange(8, dtype=np.int32) % 3
  before = jax.tree.map(np.asarray, state.params["head"])
  batch = {"image": images, "label": labels, "mask": mask}
  shape = {k: v.reshape(len(devices), 1, -1, *v.shape[1:]) for k, v in batch.items()}
  state, measured = one_step(train_step, jax.tree.map(lambda x: x[None], state), shape, jax.random.key(0)[None])
  return before, jax.tree.map(lambda x: x[0], (state, measured)), images, labels


@pytest.mark.parametrize(("num_devices", "accumulation", "all_decay"),
                         [(4, 1, True), (1, 4, True), (2, 2, False)])
def test_a_step_of_softmax_regression_equals_numpy(num_devices, accumulation, all_decay):
  mask = np.array([1, 1, 1, 0, 1, 0, 0, 0], bool)  # The last of four parts is padding alone.
  before, (state, measured), images, labels = _one_step(
    jax.devices()[:num_devices], mask, l2=0.1, decays=training.decayed(all_decay), accumulation=accumulation)
  x = images[mask].reshape(-1, 4).astype(np.float64) / 255
  onehot = np.eye(3)[labels[mask]]
  logits = x @ before["kernel"] + before["bias"]
  p = np.exp(logits - logits.max(1, keepdims=True))
  p /= p.sum(1, keepdims=True)
  loss = -np.log(p[onehot.astype(bool)]).mean()
  np.testing.assert_allclose(measured["loss"], loss, rtol=1e-5)
  decayed = before.values() if all_decay else [before["kernel"]]
  np.testing.assert_allclose(measured["l2"], 0.1 * sum((v.astype(np.float64)**2).sum() for v in decayed), rtol=1e-5)
  np.testing.assert_allclose(measured["accuracy"], np.mean(p.argmax(1) == labels[mask]), rtol=1e-6)
  kernel = before["kernel"] - 0.5 * (x.T @ (p - onehot) / len(x) + 0.2 * before["kernel"])
  bias = before["bias"] - 0.5 * ((p - onehot).mean(0) + 0.2 * all_decay * before["bias"])
  np.testing.assert_allclose(state.params["head"]["kernel"], kernel, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(state.params["head"]["bias"], bias, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("devices", [1, 2])
def test_the_step_is_traced_and_compiled_once(devices, monkeypatch, caplog):
  traced, original = [], steps.train_step

  @functools.wraps(original)
  def counting(*args, **kwargs):
    traced.append(1)
    return original(*args, **kwargs)

  monkeypatch.setattr(steps, "train_step", counting)
  with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
    train(short(), devices=devices, predicted=())
  # Of all programs that take images it alone has the number of steps so far, one a seed.
  compiled = [x for x in caplog.messages if x.startswith("Compiling") and "(uint8[" in x and "(int32[1])" in x]
  assert len(traced) == 1 and len(compiled) == 1, compiled


@pytest.mark.parametrize("parallel", ["pmap", "shard_map"])
def test_one_device_sums_its_own_share_alone_and_is_the_one_that_is_named(parallel):
  device = jax.devices()[3]
  step = mapped(lambda state, batch: jax.lax.pmean(jax.lax.psum(state * batch, AXIS), AXIS), [device], 1,
                parallel=parallel)
  actual = step(np.array([[1, 2]], np.float32), np.array([[[3, 4]]], np.float32))
  np.testing.assert_array_equal(actual, [[3, 8]])
  assert actual.devices() == {device}
