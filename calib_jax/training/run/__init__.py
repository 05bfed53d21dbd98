"""A run: from its config to its report, and ``Run.load``, which loads a finished one.

For example::

  run = Run.load("runs/digits_savuc")
  logits = run.predict(images, seed=0)
  run.evaluate({"mine": (images, labels)})["mine"]["none"]["ece"].estimate

What trains is imported when it is first used, because evaluations of files write their outputs without it.
"""

from calib_jax._system import lazy

__all__ = ["Run", "execute", "prediction_file"]
__getattr__, __dir__ = lazy.names(__name__, {
  "Run": f"{__name__}.run", "execute": f"{__name__}.execution", "prediction_file": f"{__name__}.run"},
  ("data", "methods"))
