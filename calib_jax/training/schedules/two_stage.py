"""Two-stage training fits a new classifier on frozen features (TST; Jordahn & Olmos 2024)."""

from collections.abc import Sequence
import functools
from typing import Any

import ml_collections

from calib_jax._checks.registry import register
from calib_jax.training import pretrained
from calib_jax.training.engine.stages import SCHEDULES, Stage, head_stage, joint_phase, main_stage, reset_head


@register(SCHEDULES)
def two_stage(config: ml_collections.ConfigDict, examples: list[Any], seeds: list[int], *, stage2_epochs: int = 40,
              stage2_batch_size: int = 0, cache_features: bool = False, augment: bool = False,
              backbone_in_training_mode: bool = False, workdir: str = "", weights: str = "") -> list[Stage]:
  """Trains jointly with a linear head, and then trains ``config.head`` alone for ``stage2_epochs``.

  In the second stage the backbone and its batch statistics do not change, images are not augmented, and the newly
  initialised head trains with ``stage2.optimizer`` (see ``head_stage``). The code that Jordahn & Olmos 2024 released
  augments images there too (``augment``), and leaves the frozen backbone in training mode
  (``backbone_in_training_mode``): its batch norm then uses the statistics of the batch, whose running means go on.
  With the directory of a finished run, ``workdir``, or a .safetensors file, ``weights``, the backbone comes from
  there, and the first stage is left out.
  """
  del seeds
  first = pretrained.FirstStage(workdir, weights)
  second = head_stage(config, examples, stage2_epochs, stage2_batch_size, cache_features,
                      augmentation=None if augment else ml_collections.ConfigDict({"name": "none"}),
                      batch_stats="all" if backbone_in_training_mode else "none",
                      start=functools.partial(_loaded, first, config) if first.is_named(config) else reset_head)
  if first.is_named(config):
    return [second]
  linear = ml_collections.ConfigDict({"name": "linear"})
  return [main_stage(config, [joint_phase(config, examples)], head=linear), second]


def _loaded(first: pretrained.FirstStage, config: ml_collections.ConfigDict, variables: Any, fresh: Any,
            seeds: Sequence[int]) -> Any:
  """Returns the weights of a first stage, with a new head."""
  return reset_head(first.start(config, variables, fresh, seeds), fresh, seeds)
