"""calib_jax: losses, metrics and calibrators for classifiers whose probabilities must be true, in JAX.

The modules are imported when they are first used, so that ``import calib_jax`` alone takes no time:

>>> import calib_jax
>>> calib_jax.losses.focal(jnp.array([[2.0, 0.0, -1.0]]), jnp.array([0])).round(4)
Array([0.0041], dtype=float32)
"""

import importlib
import types

__version__ = "0.1.0"

# losses, metrics, calibrators, thresholds, confidence and focal_map need jax, optax, numpy and scipy alone.
__all__ = ["calibrators", "confidence", "config", "data", "evaluation", "focal_map", "last_layer", "losses", "metrics",
           "models", "reports", "run", "sklearn", "thresholds", "training"]


def __getattr__(name: str) -> types.ModuleType:
  if name in __all__:
    return importlib.import_module(f"{__name__}.{name}")
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
