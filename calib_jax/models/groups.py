"""Which parameters belong together: groups that are frozen at a time, and those that decay."""

import jax


def layer_groups(params) -> tuple[tuple[str, ...], ...]:
  """Top-level names of ``params`` by group, from the top down: the head, the last group, …, the first, the stem.

  >>> layer_groups({"head": 0, "stem_conv": 0, "stem_norm": 0, "group1_block0": 0, "group2_block0": 0})
  (('head',), ('group2_block0',), ('group1_block0',), ('stem_conv', 'stem_norm'))
  """
  def height(group):
    return {"stem": 0, "head": float("inf")}[group] if group in ("stem", "head") else int(group.removeprefix("group"))

  groups = {}
  for name in sorted(params):
    groups.setdefault(name.split("_")[0], []).append(name)
  return tuple(tuple(groups[group]) for group in sorted(groups, key=height, reverse=True))


def decay_mask(params):
  """Which parameters decay by default: the kernels of dense and convolutional layers, no biases, norms, positions.

  >>> decay_mask({"head": {"kernel": 0, "bias": 0}, "stem_norm": {"scale": 0, "bias": 0}})
  {'head': {'bias': False, 'kernel': True}, 'stem_norm': {'bias': False, 'scale': False}}
  """
  return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)
