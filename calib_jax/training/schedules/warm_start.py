"""A warm start trains from the weights of another run or of a file."""

import functools
from typing import Any

import ml_collections

from calib_jax._checks.registry import register
from calib_jax._system.errors import UserError
from calib_jax.training import pretrained
from calib_jax.training.engine.stages import SCHEDULES, Stage, joint_phase, main_stage


@register(SCHEDULES)
def warm_start(config: ml_collections.ConfigDict, examples: list[Any], seeds: list[int], *,
               workdir: str = "", weights: str = "") -> list[Stage]:
  """Trains jointly from the weights of a finished run, ``workdir``, or of a .safetensors file, ``weights``.

  With a run, each seed starts from the model of the same seed. A head of another shape (another number of classes, or
  another kind of head) is replaced by a newly initialised one.
  """
  del seeds
  first = pretrained.FirstStage(workdir, weights)
  if not first.is_named(config):
    raise UserError(pretrained.ONE_OF.format("warm_start"))
  return [main_stage(config, [joint_phase(config, examples)], start=functools.partial(first.start, config))]
