"""Models: published sizes, and batch statistics of the global batch under padding and over devices."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models

RNG = np.random.default_rng(0)


def _shapes(name, image=(32, 32, 3), **options):
  model = models.get(name, **options)
  return jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, *image)))["params"]


def _count(params):
  return sum(x.size for x in jax.tree.leaves(params))


@pytest.mark.parametrize(("depth", "width", "num_classes", "published"), [
  (28, 10, 10, 36_479_194), (28, 10, 100, 36_536_884), (16, 4, 10, 2_748_890), (40, 2, 10, 2_243_546),
])
def test_wide_resnet_has_the_published_number_of_parameters(depth, width, num_classes, published):
  assert _count(_shapes("wide_resnet", num_classes=num_classes, depth=depth, width=width)) == published


def test_small_models_have_the_sizes_of_their_layers():
  assert _count(_shapes("mlp", (8, 8, 1), num_classes=10, hidden=(20, 30))) == 64 * 20 + 20 + 20 * 30 + 30 + 310
  expected = 9 * 4 + 2 * 4 + 9 * 4 * 6 + 2 * 6 + 6 * 10 + 10
  assert _count(_shapes("simple_cnn", (8, 8, 1), num_classes=10, channels=(4, 6))) == expected


@pytest.mark.parametrize("depth", [9, 12, 4])
def test_wide_resnet_refuses_other_depths(depth):
  with pytest.raises(ValueError, match=r"depth of a wide_resnet must be 6n \+ 4"):
    _shapes("wide_resnet", num_classes=10, depth=depth, width=1)


def test_unknown_model_lists_the_known():
  with pytest.raises(ValueError, match="'mlp', 'simple_cnn', 'wide_resnet'.*Did you mean 'wide_resnet'"):
    models.get("wideresnet", num_classes=3)


@pytest.mark.parametrize(("name", "options"), [
  ("mlp", {"hidden": (8,)}), ("simple_cnn", {"channels": (4, 8)}), ("wide_resnet", {"depth": 10, "width": 1}),
])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_and_parameters_are_float32_and_features_precede_the_head(name, options, dtype):
  model = models.get(name, num_classes=5, dtype=dtype, **options)
  images = jnp.asarray(RNG.normal(size=(3, 8, 8, 1)), jnp.float32)
  variables = jax.jit(model.init)(jax.random.key(0), images)
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(variables))
  logits, features = model.apply(variables, images, return_features=True)
  assert logits.shape == (3, 5) and logits.dtype == jnp.float32
  head = variables["params"][next(k for k in reversed(variables["params"]) if k.startswith("Dense"))]
  np.testing.assert_allclose(features.astype(jnp.float32) @ head["kernel"] + head["bias"][None], logits, rtol=1e-4,
                             atol=1e-5)


def _norm(x, mask, axis_name=None):
  layer = models.BatchNorm(axis_name)
  variables = {"params": {"scale": jnp.array([2.0, 0.5]), "bias": jnp.array([1.0, -1.0])},
               "batch_stats": {"mean": jnp.array([0.3, 0.0]), "var": jnp.array([1.0, 2.0])}}
  return layer.apply(variables, x, train=True, mask=mask, mutable=["batch_stats"])


def test_batch_norm_equals_numpy_on_the_examples_that_count():
  x = RNG.normal(2.0, 3.0, size=(7, 3, 2, 2)).astype(np.float32)
  mask = np.array([1, 0, 1, 1, 0, 1, 1], bool)
  mean, var = x[mask].mean((0, 1, 2), dtype=np.float64), x[mask].var((0, 1, 2), dtype=np.float64)
  expected = (x - mean) / np.sqrt(var + 1e-5) * [2.0, 0.5] + [1.0, -1.0]
  y, updated = _norm(jnp.asarray(x), jnp.asarray(mask))
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(updated["batch_stats"]["mean"], 0.9 * np.array([0.3, 0.0]) + 0.1 * mean, rtol=1e-5)
  np.testing.assert_allclose(updated["batch_stats"]["var"], 0.9 * np.array([1.0, 2.0]) + 0.1 * var, rtol=1e-5)


def test_batch_norm_over_devices_equals_one_device_with_one_of_them_all_padding():
  x = jnp.asarray(RNG.normal(size=(8, 4, 2, 2)), jnp.float32)
  mask = jnp.asarray(np.array([[1, 1, 1, 1], [0, 0, 0, 0]] + [[1, 0, 1, 0]] * 6, bool))
  x = x[..., None, :]
  mapped = jax.pmap(functools.partial(_norm, axis_name="batch"), axis_name="batch")
  y, updated = mapped(x, mask)
  y_one, updated_one = _norm(x.reshape(32, *x.shape[2:]), mask.reshape(32))
  np.testing.assert_allclose(y.reshape(y_one.shape), y_one, rtol=1e-4, atol=1e-5)
  for many, one in zip(jax.tree.leaves(updated), jax.tree.leaves(updated_one), strict=True):
    np.testing.assert_allclose(many[0], one, rtol=1e-5, atol=1e-6)


def test_batch_norm_without_padding_agrees_with_flax():
  x = jnp.asarray(RNG.normal(size=(9, 4)), jnp.float32)
  flax_norm = nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-5)
  variables = flax_norm.init(jax.random.key(0), x)
  y_flax, updated_flax = flax_norm.apply(variables, x, mutable=["batch_stats"])
  y, updated = models.BatchNorm().apply(variables, x, train=True, mutable=["batch_stats"])
  np.testing.assert_allclose(y, y_flax, rtol=1e-5, atol=1e-5)
  for a, b in zip(jax.tree.leaves(updated), jax.tree.leaves(updated_flax), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5)
