"""A schedule returns the stages of a run; ``config.training.schedule`` names it.

A schedule is a function ``(config, examples, seeds) -> list[Stage]``, where ``examples`` holds the training split of
each seed. Every module of this package is imported, so a new schedule is one new file with ``@register(SCHEDULES)``.
"""

import importlib
import pkgutil

from calib_jax.training.engine.stages import SCHEDULES

for _module in pkgutil.iter_modules(__path__):
  importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["SCHEDULES"]
