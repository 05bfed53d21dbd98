"""A run: from its config to its report, and ``Run.load``, which loads a finished one.

For example::

  run = Run.load("runs/digits_savuc")
  logits = run.predict(images, seed=0)
  run.evaluate({"mine": (images, labels)})["mine"]["none"]["ece"].estimate
"""

from calib_jax.run.execution import execute
from calib_jax.run.run import Run, prediction_file

__all__ = ["Run", "execute", "prediction_file"]
