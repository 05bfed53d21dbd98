"""Two-stage training fits a new classifier on frozen features (TST; Jordahn & Olmos 2024)."""

from collections.abc import Sequence
import functools
from typing import Any

from ml_collections import ConfigDict

from calib_jax._checks.registry import register
from calib_jax.training import pretrained
from calib_jax.training.engine.stages import SCHEDULES, Stage, head_stage, joint_phase, main_stage, reset_head


@register(SCHEDULES)
def two_stage(config: ConfigDict, examples: list, seeds: list[int]) -> list[Stage]:
  """Trains jointly with a linear head, and then trains ``config.head`` alone for ``training.stage2_epochs``.

  In the second stage the backbone and its batch statistics do not change, images are not augmented, and the newly
  initialised head trains with ``stage2.optimizer``, on features that are computed once if ``training.cache_features``
  is set, and else by a forward pass in each step. If ``stage1.workdir`` or ``stage1.weights`` is set, the backbone
  comes from there and the first stage is left out.

  The code that Jordahn & Olmos 2024 released augments images in the second stage too, and leaves the backbone in
  training mode: ``stage2.augment`` and ``stage2.backbone_in_training_mode``.
  """
  del seeds
  has_first_stage = pretrained.has_first_stage(config)
  second = head_stage(config, examples, augmentation=None if config.stage2.augment else ConfigDict({"name": "none"}),
                      batch_stats="all" if config.stage2.backbone_in_training_mode else "none",
                      start=functools.partial(_loaded, config) if has_first_stage else reset_head)
  if has_first_stage:
    return [second]
  return [main_stage(config, [joint_phase(config, examples)], head=ConfigDict({"name": "linear"})), second]


def _loaded(config: ConfigDict, variables: Any, fresh: Any, seeds: Sequence[int]) -> Any:
  """Returns the weights that ``config.stage1`` names, with a new head."""
  return reset_head(pretrained.first_stage(config, variables, fresh, seeds), fresh, seeds)
