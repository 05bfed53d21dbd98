"""Forward values of small networks and heads against plain numpy, from the papers, also without PyTorch."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from calib_jax.training import models

RNG = np.random.default_rng(0)


def _drawn(name, image, **options):
  """A model, its variables with every one of them random, and its logits and features of two images."""
  model = models.get(name, num_classes=3, **options)
  images = RNG.normal(size=(2, *image)).astype(np.float32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.asarray(images))

  def draw(path, shape):
    noise = RNG.normal(size=shape.shape)
    if path[-1].key in ("var", "scale"):
      return (1 + 0.5 * np.tanh(noise)).astype(np.float32)
    return (noise / np.sqrt(np.prod(shape.shape[:-1]) if path[-1].key == "kernel" else 4)).astype(np.float32)

  variables = jax.tree_util.tree_map_with_path(draw, shapes)
  logits = jax.jit(model.apply)(variables, images)
  merged = {}
  for collection in variables.values():
    for path, value in jax.tree_util.tree_leaves_with_path(collection):
      merged["/".join(part.key for part in path)] = value.astype(np.float64)
  return images.astype(np.float64), merged, np.asarray(logits)


def _conv(x, kernel, stride=1):
  size = kernel.shape[0]
  x = np.pad(x, ((0, 0), (size // 2,) * 2, (size // 2,) * 2, (0, 0)))
  rows, columns = ((n - size) // stride + 1 for n in x.shape[1:3])
  out = np.zeros((len(x), rows, columns, kernel.shape[3]))
  for i, j in itertools.product(range(size), repeat=2):
    out += x[:, i:i + stride * rows:stride, j:j + stride * columns:stride][:, :rows, :columns] @ kernel[i, j]
  return out


def _norm(x, w, name):
  x = (x - w[f"{name}/mean"]) / np.sqrt(w[f"{name}/var"] + 1e-5)
  return x * w[f"{name}/scale"] + w[f"{name}/bias"]


def _layer_norm(x, w, name, epsilon):
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
  return x * w[f"{name}/scale"] + w[f"{name}/bias"]


def _dense(x, w, name):
  return x @ w[f"{name}/kernel"] + w.get(f"{name}/bias", 0)


def _relu(x):
  return np.maximum(x, 0)


def _close(result, expected):
  np.testing.assert_allclose(result, expected, rtol=2e-4, atol=2e-4 * np.abs(expected).max())


def _max_pool(x):
  x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
  rows, columns = ((n - 3) // 2 + 1 for n in x.shape[1:3])
  return np.max([x[:, i:i + 2 * rows:2, j:j + 2 * columns:2][:, :rows, :columns]
                 for i, j in itertools.product(range(3), repeat=2)], axis=0)


def test_cifar_resnets():
  x, w, logits = _drawn("resnet8", (8, 8, 3))
  x = _relu(_norm(_conv(x, w["stem_conv/kernel"]), w, "stem_norm"))
  for group in (1, 2, 3):
    at, stride = f"group{group}_block0", 2 if group > 1 else 1
    y = _relu(_norm(_conv(x, w[f"{at}/conv1/kernel"], stride), w, f"{at}/norm1"))
    y = _norm(_conv(y, w[f"{at}/conv2/kernel"]), w, f"{at}/norm2")
    x = x[:, ::stride, ::stride]
    added = (y.shape[-1] - x.shape[-1]) // 2
    x = _relu(y + np.pad(x, ((0, 0), (0, 0), (0, 0), (added, added))))
  _close(logits, _dense(x.mean((1, 2)), w, "head"))


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_bottleneck_resnets(stem):
  x, w, logits = _drawn("resnet50", (19, 16, 3), stem=stem, blocks=(2, 1))
  x = _relu(_norm(_conv(x, w["stem_conv/kernel"], 2 if stem == "imagenet" else 1), w, "stem_norm"))
  x = _max_pool(x) if stem == "imagenet" else x
  for at, stride in (("group1_block0", 1), ("group1_block1", 1), ("group2_block0", 2)):
    y = _relu(_norm(_conv(x, w[f"{at}/conv1/kernel"]), w, f"{at}/norm1"))
    y = _relu(_norm(_conv(y, w[f"{at}/conv2/kernel"], stride), w, f"{at}/norm2"))
    y = _norm(_conv(y, w[f"{at}/conv3/kernel"]), w, f"{at}/norm3")
    if f"{at}/shortcut_conv/kernel" in w:
      x = _norm(_conv(x, w[f"{at}/shortcut_conv/kernel"], stride), w, f"{at}/shortcut_norm")
    x = _relu(x + y)
  assert "group1_block1/shortcut_conv/kernel" not in w
  _close(logits, _dense(x.mean((1, 2)), w, "head"))


def test_wide_resnets():
  x, w, logits = _drawn("wide_resnet", (9, 8, 3), depth=10, width=2)
  x = _conv(x, w["stem_conv/kernel"])
  for group in (1, 2, 3):
    at, stride = f"group{group}_block0", 2 if group > 1 else 1
    y = _relu(_norm(x, w, f"{at}/norm1"))
    x = _conv(y, w[f"{at}/shortcut_conv/kernel"], stride)
    y = _relu(_norm(_conv(y, w[f"{at}/conv1/kernel"], stride), w, f"{at}/norm2"))
    x = x + _conv(y, w[f"{at}/conv2/kernel"])
  _close(logits, _dense(_relu(_norm(x, w, "group3_norm")).mean((1, 2)), w, "head"))


@pytest.mark.parametrize(("name", "stem"), [("densenet40", "cifar"), ("densenet121", "cifar"),
                                            ("densenet121", "imagenet")])
def test_densenets(name, stem):
  x, w, logits = _drawn(name, (21, 20, 3), layers=(2, 1), growth=4, stem_channels=6, stem=stem)
  x = _conv(x, w["stem_conv/kernel"], 2 if stem == "imagenet" else 1)
  x = _max_pool(_relu(_norm(x, w, "stem_norm"))) if stem == "imagenet" else x
  for group, layers in ((1, 2), (2, 1)):
    for layer in range(1, layers + 1):
      at = f"group{group}_layer{layer}"
      y = _conv(_relu(_norm(x, w, f"{at}/norm1")), w[f"{at}/conv1/kernel"])
      if name == "densenet121":
        y = _conv(_relu(_norm(y, w, f"{at}/norm2")), w[f"{at}/conv2/kernel"])
      x = np.concatenate([x, y], axis=-1)
    if group == 1:
      x = _conv(_relu(_norm(x, w, "group1_transition_norm")), w["group1_transition_conv/kernel"])
      rows, columns = x.shape[1] // 2, x.shape[2] // 2
      x = np.mean([x[:, i:2 * rows:2, j:2 * columns:2] for i, j in itertools.product(range(2), repeat=2)], axis=0)
  _close(logits, _dense(_relu(_norm(x, w, "group2_norm")).mean((1, 2)), w, "head"))


def _attend(x, w, at, heads, score):
  """Attention of tokens ``[T, D]``; ``score(head)`` ``[T, T]`` is added, -inf where one does not see another."""
  query, key, value = np.split(_dense(x, w, f"{at}/attn/qkv"), 3, axis=-1)
  result = []
  for head, part in enumerate(np.split(np.arange(x.shape[-1]), heads)):
    scores = query[:, part] @ key[:, part].T / np.sqrt(len(part)) + score(head)
    result.append(special.softmax(scores, axis=1) @ value[:, part])
  return _dense(np.concatenate(result, axis=-1), w, f"{at}/attn/proj")


def _feed_forward(x, w, at):
  y = _dense(x, w, f"{at}/mlp/fc1")
  return _dense(y * special.ndtr(y), w, f"{at}/mlp/fc2")


def test_vision_transformers():
  images, w, logits = _drawn("vit_small", (8, 6, 3), patch_size=2, width=12, depth=2, heads=3)
  for image, result in zip(images, logits, strict=True):
    tokens = [np.einsum("ijc,ijcd->d", image[i:i + 2, j:j + 2], w["stem_patch/kernel"]) + w["stem_patch/bias"]
              for i in range(0, 8, 2) for j in range(0, 6, 2)]
    x = np.stack([w["stem_cls_token"][0, 0], *tokens]) + w["stem_pos_embed"][0]
    for at in ("group1_block", "group2_block"):
      x = x + _attend(_layer_norm(x, w, f"{at}/norm1", 1e-6), w, at, 3, lambda head: 0)
      x = x + _feed_forward(_layer_norm(x, w, f"{at}/norm2", 1e-6), w, at)
    _close(result, _dense(_layer_norm(x[0], w, "group2_norm", 1e-6), w, "head"))


@pytest.mark.parametrize(("sides", "window"), [((8, 5), 3), ((4, 4), 4)])
def test_swin_transformers(sides, window):
  images, w, logits = _drawn("swin_tiny", (*sides, 3), patch_size=1, window=window, width=4, depths=(2, 1),
                             heads=(2, 4))
  for image, result in zip(images, logits, strict=True):
    x = _layer_norm(image @ w["stem_patch/kernel"][0, 0] + w["stem_patch/bias"], w, "stem_norm", 1e-5)
    x = _swin_block(x, w, "group1_block0", 2, window, shifted=False)
    x = _swin_block(x, w, "group1_block1", 2, window, shifted=True)
    x = np.pad(x, ((0, x.shape[0] % 2), (0, x.shape[1] % 2), (0, 0)))
    x = np.concatenate([x[0::2, 0::2], x[1::2, 0::2], x[0::2, 1::2], x[1::2, 1::2]], axis=-1)
    x = _dense(_layer_norm(x, w, "group2_downsample/norm", 1e-5), w, "group2_downsample/reduction")
    x = _swin_block(x, w, "group2_block0", 4, window, shifted=False)
    _close(result, _dense(_layer_norm(x, w, "group2_norm", 1e-5).mean((0, 1)), w, "head"))


def _swin_block(x, w, at, heads, most, *, shifted):
  """Each pixel sees those of its window; of a shifted window that the edge cuts, those on its own side of the edge."""
  sides = x.shape[:2]
  window = [min(most, side) for side in sides]
  shift = [v // 2 if shifted and side > v else 0 for v, side in zip(window, sides, strict=True)]
  full = [side + -side % v for side, v in zip(sides, window, strict=True)]
  normed = np.pad(_layer_norm(x, w, f"{at}/norm1", 1e-5), ((0, full[0] - sides[0]), (0, full[1] - sides[1]), (0, 0)))
  pixels = list(np.ndindex(*full))
  place = np.array([[(p - s) % n for p, s, n in zip(pixel, shift, full, strict=True)] for pixel in pixels])
  side_of_edge = np.array([[p < s for p, s in zip(pixel, shift, strict=True)] for pixel in pixels])
  which = place // window
  together = (which[:, None] == which[None]).all(-1)
  alike = (side_of_edge[:, None] == side_of_edge[None]).all(-1)
  offset = place[:, None] - place[None] + np.array(window) - 1
  row = offset[..., 0] * (2 * window[1] - 1) + offset[..., 1]
  row = np.clip(row, 0, len(w[f"{at}/attn_relative_position_bias_table"]) - 1)

  def score(head):
    table = w[f"{at}/attn_relative_position_bias_table"][:, head]
    return np.where(together, np.where(alike, table[row], table[row] - 100), -np.inf)

  y = _attend(normed.reshape(len(pixels), -1), w, at, heads, score).reshape(*full, -1)[:sides[0], :sides[1]]
  x = x + y
  return x + _feed_forward(_layer_norm(x, w, f"{at}/norm2", 1e-5), w, at)


def test_two_stage_heads():
  images, w, logits = _drawn("mlp", (2, 2, 1), hidden=(7,), head={"name": "two_stage", "width": 4})
  x = _relu(_dense(images.reshape(2, -1), w, "group1_dense"))
  narrow = _dense(_relu(_dense(x, w, "head/hidden")), w, "head/narrow")
  assert w["head/hidden/kernel"].shape == (7, 12) and narrow.shape == (2, 4)
  _close(logits, _dense(narrow, w, "head/logits"))


def test_shared_bodies():
  images, w, logits = _drawn("mlp", (2, 2, 1), hidden=(7,), head={"name": "shared_body", "members": 3, "width": 5})
  x = _relu(_dense(images.reshape(2, -1), w, "group1_dense"))
  members = [_dense(_relu(_dense(x, w, f"head/hidden{i}")), w, f"head/logits{i}") for i in range(3)]
  _close(logits, np.log(special.softmax(members, axis=-1).mean(0)))


@pytest.mark.parametrize("backbone", ["mlp", pytest.param("simple_cnn", marks=pytest.mark.slow)])
def test_simplex_heads(backbone):
  is_map = backbone == "simple_cnn"
  images, w, logits = _drawn(backbone, (4, 4, 2), head="simplex_etf",
                             **({"channels": (12,)} if is_map else {"hidden": (12,)}))

  def layer(x, name):
    return _conv(x, w[f"{name}/kernel"]) if is_map else _dense(x, w, name)

  def normed(x, name):
    return _relu(_norm(x, w, f"head/{name}_norm"))

  x = _relu(_norm(layer(images, "group1_conv"), w, "group1_norm") if is_map else layer(
    images.reshape(2, -1), "group1_dense"))
  narrow = layer(normed(x, "narrow"), "head/narrow")
  adapted = normed(x + layer(normed(narrow, "wide"), "head/wide"), "adapted")
  assert narrow.shape[-1] == 6
  vector, adapted = (y.mean((1, 2)) if is_map else y for y in (x, adapted))
  fixed = adapted / np.linalg.norm(adapted, axis=-1, keepdims=True) @ w["head/frame"]
  _close(logits, w["head/share"] * _dense(vector, w, "head/linear") + (1 - w["head/share"]) * fixed)
