"""Structured vector and matrix scaling: regressions around temperature scaling, with penalties that follow K and n."""

from calib_jax import _checks as checks
from calib_jax._numerics import structured_scaling
from calib_jax.calibrators.base import Calibrator, by_row, fit_by, has_params, register


@register
@has_params(temperature="(0, inf)", uniform_share="[0, 1)", scale="K (-inf, inf)", bias="K (-inf, inf)")
def structured_vector_scaling(*, intercept: float = 1.0, diagonal: float = 1.0) -> Calibrator:
  r"""Structured vector scaling (SVS): ``log softmax(x + v ⊙ x + b)``, regularised (Berta et al. 2026).

  Use it as vector scaling that few examples do not overfit.

  Temperature scaling by the NLL comes first. Its probabilities are mixed with the uniform distribution by the share
  1/(n + 1), where n is the number of fit examples, or the sum of their weights, and x is the logarithm of the mixture.
  A class that a row does not have keeps probability 0; its x counts as 0 in the scores of the others. Then v and b
  minimise

  .. math:: J(v, b) = \text{mean NLL} + \lambda_b \frac{K}{n} \|b\|^2 + \lambda_v \frac{K}{n} \|v\|^2

  The problem is convex and has one optimum, which L-BFGS reaches from 0, that is from temperature scaling. It may
  change accuracy.

  Args:
    intercept: λ_b, at least 0.
    diagonal: λ_v, at least 0.

  Returns:
    A calibrator whose params are ``temperature`` and ``uniform_share``, ``scale`` v and ``bias`` b ``[K]``,
    ``converged``, ``iterations``, ``gradient_norm``, in the solver's units, and ``at_bound``, of T.

  Raises:
    ValueError, TypeError: if an option is out of range or of another type.

  >>> calibrator = structured_vector_scaling()
  >>> params = calibrator.fit(jnp.array([[3.0, 0.0], [3.0, 0.0], [3.0, 0.0], [0.0, 3.0]]), jnp.array([0, 0, 1, 1]))
  >>> bool(params["converged"]), params["scale"].shape
  (True, (2,))
  """
  return _structured("structured_vector_scaling", intercept=intercept, diagonal=diagonal)


@register
@has_params(temperature="(0, inf)", uniform_share="[0, 1)", scale="K (-inf, inf)", bias="K (-inf, inf)",
        weights="K K (-inf, inf)")
def structured_matrix_scaling(*, intercept: float = 1.0, diagonal: float = 1.0,
                              off_diagonal: float = 1.0) -> Calibrator:
  r"""Structured matrix scaling (SMS): ``log softmax(x + (diag v + M) x + b)``, regularised (Berta et al. 2026).

  Use it as matrix scaling that few examples do not overfit; it is the most flexible of those recommended.

  It is ``structured_vector_scaling`` with a matrix M, whose diagonal is 0, and the further penalty

  .. math:: R(M) = \lambda_M \frac{K (K - 1)}{n} \|M\|^2

  Args:
    intercept: λ_b, at least 0.
    diagonal: λ_v, at least 0.
    off_diagonal: λ_M, at least 0.

  Returns:
    A calibrator with the params of ``structured_vector_scaling`` and ``weights`` M ``[K, K]``.

  Raises:
    ValueError, TypeError: if an option is out of range or of another type.

  >>> calibrator = structured_matrix_scaling()
  >>> params = calibrator.fit(jnp.array([[3.0, 0.0], [3.0, 0.0], [3.0, 0.0], [0.0, 3.0]]), jnp.array([0, 0, 1, 1]))
  >>> bool(params["converged"]), params["weights"].shape
  (True, (2, 2))
  """
  return _structured("structured_matrix_scaling", intercept=intercept, diagonal=diagonal, off_diagonal=off_diagonal)


def _structured(name: str, **penalties: float) -> Calibrator:
  checks.options(**{penalty: (value, "[0, inf)") for penalty, value in penalties.items()})
  fit = fit_by(structured_scaling.solve, of_counts=True, **penalties)
  return Calibrator(fit, by_row(structured_scaling.apply), name, penalties)
