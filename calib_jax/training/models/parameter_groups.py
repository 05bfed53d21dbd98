"""Groups of parameters: those that are frozen together, and those that decay."""

from collections.abc import Mapping
from typing import Any

import jax


def layer_groups(params: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
  """Returns the top-level names of parameters by group.

  Args:
    params: the parameters of a model.

  Returns:
    The names of the head, the last group, …, the first group and the stem, in this order.

  >>> layer_groups({"head": 0, "stem_conv": 0, "stem_norm": 0, "group1_block0": 0, "group2_block0": 0})
  (('head',), ('group2_block0',), ('group1_block0',), ('stem_conv', 'stem_norm'))
  """
  def height(group):
    return {"stem": 0, "head": float("inf")}[group] if group in ("stem", "head") else int(group.removeprefix("group"))

  groups = {}
  for name in sorted(params):
    groups.setdefault(name.split("_")[0], []).append(name)
  return tuple(tuple(groups[group]) for group in sorted(groups, key=height, reverse=True))


def decay_mask(params: Any) -> Any:
  """Returns which parameters decay by default: the kernels of dense and convolutional layers.

  Args:
    params: the parameters of a model.

  Returns:
    A tree of bools, which are false for biases, norms and positions.

  >>> decay_mask({"head": {"kernel": 0, "bias": 0}, "stem_norm": {"scale": 0, "bias": 0}})
  {'head': {'bias': False, 'kernel': True}, 'stem_norm': {'bias': False, 'scale': False}}
  """
  return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)
