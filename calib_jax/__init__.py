"""calib_jax: losses, metrics and calibrators for classifiers whose probabilities must be true, in JAX.

The modules are imported when they are first used, so that ``import calib_jax`` alone takes no time:

>>> import calib_jax
>>> calib_jax.losses.focal(jnp.array([[2.0, 0.0, -1.0]]), jnp.array([0])).round(4)
Array([0.0041], dtype=float32)
"""

from calib_jax._system import lazy

__version__ = "0.1.0"

# losses, metrics, calibrators, thresholds, confidence and focal_map need jax, optax, numpy and scipy alone.
__all__ = ["calibrators", "confidence", "evaluation", "focal_map", "losses", "metrics", "sklearn", "thresholds",
           "training"]

__getattr__, __dir__ = lazy.names(__name__, {}, __all__)
