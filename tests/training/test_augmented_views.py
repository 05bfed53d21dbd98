"""The step with AugMix: its loss, gradient and batch statistics, and what it goes with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses
from calib_jax.training import data, models
from calib_jax.training.distributed.mapping import AXIS
from tests.losses.test_consistency import reference as divergence
from tests.training.small import assert_same, draw_fast, gradient_step

MASK = np.array([1, 1, 1, 1, 0, 1, 0, 0], bool)
IMAGES = np.random.default_rng(2).integers(0, 256, (8, 4, 4, 1), dtype=np.uint8)
LABELS = np.arange(8, dtype=np.int32) % 3


AUGMIX = {"name": "augmix", "padding": 0, "flip": False, "width": 1, "depth": 1, "severity": 10.0, "consistency": 2.0}
LOSS = {"primary": {"name": "focal", "gamma": 1.0}, "secondary": {"name": "soft_avuc", "threshold": 0.5}, "weight": 0.5}
MODELS = {"simple_cnn": {"channels": (4,)}, "mlp": {"hidden": ()}}


def _expected(state, name, reduction):
  """The loss as a function of the parameters, written out for one device; and the batch statistics."""
  key = jax.random.fold_in(jax.random.key(0), 0)
  given = jnp.asarray(np.where(MASK[:, None, None, None], IMAGES, 255 - IMAGES))  # Masked rows do not matter.
  augment = data.build_augmentation(num_classes=3, **AUGMIX)
  images = jax.jit(lambda: augment(given, LABELS, MASK, key, None).images)().astype(jnp.float32) / 255
  model = models.get(name, num_classes=3, **MODELS[name])

  def loss(params):
    logits, updated = model.apply({"params": params, "batch_stats": state.batch_stats}, images, train=True,
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
  ("mlp", 2, "sum", {"parallel": "shard_map"})])
def test_a_step_is_that_of_the_formula(model, num_devices, reduction, options, monkeypatch):
  draw_fast(monkeypatch)
  # The head is large, so that predictions differ by view.
  state, after, measured = gradient_step(
    models.get(model, num_classes=3, axis_name=AXIS, **MODELS[model]), {**LOSS, "reduction": reduction},
    {"image": IMAGES, "label": LABELS, "mask": MASK}, jax.devices()[:num_devices], augmentation=AUGMIX,
    change=lambda params: params | {"head": jax.tree.map(lambda x: 4 * x, params["head"])}, **options)
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
