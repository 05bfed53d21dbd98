"""Weights of PyTorch models give PyTorch's logits; without torch and timm, only errors are tested."""

import jax
import numpy as np
import pytest

from calib_jax._system import capacity
from calib_jax._system.errors import UserError
from calib_jax.training import models
from calib_jax.training.models import pytorch

RNG = np.random.default_rng(0)
PUBLISHED = [("resnet50", "resnet50", {"stem": "imagenet"}), ("densenet121", "densenet121", {"stem": "imagenet"}),
             ("vit_small", "vit_small_patch16_224", {}), ("swin_tiny", "swin_tiny_patch4_window7_224", {})]


def torch_weights(name, variables):
  """Returns variables of a model under PyTorch's names, with its order of axes."""
  weights = {}
  for path, x in jax.tree_util.tree_leaves_with_path(variables):
    keys = tuple(part.key for part in path[1:])
    order = {4: (3, 2, 0, 1), 2: (1, 0)}[x.ndim] if keys[-1] == "kernel" else range(x.ndim)
    weights[pytorch._torch_name(name, keys)] = np.ascontiguousarray(x.transpose(order))
  return weights


def _reference(timm_name):
  """A network of timm with random weights and statistics, and its state in numpy."""
  torch, timm = pytest.importorskip("torch"), pytest.importorskip("timm")
  torch.manual_seed(0)
  network = timm.create_model(timm_name, pretrained=False, num_classes=17).eval()
  with torch.no_grad():
    for name, weight in network.state_dict().items():
      if weight.ndim == 1:  # Norms and biases start at 0 and 1, which would hide a mistake.
        spread = torch.rand if "var" in name or "weight" in name else torch.randn
        weight += 0.1 * spread(weight.shape)
  return torch, network, {name: x.numpy() for name, x in network.state_dict().items()}


@pytest.mark.parametrize(("name", "timm_name", "options"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_logits_equal_those_of_pytorch(name, timm_name, options, tmp_path):
  torch, network, state = _reference(timm_name)
  images = RNG.normal(size=(2, 224, 224, 3)).astype(np.float32)
  expected = network(torch.from_numpy(images.transpose(0, 3, 1, 2))).detach().numpy()
  path = tmp_path / "weights.safetensors"
  pytest.importorskip("safetensors.numpy").save_file(state, path)
  variables = models.from_torch(name, path)
  logits = jax.jit(models.get(name, num_classes=17, **options).apply)(variables, images)
  np.testing.assert_allclose(logits, expected, atol=1e-4 * np.abs(expected).max())
  assert np.ptp(expected, axis=1).min() > 0.1


@pytest.mark.parametrize(("weights", "message"), [
  ({"head.weight": np.zeros(())}, r"'head.weight' must have 2 axes: got the shape \(\)"),
  ({"head.weight": np.zeros((10**9, 0), np.float32)}, "'head.weight' must be floats and not empty"),
  ({"head.weight": np.zeros((3, 384, 1))}, "must have 2 axes"),
  ({"head.weight": np.zeros((3, 384), int)}, "must be floats and not empty: got int64"),
  ({"head.weight": "x"}, "must be floats and not empty: got <U1"), ({"head.weight": [[1.0], []]}, "is no array"),
  ({"head.weight": {"a": 1}}, "must be floats and not empty: got object"),
  ({"head.weight": np.zeros((3, 384)), "pos_embed": np.zeros(())}, "'pos_embed' must have 3 axes"),
  ({"head.weight": np.zeros((3, 384)), "blocks.0.attn.proj.weight": np.zeros((2, 3, 4))}, "is missing|has the shape"),
  ({3: np.zeros(3)}, "give a mapping of names to arrays"), ([1], "give a mapping of names"), (None, "give a mapping"),
], ids=lambda value: "")
def test_weights_that_are_no_matrices_of_floats_are_one_sentence(weights, message):
  with pytest.raises(UserError, match=message):
    models.from_torch("vit_small", weights)


def test_kernels_of_three_axes_are_one_sentence():
  options = {"blocks": (1,), "stem": "imagenet"}
  shapes = jax.eval_shape(models.get("resnet50", num_classes=3, **options).init, jax.random.key(0),
                          jax.ShapeDtypeStruct((1, 32, 32, 3), np.float32))
  weights = torch_weights("resnet50", jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes))
  models.from_torch("resnet50", weights, **options)
  with pytest.raises(UserError, match=r"'conv1.weight' has the shape \(64, 3, 49\).* must have \(7, 7, 3, 64\)"):
    models.from_torch("resnet50", weights | {"conv1.weight": np.ones((64, 3, 49))}, **options)


@pytest.mark.parametrize("header", [
  b"[" * 100_000, b'{"head.weight": {"dtype": "F32", "shape": [1000000000000, 384], "data_offsets": [0, 4]}}',
  b"{}" * 9, b'{"head.weight": {"dtype": "F32", "shape": [4, 384], "data_offsets": [0, 6144]}}', b"[]",
  b'{"head.weight": 3}', b"", b"not json",
], ids=lambda value: value[:12].decode())
def test_safetensors_that_lie_are_one_sentence(header, tmp_path):
  pytest.importorskip("safetensors.numpy")
  (tmp_path / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
  with pytest.raises(UserError, match="cannot be read as safetensors") as raised:
    models.from_torch("vit_small", tmp_path / "w.safetensors")
  assert "\n" not in str(raised.value)


def test_safetensors_are_small(tmp_path, monkeypatch):
  pytest.importorskip("safetensors.numpy")
  (tmp_path / "w.safetensors").write_bytes(bytes(1000))
  monkeypatch.setattr(capacity, "memory", lambda: 1500)
  with pytest.raises(UserError, match="w.safetensors would take 1 KB of memory"):
    models.from_torch("vit_small", tmp_path / "w.safetensors")


def test_what_does_not_fit_is_named():
  with pytest.raises(UserError, match="'head.weight' is missing"):
    models.from_torch("vit_small", {})
  with pytest.raises(UserError, match=r"'blocks\.\d+\.\S+' is missing"):
    models.from_torch("vit_small", {"head.weight": np.zeros((3, 384)), "head.bias": np.zeros(3)})
  with pytest.raises(ValueError, match="model name must be one of 'resnet50'"):
    models.from_torch("resnet18", {})
