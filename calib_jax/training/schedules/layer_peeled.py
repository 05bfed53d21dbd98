"""Progressive layer peeling freezes a network from its head down while it trains (PLP; Wang & Zhang 2024)."""

from collections.abc import Mapping
import functools
from typing import Any

import ml_collections

from calib_jax import _checks as checks
from calib_jax._checks.registry import register
from calib_jax.training import models
from calib_jax.training.engine.stages import SCHEDULES, Stage, joint_phase, main_stage


@register(SCHEDULES)
def layer_peeled(config: ml_collections.ConfigDict, examples: list[Any], seeds: list[int], *,
                 peeling_exponent: float = 1.0, freeze_batch_stats: bool = True) -> list[Stage]:
  """Trains jointly, and freezes group i of L, counted from the head down, after the fraction (i/L)^γ of the training.

  γ is ``peeling_exponent``. The groups come from ``models.layer_groups``, so the lowest one alone trains to the end.
  The released code divides networks more finely: a ResNet-50 has L = 11 there, and the first group is the head with the
  last block. With ``freeze_batch_stats`` the running statistics of frozen groups stay the same too; in the released
  code they keep moving.
  """
  del seeds
  checks.options(peeling_exponent=(peeling_exponent, "[0.01, 100]"))
  fractions = functools.partial(peeling_fractions, exponent=peeling_exponent)
  batch_stats = "trained" if freeze_batch_stats else "all"
  return [main_stage(config, [joint_phase(config, examples, batch_stats=batch_stats)], trained=fractions)]


def peeling_fractions(params: Mapping[str, Any], *, exponent: float) -> dict[str, float]:
  """Returns the fraction of the training after which each top-level part is frozen; the last group has none.

  >>> peeling_fractions({"head": 0, "group1_conv": 0, "group2_conv": 0, "stem_conv": 0}, exponent=2.0)
  {'head': 0.0625, 'group2_conv': 0.25, 'group1_conv': 0.5625}
  """
  groups = models.layer_groups(params)
  return {name: (i / len(groups)) ** exponent for i, group in enumerate(groups[:-1], 1) for name in group}
