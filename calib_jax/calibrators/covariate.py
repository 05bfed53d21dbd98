"""Temperature scaling whose temperature depends on what is known of an example, such as how many options it has."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax._numerics.lbfgs import minimize, shares
from calib_jax._numerics.softmax import pick, tempered, without_absent
from calib_jax._numerics.temperature import solve_nll
from calib_jax._system import compilation
from calib_jax.calibrators.base import (
  Calibrator,
  by_row,
  fit_batch,
  fit_by,
  has_params,
  keep_top,
  refuse_traced,
  register,
)
from calib_jax.intervals.groups import standard_error, stratified_folds

Array = jax.Array
RIDGES = (1.0, 10.0, 100.0)
FOLDS = 5


@register
@has_params(log_temperature="(-inf, inf)", slopes="D (-inf, inf)", centers="D (-inf, inf)", scales="D (0, inf)")
def covariate_temperature_scaling(columns: str | Sequence[str] = "") -> Calibrator:
  r"""A temperature by covariates: ``log softmax(z / T)`` with :math:`\log T = a + b \cdot x`.

  Use it where some kinds of examples are more overconfident than others, and the kind is a number: questions of many
  options, or long texts.

  .. math::
    J(a, b) = \frac{1}{n} \sum_i -\log \mathrm{softmax}(z_i / T_i)_{y_i} + \frac{\lambda}{2n} \|b\|^2

  is minimised, with x the ``D`` covariates, minus their mean and divided by their standard deviation. Of
  :math:`\lambda` 1, 10 and 100, five folds select the one of the smallest log loss; where that is not below the log
  loss of one temperature by more than a standard error of the difference, b is 0. Where one temperature was right, b
  was not 0 in 3 to 5% of 100 and 200 simulated data sets of 100, 400 and 2,000 examples with two covariates. The
  accuracy stays, and the order of examples may change.

  ``fit(logits, labels, covariates=x)`` and ``apply(params, logits, x)`` take x ``[N, D]`` beside logits ``[N, K]``, and
  ``fit`` optional ``groups`` ``[N]``, integers: rows of one value depend on each other, and are in one fold.
  ``export(fitted, "numpy")`` writes ``calibrate(logits, covariates)``.

  Args:
    columns: the names of the covariates, in their order, or one text of names joined by "+". ``calib-jax evaluate``
      finds them in files: ``options``, ``log(options)`` for its logarithm, ``language=de`` for 1 where the text is
      ``de`` and 0 elsewhere, and ``language`` for all of these. Without any it is ``temperature_scaling``.

  Returns:
    A calibrator whose params are ``log_temperature``, a; ``slopes``, b; the ``centers`` and ``scales`` of x; and
    ``penalty``, the selected λ, 0 where b is 0.

  Raises:
    TypeError, ValueError: for covariates that are missing, not finite, or of a wrong shape.

  >>> rng = np.random.default_rng(0)
  >>> x, z = rng.uniform(0, 2, (1000, 1)), rng.normal(size=(1000, 3))
  >>> labels = (2 * z + rng.gumbel(size=z.shape)).argmax(1)
  >>> calibrator = covariate_temperature_scaling(("length",))
  >>> params = calibrator.fit(2 * z * np.exp(x), labels, covariates=x)  # Logits that grow with x.
  >>> bool(abs(params["slopes"] / params["scales"] - 1)[0] < 0.2)
  True
  """
  columns = names(columns)
  if not columns:
    return Calibrator(fit_by(_of_one, of_counts=True), by_row(_apply), "covariate_temperature_scaling", {"columns": ""})

  def fit(logits, labels, *, covariates: ArrayLike | None = None, where=None, weights=None, groups=None):
    refuse_traced("covariate_temperature_scaling", logits, labels, where, weights)
    rows, labels, weights = fit_batch(logits, labels, where, weights)
    x = _checked(columns, covariates, len(labels))
    return _selected(rows, labels, np.asarray(weights, np.float64), x, groups)

  def apply(params, logits, covariates: ArrayLike | None = None):
    logits = checks.floating(logits, "logits")
    x = (_checked(columns, covariates, logits.shape[0]) - params["centers"][None]) / params["scales"][None]
    return _compiled_apply(params, without_absent(logits), x.astype(logits.dtype))

  return Calibrator(fit, apply, "covariate_temperature_scaling", {"columns": "+".join(columns)})


def names(columns: str | Sequence[str]) -> tuple[str, ...]:
  """The names of covariates, which may be one text of names joined by "+"."""
  return tuple(filter(None, columns.split("+") if isinstance(columns, str) else columns))


def _checked(columns: Sequence[str], covariates: ArrayLike | None, count: int) -> np.ndarray | Array:
  if covariates is None:
    raise TypeError(f"covariate_temperature_scaling needs the covariates {', '.join(columns)}, [N, {len(columns)}]: "
                    "pass them to fit(…, covariates=x) and apply(params, logits, x).")
  x = covariates if checks.is_traced(covariates) else np.asarray(covariates, np.float32)
  if x.shape != (count, len(columns)):
    raise ValueError(f"covariates must have the shape {(count, len(columns))}: got {x.shape}.")
  if not checks.is_traced(x) and not np.isfinite(x).all():
    raise ValueError(f"covariates must be finite: {columns[int((~np.isfinite(x)).any(0).argmax())]} is not.")
  return x


def _of_one(logits: Array, labels: Array, weights: Array) -> dict[str, Array]:
  params = solve_nll(logits, labels, shares(weights, logits.dtype), jnp.sum(weights, dtype=logits.dtype))
  none = jnp.zeros(0, logits.dtype)
  return {"log_temperature": jnp.log(params.pop("temperature")), "slopes": none, "centers": none, "scales": none,
          **params}


def _selected(logits: Array, labels: Array, weights: np.ndarray, x: np.ndarray, groups: ArrayLike | None
              ) -> dict[str, Any]:
  """The params with the λ that folds select."""
  centers = np.average(x, axis=0, weights=weights)
  scales = np.sqrt(np.average((x - centers) ** 2, axis=0, weights=weights))
  scales = np.where(scales > 1e-6 * np.maximum(np.abs(centers), 1), scales, 1).astype(np.float32)
  x = jnp.asarray((x - centers.astype(np.float32)) / scales)
  solve = compilation.sized(_solve, logits.size)

  def losses(params):
    return np.asarray(_losses(logits, labels, params["log_temperature"] + x @ params["slopes"]), np.float64)

  def fitted(counts, ridge):
    return solve(logits, labels, jnp.asarray(counts, jnp.float32), x, jnp.float32(ridge))

  counted, penalty = weights > 0, 0.0
  groups = None if groups is None else np.asarray(groups)
  units = counted.sum() if groups is None else len(np.unique(groups[counted]))
  if units >= FOLDS:
    fold = stratified_folds(np.asarray(labels), FOLDS, groups)
    by_ridge = np.zeros((1 + len(RIDGES), len(weights)))
    for k in range(FOLDS):
      for i, ridge in enumerate((np.inf, *RIDGES)):
        by_ridge[i, fold == k] = losses(fitted(weights * (fold != k), ridge))[fold == k]
    best = int(np.average(by_ridge, axis=1, weights=weights).argmin())
    gain = (by_ridge[0] - by_ridge[best])[counted]
    own = weights[counted]
    error = standard_error(gain, None if groups is None else groups[counted], None if np.ptp(own) == 0 else own)
    penalty = RIDGES[best - 1] if best and np.average(gain, weights=own) > error else 0.0
  params = fitted(weights, penalty or np.inf)
  return params | {"centers": jnp.asarray(centers, jnp.float32), "scales": jnp.asarray(scales),
                   "penalty": jnp.float32(penalty)}


def _solve(logits: Array, labels: Array, weights: Array, x: Array, ridge: Array) -> dict[str, Array]:
  """The minimum with standardised covariates; an infinite ``ridge`` is that of one temperature."""
  share, total = shares(weights, logits.dtype), jnp.sum(weights)
  one = solve_nll(logits, labels, share, total)
  start = {"log_temperature": jnp.log(one["temperature"]), "slopes": jnp.zeros(x.shape[1], logits.dtype)}
  free = jnp.isfinite(ridge)

  def value(params):
    slopes = jnp.where(free, params["slopes"], 0)
    loss = jnp.sum(share * _losses(logits, labels, params["log_temperature"] + x @ slopes))
    return loss + jnp.where(free, ridge, 0) * jnp.sum(slopes**2) / (2 * jnp.maximum(total, 1))

  params, status = minimize(value, start)
  params = jax.tree.map(lambda many, first: jnp.where(free, many, first), params, start)
  return params | {"converged": jnp.where(free, status["converged"], one["converged"]),
                   "iterations": status["iterations"], "at_bound": one["at_bound"]}


def _losses(logits: Array, labels: Array, log_temperature: Array) -> Array:
  return -pick(jax.nn.log_softmax(tempered(logits, jnp.exp(log_temperature)[:, None])), labels)


def _apply(params: dict, logits: Array) -> Array:
  return keep_top(jax.nn.log_softmax(tempered(logits, jnp.exp(params["log_temperature"]))), logits)


@jax.jit
def _compiled_apply(params: dict, logits: Array, x: Array) -> Array:
  temperature = jnp.exp(params["log_temperature"] + x @ params["slopes"])
  return keep_top(jax.nn.log_softmax(tempered(logits, temperature[:, None])), logits)
