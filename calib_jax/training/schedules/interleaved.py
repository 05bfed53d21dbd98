"""Interleaved training applies the secondary loss to held-out examples (Karandikar et al. 2021, Appendix B)."""

from typing import Any

import ml_collections

from calib_jax import _checks as checks
from calib_jax._checks.registry import register
from calib_jax._system.errors import UserError
from calib_jax.training import data
from calib_jax.training.engine.objectives import objective
from calib_jax.training.engine.stages import SCHEDULES, Phase, Stage, main_stage


@register(SCHEDULES)
def interleaved(config: ml_collections.ConfigDict, examples: list[Any], seeds: list[int], *,
                secondary_rate: float = 1.0, freeze_batch_stats: bool = False) -> list[Stage]:
  """Each epoch takes primary steps on most of the training split, then secondary steps on the rest of it.

  The rest is a stratified fraction ``data.held_out_fraction`` of the training split, drawn by the seed. The second
  phase minimises ``loss.weight`` times the secondary loss; ``secondary_rate`` multiplies its updates, and with
  ``freeze_batch_stats`` batch norm uses its running statistics there.
  """
  checks.options(secondary_rate=(secondary_rate, "[0, inf)"))
  if not config.loss.secondary.name:
    raise UserError("config key loss.secondary.name must name the loss of the second phase of the schedule "
                    "'interleaved': --config.loss.secondary.name=soft_avuc.")
  pairs = [data.held_out(part, config.data.held_out_fraction, seed) for part, seed in zip(examples, seeds, strict=True)]
  majority, held_out = ([pair[i] for pair in pairs] for i in (0, 1))
  second = Phase("held_out", held_out, objective(config.loss, ("secondary",)), rate=secondary_rate,
                 batch_stats="none" if freeze_batch_stats else "all")
  return [main_stage(config, [Phase("train", majority, objective(config.loss, ("primary",))), second])]
