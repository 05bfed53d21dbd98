"""Weights of published PyTorch models, as this package's variables."""

from collections.abc import Mapping
import os
import re

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import checks
from calib_jax.errors import UserError

# From a path of ours to a name there, in order; the last name of a path (kernel, scale, …) is replaced afterwards.
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
_LAST = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}
# What modules there hold beside weights.
_BUFFERS = re.compile(r"num_batches_tracked$|relative_position_index$|attn_mask$")


def from_torch(name: str, state_dict: Mapping | str | os.PathLike, *, image_size: int = 224, **options) -> dict:
  """Variables ``{"params": …, "batch_stats": …}`` of model ``name`` from weights of torchvision or timm.

  Args:
    name: resnet50, resnet152, densenet121, densenet161 (torchvision or timm), vit_small, swin_tiny (timm).
    state_dict: names to arrays (``model.state_dict()``), or the path of a ``.safetensors`` file, read without pickle.
    image_size: the side of the images that positions are for, of ViT.
    **options: of ``models.get``, where they are not as published for ImageNet.

  Raises UserError where a weight is missing, left over or of another shape. The number of classes is the weights' own.

  ``variables = from_torch("resnet50", "resnet50.safetensors")``, then ``get("resnet50", num_classes=1000,
  stem="imagenet").apply(variables, images)``.
  """
  from calib_jax import models

  checks.choice("model name", name, _NAMES)
  if isinstance(state_dict, str | os.PathLike):
    state_dict = _read(state_dict)
  weights = {key: np.asarray(value, np.float32) for key, value in state_dict.items() if not _BUFFERS.search(key)}
  if name.startswith(("resnet", "densenet")):
    options = {"stem": "imagenet", **options}
  head = _torch_name(name, ("head", "kernel"))
  if head not in weights:
    raise UserError(f"weights of {name}: {head!r} is missing, they are of another model.")
  model = models.get(name, num_classes=len(weights[head]), **options)
  shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, image_size, image_size, 3)))

  def converted(path, expected):
    path = tuple(part.key for part in path[1:])  # Without the collection.
    key = _torch_name(name, path)
    if key not in weights:
      raise UserError(f"weights of {name}: {key!r} is missing.")
    array = weights.pop(key)
    # Ours are [height, width, in, out] and [in, out], theirs [out, in, height, width] and [out, in].
    if path[-1] == "kernel":
      array = array.transpose((2, 3, 1, 0) if array.ndim == 4 else (1, 0))
    if array.shape != expected.shape:
      raise UserError(f"weights of {name}: {key!r} has the shape {array.shape} (as we order it) where {expected.shape} "
                      "belongs: see the model's options.")
    return jnp.asarray(array)

  variables = jax.tree_util.tree_map_with_path(converted, shapes)
  if weights:
    raise UserError(f"weights of {name}: nothing here takes {', '.join(sorted(weights)[:3])}"
                    f"{' …' if len(weights) > 3 else ''}.")
  return variables


def _torch_name(name: str, path: tuple[str, ...]) -> str:
  key = ".".join((*path[:-1], _LAST.get(path[-1], path[-1])))
  for pattern, replacement in _NAMES[name]:
    key = re.sub(pattern, replacement, key)
  return key


def _read(path) -> dict:
  try:
    from safetensors.numpy import load_file
  except ImportError as error:
    raise UserError("reading a .safetensors file needs the package safetensors: pip install safetensors.") from error
  try:
    return load_file(path)
  except Exception as error:  # Whatever is wrong with the file is said in one sentence.
    raise UserError(f"{path} cannot be read as safetensors ({type(error).__name__}: {error}).") from error
