"""Classifier retraining on class-balanced batches (cRT; Kang et al. 2020, Section 4.1), for long-tailed data."""

from typing import Any

import ml_collections

from calib_jax._checks.registry import register
from calib_jax.training.engine.stages import SCHEDULES, Stage, head_stage, joint_phase, main_stage, reset_head


@register(SCHEDULES)
def classifier_retraining(config: ml_collections.ConfigDict, examples: list[Any], seeds: list[int], *,
                          stage2_epochs: int = 40, stage2_batch_size: int = 0, cache_features: bool = False
                          ) -> list[Stage]:
  """Trains jointly, and then trains a new head for ``stage2_epochs`` on frozen features.

  In the second stage the backbone and its batch statistics do not change, every class is drawn equally often, and the
  head trains with ``stage2.optimizer``. ``head_stage`` explains the options.
  """
  del seeds
  second = head_stage(config, examples, stage2_epochs, stage2_batch_size, cache_features, order="class_balanced",
                      start=reset_head)
  return [main_stage(config, [joint_phase(config, examples)]), second]
