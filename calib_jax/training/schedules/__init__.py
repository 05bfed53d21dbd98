"""A schedule returns the stages of a run; the section ``schedule`` of a config names it, with its own options.

A schedule is a function ``(config, examples, seeds, *, options) -> list[Stage]``, where ``examples`` holds the training
split of each seed. Every module of this package is imported, so a new schedule is one new file with
``@register(SCHEDULES)``.
"""

from calib_jax._checks.registry import import_modules
from calib_jax.training.engine.stages import SCHEDULES, planned

import_modules(__name__)

__all__ = ["SCHEDULES", "planned"]
