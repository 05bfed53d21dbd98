"""Post-hoc calibrators: pairs of functions, ``fit(logits, labels)`` and ``apply(params, logits)``.

>>> calibrator = temperature_scaling()
>>> held_out, labels = jnp.array([[3.0, 0.0], [0.0, 3.0], [3.0, 0.0]]), jnp.array([0, 1, 1])
>>> params = calibrator.fit(held_out, labels)
>>> log_probs = calibrator.apply(params, jnp.array([[1.0, 0.0]]))
>>> masked = calibrator.fit(held_out, labels, where=jnp.array([True, True, False]))
"""

from collections.abc import Callable

from calib_jax import checks
from calib_jax.calibrators.base import Calibrator, identity
from calib_jax.calibrators.classwise import classwise_loss_scaling
from calib_jax.calibrators.ensemble import ensemble_temperature_scaling
from calib_jax.calibrators.flexible import class_temperature_scaling, parameterized_temperature_scaling
from calib_jax.calibrators.focal_temperature import focal_calibration, focal_temperature_scaling
from calib_jax.calibrators.linear import dirichlet, matrix_scaling, vector_scaling
from calib_jax.calibrators.meta import meta_calibration
from calib_jax.calibrators.one_vs_rest import histogram_binning, isotonic, platt
from calib_jax.calibrators.storage import load, save
from calib_jax.calibrators.temperature import temperature_scaling

CALIBRATORS: dict[str, Callable[..., Calibrator]] = {f.__name__: f for f in (
  identity, temperature_scaling, vector_scaling, matrix_scaling, dirichlet, ensemble_temperature_scaling,
  parameterized_temperature_scaling, class_temperature_scaling, focal_calibration, focal_temperature_scaling,
  meta_calibration, isotonic, histogram_binning, platt, classwise_loss_scaling)}

__all__ = ["CALIBRATORS", "Calibrator", "get", "load", "save", *CALIBRATORS]


def get(name: str, **options) -> Calibrator:
  """The calibrator called ``name`` with its options. ValueError for an unknown name.

  >>> get("temperature_scaling", objective="ece").fit(jnp.eye(2), jnp.array([0, 1]))["converged"]
  Array(True, dtype=bool)
  """
  checks.choice("calibrator name", name, CALIBRATORS)
  return CALIBRATORS[name](**options)
