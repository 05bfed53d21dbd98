"""Flax Linen modules, found by name.

Every model is called ``model.apply(variables, images, train=..., mask=...)`` and returns float32 logits ``[N, K]``;
with ``return_features=True`` also the features before the head. ``axis_name`` names the mapped axis over which batch
statistics are shared; ``dtype`` is that of the computation, parameters stay float32. ``layer_groups`` says what is
frozen together, ``decay_mask`` what decays by default.

>>> model = get("mlp", num_classes=10, hidden=(32,))
>>> variables = model.init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
>>> model.apply(variables, jnp.zeros((3, 8, 8, 1))).shape
(3, 10)
"""

from collections.abc import Callable
import functools

import flax.linen as nn
import jax.numpy as jnp

from calib_jax import checks
from calib_jax.models.densenet import DenseNet
from calib_jax.models.groups import decay_mask, layer_groups
from calib_jax.models.layers import BatchNorm
from calib_jax.models.pytorch import from_torch
from calib_jax.models.resnet import CifarResNet, ResNet
from calib_jax.models.small import MLP, SimpleCNN
from calib_jax.models.transformers import Swin, ViT
from calib_jax.models.wide_resnet import WideResNet

MODELS: dict[str, Callable[..., nn.Module]] = {
  "mlp": MLP,
  "simple_cnn": SimpleCNN,
  **{f"resnet{depth}": functools.partial(CifarResNet, depth=depth) for depth in (8, 20, 56, 110)},
  "resnet110_stochastic_depth": functools.partial(CifarResNet, depth=110, last_survival=0.5),
  "preresnet56": functools.partial(WideResNet, depth=56, width=1),
  "resnet50": ResNet,
  "resnet152": functools.partial(ResNet, blocks=(3, 8, 36, 3)),
  "wide_resnet": WideResNet,
  "wide_resnet28_10": functools.partial(WideResNet, depth=28, width=10),
  "wide_resnet26_10": functools.partial(WideResNet, depth=26, width=10),
  "wide_resnet32": functools.partial(WideResNet, depth=32, width=10),
  "densenet40": functools.partial(DenseNet, layers=(12, 12, 12), growth=12, stem_channels=16, bottleneck=False),
  "densenet121": DenseNet,
  "densenet161": functools.partial(DenseNet, layers=(6, 12, 36, 24), growth=48, stem_channels=96),
  "vit_small": ViT,
  "swin_tiny": Swin,
}

__all__ = ["MLP", "MODELS", "BatchNorm", "CifarResNet", "DenseNet", "ResNet", "SimpleCNN", "Swin", "ViT", "WideResNet",
           "decay_mask", "from_torch", "get", "layer_groups"]


def get(name: str, *, num_classes: int, dtype="float32", **options) -> nn.Module:
  """The model by name with its options; an unknown name lists the known ones."""
  checks.choice("model name", name, MODELS)
  return MODELS[name](num_classes=num_classes, dtype=jnp.dtype(dtype), **options)
