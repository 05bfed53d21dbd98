"""A warm start trains from the weights of another run or of a file."""

import functools

from ml_collections import ConfigDict

from calib_jax._checks.registry import register
from calib_jax._system.errors import UserError
from calib_jax.training import pretrained
from calib_jax.training.engine.stages import SCHEDULES, Stage, joint_phase, main_stage


@register(SCHEDULES)
def warm_start(config: ConfigDict, examples: list, seeds: list[int]) -> list[Stage]:
  """Trains jointly from the weights of a finished run, ``stage1.workdir``, or a .safetensors file, ``stage1.weights``.

  With a run, each seed starts from the model of the same seed. A head of another shape (another number of classes, or
  another kind of head) is replaced by a newly initialised one.
  """
  del seeds
  if not pretrained.has_first_stage(config):
    raise UserError("training.schedule 'warm_start' needs one of stage1.workdir (the directory of a run) and "
                    "stage1.weights (a .safetensors file), but not both.")
  load = functools.partial(pretrained.first_stage, config)
  return [main_stage(config, [joint_phase(config, examples)], start=load)]
