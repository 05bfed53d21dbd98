"""Post-hoc calibrators, which have two functions: ``fit(logits, labels)`` and ``apply(params, logits)``.

>>> calibrator = temperature_scaling()
>>> held_out, labels = jnp.array([[3.0, 0.0], [0.0, 3.0], [3.0, 0.0]]), jnp.array([0, 1, 1])
>>> params = calibrator.fit(held_out, labels)
>>> log_probs = calibrator.apply(params, jnp.array([[2.0, 0.0]]))
>>> masked = calibrator.fit(held_out, labels, where=jnp.array([True, True, False]))
"""

from calib_jax._checks.registry import import_modules
from calib_jax.calibrators.base import CALIBRATORS, Calibrator, Fitted, get, identity
from calib_jax.calibrators.classwise import classwise_loss_scaling
from calib_jax.calibrators.covariate import covariate_temperature_scaling
from calib_jax.calibrators.ensemble import ensemble_temperature_scaling
from calib_jax.calibrators.exporting import export
from calib_jax.calibrators.flexible import class_temperature_scaling, parameterized_temperature_scaling
from calib_jax.calibrators.floor import probability_floor
from calib_jax.calibrators.focal_temperature import focal_calibration, focal_temperature_scaling
from calib_jax.calibrators.linear import dirichlet, matrix_scaling, vector_scaling
from calib_jax.calibrators.logistic import beta_calibration, platt, quadratic_scaling
from calib_jax.calibrators.logit_gap import smart
from calib_jax.calibrators.meta import meta_calibration
from calib_jax.calibrators.one_vs_rest import centered_isotonic, histogram_binning, isotonic
from calib_jax.calibrators.records import record_calibration
from calib_jax.calibrators.selection import Selection, caution, recommended, select
from calib_jax.calibrators.shift import label_shift
from calib_jax.calibrators.spline import spline_calibration
from calib_jax.calibrators.storage import load, save
from calib_jax.calibrators.structured import structured_matrix_scaling, structured_vector_scaling
from calib_jax.calibrators.temperature import temperature_scaling
from calib_jax.calibrators.venn import venn_abers

import_modules(__name__)  # A new file of this package registers what it holds.

__all__ = ["CALIBRATORS", "Calibrator", "Fitted", "Selection", "beta_calibration", "caution", "centered_isotonic",
           "class_temperature_scaling", "classwise_loss_scaling", "covariate_temperature_scaling", "dirichlet",
           "ensemble_temperature_scaling", "export", "focal_calibration", "focal_temperature_scaling", "get",
           "histogram_binning", "identity", "isotonic", "label_shift", "load", "matrix_scaling", "meta_calibration",
           "parameterized_temperature_scaling", "platt", "probability_floor", "quadratic_scaling", "recommended",
           "record_calibration", "save", "select", "smart", "spline_calibration", "structured_matrix_scaling",
           "structured_vector_scaling", "temperature_scaling", "vector_scaling", "venn_abers"]


def __dir__() -> list[str]:
  return sorted(__all__)
