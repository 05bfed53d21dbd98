"""The step with AugMix: its loss, gradient and batch statistics, and what it goes with."""

import jax
import jax.numpy as jnp
from ml_collections import config_dict
import numpy as np
import optax
import pytest

from calib_jax import data, losses, models, training
from calib_jax.training.distributed.mapping import AXIS, mapped_steps
from calib_jax.training.engine import gradients, steps
from tests.losses.test_consistency import reference as divergence
from tests.training.small import assert_same, draw_fast, one_step

MASK = np.array([1, 1, 1, 1, 0, 1, 0, 0], bool)
IMAGES = np.random.default_rng(2).integers(0, 256, (8, 4, 4, 1), dtype=np.uint8)
LABELS = np.arange(8, dtype=np.int32) % 3


def _augment():
  return data.build_augmentation("augmix", num_classes=3, padding=0, flip=False, width=1, depth=1, severity=10.0,
                                 consistency=2.0)


def _step(devices, model="simple_cnn", reduction="mean", **options):
  """One step of gradient descent on eight images; the state before and after, and what it measured."""
  own = {"channels": (4,)} if model == "simple_cnn" else {"hidden": ()}
  model = models.get(model, num_classes=3, axis_name=AXIS, **own)
  loss = config_dict.ConfigDict({"primary": {"name": "focal", "gamma": 1.0}, "secondary": {"name": "soft_avuc",
                                 "threshold": 0.5}, "weight": 0.5, "reduction": reduction})
  objective = gradients.Objective(
    model, training.objective(loss), AXIS, augment=_augment(), normalize=_normalize, l2=0.0,
    decays=models.decay_mask, sums=reduction == "sum")
  train_step = mapped_steps(steps.train_step, devices, 1, objective=objective, optimizer=optax.sgd(0.5),
                      **options)
  state = steps.init_state(model, optax.sgd(0.5), jnp.zeros((1, 4, 4, 1)), {}, jax.random.key(0))
  # Predictions that differ by view.
  state = state._replace(params=state.params | {"head": jax.tree.map(lambda x: 4 * x, state.params["head"])})
  batch = {"image": IMAGES, "label": LABELS, "mask": MASK}
  shaped = {k: v.reshape(len(devices), 1, -1, *v.shape[1:]) for k, v in batch.items()}
  after, measured = one_step(train_step, jax.tree.map(lambda x: x[None].copy(), state), shaped, jax.random.key(0)[None])
  return state, *jax.tree.map(lambda x: x[0], (after, measured))


def _normalize(images):
  return images.astype(jnp.float32) / 255 - 0.5


def _expected(state, model, reduction="mean"):
  """The loss as a function of the parameters, written out for one device; and the batch statistics."""
  key = jax.random.fold_in(jax.random.key(0), 0)
  given = jnp.asarray(np.where(MASK[:, None, None, None], IMAGES, 255 - IMAGES))  # Masked rows do not matter.
  images = jax.jit(lambda: _augment()(given, LABELS, MASK, key, None).images)()
  own = {"channels": (4,)} if model == "simple_cnn" else {"hidden": ()}
  model = models.get(model, num_classes=3, **own)

  def loss(params):
    logits, updated = model.apply({"params": params, "batch_stats": state.batch_stats}, _normalize(images), train=True,
                                  mask=np.repeat(MASK, 3), mutable=["batch_stats"])
    clean = logits[::3][MASK]
    number = float(MASK.sum()) if reduction == "sum" else 1
    primary = number * jnp.mean(losses.focal(clean, LABELS[MASK], gamma=1.0))
    secondary = losses.soft_avuc(clean, LABELS[MASK], threshold=0.5)
    p = jax.nn.softmax(logits.reshape(8, 3, 3)[MASK])
    mean = jnp.mean(p, axis=1, keepdims=True)
    consistency = 2 * number * jnp.mean(jnp.sum(p * jnp.log(p / mean), -1))
    parts = {"primary": primary, "secondary": secondary, "consistency": consistency}
    return primary + 0.5 * secondary + consistency, (parts, logits, updated.get("batch_stats", {}))

  return jax.jit(jax.value_and_grad(loss, has_aux=True))(state.params)


@pytest.mark.parametrize(("model", "num_devices", "reduction", "options"), [
  pytest.param("simple_cnn", 4, "mean", {}, marks=pytest.mark.slow), ("mlp", 2, "sum", {"parallel": "shard_map"})])
def test_a_step_is_that_of_the_formula(model, num_devices, reduction, options, monkeypatch):
  draw_fast(monkeypatch)
  state, after, measured = _step(jax.devices()[:num_devices], model, reduction, **options)
  (loss, (parts, logits, batch_stats)), grads = _expected(state, model, reduction)
  np.testing.assert_allclose(measured["loss"], loss, rtol=1e-5)
  for name, value in parts.items():
    np.testing.assert_allclose(measured[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
  number = float(MASK.sum()) if reduction == "sum" else 1
  of_reference = 2 * number * divergence(np.asarray(logits, np.float64).reshape(8, 3, 3).swapaxes(0, 1))[MASK].mean()
  np.testing.assert_allclose(measured["consistency"], of_reference, rtol=1e-4, atol=1e-6)
  assert of_reference > 0.001
  np.testing.assert_allclose(measured["accuracy"], np.mean(np.argmax(logits[::3], -1)[MASK] == LABELS[MASK]), rtol=1e-6)
  assert_same(after.params, jax.tree.map(lambda w, g: w - 0.5 * g, state.params, grads), rtol=1e-4, atol=1e-6)
  assert_same(after.batch_stats, batch_stats, rtol=1e-5, atol=1e-6)  # Those of all three views.
  assert bool(batch_stats) == (model == "simple_cnn")
