"""Weights of PyTorch models give PyTorch's logits; without torch and timm, only errors are tested."""

import jax
import numpy as np
import pytest

from calib_jax import models
from calib_jax.errors import UserError

RNG = np.random.default_rng(0)
PUBLISHED = [("resnet50", "resnet50", {"stem": "imagenet"}), ("densenet121", "densenet121", {"stem": "imagenet"}),
             ("vit_small", "vit_small_patch16_224", {}), ("swin_tiny", "swin_tiny_patch4_window7_224", {})]


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


def test_what_does_not_fit_is_named(tmp_path):
  with pytest.raises(UserError, match="'head.weight' is missing"):
    models.from_torch("vit_small", {})
  with pytest.raises(UserError, match=r"'blocks\.\d+\.\S+' is missing"):
    models.from_torch("vit_small", {"head.weight": np.zeros((3, 384)), "head.bias": np.zeros(3)})
  with pytest.raises(ValueError, match="model name must be one of 'resnet50'"):
    models.from_torch("resnet18", {})
  (tmp_path / "damaged.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0not json")
  with pytest.raises(UserError, match="damaged.safetensors cannot be read as safetensors"):
    models.from_torch("vit_small", tmp_path / "damaged.safetensors")
