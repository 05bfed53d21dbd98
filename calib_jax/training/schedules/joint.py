"""Joint training is one stage of one phase."""

from typing import Any

import ml_collections

from calib_jax._checks.registry import register
from calib_jax.training.engine.stages import SCHEDULES, Stage, joint_phase, main_stage


@register(SCHEDULES)
def joint(config: ml_collections.ConfigDict, examples: list[Any], seeds: list[int]) -> list[Stage]:
  """Minimises the primary plus ``loss.weight`` times the secondary loss in every step (Karandikar et al. 2021, 5.1)."""
  del seeds
  return [main_stage(config, [joint_phase(config, examples)])]
