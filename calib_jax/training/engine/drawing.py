"""A head may draw which of its weights a training step uses, and a stage may freeze parameters as it goes on.

A draw belongs to the whole step: all devices, and all parts of an accumulated batch, use the same weights.
"""

from collections.abc import Callable, Mapping
import math
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp

from calib_jax.training.models import Draw

Array = jax.Array


def used(params: Any, draw: Draw) -> Any:
  """Returns the parameters that a step computes its loss with: drawn weights are multiplied by their factors.

  Their gradient is the gradient of ``params``, unless ``draw.updates`` is "all": a weight then has the gradient of its
  product with the factor, as if the factor were 1.
  """
  if not draw.factors:
    return params
  flat = flax.traverse_util.flatten_dict(params)
  for path, factor in draw.factors.items():
    weight = flat["head", *path]
    product = weight * factor
    flat["head", *path] = product if draw.updates != "all" else weight + jax.lax.stop_gradient(product - weight)
  return flax.traverse_util.unflatten_dict(flat)


def unused(draw: Draw) -> dict[tuple[str, ...], Array]:
  """Returns which weights of the head a step leaves as they are, by path; none unless ``draw.updates`` is "used"."""
  return {("head", *path): factor == 0 for path, factor in draw.factors.items()} if draw.updates == "used" else {}


def trainable(params: Any, trained: Callable[[Any], Mapping[str, float]]) -> Any:
  """Returns a tree of bools: whether a parameter is trained in any step of a stage, whose ``trained`` it takes."""
  fractions = trained(params)
  return {name: jax.tree.map(lambda _, name=name: fractions.get(name, 1) > 0, part) for name, part in params.items()}


def frozen(tree: Any, fractions: Mapping[str, float], taken: Array, num_steps: int) -> dict[tuple[str, ...], Array]:
  """Returns which parameters a step leaves as they are; ``fractions`` of the stage after which names are frozen."""
  # GPUs may round a quotient of steps to below the fraction that it is; see ``metrics.formulas.fewest``.
  return {path: jnp.broadcast_to(taken >= math.ceil(num_steps * fractions[path[0]] - 1e-6), x.shape)
          for path, x in flax.traverse_util.flatten_dict(tree).items() if fractions.get(path[0], 0) > 0}


def restored(new: Any, old: Any, *fixed: Mapping[tuple[str, ...], Array]) -> Any:
  """Returns the tree ``new`` with the entries of ``old`` for which any of ``fixed``, bools by path, is true."""
  if not any(fixed):
    return new

  def leaf(path, new, old):
    names = tuple(part.key for part in path if isinstance(part, jax.tree_util.DictKey))
    for of_path in fixed:
      new = jnp.where(of_path[names], old, new) if names in of_path else new
    return new

  return jax.tree.map_with_path(leaf, new, old)
