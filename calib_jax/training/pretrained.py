"""Starts a run from weights that were trained elsewhere."""

from collections.abc import Sequence
import operator
import pathlib
import shlex
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections

from calib_jax._system.errors import UserError
from calib_jax.training import models, seed_groups

# Fields of config.model that describe the run rather than the layers.
_NOT_LAYERS = ("name", "dtype", "weights", "image_size", "dropout")


def check_weights(config: ml_collections.ConfigDict) -> None:
  """Raises a UserError unless the file ``model.weights`` is there and its model can be converted."""
  path = config.model.weights
  if path and config.model.name not in models.FROM_TORCH:
    raise UserError(f"config key model.weights needs a model that timm or torchvision has, one of "
                    f"{', '.join(models.FROM_TORCH)}: got model.name {config.model.name!r}.")
  if path and not pathlib.Path(path).expanduser().is_file():
    raise UserError(f"config key model.weights: there is no file {path}. Write it with python -c "
                    + shlex.quote("import timm, safetensors.torch as s; s.save_file(timm.create_model("
                                  f"{models.FROM_TORCH[config.model.name]!r}, pretrained=True).state_dict(), {path!r})")
                    + ", or name another file.")


ONE_OF = ("the schedule {!r} needs one of schedule.workdir (the directory of a run) and schedule.weights (a "
          ".safetensors file), but not both.")


class FirstStage(NamedTuple):
  """Where the weights of a first stage are: the directory of a run, or a .safetensors file; both are empty for none."""

  workdir: str
  weights: str

  def is_named(self, config: ml_collections.ConfigDict) -> bool:
    """Returns whether a schedule names one; a UserError if it names both, or if ``model.weights`` is set too."""
    if self.workdir and self.weights:
      raise UserError(ONE_OF.format(config.schedule.name))
    if any(self) and config.model.weights:
      raise UserError(f"the schedule {config.schedule.name!r} starts from schedule.workdir or schedule.weights: leave "
                      "model.weights empty, or set schedule.name to 'joint'.")
    return any(self)

  def start(self, config: ml_collections.ConfigDict, variables: Any, fresh: Any, seeds: Sequence[int]) -> Any:
    """Returns each seed's weights, or the file's, for ``Stage.start``; heads of ``fresh`` if theirs do not fit."""
    del variables
    if self.weights:
      options = {key: value for key, value in config.model.items() if key not in _NOT_LAYERS}
      loaded = [models.from_torch(config.model.name, pathlib.Path(self.weights).expanduser(), **options)] * len(seeds)
    else:
      loaded = [self._of_run(seed) for seed in seeds]
    return fitted(jax.tree.map(lambda *x: jnp.stack(x), *loaded), fresh)

  def _of_run(self, seed: int) -> dict[str, Any]:
    for group in seed_groups.groups_on_disk(pathlib.Path(self.workdir)):
      if seed in group.seeds:
        return jax.tree.map(operator.itemgetter(group.seeds.index(seed)), group.variables())
    raise UserError(f"{self.workdir} holds no run with a model of seed {seed}.")


def fitted(variables: Any, fresh: Any) -> Any:
  """Returns ``variables`` of a trained model, with the head of ``fresh`` ones if the shapes of the two heads differ.

  It is a UserError if the backbones differ, whose message names the first parameter that does.
  """
  def shapes(tree):
    return {jax.tree_util.keystr(path, simple=True, separator="/"): tuple(x.shape)[1:]
            for path, x in jax.tree_util.tree_leaves_with_path(tree)}

  fitting = {}
  for kind, part in fresh.items():
    part_given = dict(variables.get(kind, {}))
    if shapes(part_given.get("head", {})) != shapes(part.get("head", {})):
      part_given = {**part_given, "head": part["head"]} if "head" in part else part_given
    have, need = shapes(part_given), shapes(dict(part))
    differing = [name for name in sorted(have.keys() | need.keys()) if have.get(name) != need.get(name)]
    if differing:
      name = differing[0]
      hint = (" Set model.image_size to the size that the weights were trained at, such as 224."
              if name == "stem_pos_embed" else "")
      raise UserError("the weights to start from are of another backbone than model.name: set the model and the "
                      f"options that they were trained with ({name} is {have.get(name, 'absent')} in the weights and "
                      f"{need.get(name, 'absent')} in the model).{hint}")
    fitting[kind] = part_given
  return fitting
