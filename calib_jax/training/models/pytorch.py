"""Converts the weights of published PyTorch models to this package's variables."""

from collections.abc import Mapping
import math
import os
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import _checks as checks
from calib_jax._system import capacity, files
from calib_jax._system.errors import UserError, short

# Patterns that turn our path of a parameter into PyTorch's name, applied in order. _LAST replaces the path's last name.
_RESNET = (
  (r"^stem_conv", "conv1"), (r"^stem_norm", "bn1"), (r"^group(\d+)_block(\d+)", r"layer\1.\2"),
  (r"shortcut_conv", "downsample.0"), (r"shortcut_norm", "downsample.1"), (r"\.norm(\d)", r".bn\1"), (r"^head", "fc"))
_DENSENET = (
  (r"^stem_(\w+)", r"features.\g<1>0"), (r"^group(\d+)_layer(\d+)", r"features.denseblock\1.denselayer\2"),
  (r"^group(\d+)_transition_", r"features.transition\1."), (r"^group(\d+)_norm", r"features.norm5"),
  (r"^head", "classifier"))
_VIT = (
  (r"^stem_patch", "patch_embed.proj"), (r"^stem_(cls_token|pos_embed)", r"\1"),
  (r"^group(\d+)_block", lambda m: f"blocks.{int(m[1]) - 1}"), (r"^group\d+_norm", "norm"))
_SWIN = (
  (r"^stem_patch", "patch_embed.proj"), (r"^stem_norm", "patch_embed.norm"), (r"^head", "head.fc"),
  (r"^group(\d+)_block(\d+)", lambda m: f"layers.{int(m[1]) - 1}.blocks.{m[2]}"), (r"attn_relative", "attn.relative"),
  (r"^group(\d+)_downsample", lambda m: f"layers.{int(m[1]) - 1}.downsample"), (r"^group\d+_norm", "norm"))
_NAMES = {"resnet50": _RESNET, "resnet152": _RESNET, "densenet121": _DENSENET, "densenet161": _DENSENET,
          "vit_small": _VIT, "swin_tiny": _SWIN}
# The models that can be converted, and the names of their networks in timm.
FROM_TORCH = {name: name for name in _NAMES} | {"vit_small": "vit_small_patch16_224",
                                                "swin_tiny": "swin_tiny_patch4_window7_224"}
_LAST = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}
# The names of PyTorch's buffers that are not weights.
_BUFFERS = re.compile(r"num_batches_tracked$|relative_position_index$|attn_mask$")


def from_torch(name: str, state_dict: Mapping[str, Any] | str | os.PathLike[str], *, image_size: int | None = None,  # noqa: C901
               **options: Any) -> dict[str, Any]:
  """Converts weights of torchvision or timm to variables of a model of this package.

  For example, ``variables = from_torch("resnet50", "resnet50.safetensors")``, and then ``get("resnet50",
  num_classes=1000, stem="imagenet").apply(variables, images)``.

  Args:
    name: resnet50, resnet152, densenet121, densenet161 (torchvision or timm), vit_small, swin_tiny (timm).
    state_dict: a mapping of names to arrays (``model.state_dict()``), or the path of a ``.safetensors`` file, which is
      read without pickle.
    image_size: the side of the images that ViT's positions are for; None to derive it from the weights.
    **options: the options of ``models.get`` that differ from those published for ImageNet.

  Returns:
    ``{"params": …, "batch_stats": …}``, with as many classes as the weights have.

  Raises:
    ValueError: for an unknown name.
    UserError: if a weight is missing, not used or of another shape.
  """
  from calib_jax.training import models

  checks.choice("model name", name, _NAMES)
  if isinstance(state_dict, str | os.PathLike):
    state_dict = _read(state_dict)
  if not isinstance(state_dict, Mapping) or not all(isinstance(key, str) for key in state_dict):
    raise UserError(f"weights of {name}: give a mapping of names to arrays, such as model.state_dict(), or the path of "
                    "a .safetensors file.")
  if name == "swin_tiny":
    state_dict = _current_names(state_dict)
  weights = {key: _floats(name, key, value) for key, value in state_dict.items() if not _BUFFERS.search(key)}
  if name.startswith(("resnet", "densenet")):
    options = {"stem": "imagenet", **options}
  head = _torch_name(name, ("head", "kernel"))
  if head not in weights:
    raise UserError(f"weights of {name}: {head!r} is missing, so they are of another model.")
  for key, ndim in ((head, 2), *((("pos_embed", 3),) if "pos_embed" in weights else ())):
    if weights[key].ndim != ndim:
      raise UserError(f"weights of {name}: {key!r} must have {ndim} axes: got the shape {weights[key].shape}.")
  model = models.get(name, num_classes=len(weights[head]), **options)
  if image_size is None:
    tokens = weights["pos_embed"].shape[1] - 1 if name == "vit_small" and "pos_embed" in weights else 0
    image_size = math.isqrt(tokens) * model.backbone.patch_size if tokens else 224
  images = jax.ShapeDtypeStruct((1, image_size, image_size, 3), np.float32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), images)

  def converted(path, expected):
    path = tuple(part.key for part in path[1:])  # Drops the collection, params or batch_stats.
    key = _torch_name(name, path)
    if key not in weights:
      raise UserError(f"weights of {name}: {key!r} is missing.")
    array = weights.pop(key)
    # Flax kernels are [height, width, in, out] and [in, out], PyTorch's [out, in, height, width] and [out, in].
    if path[-1] == "kernel" and array.ndim in (2, 4):
      array = array.transpose((2, 3, 1, 0) if array.ndim == 4 else (1, 0))
    if array.shape != expected.shape:
      raise UserError(f"weights of {name}: {key!r} has the shape {array.shape} (in Flax's order) but must have "
                      f"{expected.shape}: check the model's options.")
    return jnp.asarray(array)

  variables = jax.tree_util.tree_map_with_path(converted, shapes)
  if weights:
    raise UserError(f"weights of {name}: the model does not have {', '.join(sorted(weights)[:3])}"
                    f"{' …' if len(weights) > 3 else ''}.")
  return variables


def _floats(name: str, key: str, value) -> np.ndarray:
  """Returns a weight as float32."""
  try:
    array = np.asarray(value)
  except Exception as error:  # Tensors of PyTorch raise exceptions of many types.
    raise UserError(f"weights of {name}: {short(key)} is no array ({type(error).__name__}: {error}).") from error
  if not jnp.issubdtype(array.dtype, jnp.floating) or array.size == 0:
    raise UserError(f"weights of {name}: {short(key)} must be floats and not empty: got {array.dtype} of shape "
                    f"{array.shape}.")
  with np.errstate(over="ignore"):  # What is beyond float32 becomes infinite, which is reported.
    array = array.astype(np.float32, copy=False)
  if not np.isfinite(array).all():
    raise UserError(f"weights of {name}: {short(key)} holds numbers that are not finite in float32.")
  return array


def _torch_name(name: str, path: tuple[str, ...]) -> str:
  key = ".".join((*path[:-1], _LAST.get(path[-1], path[-1])))
  for pattern, replacement in _NAMES[name]:
    key = re.sub(pattern, replacement, key)
  return key


def _current_names(weights: Mapping) -> dict:
  """Returns weights of Swin under the names that timm has given them since 2023; its hub stores the earlier ones."""
  if "head.fc.weight" in weights or "head.weight" not in weights:
    return dict(weights)

  def renamed(key):
    key = re.sub(r"^layers\.(\d+)\.downsample", lambda match: f"layers.{int(match[1]) + 1}.downsample", key)
    return re.sub(r"^head\.", "head.fc.", key)

  return {renamed(key): value for key, value in weights.items()}


def _read(path) -> dict:
  try:
    from safetensors.numpy import load_file
  except ImportError as error:
    raise UserError("reading a .safetensors file needs the package safetensors: pip install safetensors.") from error
  files.check_regular(path)
  capacity.check_read(str(path), os.path.getsize(path))
  try:
    return load_file(path)
  except Exception as error:  # Safetensors raises exceptions of many types.
    raise UserError(f"{path} cannot be read as safetensors ({type(error).__name__}: {error}).") from error
