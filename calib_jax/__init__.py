"""calib_jax: losses, metrics and calibrators for classifiers whose probabilities must be true, in JAX."""

__version__ = "0.1.0"
