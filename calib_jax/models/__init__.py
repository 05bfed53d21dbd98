"""Flax Linen modules, found by name.

Every model is called ``model.apply(variables, images, train=..., mask=...)`` and returns float32 logits ``[N, K]``;
with ``return_features=True`` also the features before the head. ``axis_name`` names the mapped axis over which batch
statistics are shared; ``dtype`` is that of the computation, parameters stay float32.

>>> model = get("mlp", num_classes=10, hidden=(32,))
>>> variables = model.init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
>>> model.apply(variables, jnp.zeros((3, 8, 8, 1))).shape
(3, 10)
"""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from calib_jax import checks
from calib_jax.models.layers import BatchNorm
from calib_jax.models.small import MLP, SimpleCNN
from calib_jax.models.wide_resnet import WideResNet

mlp, simple_cnn, wide_resnet = MLP, SimpleCNN, WideResNet

MODELS: dict[str, Callable[..., nn.Module]] = {"mlp": mlp, "simple_cnn": simple_cnn, "wide_resnet": wide_resnet}

__all__ = ["MLP", "MODELS", "BatchNorm", "SimpleCNN", "WideResNet", "get", "mlp", "simple_cnn", "wide_resnet"]


def get(name: str, *, num_classes: int, dtype="float32", **options) -> nn.Module:
  """The model by name with its options; an unknown name lists the known ones."""
  checks.choice("model name", name, MODELS)
  return MODELS[name](num_classes=num_classes, dtype=jnp.dtype(dtype), **options)
