"""Post-hoc calibrators: pairs of pure functions, ``fit(logits, labels)`` and ``apply(params, logits)``.

>>> calibrator = temperature_scaling()
>>> held_out, labels = jnp.array([[3.0, 0.0], [0.0, 3.0], [3.0, 0.0]]), jnp.array([0, 1, 1])
>>> params = calibrator.fit(held_out, labels)
>>> log_probs = calibrator.apply(params, jnp.array([[1.0, 0.0]]))
>>> masked = calibrator.fit(held_out, labels, where=jnp.array([True, True, False]))
"""

from collections.abc import Callable

from calib_jax import checks
from calib_jax.calibrators.base import Calibrator, identity
from calib_jax.calibrators.temperature import temperature_scaling

CALIBRATORS: dict[str, Callable[..., Calibrator]] = {f.__name__: f for f in (identity, temperature_scaling)}

__all__ = ["CALIBRATORS", "Calibrator", "get", "identity", "temperature_scaling"]


def get(name: str, **options) -> Calibrator:
  """The calibrator called ``name`` with its options. ValueError for an unknown name.

  >>> get("temperature_scaling", objective="ece").fit(jnp.eye(2), jnp.array([0, 1]))["converged"]
  Array(True, dtype=bool)
  """
  checks.choice("calibrator name", name, CALIBRATORS)
  return CALIBRATORS[name](**options)
