"""Models: published sizes, and batch statistics of the global batch under padding and over devices."""

import collections
import functools
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax.training import models
from calib_jax.training.models import layers

RNG = np.random.default_rng(0)


REPEATED = [  # Networks, and how many batch norms are traced: of all blocks, and of those that differ.
  ("resnet20", {"last_survival": 0.5}, 19, 19), ("wide_resnet", {"depth": 22, "width": 1}, 19, 13)]


@pytest.mark.parametrize(("name", "options", "all_norms", "norms"), REPEATED)
def test_blocks_of_one_shape_are_traced_once_to_the_same_values(name, options, all_norms, norms, monkeypatch):
  traced, moments, images = [], layers.BatchNorm._moments, RNG.normal(size=(4, 10, 6, 3)).astype(np.float32)
  monkeypatch.setattr(layers.BatchNorm, "_moments", lambda *args: traced.append(1) or moments(*args))
  model = models.get(name, num_classes=3, **options)
  variables = jax.jit(model.init)(jax.random.key(0), images)
  monkeypatch.setattr(layers, "_jitted", functools.cache(layers._jitted.__wrapped__))  # Of these traces alone.

  def loss(params):
    logits, new = model.apply({**variables, "params": params}, images, train=True, mask=np.arange(4) < 3,
                              mutable=["batch_stats"], rngs={"dropout": jax.random.key(1)})
    return jnp.mean(logits**2), new

  results = []
  for wanted in (norms, all_norms):
    traced.clear()
    step = jax.jit(jax.value_and_grad(loss, has_aux=True)).trace(variables["params"])
    assert len(traced) == wanted
    monkeypatch.setattr(layers.Backbone, "repeated", lambda self, block, *static: block)
    if norms < all_norms:
      results.append(step.lower().compile()(variables["params"]))
  for shared, plain in zip(*map(jax.tree.leaves, results), strict=True) if results else ():
    np.testing.assert_allclose(shared, plain, rtol=1e-5, atol=1e-6 * np.abs(plain).max())


@functools.cache
def _shapes(name, image=(32, 32, 3), **options):
  model = models.get(name, **options)
  return jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, *image)))["params"]


PUBLISHED = [  # Of the papers, the authors' code, torchvision, timm, and the CIFAR code that most papers build on.
  ("mlp", 8, 10, {"hidden": (20, 30)}, 192 * 20 + 20 + 20 * 30 + 30 + 310),  # The sizes of the layers.
  ("simple_cnn", 8, 10, {"channels": (4, 6)}, 27 * 4 + 2 * 4 + 9 * 4 * 6 + 2 * 6 + 6 * 10 + 10),
  ("resnet20", 32, 10, {}, 269_722),
  ("vit_small", 224, 1000, {}, 22_050_664), *(pytest.param(*case, marks=pytest.mark.slow) for case in (
  ("wide_resnet", 32, 10, {"depth": 16, "width": 4}, 2_748_890),
  ("wide_resnet32", 32, 10, {"width": 10}, 46_160_474),
  ("resnet110_stochastic_depth", 32, 10, {}, 1_727_962), ("densenet40", 32, 10, {}, 1_019_722),
  ("densenet121", 32, 10, {}, 6_956_298), ("densenet161", 224, 1000, {"stem": "imagenet"}, 28_681_000),
  # Of the code of Mukhoti et al. 2020, layer by layer (WRN-26-10, and 8,192 features for Tiny ImageNet).
  ("wide_resnet26_10", 32, 10, {"post_activation": True}, 36_481_434),
  ("resnet50", 64, 200, {"pool_side": 2}, 25_138_952),
  ("swin_tiny", 224, 1000, {}, 28_288_354)))]


@pytest.mark.parametrize(("name", "side", "num_classes", "options", "published"), PUBLISHED)
def test_models_have_the_published_number_of_parameters(name, side, num_classes, options, published):
  params = _shapes(name, (side, side, 3), num_classes=num_classes, **options)
  assert sum(x.size for x in jax.tree.leaves(params)) == published


# How many parameters have each shape: of pytorchcv 0.0.74 for CIFAR's PreResNet-56 and WRN-28-10, else of torchvision
# 0.29; ResNet-50 and the bottleneck ResNet-110 (3, 4, 26 and 3 blocks) with a 3x3 stem, as Mukhoti et al. 2020 have it.
SHAPES = json.loads(pathlib.Path(__file__).with_name("published_shapes.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "preresnet56"))
                                  for name in SHAPES])
def test_models_have_the_published_layers(name):
  wide = {"image": (224, 224, 3), "num_classes": 1000, "stem": "imagenet"}
  params = _shapes(name, **(wide if name in ("resnet152", "densenet121") else {"num_classes": 10}))
  assert collections.Counter("x".join(map(str, x.shape)) for x in jax.tree.leaves(params)) == SHAPES[name]


@pytest.mark.parametrize(("name", "options", "message"), [
  *(("wide_resnet", {"depth": depth}, r"depth of a wide_resnet must be 6n \+ 4") for depth in (9, 12, 4)),
  ("resnet20", {"depth": 21}, r"depth of a CIFAR ResNet must be 6n \+ 2.*got 21"),
  ("resnet20", {"last_survival": 0.0}, r"last_survival must be in \(0, 1\]"),
  ("resnet50", {"stem": "cifar10"}, "stem must be one of 'cifar', 'imagenet'"),
  ("resnet50", {"pool_side": 3}, "pool_side must divide the sides of the last map, 4 and 4: got 3"),
  ("vit_small", {"patch_size": 5}, "patch_size must divide the image's sides, 32 and 32: got 5"),
  ("swin_tiny", {"patch_size": 5}, "patch_size must divide"),
])
def test_options_that_cannot_be_are_refused(name, options, message):
  with pytest.raises(ValueError, match=message):
    _shapes(name, num_classes=10, **options)


def test_unknown_model_lists_the_known():
  with pytest.raises(ValueError, match="'resnet50', .*Did you mean 'wide_resnet'"):
    models.get("wideresnet", num_classes=3)


SMALL = [
  ("mlp", {"hidden": (8,)}), ("simple_cnn", {"channels": (4, 8)}), ("wide_resnet", {"depth": 10, "width": 1}),
  ("wide_resnet", {"depth": 10, "width": 1, "post_activation": True}), ("resnet50", {"blocks": (1,), "pool_side": 2}),
  ("resnet8", {}), ("resnet8", {"last_survival": 0.5}), ("resnet50", {"blocks": (1, 1)}),
  ("densenet40", {"layers": (2, 1), "growth": 3}), ("densenet121", {"layers": (2, 1), "growth": 3}),
  ("vit_small", {"patch_size": 4, "width": 12, "depth": 2, "heads": 3}),
  ("swin_tiny", {"patch_size": 1, "window": 3, "width": 6, "depths": (2, 1), "heads": (1, 2)}),
]


@pytest.mark.parametrize(("name", "options"), [SMALL[0], *(
  pytest.param(*case, marks=pytest.mark.slow) for case in (SMALL[3], SMALL[5], *SMALL[-3:]))])
def test_logits_and_parameters_are_float32_also_where_bfloat16_computes(name, options):
  images = jnp.asarray(RNG.normal(size=(4, 8, 8, 3)), jnp.float32)
  full, half = (models.get(name, num_classes=5, dtype=dtype, **options) for dtype in ("float32", "bfloat16"))
  variables = jax.jit(full.init)(jax.random.key(0), images)
  logits, features = jax.jit(functools.partial(full.apply, return_features=True))(variables, images)
  assert logits.shape == (4, 5) and logits.dtype == jnp.float32
  head = variables["params"]["head"]
  np.testing.assert_allclose(features.astype(jnp.float32) @ head["kernel"] + head["bias"][None], logits, rtol=1e-4,
                             atol=1e-5)
  approximate = jax.jit(half.apply)(variables, images)
  assert approximate.dtype == jnp.float32
  np.testing.assert_allclose(approximate, logits, atol=0.05 * float(jnp.abs(logits).max()))
  made = jax.eval_shape(half.init, jax.random.key(0), images)
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(made))
  operations = str(jax.make_jaxpr(half.apply)(variables, images))
  products = [line for line in operations.splitlines() if "conv_general_dilated" in line or "dot_general" in line]
  # All products but the head's give bfloat16; attention's are summed, and its softmax taken, in float32.
  full_width = sum("f32" in line.split("=")[0] for line in products)
  assert full_width == 1 or name in ("vit_small", "swin_tiny")


@pytest.mark.parametrize(("name", "options"), SMALL)
def test_groups_hold_every_parameter_once_from_the_head_to_the_first_layers(name, options):
  params = _shapes(name, (8, 8, 3), num_classes=5, **options)
  groups = models.layer_groups(params)
  assert sorted(sum(groups, ())) == sorted(params) and groups[0] == ("head",)
  order = [int(g[0].removeprefix("group").split("_")[0]) for g in groups[1:] if g[0].startswith("group")]
  assert order == sorted(order, reverse=True) and len(order) >= 1
  assert all(name.startswith("stem") for name in groups[-1]) or name == "mlp" or name == "simple_cnn"


@pytest.mark.parametrize(("name", "options"), SMALL)
def test_norms_biases_positions_and_tokens_do_not_decay(name, options):
  params = _shapes(name, (8, 8, 3), num_classes=5, **options)
  mask = models.decay_mask(params)
  decays, free = ([x.ndim for x, m in zip(jax.tree.leaves(params), jax.tree.leaves(mask), strict=True) if m == wanted]
                  for wanted in (True, False))
  assert min(decays) >= 2 and mask["head"] == {"bias": False, "kernel": True}
  assert name in ("vit_small", "swin_tiny") or set(free) == {1}


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


def _released_preresnet56():
  """The parameters of Zhou et al. 2025's PreResNet-56 in their order: PyTorch's names and shapes."""
  yield "conv1.weight", (16, 3, 3, 3)
  before = 16
  for layer, width in enumerate((16, 32, 64), 1):
    for block in range(9):
      sizes = ((before, width, 1), (width, width, 3), (width, 4 * width, 1))
      for i, (inside, outside, side) in enumerate(sizes, 1):
        yield from ((f"layer{layer}.{block}.bn{i}.{kind}", (inside,)) for kind in ("weight", "bias"))
        yield f"layer{layer}.{block}.conv{i}.weight", (outside, inside, side, side)
      if not block:
        yield f"layer{layer}.{block}.downsample.1.weight", (4 * width, before, 1, 1)
      before = 4 * width
  yield from (("bn.weight", (256,)), ("bn.bias", (256,)), ("fc.weight", (10, 256)), ("fc.bias", (10,)))


def test_every_layer_of_the_released_preresnet56_is_there_with_its_shape():
  ours, theirs = {}, dict(_released_preresnet56())
  for path, leaf in jax.tree_util.tree_leaves_with_path(_shapes("preresnet56_bottleneck", num_classes=10)):
    *parts, last = (key.key for key in path)
    module = "/".join(parts).replace("backbone/", "")
    place = re.fullmatch(r"group(\d)_block(\d)/(\w+)", module)
    name = (f"layer{place[1]}.{place[2]}.{place[3].replace('norm', 'bn').replace('shortcut_conv', 'downsample.1')}"
            if place else {"stem_conv": "conv1", "group3_norm": "bn"}.get(module, "fc"))
    kernel = len(leaf.shape) == 4
    shape = tuple(leaf.shape[i] for i in (3, 2, 0, 1)) if kernel else leaf.shape[::-1]
    ours[f"{name}.{'bias' if last == 'bias' else 'weight'}"] = shape
  assert ours == theirs
  assert sum(len(shape) == 4 for shape in theirs.values()) == 85
