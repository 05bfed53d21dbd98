"""Image classifiers as Flax Linen modules, found by name.

A model is a ``Classifier`` of a backbone, which maps images to features, and a head, which maps features to logits.
``model.apply(variables, images, train=..., mask=...)`` returns float32 logits ``[N, K]``, and with
``return_features=True`` also the features. ``axis_name`` names the mapped axis over which batch statistics are shared.
``dtype`` is the type that the backbone computes in; parameters are float32. ``layer_groups`` lists the layers that are
frozen together, and ``decay_mask`` the parameters that decay by default.

>>> model = get("mlp", num_classes=10, hidden=(32,))
>>> variables = model.init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
>>> model.apply(variables, jnp.zeros((3, 8, 8, 1))).shape
(3, 10)
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from calib_jax import _checks as checks
from calib_jax._checks.registry import import_modules
from calib_jax.training.models.classifier import Classifier
from calib_jax.training.models.densenet import DenseNet
from calib_jax.training.models.heads import HEADS, UPDATES, Draw, Head, MappedHead, SampledHead, log_mean_probs
from calib_jax.training.models.layers import MODELS, Backbone, BatchNorm, Features, random_key
from calib_jax.training.models.masked import Masked
from calib_jax.training.models.parameter_groups import decay_mask, layer_groups
from calib_jax.training.models.pytorch import FROM_TORCH, from_torch
from calib_jax.training.models.resnet import CifarResNet, ResNet, WideResNet
from calib_jax.training.models.shared_body import SharedBody
from calib_jax.training.models.simplex_etf import SimplexETF, simplex_frame
from calib_jax.training.models.small import MLP, SimpleCNN
from calib_jax.training.models.transformers import Swin, ViT

import_modules(__name__)  # A new file of this package registers what it holds.

__all__ = ["FROM_TORCH", "HEADS", "MLP", "MODELS", "UPDATES", "Backbone", "BatchNorm", "CifarResNet", "Classifier",
           "DenseNet", "Draw", "Features", "Head", "MappedHead", "Masked", "ResNet", "SampledHead", "SharedBody",
           "SimpleCNN", "SimplexETF", "Swin", "ViT", "WideResNet", "backbone", "decay_mask", "from_torch", "get",
           "get_head", "is_random", "layer_groups", "log_mean_probs", "random_key", "simplex_frame"]


def get(name: str, *, num_classes: int, dtype: DTypeLike = "float32", head: str | Mapping[str, Any] = "linear",
        image_size: int = 0, weights: str = "", dropout: float = 0.0, norm_statistics: str = "global", **options: Any
        ) -> Classifier:
  """Returns a classifier by the name of its backbone.

  Args:
    name: the name of the backbone, one of ``MODELS``.
    num_classes: the number of classes.
    dtype: the type that the backbone computes in.
    head: the name of the head, one of ``HEADS``, or a dict of ``name`` and the head's options.
    image_size: the side to which the model resizes images before the backbone; 0 to leave them as they are.
    weights: the file that a training run starts from; no file is read here (``from_torch`` reads one).
    dropout: the probability, in [0, 1), that training drops a feature between backbone and head; see ``Classifier``.
    norm_statistics: what the backbone's batch norms normalise by in training: the statistics of the "global" batch,
      over ``axis_name``; or of the "device"'s own share, whose averages over devices the training step then keeps.
    **options: the options of the backbone.

  Returns:
    The classifier, a Flax module.

  Raises:
    ValueError: for an unknown name or another ``norm_statistics``.
  """
  del weights
  checks.choice("norm_statistics", norm_statistics, ("global", "device"))
  section, axis_name = {"name": head} if isinstance(head, str) else dict(head), options.get("axis_name")
  head_ = get_head(num_classes=num_classes, axis_name=axis_name, **section)
  if norm_statistics == "device":
    options["axis_name"] = None
  return Classifier(backbone(name, dtype=dtype, **options), head_, image_size, dropout, axis_name)


def is_random(model: nn.Module, variables: Any, images: Any) -> bool:
  """Returns whether a model has a random layer that predictions can sample: dropout, stochastic depth, a random code.

  Args:
    model: the model.
    variables: its ``params`` and ``batch_stats``, or their shapes.
    images: ``[N, H, W, C]``, or their shape.

  >>> model = get("mlp", num_classes=3, hidden=(8,), dropout=0.5)
  >>> images = jnp.zeros((1, 4, 4, 1))
  >>> is_random(model, model.init(jax.random.key(0), images), images)
  True
  """
  def predict(key, variables, images):
    return model.apply(variables, images, rngs={"samples": key})

  program = jax.make_jaxpr(predict)(jax.random.key(0), variables, images).jaxpr
  return any(program.invars[0] is variable for equation in program.eqns for variable in equation.invars)


def backbone(name: str, *, dtype: DTypeLike = "float32", **options: Any) -> nn.Module:
  """Returns a backbone by name.

  Args:
    name: one of ``MODELS``.
    dtype: the type that it computes in.
    **options: its options.

  Returns:
    A Flax module from images ``[N, H, W, C]`` to ``Features``.

  Raises:
    ValueError: for an unknown name.
  """
  checks.choice("model name", name, MODELS)
  return MODELS[name](dtype=jnp.dtype(dtype), **options)


def get_head(name: str, *, num_classes: int, axis_name: str | None = None, **options: Any) -> nn.Module:
  """Returns a head by name.

  Args:
    name: one of ``HEADS``.
    num_classes: the number of classes.
    axis_name: the mapped axis over which a batch is spread, which a ``MappedHead`` needs in training.
    **options: its options.

  Returns:
    A Flax module from ``Features`` to logits ``[N, num_classes]``.

  Raises:
    ValueError: for an unknown name.
  """
  checks.choice("head name", name, HEADS)
  if isinstance(HEADS[name], type) and issubclass(HEADS[name], MappedHead):
    options["axis_name"] = axis_name
  return HEADS[name](num_classes=num_classes, **options)
