"""The step: its formula on any number of devices, exact under padding; it is compiled once."""

import functools
import types

import jax
import numpy as np
import pytest

from calib_jax import losses, training
from calib_jax.training import data, models
from calib_jax.training.distributed.mapping import AXIS, is_sharded, mapped
from calib_jax.training.engine import steps
from tests.training.small import gradient_step, linear_step, short, softmax_gradient, tiny_splits, train


@pytest.fixture(autouse=True)
def _products_of_float32():
  """The references are exact, and GPUs compute a network's products in tf32."""
  with jax.default_matmul_precision("highest"):
    yield


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


@pytest.mark.parametrize(("num_devices", "accumulation", "all_decay"),
                         [(4, 1, True), (1, 4, True), (2, 2, False)])
def test_a_step_of_softmax_regression_equals_numpy(num_devices, accumulation, all_decay):
  mask = np.array([1, 1, 1, 0, 1, 0, 0, 0], bool)  # The last of four parts is padding alone.
  before, state, measured, x, labels = linear_step(
    jax.devices()[:num_devices], mask, l2=0.1, decays=training.decayed(all_decay), accumulation=accumulation)
  probs, gradient = softmax_gradient(x, labels, **before)
  np.testing.assert_allclose(measured["loss"], -np.log(probs[np.arange(len(x)), labels]).mean(), rtol=1e-5)
  decayed = before.values() if all_decay else [before["kernel"]]
  np.testing.assert_allclose(measured["l2"], 0.1 * sum((v**2).sum() for v in decayed), rtol=1e-5)
  np.testing.assert_allclose(measured["accuracy"], np.mean(probs.argmax(1) == labels), rtol=1e-6)
  for (name, w), g, decays in zip(before.items(), gradient, (True, all_decay), strict=True):
    wanted = w - 0.5 * (g / len(x) + 0.2 * decays * w)
    np.testing.assert_allclose(state.params["head"][name], wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("devices", [1, 2])
def test_the_step_is_traced_and_compiled_once(devices, monkeypatch, caplog):
  traced = []

  def count(function):
    @functools.wraps(function)
    def counting(*args, **kwargs):
      traced.append(function.__name__)
      return function(*args, **kwargs)

    monkeypatch.setattr(steps, function.__name__, counting)

  count(steps.train_step)
  count(steps.init_state)
  with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
    train(short(), devices=devices, predicted=())
  # Of all programs that take images it alone has the number of steps so far, one a seed.
  compiled = [x for x in caplog.messages if x.startswith("Compiling") and "(uint8[" in x and "(int32[1])" in x]
  assert sorted(traced) == ["init_state", "train_step"] and len(compiled) == 1, compiled


def test_steps_are_sharded_by_name_or_where_devices_are_of_several_processes():
  one, two = ([types.SimpleNamespace(process_index=i // per_process) for i in range(4)] for per_process in (4, 2))
  sharded = {(parallel, devices is two) for parallel in ("auto", "pmap", "shard_map")
             for devices in (one, two) if is_sharded(parallel, devices)}
  assert sharded == {("auto", True), ("shard_map", False), ("shard_map", True)}


@pytest.mark.parametrize("parallel", ["pmap", "shard_map"])
def test_one_device_sums_its_own_share_alone_and_is_the_one_that_is_named(parallel):
  device = jax.devices()[-1]
  step = mapped(lambda state, batch: jax.lax.pmean(jax.lax.psum(state * batch, AXIS), AXIS), [device], 1,
                parallel=parallel)
  actual = step(np.array([[1, 2]], np.float32), np.array([[[3, 4]]], np.float32))
  np.testing.assert_array_equal(actual, [[3, 8]])
  assert actual.devices() == {device}


@pytest.mark.parametrize("parallel", ["pmap", pytest.param("shard_map", marks=pytest.mark.slow)])
def test_norms_take_the_statistics_of_their_own_device_or_of_the_batch(parallel):
  rng = np.random.default_rng(0)
  batch = {"image": rng.integers(0, 256, (16, 4, 4, 1), dtype=np.uint8), "label": np.arange(16, dtype=np.int32) % 3,
           "mask": np.array([1] * 8 + [1, 1, 0, 0] + [0] * 4, bool)}
  shares = [{name: x[i:i + 4] for name, x in batch.items()} for i in range(0, 12, 4)]  # The fourth is padding alone.

  def after(statistics, batch, number):
    model = models.get("simple_cnn", num_classes=3, channels=(4,), axis_name=AXIS, norm_statistics=statistics)
    state = gradient_step(model, {"primary": {"name": "cross_entropy"}}, batch, jax.devices()[:number],
                          parallel=parallel)[1]
    return state.params, state.batch_stats

  of_shares = [after("global", share, 1) for share in shares]
  average = jax.tree.map(lambda *x: np.average(x, axis=0, weights=(4, 4, 2)), *of_shares)
  of_devices, of_batch = (after(statistics, batch, 4) for statistics in ("device", "global"))
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), of_devices, average)
  assert jax.tree.reduce(max, jax.tree.map(lambda a, b: np.abs(a - b).max(), of_devices, of_batch)) > 1e-3
