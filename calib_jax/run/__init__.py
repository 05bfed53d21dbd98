"""A run: from its config to its report, and ``Run.load``, which loads a finished one.

For example::

  run = Run.load("runs/digits_savuc")
  logits = run.predict(images, seed=0)
  run.evaluate({"mine": (images, labels)})["mine"]["none"]["ece"].estimate

What trains is imported when it is first used, because evaluations of files write their outputs without it.
"""

import importlib
import importlib.util

_HOMES = {"Run": "run", "execute": "execution", "prediction_file": "run"}

__all__ = ["Run", "execute", "prediction_file"]


def __getattr__(name: str):
  if name in _HOMES:
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
  if importlib.util.find_spec(f"{__name__}.{name}"):
    return importlib.import_module(f"{__name__}.{name}")
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
